"""Rules for the default model and precision of a run: a table of what was measured.

Of the rules that apply, the first in RULES is taken. A rule of half precision is here only if trained runs
show that it costs no perplexity (results/runs.csv). Some rules cover more than was measured: their comment
has the reason, and the sentence that a user reads (fastest.py) names what was not measured.
"""

from collections.abc import Collection
from dataclasses import dataclass

from ptb_lm.model import cells
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

# What a machine may have, as the function `examine` of a framework finds it.
BFLOAT16 = "bfloat16"  # fast products in bfloat16: AMX, AVX512_BF16, or compute capability 8.0
KERNELS = "kernels"  # our own compiled kernels run a layer, in bfloat16 too if there is BFLOAT16
HOPPER = "hopper"  # a GPU of compute capability 9.0, such as an H100
FEATURES = (BFLOAT16, KERNELS, HOPPER)

SAFE_PRECISION = "fp32"
MEASURED_CORES = 2  # of the processors on which the rules for CPUs were measured


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The facts of a model's device that rules ask for.

    Attributes:
        device: "cpu" or "cuda"; "" if the framework cannot tell.
        name: Words for people, such as "a CPU with AVX512_BF16".
        features: Names in FEATURES.
        cores: Cores that compute on a CPU.
    """

    device: str
    name: str
    features: frozenset[str] = frozenset()
    cores: int = MEASURED_CORES


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A row of RULES: a model and a precision, and when they are the fastest that was measured.

    Attributes:
        framework: Name of the framework.
        device: "cpu" or "cuda".
        model: Model that is taken.
        precision: Precision that is taken.
        required_features: Features that the machine must have.
        cell: Name of the cell.
        widths: Smallest and largest width of the widest layer.
        widest_measured: Largest width that was measured.
        max_batch: Largest number of rows.
        executions: Executions that were measured, with those that mean the same.
        max_processes: Largest number of processes and devices.
        variant: Name of the benchmark's variant that was measured.
        evidence: (file in results/bench, workload) of each measurement; there no variant that the rule could
            have taken instead is faster, by its 95 % interval, except in `faster_precision`.
        runs: Names of runs in results/runs.csv in this precision, if it rounds. Each has a counterpart in
            float32 with the same hyper-parameters, whose perplexity is lower by no more than chance explains.
        faster_precision: One that is faster where there is BFLOAT16, and is not taken, because no runs show
            what it costs in perplexity; "" if there is none.
    """

    framework: str = "torch"
    device: str = "cpu"
    model: str
    precision: str = SAFE_PRECISION
    required_features: frozenset[str] = frozenset()
    cell: str = cells.LSTM
    widths: tuple[int, int] = (200, 1 << 30)
    widest_measured: int = 1500
    max_batch: int = 1 << 30
    executions: tuple[str, ...] = ("auto", "eager")
    max_processes: int = 1 << 30
    variant: str
    evidence: tuple[tuple[str, str], ...]
    runs: tuple[str, ...] = ()
    faster_precision: str = ""

    def applies(
        self, choice: Choice, config: Config, machine: MachineFacts, *, fixed: Collection[str], processes: int
    ) -> bool:
        """Return whether the rule is about this model on this machine.

        Args:
            choice: Choices, of which those in `fixed` are the user's.
            config: Hyper-parameters.
            machine: Device that computes.
            fixed: Names in AUTO_CHOICES that a flag has given.
            processes: Number of processes or devices.
        """
        smallest, largest = self.widths
        return (
            (self.framework, self.device, self.cell) == (choice.framework, machine.device, config.cell)
            and all(getattr(self, name) == getattr(choice, name) for name in fixed)
            and choice.execution in self.executions
            and choice.unroll == choice.framework_row.unrolls[0]
            and self.required_features <= machine.features
            and smallest <= max(config.hidden_sizes) <= largest
            and config.batch_size <= self.max_batch
            and processes <= self.max_processes
        )


