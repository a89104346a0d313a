"""The tables of the ablations: a row a step, from the tutorial's recipe to the default."""

import re
from collections.abc import Iterator

import kept_runs
from kept_runs import Run

# The steps that are runs in their own right, by the names of their folders.
STEPS = {
    "small": {"small": "0 tutorial"},
    "medium": {"medium-tutorial": "0 tutorial", "medium": "4 average: the default recipe"},
}
TITLES = ["step", "beside the tutorial's", "epochs (best):", "best valid:", "last valid:", "device", "commit"]


def markdown(runs: list[Run], config: str) -> str:
    """Return the table of the ablation of a configuration.

    The test split is left out, because nothing is chosen by it.
    """
    steps = sorted(_steps(runs, config), key=lambda step: (step[1].device, step[0]))
    rows = [_row(name, run) for name, run in steps]
    return kept_runs.table(TITLES, rows) if rows else "No step of it has been run yet.\n"


def _steps(runs: list[Run], config: str) -> Iterator[tuple[str, Run]]:
    """Yield the runs that scripts/reproduce makes for it, with what they are called in the table."""
    prefix = f"ablation-{config}-"
    for run in runs:
        if named := re.fullmatch(r"(.+)-cudnn-(cpu|cuda)", run.folder.name):
            if named[1] in STEPS[config]:
                yield STEPS[config][named[1]], run
            elif named[1].startswith(prefix):
                yield named[1].removeprefix(prefix).replace("-", " "), run


def _row(name: str, run: Run) -> list[str]:
    changes = kept_runs.overrides(run, recipe="tutorial")
    return [
        f"[{name}]({run.folder.name})",
        f"`{' '.join(changes)}`" if changes else "",
        kept_runs.epochs([run]),
        kept_runs.perplexity([run.best["valid_perplexity"]], strong=True),
        kept_runs.perplexity([run.epochs[-1]["valid_perplexity"] if run.result else None]),
        run.device,
        run.commit,
    ]
