"""The records, results/records.md: seconds to test perplexity 78.3. Which runs count, and their tables."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from ptb_lm.common import cli, host
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import markdown_code
from ptb_lm.comparison import runs as trained
from ptb_lm.comparison.runs import Run
from ptb_lm.data.preparation import PTB
from results import keep, store
from results.run_tables import CellWriter, first, short_commit, show

BOUND = 78.3
CORES, UNITS = 2, (650, 650)  # of the lists of a CPU: at most, and the units of each layer
# Table of records -> the marks of its runs, and the seconds that count.
TABLES = {
    "records": ("cuda", None, "seconds"),
    "records of two CPU cores": ("cpu", False, "command_seconds"),
    "records of two CPU cores, tied": ("cpu", True, "command_seconds"),
}


def check_machine(name: str, device: str) -> None:
    """Check what would keep a race from being a record.

    Raises:
        UserError: There is such a thing.
    """
    clean_commit(name)
    if device == "cpu" and (cores := len(host.cores())) > CORES:
        raise UserError(
            f"{name}: this process has {cores} cores, but the list of a CPU is for {CORES}: "
            "use taskset -c 0,1"
        )


def clean_commit(name: str) -> str:
    """Return the short hash of the code's commit.

    Raises:
        UserError: There is no commit, or there are uncommitted changes.
    """
    commit: str = host.environment()["commit"] or ""
    if not commit or " " in commit:  # marked after a space if there are uncommitted changes
        raise UserError(f"{name}: a record needs a clean commit, but this is {commit or 'not a checkout'}")
    return commit[:7]


def add(results: Path, folder: Path, name: str, what: str, *, usual: str = "", result: str = "") -> None:
    """Put a run into the table of its list.

    Args:
        results: The folder of results.
        folder: The run directory.
        name: The run's id.
        what: The change since the record before; "": the words that are kept, or else `usual`.
        usual: The words for a run that nothing is kept of.
        result: The result of scripts/reproduce that it is; "": none.

    Raises:
        UserError: It does not count, is there with other words, or cannot be read.
    """
    if problem := next(_problems(trained.read_run(folder)), ""):
        raise UserError(f"{folder} does not count as a record: {problem}")
    before = store.rows(results, store.RUNS, name)
    kept = [row["record"] for row in before if isinstance(row["record"], str)]
    if kept and what not in ("", kept[0]):
        raise UserError(f"{name} is already a record as {kept[0]!r}; make a new run for other code")
    keep.run(results, folder, name, result=result, record=what or (kept or [usual])[0])


def _problems(run: Run) -> Iterator[str]:
    if not run.result:
        yield f"{len(run.epochs)} of {run.config.hyperparameters.epochs} epochs are done"
        return
    if run.data != PTB:
        yield f"it read {run.config.source.path if run.config.source else run.config.data}, not Penn Treebank"
    if start := run.config.init_from:
        yield f"it began with the weights of {start.run}"
    if not run.result["test_perplexity"] <= BOUND:  # nor is one that is no number
        yield f"its test perplexity is {run.result['test_perplexity']:.3f}, not at most {BOUND}"
    environment = run.result["environment"]
    for what in ("processes", "devices"):
        if (count := environment.get(what, 1)) != 1:
            yield f"it was trained by {count} {what}, but a record is by one"
    if run.result.get("earlier_environments"):
        yield "it was resumed, so its seconds lack the cost of the stop"
    commit = environment.get("commit")
    if not commit or " " in commit:
        yield f"it needs a clean commit, but its commit is {commit or 'unknown'}"
    if "cuda" not in environment:
        yield from _problems_on_a_cpu(run)


def _problems_on_a_cpu(run: Run) -> Iterator[str]:
    cores, sizes = run.result["environment"]["cores"], run.config.hyperparameters
    if cores > CORES:
        yield f"it had {cores} cores, but the list is for {CORES}: use taskset -c 0,1"
    if sizes.hidden_sizes != UNITS:
        has, needed = (" + ".join(map(str, units)) for units in (sizes.hidden_sizes, UNITS))
        yield f"its layers have {has} units, but the list of a CPU is for {needed}"
    if sizes.cell != "lstm":
        yield f"its cell is {sizes.cell}, but the list of a CPU is for LSTMs"


def table(runs: pd.DataFrame, name: str) -> str:
    """Return a table of records."""
    device, tied, clock = TABLES[name]
    listed = runs[(runs["record"] != "") & (runs["machine"].map(_device) == device)]
    listed = listed[listed["tied"] == tied] if tied is not None else listed
    columns: dict[str, CellWriter] = {
        "date": lambda run: run["started"].iloc[0][:10],
        "commit": short_commit,
        "what changed": first("record"),
        "machine": lambda run: f"{run['platform'].iloc[0].partition('-')[0]}, {run['cores'].iloc[0]} cores",
        "processor": first("machine"),
        "command": lambda run: markdown_code(f"{cli.TRAIN} {run['flags'].iloc[0]}{_seed(run)}"),
        "epochs:": first("epochs_done"),
        "test:": lambda run: f"{run['test'].iloc[0]:.2f}",
        "seconds:": lambda run: f"{run[clock].iloc[0]:.1f}",
        "id in runs.csv": lambda run: markdown_code(run["id"].iloc[0]),
    }
    return show(listed.sort_values("started"), columns, ["id"])


def _device(machine: str) -> str:
    return "cpu" if "threads" in machine else "cuda"


def _seed(run: pd.DataFrame) -> str:
    seed = run["seed"].iloc[0]
    return "" if seed == 1 else f" --seed {seed}"