_IN_BFLOAT16 = (
    *(
        (file, workload)
        for file in ("ptb-cpu", "precisions-cpu", "precisions-xeon-cpu")
        for workload in ("small", "medium")
    ),
    *((f"{workload}-cpu", workload) for workload in ("awd", "awd-2x650")),
)
_IN_FLOAT32 = (
    *(
        (file, workload)
        for file in ("ptb-cpu", "ptb-xeon-cpu", "precisions-xeon-without-amx-cpu")
        for workload in ("small", "medium")
    ),
    *((f"ptb-default-recipe{xeon}-cpu", "medium-default-recipe") for xeon in ("", "-xeon")),
    *((f"ptb-large{xeon}-cpu", "large") for xeon in ("", "-xeon")),
)
_RUNS_IN_BFLOAT16 = (
    *(f"small-{recipe}-bf16-seed-{seed}-cpu" for recipe in ("default", "tutorial") for seed in (1, 2, 3)),
    "medium-30-epochs-block_fused-bf16-cpu",
)

RULES: tuple[Rule, ...] = (
    # Beyond what was measured: bfloat16 speeds up products, which are a larger part of a step in wider
    # layers. More cores or processes share the same products. Processes send their gradients in float32.
    Rule(
        model="block_fused",
        precision="bf16",
        required_features=frozenset({BFLOAT16, KERNELS}),
        widest_measured=1150,
        variant="torch/block_fused@bf16",
        evidence=_IN_BFLOAT16,
        runs=_RUNS_IN_BFLOAT16,
    ),
    Rule(
        model="cudnn",
        precision="bf16",
        required_features=frozenset({BFLOAT16, KERNELS}),
        widest_measured=1150,
        variant="torch/cudnn@bf16",
        evidence=_IN_BFLOAT16,
        runs=_RUNS_IN_BFLOAT16,  # of block_fused, which rounds the same numbers
    ),
    # cudnn is as fast or slower, by the intervals; on most processors the median of block_fused is the
    # better one. With more cores or processes both compute the same products, and both wait for others as
    # often.
    Rule(
        model="block_fused",
        required_features=frozenset({KERNELS}),
        variant="torch/block_fused",
        evidence=(*_IN_FLOAT32, *_IN_BFLOAT16),
    ),
    Rule(
        model="cudnn",
        cell="gru",
        required_features=frozenset({KERNELS}),
        widest_measured=200,
        variant="torch/cudnn",
        evidence=(("cells-cpu", "small-gru"), ("cells-xeon-cpu", "small-gru")),
    ),
    Rule(
        model="block_fused",
        cell="mogrifier_lstm",
        required_features=frozenset({KERNELS}),
        widest_measured=650,
        variant="torch/block_fused",
        evidence=tuple(("mogrifier-cpu", f"medium-mogrifier_lstm{rank}") for rank in ("", "-rank-84")),
        faster_precision="bf16",
    ),
    # The largest width and batch are those of cuDNN's persistent kernel.
    Rule(
        device="cuda",
        model="persistent",
        precision="fp16",
        required_features=frozenset({HOPPER}),
        widths=(650, 1024),
        widest_measured=650,
        max_batch=128,
        executions=("auto", "graph"),
        max_processes=1,
        variant="torch/persistent/graph@fp16",
        evidence=(("peak-cuda", "medium"), ("peak-h200-cuda", "medium")),
        runs=tuple(f"medium-30-epochs-seed-{seed}-persistent-fp16-cuda" for seed in (2, 3)),
    ),
    Rule(
        framework="tensorflow",
        model="block_fused",
        executions=("graph",),
        variant="tensorflow/block_fused",
        evidence=(
            *((file, workload) for file in ("ptb-cpu", "ptb-xeon-cpu") for workload in ("small", "medium")),
            *((f"ptb-default-recipe{xeon}-cpu", "medium-default-recipe") for xeon in ("", "-xeon")),
            *((f"ptb-word-language-model{xeon}-cpu", "word_language_model") for xeon in ("", "-xeon")),
        ),
    ),
)
