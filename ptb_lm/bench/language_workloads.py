"""The workloads of the suites that model language: quick, ptb, executions, cells, scaling, peak.

Sizes and protocols are those of the tables that a suite makes again; benchmarks/published has the figures.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from ptb_lm.bench.variants import Variant, name_variants
from ptb_lm.bench.workloads import LanguageTask, Workload
from ptb_lm.model import cells
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, RECIPES

PTB_VOCABULARY = 10_000
PLAIN_TORCH, PLAIN_TENSORFLOW = "plain-torch/cudnn", "plain-tensorflow/keras"

# The models that both frameworks have, and their labels in tables.
_MODELS = {
    "torch/basic": "PyTorch basic",
    "torch/block": "PyTorch block (LSTMCell)",
    "torch/block_fused": "PyTorch block_fused",
    "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
    "tensorflow/basic": "TensorFlow basic",
    "tensorflow/block": "TensorFlow block (LSTMBlockCell)",
    "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
    "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
}
# The loop that people write, and what they add to make it faster.
_PLAIN_TORCH = {
    PLAIN_TORCH: "the plain loop in PyTorch",
    f"{PLAIN_TORCH}/compile": "the plain loop in PyTorch, torch.compile",
    f"{PLAIN_TORCH}-kept-memory": "the plain loop in PyTorch, freed memory kept",
}
_LABELS = {
    **_MODELS,
    **_PLAIN_TORCH,
    PLAIN_TENSORFLOW: "the plain loop in Keras",
    "tensorflow/basic/xla": "TensorFlow basic, XLA",
    "torch/cudnn/eager": "PyTorch cudnn, eager",
    "torch/cudnn/graph": "PyTorch cudnn, CUDA graph",
    "torch/persistent/graph": "PyTorch persistent, CUDA graph",
    "torch/block_fused/graph": "PyTorch block_fused, CUDA graph",
    "outer-torch/cudnn/compile": "PyTorch cudnn, torch.compile of the whole step",
}


def labelled(*names: str) -> tuple[Variant, ...]:
    """Return variants by name, with the labels that they have in every suite; in any precision."""
    return tuple(Variant(name, _LABELS[Variant(name).base]) for name in names)


MODELS = labelled(*_MODELS)


_ptb_task = functools.partial(LanguageTask, vocabulary_size=PTB_VOCABULARY)


def _preset(name: str, **measured: Any) -> Workload:
    return Workload(name=name, task=_ptb_task(config=PRESETS[name]), **measured)


_WORD_LANGUAGE_MODEL = Workload(
    # The 1500-unit model of pytorch/examples' word_language_model, on a vocabulary of 35,000.
    name="word_language_model",
    task=LanguageTask(
        config=PRESETS["large"].replace(max_grad_norm=0.25, learning_rate=20.0), vocabulary_size=35_000
    ),
    variants=labelled(PLAIN_TORCH, "torch/cudnn", "tensorflow/block_fused", "tensorflow/cudnn"),
    baseline=PLAIN_TORCH,
)

# What `python -m ptb_lm.train --config medium` trains: other masks, which plain loops do not have.
_MEDIUM_BY_DEFAULT = Workload(
    name="medium-default-recipe",
    task=_ptb_task(config=RECIPES["default"]["medium"]),
    variants=MODELS,
    baseline="torch/basic",
)

PTB = (
    _preset(
        "small",
        # outer-torch is here alone: it has no dropout, and 20 steps of two layers keep a compiler busy.
        variants=labelled(*_PLAIN_TORCH, PLAIN_TENSORFLOW, *_MODELS, "outer-torch/cudnn/compile"),
        baseline="torch/basic",
    ),
    _preset("medium", variants=labelled(*_PLAIN_TORCH, PLAIN_TENSORFLOW, *_MODELS), baseline="torch/basic"),
    _MEDIUM_BY_DEFAULT,
    _preset(
        "large", variants=labelled(*_PLAIN_TORCH, *_MODELS, "tensorflow/basic/xla"), baseline="torch/basic"
    ),
    _WORD_LANGUAGE_MODEL,
)

QUICK = (
    _preset(
        "small",
        variants=labelled(
            *(PLAIN_TORCH, "torch/basic", "torch/block", "torch/block_fused", "torch/cudnn"),
            "tensorflow/block_fused",
        ),
        baseline=PLAIN_TORCH,
        minutes=4.5,  # and half a minute for what comes before and after
    ),
)


def _every_execution(framework: str) -> Iterator[Variant]:
    """Yield every model × execution × unroll of a framework, except "auto", which is one of the others."""
    row = FRAMEWORKS[framework]
    for model in row.models:
        options = row.options(model)
        for execution, unroll in itertools.product(options["execution"], options["unroll"]):
            parts = [framework, model, execution, unroll]
            if unroll == row.unrolls[0]:
                parts.pop()
                if execution == row.executions[0]:
                    parts.pop()
            elif execution == "eager":  # which has no graph to unroll into
                continue
            if execution != "auto":
                yield Variant("/".join(parts), "/".join(parts))


_EVERY = (
    *(Variant(plain, plain) for plain in (*_PLAIN_TORCH, PLAIN_TENSORFLOW)),
    *_every_execution("torch"),
    *_every_execution("tensorflow"),
)
EXECUTIONS = tuple(
    _preset(name, variants=_EVERY, baseline=PLAIN_TORCH, measured_twice="torch/cudnn/eager")
    for name in ("small", "medium")
)


def _cell_workload(cell: str) -> Workload:
    """Return small with another cell, by all that compute it."""
    computed = cells.CELLS[cell].layers.items()
    names = [f"{framework}/{model}" for framework, models in computed for model in models]
    return Workload(
        name="small" if cell == cells.LSTM else f"small-{cell}",
        task=_ptb_task(config=PRESETS["small"].replace(cell=cell)),
        variants=tuple(Variant(name, name) for name in names if not name.endswith("/persistent")),
        baseline="torch/basic",
        measured_twice="torch/basic",  # which computes every cell
    )


CELLS = tuple(map(_cell_workload, cells.CELLS))

_TORCH = ("basic", "block", "block_fused", "cudnn")


def _shared_by(preset: str, batch_size: int, processes: tuple[int, ...]) -> Workload:
    """Return a preset as each number of processes trains it; another batch has another name."""
    frameworks = {1: "torch", **{count: f"torch-{count}-processes" for count in processes}}
    labels = {
        f"{framework}/{model}": f"{model}, {count} process{'es' * (count > 1)}"
        for model in _TORCH
        for count, framework in frameworks.items()
    }
    is_usual = batch_size == PRESETS[preset].batch_size
    return Workload(
        name=preset if is_usual else f"{preset}-batch-{batch_size}",
        task=_ptb_task(config=PRESETS[preset].replace(batch_size=batch_size)),
        variants=name_variants(labels),
        baseline="torch/cudnn",
    )


# Strong scaling: the preset's batch of 20 is shared. With the larger batches each process has 20 rows.
SCALING = tuple(
    _shared_by(preset, batch_size, processes)
    for preset in ("small", "medium")
    for batch_size, processes in ((20, (2, 4)), (40, (2,)), (80, (4,)))
)

# Three layers of 256 units on a vocabulary of 10,001, as in a published comparison (the suite stacked-lm).
STACKED_TASK = LanguageTask(
    config=Config(num_layers=3, hidden_size=256, embedding_size=128, num_steps=50, batch_size=128),
    vocabulary_size=10_001,
)

# The fastest variants that there are, and the plain loop in TF32.
_PEAK: dict[str, Any] = {
    "variants": (
        *labelled(
            "plain-torch/cudnn@tf32",
            "plain-torch/cudnn@bf16",
            "torch/cudnn/eager@fp32",
            "torch/cudnn/graph@fp32",
            "torch/cudnn/graph@tf32",
            "torch/cudnn/graph@bf16",
            "torch/cudnn/graph@fp16",
            "torch/persistent/graph@fp16",
            "torch/block_fused/graph@tf32",
        ),
        Variant("tensorflow/cudnn", "TensorFlow cudnn (CudnnRNNV3)"),
    ),
    "baseline": "plain-torch/cudnn@tf32",
    "measured_twice": "torch/cudnn/graph@tf32",
    "warm_up_steps": 10,
    "needs_cuda": "the suite peak compares what only a CUDA device has: TF32 and CUDA graphs",
}
PEAK = (
    _preset("medium", **_PEAK),
    _preset("large", **_PEAK),
    # By another name than stacked-lm's, whose published figures are of sequences.
    Workload(name="3x256-words", task=STACKED_TASK, min_steps=5, **_PEAK),
)
