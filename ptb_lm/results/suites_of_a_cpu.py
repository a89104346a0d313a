"""The suites of the benchmark as they are measured on a CPU, for plan.py: each in minutes on two cores.

What no document quotes is left out, and so is what takes a minute a step. A variant has five processes,
each its own sample of what a process draws once; of the deepest networks there are three, which is the fewest
that make an interval of processes.
"""

from collections.abc import Iterator, Mapping

from ptb_lm.results.steps import Suite

# Of the tables of published figures, and the plain loops beside them.
_PUBLISHED = "plain-torch/cudnn plain-tensorflow/keras 'torch/*' 'tensorflow/*' 'outer-torch/*'"
_TWICE = "torch/cudnn torch/cudnn#again"  # the A/A test
_DEEP = "--rounds 3 --processes 3 --row-limit 60 --baseline torch/block_fused --variants torch/block_fused"
_BEFORE = {"before-cudnn": "before:cudnn", "before-block_fused": "before:block_fused"}
_TABLES: Mapping[str, str] = {
    "ptb": f"ptb --workloads small medium --row-limit 15 --variants {_PUBLISHED}",
    "ptb-default-recipe": "ptb --workloads medium-default-recipe --row-limit 15 "
    "--variants 'torch/*' tensorflow/block_fused",
    "ptb-large": "ptb --workloads large --row-limit 20 "
    f"--variants plain-torch/cudnn torch/basic torch/block_fused {_TWICE} 'tensorflow/basic*' "
    "tensorflow/cudnn",
    "ptb-word-language-model": "ptb --workloads word_language_model --row-limit 20",
    "semantics": "semantics --row-limit 20",
    "acoustic-short": "acoustic --workloads '*-short' --row-limit 10",
    "acoustic-long": "acoustic --workloads '1x320-CE-long' --row-limit 20 "
    "--variants 'torch/*' 'tensorflow/*' 'keras-tensorflow/*' 'keras-jax/*'",
    "acoustic-pytensor": "acoustic --workloads 1x320-CE-long --row-limit 20 --baseline torch/cudnn "
    f"--variants {_TWICE} torch/block_fused pytensor/scan",
    "acoustic-deep": f"acoustic --workloads 4x320-CE-long {_DEEP} {_TWICE} tensorflow/block_fused",
    "acoustic-deep-ctc": f"acoustic --workloads 4x320-CTC-long {_DEEP} 'torch/block_fused#again' "
    "tensorflow/block_fused",
    "template": "template --row-limit 10",
    "stacked-lm": "stacked-lm --row-limit 12",
    "cells": "cells --row-limit 10",
}

# What `check` is asked for: what these suites time, in the precisions that a document quotes. Not the deepest
# networks, whose check takes minutes for a variant: their rows have it.
_BOTH = "'torch/*' 'torch/*@bf16' 'plain-torch/*' 'plain-torch/*@bf16' 'plain-tensorflow/*' 'tensorflow/*'"
GATE: Mapping[str, str] = {
    "ptb": f"ptb --workloads small medium --variants {_BOTH} 'outer-torch/*'",
    "ptb-default-recipe": "ptb --workloads medium-default-recipe "
    "--variants 'torch/*' 'torch/*@bf16' 'tensorflow/*'",
    **{suite: suite for suite in ("stacked-lm", "semantics", "template", "cells")},
    "acoustic": "acoustic --workloads 1x320-CE-short 1x320-CE-long "
    "--variants 'torch/*' 'tensorflow/*' 'keras-tensorflow/*' 'keras-jax/*' pytensor/scan",
    "ptb-large": "ptb --workloads large word_language_model",  # takes the longest
}


def tables() -> Iterator[Suite]:
    """Yield the suites whose tables stand beside published ones, or in a document."""
    for name, arguments in _TABLES.items():
        yield Suite(f"bench-{name}-cpu", arguments, on="cpu")


def precisions() -> Suite:
    """Return the suite of the README's table of speed."""
    rivals = (
        "plain-torch/cudnn plain-torch/cudnn@bf16 plain-torch/cudnn-kept-memory plain-torch/cudnn/compile "
        "plain-tensorflow/keras plain-tensorflow/keras@bf16"
    )
    before = "before-cudnn/custom before-block_fused/custom"
    before_bf16 = "before-cudnn/custom@bf16 before-block_fused/custom@bf16"
    ours = f"{_TWICE} torch/cudnn@bf16 torch/block_fused torch/block_fused@bf16"
    return Suite(
        "bench-precisions-cpu",
        f"ptb --workloads medium small --rounds 5 --baseline plain-torch/cudnn {_added(_BEFORE)} "
        f"--variants {rivals} {ours} {before} {before_bf16}",
        on="cpu",
    )


def float32() -> Suite:
    """Return the suite of docs/performance.md's table of a processor without bfloat16."""
    without = {"without-kernels": "without:own_kernels", "without-library": "without:chosen_library"}
    added = _added({**_BEFORE, **without})
    return Suite(
        "bench-float32-cpu",
        f"ptb --workloads medium small --rounds 5 --baseline plain-torch/cudnn {added} "
        f"--variants plain-torch/cudnn plain-tensorflow/keras {_TWICE} torch/block_fused "
        "tensorflow/block_fused 'before-*' 'without-*'",
        on="cpu",
    )


def scaling() -> Suite:
    """Return what 2 processes train beside one, of the same batch and of twice the batch."""
    models = " ".join(
        f"torch/{model} torch-2-processes/{model}" for model in ("cudnn", "block_fused", "basic")
    )
    return Suite(
        "bench-scaling-cpu",
        f"scaling --workloads small small-batch-40 medium medium-batch-40 --variants {models} "
        "torch/cudnn#again --row-limit 8",
        on="cpu",
    )


def optimisations(config: str) -> Iterator[Suite]:
    """Yield what each optimisation is worth, by framework: the model with it, and without it.

    Ten rounds of five processes: two blocks of a process tell it from the noise of a block, and more of them
    leave what differs between processes as it is.
    """
    torch = ("own_softmax", "sparse_embedding", "kept_memory", "fast_masks", "own_kernels")
    without = {f"without-{what.replace('_', '-')}": f"without:{what}" for what in torch}
    yield Suite(
        f"bench-optimisations-{config}-DEVICE",
        f"ptb --workloads {config} --rounds 10 --row-limit 20 --baseline plain-torch/cudnn "
        f"--variants {_TWICE} torch/block_fused torch/block 'without-*' {_added(without)}",
    )
    tensorflow = ("own_softmax", "own_gradient", "kept_memory")
    without = {f"without-{what.replace('_', '-')}": f"without_tensorflow:{what}" for what in tensorflow}
    yield Suite(
        f"bench-optimisations-tensorflow-{config}-DEVICE",
        f"ptb --workloads {config} --rounds 10 --row-limit 20 --baseline plain-tensorflow/keras "
        f"--variants 'tensorflow/*' {_TWICE} 'without-*' {_added(without)}",
        needs="tensorflow",
    )


def _added(functions: Mapping[str, str]) -> str:
    return "--add " + " ".join(f"{name}=ptb_lm.bench.rivals.{what}" for name, what in functions.items())
