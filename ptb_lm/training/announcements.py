"""Announcements of a training, when it begins and when it ends."""

import math
from typing import Any

from ptb_lm.common import cli, host
from ptb_lm.model import parameters
from ptb_lm.training import run_data
from ptb_lm.training.metrics import Progress
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.trainer import Trainer

# Facts of an environment that affect the last digits of numbers.
ROUNDING = ("torch", "tensorflow", "device", "kernels", "float32_products", "reduce_precision", "threads")


def announce(trainer: Trainer, load: host.Load, *, is_resumed: bool) -> None:
    """Say what is trained, on what, and where; how it could be faster; how a resumed run is not as before.

    Args:
        trainer: Trainer of the run, before its first step.
        load: Load of the machine since the command started.
        is_resumed: True if the run continues from a state.
    """
    run, data, model = trainer.run, trainer.corpus, trainer.backend
    tokens = ", ".join(f"{split} {len(ids):,}" for split, ids in data.splits.items())
    cli.remark(f"data {run.data}: {tokens} tokens, {len(data.vocabulary):,} words")
    for line in run_data.report(run, data):
        cli.remark(line)
    shapes = parameters.shapes(run.hyperparameters, len(data.vocabulary)).values()
    cli.remark(
        f"model {run.choice.model}, config {run.config}, recipe {run.recipe}: "
        f"{sum(map(math.prod, shapes)):,} parameters, {model.engine}; precision {run.choice.precision}"
    )
    if model.ranks.size > 1:
        rows = run.hyperparameters.batch_size // model.ranks.size
        cli.remark(f"{model.ranks.size} processes, {rows} rows of the batch each")
    cli.remark(f"run directory {trainer.directory.path}")
    threads = trainer.environment.get("threads")
    busy = load.hint(threads) if isinstance(threads, int) and trainer.ranks.size == 1 else None
    for hint in [*model.hints, *filter(None, [busy])]:
        cli.remark(f"hint: {hint}")
    if is_resumed:
        tell_where(trainer.progress, epochs=run.hyperparameters.epochs)
        before, now = trainer.progress.environments[-2:]
        tell_what_changed(before, now, has_dropout=run.hyperparameters.has_dropout)


def tell_where(progress: Progress, *, epochs: int) -> None:
    """Say where a resumed run continues."""
    if progress.epoch == epochs:
        cli.remark(f"all {epochs} epochs are done; only the test is left")
    else:
        cli.remark(f"continues in epoch {progress.epoch + 1}, step {progress.step + 1}")


def tell_what_changed(before: dict[str, Any], now: dict[str, Any], *, has_dropout: bool) -> None:
    """Print changes since the run stopped that affect the masks of dropout, or the last digits of numbers.

    Args:
        before: Environment of the session before.
        now: Environment of this session.
        has_dropout: True if the run has dropout.
    """
    has_moved = ("cuda" in before) != ("cuda" in now)
    differences = [
        f"{name.replace('_', ' ')} {before[name]} before, {now[name]} now"
        for name in ROUNDING
        if name in before and name in now and before[name] != now[name]
    ]
    masks = ", so dropout draws other masks from now on" if has_dropout else ""
    for name in ("processes", "devices"):
        if before.get(name, 1) != now.get(name, 1):
            cli.remark(
                f"the number of {name} changed from {before.get(name, 1)} to {now.get(name, 1)}{masks}"
            )
    # TensorFlow's stream goes on where it was, on every device.
    if has_moved and "torch" in now:
        where = ("a CPU", "a GPU") if "cuda" in now else ("a GPU", "a CPU")
        cli.remark(f"the run moved from {where[0]} to {where[1]}{masks}")
    if differences:
        cli.remark(
            f"from now on the numbers round differently from a run that never stopped: "
            f"{'; '.join(differences)}"
        )


def tell_finished(result: dict[str, Any], directory: RunDirectory) -> None:
    """Say that there is nothing to resume, and what the run has reached."""
    cli.remark(f"the run in {directory.path} is finished; to train it further, give more --epochs")
    report(result, directory)


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
