"""The results that scripts/reproduce makes, each with its commands, as one would type them.

DEVICE stands for cpu or cuda, COMMIT for the short hash of the code's commit. The flags of a training are
those of python -m ptb_lm.train, the arguments of a suite those of python -m ptb_lm.bench run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ptb_lm.results import suites_of_a_cpu, trainings
from ptb_lm.results.steps import Python, Step, Suite, Train, absent
from ptb_lm.results.uses_of_a_run import uses


@dataclass(frozen=True)
class Result:
    """What may be asked for by name.

    Attributes:
        text: What it is, for --help.
        steps: What is run for it, in this order.
    """

    text: str
    steps: tuple[Step, ...]


def _result(text: str, *steps: Step | Iterable[Step]) -> Result:
    return Result(text, tuple(_flat(steps)))


def _flat(steps: Iterable[Step | Iterable[Step]]) -> Iterator[Step]:
    for step in steps:
        if isinstance(step, Step):
            yield step
        else:
            yield from step


def _templates() -> Iterator[Python]:
    program = "examples/sequence_classification.py"
    for framework in ("torch", "tensorflow"):
        for model in ("basic", "block", "block_fused", "cudnn"):
            name = f"{framework}-{model}-DEVICE"
            yield Python(
                f"{program} --framework {framework} --model {model} --device DEVICE "
                f"--log-dir checkpoints/template-{name}",
                needs="tensorflow" if framework == "tensorflow" else "sklearn",
                stdout=f"results/template-{name}/log.txt",
            )


def _profiles(config: str) -> Iterator[Python]:
    for variant in ("plain-torch/cudnn", "torch/cudnn", "torch/block_fused"):
        out = f"results/profile-{config}-{variant.replace('/', '-')}-DEVICE"
        flags = f"--config {config} --recipe tutorial --device DEVICE --out {out}"
        yield Python(f"-m ptb_lm.bench.studies profile {variant} {flags}")


RESULTS = {
    "small": _result("a full run of small on Penn Treebank", trainings.cudnn("small", "--config small")),
    "medium": _result("a full run of medium", trainings.cudnn("medium", "--config medium")),
    "large": _result("a full run of large", trainings.cudnn("large", "--config large")),
    "small-tutorial": _result(
        "small as TensorFlow's tutorial trains it",
        trainings.cudnn("small-tutorial", "--config small --recipe tutorial"),
    ),
    "medium-tutorial": _result(
        "medium as the tutorial trains it",
        trainings.cudnn("medium-tutorial", "--config medium --recipe tutorial"),
    ),
    "large-tutorial": _result(
        "large as the tutorial trains it",
        trainings.cudnn("large-tutorial", "--config large --recipe tutorial"),
    ),
    "medium-seeds": _result(
        "medium with three seeds, by the fastest model",
        trainings.fastest("medium", "--config medium"),  # whatever made medium: the three are one row
        trainings.fastest("medium-seed-2", "--config medium --seed 2"),
        trainings.fastest("medium-seed-3", "--config medium --seed 3"),
    ),
    "medium-choice": _result(
        "the runs that medium's default was chosen from by validation", trainings.choice_of_medium()
    ),
    "large-variations": _result(
        "large with another schedule, and with another bound on the gradient",
        trainings.variations_of_large(),
    ),
    "medium-tied": _result(
        "medium with tied weights", trainings.cudnn("medium-tied", "--config medium --tie-weights")
    ),
    "medium-precisions": _result(
        "medium in tf32, bf16 and fp16 on a GPU: what a precision costs in perplexity, beside medium",
        (
            trainings.cudnn(f"medium-{name}", f"--config medium --precision {name}", on="cuda")
            for name in ("tf32", "bf16", "fp16")
        ),
    ),
    "small-precisions": _result(
        "small by both recipes in fp32 and bf16, three seeds each: whether precisions differ more than seeds",
        (
            trainings.small_by(recipe, precision, seed)
            for seed in (1, 2, 3)
            for recipe in ("default", "tutorial")
            for precision in ("fp32", "bf16")
        ),
    ),
    "race": _result(
        "test perplexity 78.3 in as few seconds as possible, a run of its own for each commit; if it counts, "
        'it is a row of results/records.md, where WHAT="..." says what changed',
        trainings.race("race", "", what="the preset race"),
    ),
    # Tied weights need fewer epochs to the same perplexity.
    "race-tied": _result(
        "the same with tied weights, in fewer epochs",
        trainings.race(
            "race-tied",
            "--tie-weights --epochs 14 --decay-after 9 --lr-decay 0.7",
            what="tied weights, in 14 epochs",
        ),
    ),
    "ablation": _result(
        "from the tutorial's recipe of medium to the default, one thing after the other, each with and "
        "without the weights' average",
        trainings.ablation_of_medium(),
    ),
    "ablation-small": _result(
        "the same for small, with milder dropout; small's default recipe has the average only",
        trainings.ablation_of_small(),
    ),
    "parity": _result(
        "one epoch of small with each model",
        (
            Train(
                f"small-1-epoch-{model}-DEVICE",
                f"--model {model} --config small --recipe tutorial --epochs 1",
            )
            for model in ("cudnn", "block", "basic")
        ),
        Train(
            "small-1-epoch-tensorflow-block_fused-DEVICE",
            "--framework tensorflow --model block_fused --config small --recipe tutorial --epochs 1",
            needs="tensorflow",
        ),
    ),
    "bench": _result(
        "the tables of the benchmark's suites; on a CPU in parts, without what takes a minute a step",
        Suite("bench-quick-DEVICE", "quick"),
        (
            Suite(f"bench-{name}-cuda", name, on="cuda")
            for name in (
                *("peak", "ptb", "executions", "stacked-lm", "cells", "acoustic", "semantics", "template"),
            )
        ),
        suites_of_a_cpu.tables(),
    ),
    "bench-again": _result(
        "the suite quick a second time, and whether all of its ratios agree with the first",
        Suite("bench-quick-again-DEVICE", "quick"),
        Python(
            "-m ptb_lm.bench compare results/bench-quick-DEVICE results/bench-quick-again-DEVICE",
            stdout="results/bench-quick-again-DEVICE/comparison.md",
        ),
    ),
    "gate": _result(
        "how far the implementations are from the NumPy reference; nothing is timed. Left out: Keras on "
        "torch, several processes, the deep acoustic networks, and the steps without one optimisation",
        (
            Python(
                f"-m ptb_lm.bench check {asked} --device DEVICE --out results/gate-DEVICE/{name}.md",
                by_itself=True,
            )
            for name, asked in suites_of_a_cpu.GATE.items()
        ),
    ),
    "bench-coverage": _result(
        "a program compared with itself twenty times: how many 95 % intervals contain 1",
        Suite(
            "bench-coverage-DEVICE",
            "quick --variants torch/cudnn 'torch/cudnn#again' --baseline torch/cudnn --rounds 100 "
            "--processes 100",
        ),
        Python(
            "-m ptb_lm.bench.studies coverage results/bench-coverage-DEVICE",
            stdout="results/bench-coverage-DEVICE/coverage.md",
        ),
    ),
    "template": _result(
        "accuracy and ROC AUC of the example that classifies sequences, with each cell of both frameworks",
        _templates(),
    ),
    "cpu-speed": _result(
        "small and medium on a CPU in fp32 and bf16, beside plain loops and the step before there were "
        "kernels; and how much a busy process slows a training down",
        suites_of_a_cpu.precisions(),
        Python(
            "-m ptb_lm.bench.studies contention --config medium --precision bf16 "
            "--out results/contention-medium-cpu",
            on="cpu",
        ),
    ),
    "cpu-speed-float32": _result(
        "small and medium in fp32 on a CPU that does not multiply in bfloat16, beside plain loops, the step "
        "before there were kernels, and the step without them",
        suites_of_a_cpu.float32(),
    ),
    "scaling": _result(
        "how fast 2 processes train on a CPU, compared with one (docs/scaling.md)", suites_of_a_cpu.scaling()
    ),
    "optimisations": _result(
        "what each optimisation is worth, for docs/performance.md",
        suites_of_a_cpu.optimisations("small"),
        suites_of_a_cpu.optimisations("medium"),
    ),
    "profile": _result(
        "where a step's time goes",
        _profiles("small"),
        _profiles("medium"),
        Python(
            "-m ptb_lm.bench.studies profile torch/persistent --config medium --precision fp16 --device cuda "
            "--out results/profile-medium-torch-persistent-fp16-cuda",
            on="cuda",
        ),
    ),
    "adaptation": _result(
        "small and medium while they adapt to the text: by a cache, and by dynamic evaluation and a cache",
        trainings.adaptations("small"),
        trainings.adaptations("medium"),
        Python("-m ptb_lm.results adaptation"),
    ),
    "using": _result(
        "each command that uses a trained run, on small: what it prints",
        uses("using-small-DEVICE", trainings.small_by("default", "fp32", 1)),
    ),
    "scoring": _result(
        "how much faster sentences are scored side by side than one after the other, on a CPU",
        (
            Python(
                f"-m ptb_lm.bench.studies scoring --config medium --precision {precision} "
                f"--out results/scoring-medium-{precision}-cpu",
                on="cpu",
            )
            for precision in ("fp32", "bf16")
        ),
    ),
    "gpu-tests": _result("the tests that need a CUDA device", Python("-m pytest -m gpu")),
}

_EVERYWHERE = (
    *("profile", "bench", "bench-coverage", "template"),
    *("small", "medium", "large", "medium-tied", "medium-seeds", "adaptation", "using"),
    *("small-tutorial", "medium-tutorial", "large-tutorial", "ablation", "ablation-small", "parity"),
)
# What `all` is.
ALL = {
    "cpu": ("optimisations", "cpu-speed", *_EVERYWHERE, "scoring", "scaling"),
    "cuda": ("gpu-tests", *_EVERYWHERE, "medium-precisions", "race"),
}


def results_of(names: Iterable[str], device: str) -> list[str]:
    """Return the results for some names, of which "all" is one, each once."""
    meant = [each for name in names for each in (ALL[device] if name == "all" else [name])]
    return list(dict.fromkeys(meant))


def steps_of(name: str, device: str) -> list[Step]:
    """Return the steps that make a result on this machine."""
    return [step for step in _steps_for(name, device) if not absent(step)]


def left_out_of(name: str, device: str) -> list[Step]:
    """Return the steps that would make more of a result on this machine, if what they need were installed."""
    return [step for step in _steps_for(name, device) if absent(step)]


def _steps_for(name: str, device: str) -> list[Step]:
    return [step for step in RESULTS[name].steps if step.on in ("", device)]
