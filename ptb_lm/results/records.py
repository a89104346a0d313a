"""The tables of records, results/records.md: seconds to test perplexity 78.3.

A run is on the list of its device: of a GPU, or of two CPU cores with untied or with tied weights. The tables
are written from the runs in results/ that a record was asked for, which have a record.json since.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ptb_lm.bench.reporting.tables import markdown_text
from ptb_lm.data.preparation import PTB
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.program import command_name
from ptb_lm.results import command, curve, markdown, runs
from ptb_lm.results.runs import Run

BOUND = 78.3
FILE = "record.json"  # beside a run's files: what its record says of it
TITLES = [
    *("date", "commit", "what changed", "machine", "processor", "command", "epochs:", "test:", "seconds:"),
    *("log", "curve"),
]


@dataclass(frozen=True)
class Records:
    """A list of records.

    Attributes:
        part: The part of records.md that it is.
        clock: The key in result.json of the seconds that count: of the training, or of the whole command.
    """

    part: str
    clock: str


GPU = Records("records", "seconds")
CPU = Records("records of two CPU cores", "command_seconds")
CPU_TIED = Records("records of two CPU cores, tied", "command_seconds")
CORES, UNITS = 2, (2, 650)  # of the lists of a CPU: at most, and layers × units


def record(folder: Path, what: str) -> str:
    """Put a run into the table of its list; return a sentence about it.

    Args:
        folder: The run's, in results/.
        what: What changed since the record before, in a few words.

    Raises:
        UserError: The run does not count, or is in the table under other words; nothing is written. Or what
            another run's record says is broken.
    """
    run = runs.read(folder)
    if problem := next(_problems(run), ""):
        raise UserError(f"{run.folder} does not count as a record: {problem}")
    file = run.folder / FILE
    if file.exists() and (before := _what(run)) != what:
        raise UserError(f"{run.folder} is already in the table as {before!r}; make a new run for other code")
    atomic_write(file, json.dumps({"what": what}) + "\n")
    results, records = run.folder.resolve().parent, _records_of(run)
    _write_table(records, results)
    seconds, perplexity = run.result[records.clock], run.result["test_perplexity"]
    return f"{seconds:.1f} s to test perplexity {perplexity:.2f}: in {results / 'records.md'}"


def _write_table(records: Records, results: Path) -> None:
    listed = [runs.read(path.parent) for path in results.glob("*/record.json")]
    listed = [run for run in listed if _records_of(run) == records]
    listed.sort(key=lambda run: str(run.result["environment"]["started"]))
    rows = [_row(run, records) for run in listed]
    markdown.write_part(results / "records.md", records.part, markdown.table(TITLES, rows))


def _records_of(run: Run) -> Records:
    if "cuda" in run.result["environment"]:
        return GPU
    return CPU_TIED if run.config.hyperparameters.tie_weights else CPU


def _problems(run: Run) -> Iterator[str]:
    """Yield why a run does not count."""
    if not run.result:
        yield f"{len(run.epochs)} of {run.config.hyperparameters.epochs} epochs are done"
        return
    if run.data != PTB:
        yield f"it read {run.config.source.path if run.config.source else run.config.data}, not Penn Treebank"
    if start := run.config.init_from:
        yield f"it began with the weights of {start.run}"
    if not run.result["test_perplexity"] <= BOUND:  # nor is one that is no number
        yield f"its test perplexity is {run.result['test_perplexity']:.3f}, not at most {BOUND}"
    for what in ("processes", "devices"):
        if (count := run.result["environment"].get(what, 1)) != 1:
            yield f"it was trained by {count} {what}, but a record is by one"
    if run.result.get("earlier_environments"):
        yield "it was resumed, so its seconds lack the cost of the stop"
    if not run.commit or " " in run.commit:
        yield f"it needs a clean commit, but its commit is {run.commit or 'unknown'}"
    if _records_of(run) != GPU:
        yield from _problems_on_a_cpu(run)


def _problems_on_a_cpu(run: Run) -> Iterator[str]:
    cores, sizes = run.result["environment"]["cores"], run.config.hyperparameters
    if cores > CORES:
        yield f"it had {cores} cores, but the list is for {CORES}: use taskset -c 0,1"
    if (sizes.num_layers, sizes.hidden_size) != UNITS:
        has = f"{sizes.num_layers} × {sizes.hidden_size}"
        yield f"its model has {has} units, but the list of a CPU is for {UNITS[0]} × {UNITS[1]}"
    if sizes.cell != "lstm":
        yield f"its cell is {sizes.cell}, but the list of a CPU is for LSTMs"
    if CPU.clock not in run.result:
        yield "it is an old run, which does not say how long the whole command took"


def _what(run: Run) -> str:
    path = run.folder / FILE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["what"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not what {command_name('results')} record writes") from None


def _row(run: Run, records: Records) -> list[str]:
    environment, name = run.result["environment"], run.folder.name
    seed = "" if run.config.choice.seed == 1 else f" --seed {run.config.choice.seed}"
    return [
        environment["started"][:10],
        run.commit,
        markdown_text(_what(run)),
        f"{environment['platform'].partition('-')[0]}, {environment['cores']} cores",
        run.device,
        f"`{command.command_of(run)}{seed}`",
        str(run.result["epochs"]),
        f"{run.result['test_perplexity']:.2f}",
        f"{run.result[records.clock]:.1f}",
        f"[{name}]({name})",
        f"[curve]({name}/{curve.FILE})" if (run.folder / curve.FILE).exists() else "",
    ]
