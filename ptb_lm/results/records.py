"""Add a run to the table of records, results/records.md: seconds of training to test perplexity 78.3.

    python -m ptb_lm.results.records results/RUN --what "what changed"

The table is written from the runs beside RUN that this was called for, which have a record.json since.
"""

import json
import sys
from pathlib import Path

from ptb_lm import cli
from ptb_lm.bench.reporting.tables import markdown_text
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.results import kept_runs
from ptb_lm.results.kept_runs import Run

PROG = "python -m ptb_lm.results.records"
BOUND = 78.3
TITLES = ["date", "commit", "what changed", "device", "epochs:", "test:", "seconds:", "log"]


def main() -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, _record)


def _record() -> int:
    parser = cli.Parser(prog=PROG, description="Add a run to the table of records, records.md beside it.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder in results")
    parser.add_argument("--what", required=True, help="what changed since the record before, in a few words")
    arguments = parser.parse_args()
    run = kept_runs.read(arguments.run)
    if problem := _problem(run):
        raise UserError(f"{run.folder} is no record: {problem}")
    record = run.folder / "record.json"
    if record.exists() and (what := _what(run)) != arguments.what:
        raise UserError(f"{run.folder} is in the table already, as {what!r}; other code is another run")
    atomic_write(record, json.dumps({"what": arguments.what}) + "\n")
    results = run.folder.resolve().parent
    records = [kept_runs.read(path.parent) for path in results.glob("*/record.json")]
    records.sort(key=lambda record: str(record.result["environment"]["started"]))
    page = results / "records.md"
    kept_runs.write_part(page, "records", kept_runs.table(TITLES, map(_row, records)))
    print(f"{run.result['seconds']:.1f} s to test perplexity {run.result['test_perplexity']:.2f}: in {page}")
    return 0


def _problem(run: Run) -> str:
    """Return why a run does not count, or nothing if it does."""
    if not run.result:
        return f"{len(run.epochs)} of {run.config.hyperparameters.epochs} epochs are done"
    if run.data != "ptb":
        return f"it read {run.config.data}, not Penn Treebank"
    if not run.result["test_perplexity"] <= BOUND:  # nor is one that is no number
        return f"its test perplexity is {run.result['test_perplexity']:.3f}, not at most {BOUND}"
    if "cuda" not in run.result["environment"]:
        return f"it ran on a CPU ({run.device}), and records are of a GPU"
    if run.result.get("earlier_environments"):
        return "it was resumed, and its seconds lack what the stop cost"
    if not run.commit or " " in run.commit:
        return f"a commit makes it again, and it was made by {run.commit or 'none that is known'}"
    return ""


def _what(run: Run) -> str:
    return str(json.loads((run.folder / "record.json").read_text(encoding="utf-8"))["what"])


def _row(run: Run) -> list[str]:
    environment = run.result["environment"]
    return [
        environment["started"][:10],
        run.commit,
        markdown_text(_what(run)),
        run.device,
        str(run.result["epochs"]),
        f"{run.result['test_perplexity']:.2f}",
        f"{run.result['seconds']:.1f}",
        f"[{run.folder.name}]({run.folder.name})",
    ]


if __name__ == "__main__":
    sys.exit(main())
