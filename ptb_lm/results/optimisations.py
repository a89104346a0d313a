"""What each change of a training step gained, in the tables of docs/performance.md.

A row compares a model with the same model without one change (ptb_lm.bench.rivals.without). The last row of
a table compares a program with itself: its true ratio is 1.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ptb_lm.bench.findings import Group, Summary, paired
from ptb_lm.bench.summary import summarise
from ptb_lm.results.markdown import ratio, table
from ptb_lm.results.measured import where

CONFIGS = ("small", "medium")
NOT_MEASURED = "not measured"


class Change(NamedTuple):
    """A row of a table.

    Attributes:
        title: What the change is.
        after: The variant that has it.
        before: The variant that lacks it and is today's model without it in all else.
        earlier: What rows up to commit 8982357 call that variant, where they have its name for another.
    """

    title: str
    after: str
    before: str
    earlier: str = ""


TORCH = (
    Change("the softmax in one buffer", "torch/cudnn", "without-own-softmax/custom"),
    Change("only the embedding's rows", "torch/cudnn", "without-sparse-embedding/custom"),
    Change("freed memory kept", "torch/cudnn", "without-kept-memory/custom"),
    Change("fast masks", "torch/cudnn", "without-fast-masks/custom"),
    Change(
        "`block_fused`: kernels of our own",
        "torch/block_fused",
        "without-own-kernels/custom",
        # The other rearranged the recurrent matrix once for all steps, which was slower.
        earlier="without-packed-recurrence/custom",
    ),
    Change("nothing: `cudnn`, measured twice", "torch/cudnn#again", "torch/cudnn"),
)
TENSORFLOW = (
    Change("the gradient by hand", "tensorflow/block_fused", "without-own-gradient/custom"),
    Change("the softmax in fewer passes", "tensorflow/block_fused", "without-own-softmax/custom"),
    Change("freed memory kept", "tensorflow/block_fused", "without-kept-memory/custom"),
    Change("nothing: torch's `cudnn`, measured twice", "torch/cudnn#again", "torch/cudnn"),
)
LOOP = "plain-tensorflow/keras"
MODELS = (
    Change("`tensorflow/block_fused`", "tensorflow/block_fused", LOOP),
    Change("`tensorflow/basic`", "tensorflow/basic", LOOP),
    Change("`tensorflow/cudnn` (on a CPU: Keras's loop)", "tensorflow/cudnn", LOOP),
    Change("`tensorflow/block`", "tensorflow/block", LOOP),
)


def torch_changes(results: Path) -> str:
    """Return the table of torch's changes.

    Raises:
        UserError: The rows cannot be read.
    """
    return _table(results, "optimisations", "torch", "× the model without it", TORCH)


def tensorflow_changes(results: Path) -> str:
    """Return the table of TensorFlow's changes.

    Raises:
        UserError: The rows cannot be read.
    """
    return _table(results, "optimisations-tensorflow", "tensorflow", "× the model without it", TENSORFLOW)


def tensorflow_models(results: Path) -> str:
    """Return the table of TensorFlow's models beside the loop with Keras's layers.

    Raises:
        UserError: The rows cannot be read.
    """
    return _table(results, "optimisations-tensorflow", "tensorflow", "× the loop with Keras's layers", MODELS)


def _table(results: Path, suite: str, framework: str, title: str, changes: Sequence[Change]) -> str:
    folders = {config: f"bench-{suite}-{config}-cpu" for config in CONFIGS}
    summaries = {config: summarise(results / folder) for config, folder in folders.items()}
    groups = [_training(summary) for summary in summaries.values()]
    rows = [[change.title, *(_cell(group, change) for group in groups)] for change in changes]
    measured = "".join(
        f"- {config}: {where(summary, results / folders[config], framework)} "
        f"([report](../results/{folders[config]}/report.md))\n"
        for config, summary in summaries.items()
    )
    return f"{table([title, *(f'{config}:' for config in CONFIGS)], rows)}\nMeasured on:\n\n{measured}"


def _training(summary: Summary) -> Group:
    return next(group for group in summary.groups if group.pass_name == "train")


def _cell(group: Group, change: Change) -> str:
    """Return how many times as fast a step became."""
    after, before = group.result(change.after), group.result(change.earlier) or group.result(change.before)
    return ratio(paired(after, before) if after and before else None) or NOT_MEASURED
