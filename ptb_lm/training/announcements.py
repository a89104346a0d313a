"""What a training prints when it begins and when it ends."""

from collections.abc import Sequence
from typing import Any

from ptb_lm.common import cli
from ptb_lm.data.corpus import Corpus
from ptb_lm.model import backend
from ptb_lm.training import run_data
from ptb_lm.training.progress import Progress
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

# What of an environment affects the last digits of numbers.
ROUNDING = ("torch", "tensorflow", "device", "kernels", "float32_products", "reduce_precision", "threads")


def announce(
    run: RunConfig,
    corpus: Corpus,
    model: backend.Backend,
    directory: RunDirectory,
    parameter_count: int,
    *,
    hints: Sequence[str],
) -> None:
    """Say what is trained, on what, and where."""
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in corpus.splits.items())
    cli.remark(f"data {run.data}: {tokens} tokens, {len(corpus.vocabulary):,} words")
    for line in run_data.report(run, corpus):
        cli.remark(line)
    cli.remark(
        f"model {run.choice.model}, config {run.config}, recipe {run.recipe}: {parameter_count:,} "
        f"parameters, {model.engine}; precision {run.choice.precision}"
    )
    if model.ranks.size > 1:
        each = run.hyperparameters.batch_size // model.ranks.size
        cli.remark(f"{model.ranks.size} processes, {each} rows of the batch each")
    cli.remark(f"run directory {directory.path}")
    for hint in hints:
        cli.remark(f"hint: {hint}")


def tell_where(progress: Progress, *, epochs: int) -> None:
    """Say where a resumed run continues."""
    if progress.epoch == epochs:
        cli.remark(f"all {epochs} epochs are done; only the test is left")
    else:
        cli.remark(f"continues in epoch {progress.epoch + 1}, step {progress.step + 1}")


def tell_what_changed(before: dict[str, Any], now: dict[str, Any], *, drops: bool) -> None:
    """Print changes since the run stopped that affect the masks of dropout, or the last digits of numbers.

    Args:
        before: The environment of the session before.
        now: Of this one.
        drops: Whether the run has dropout.
    """
    moved = ("cuda" in before) != ("cuda" in now)
    changed = [
        f"{name.replace('_', ' ')} {before[name]} before, {now[name]} now"
        for name in ROUNDING
        if name in before and name in now and before[name] != now[name]
    ]
    masks = ", so dropout draws other masks from now on" if drops else ""
    for name in ("processes", "devices"):
        if before.get(name, 1) != now.get(name, 1):
            cli.remark(
                f"the number of {name} changed from {before.get(name, 1)} to {now.get(name, 1)}{masks}"
            )
    # TensorFlow's stream goes on where it was, on every device.
    if moved and "torch" in now:
        where = ("a CPU", "a GPU") if "cuda" in now else ("a GPU", "a CPU")
        cli.remark(f"the run moved from {where[0]} to {where[1]}{masks}")
    if changed:
        cli.remark(
            f"from now on the numbers round differently from a run that never stopped: {'; '.join(changed)}"
        )


def report(result: dict[str, Any], directory: RunDirectory) -> None:
    """Say what a run has reached."""
    bound = result.get("best_possible_perplexity")
    best = f"; the best any model can do is {bound:.2f}" if bound else ""
    cli.remark(
        f"test perplexity {result['test_perplexity']:.2f}{best} (valid {result['valid_perplexity']:.2f}, "
        f"epoch {result['best_epoch']}; {result['words_per_second']:,.0f} words/s; "
        f"{result['seconds']:,.0f} s){_final_epoch(result)}"
    )
    cli.remark(f"written to {directory.result}")


def _final_epoch(result: dict[str, Any]) -> str:
    """Return the scores of the last epoch's weights, if they are not the best ones."""
    test, valid = result["final_test_perplexity"], result["final_valid_perplexity"]
    if (result["epochs"], valid) == (result["best_epoch"], result["valid_perplexity"]):
        return ""
    return f"; the last epoch's weights: test {test:.2f}, valid {valid:.2f}"
