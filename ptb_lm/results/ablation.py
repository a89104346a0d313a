"""The tables of the ablations: one row per step, from the tutorial's recipe to the default and beyond.

To average the weights changes nothing that is trained, so that one run tells of both: the weights, as if they
had not been averaged, and their average.
"""

from collections.abc import Iterator
from itertools import pairwise

from ptb_lm.comparison.runs import Run
from ptb_lm.results import command
from ptb_lm.results.markdown import commit_of, epochs, perplexity, result_of, table

# The steps that are runs in their own right, by the names of their folders.
STEPS = {
    "small": {"small-tutorial": "0 tutorial", "small": "1 average: the default recipe"},
    "medium": {"medium-tutorial": "0 tutorial", "medium": "4 schedule: the default recipe"},
}
TITLES = [
    *("step", "beside the tutorial's", "epochs (best):", "best valid: weights:", "best valid: average:"),
    *("gained on the row above:", "last valid: weights:", "last valid: average:"),
    *("model", "device", "commit"),
]


def markdown(found: list[Run], config: str) -> str:
    """Return the table of the ablation of a configuration.

    A row gains points of the best validation perplexity, of the average where there is one; both runs must
    have ended. The test split is left out, because nothing is chosen by it.
    """
    steps = sorted(_steps(found, config), key=lambda step: (step[0], step[1].device))
    best = [_best(run) if run.result else None for _, run in steps]
    gained = [f"{above - this:+.2f}" if above and this else "" for above, this in pairwise([None, *best])]
    rows = [_row(name, run, gain) for (name, run), gain in zip(steps, gained, strict=True)]
    return table(TITLES, rows) if rows else "No step of it has been run yet.\n"


def _steps(found: list[Run], config: str) -> Iterator[tuple[str, Run]]:
    """Yield the runs that are steps of it, by whatever model, with what they are called in the table."""
    prefix = f"ablation-{config}-"
    for run in found:
        name = result_of(run.folder)
        if name in STEPS[config] and command.as_its_recipe_is_now(run):
            yield STEPS[config][name], run
        elif name.startswith(prefix):
            yield name.removeprefix(prefix).replace("-", " "), run


def _row(name: str, run: Run, gained: str) -> list[str]:
    changes = command.overrides(run, recipe="tutorial")
    both = [_valid(run, averaged=False), _valid(run, averaged=True)]
    return [
        f"[{name}]({run.folder.name})",
        f"`{' '.join(changes)}`" if changes else "",
        epochs([run]),
        *(perplexity([min(values, default=None)], strong=True) for values in both),
        gained,
        *(perplexity(values[-1:] if run.result else []) for values in both),
        command.model(run),
        run.device,
        commit_of(run),
    ]


def _best(run: Run) -> float | None:
    return min(_valid(run, averaged=True) or _valid(run, averaged=False), default=None)


def _valid(run: Run, *, averaged: bool) -> list[float]:
    """Return the validation perplexities of the weights or their average, if all epochs have them."""
    kept_is_average = run.config.hyperparameters.average_epochs > 0
    column = "valid_perplexity" if averaged == kept_is_average else "unaveraged_valid_perplexity"
    known = all(column in row for row in run.epochs) and (kept_is_average or not averaged)
    return [row[column] for row in run.epochs] if known else []
