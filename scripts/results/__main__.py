"""The commands of this repository's results: scripts/tables, scripts/reproduce and scripts/keep."""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ptb_lm.common import cli, files
from ptb_lm.common.errors import UserError
from results import plan

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = {name: f"scripts/{name}" for name in ("tables", "reproduce", "keep")}  # as a person calls them
WIDTH = 20
PROMISES = """\
If a result fails, the next ones are still made, and a list of the failed ones is printed at the end. Runs
continue where they stopped. After an error, Ctrl-C or a signal to the process group (timeout sends one),
results/ has each run as far as it came, and the pages have the tables of all runs. `kill` of the script
alone waits until the current command ends. `kill -9` leaves results/ as it is. The same command continues
after both. A race needs a commit without changes (in a copy without .git, PTB_LM_COMMIT=... names the
commit) and, on a CPU, two cores at most. If a default has changed since a run, the result is refused
until its folder in checkpoints/ is removed. PYTHON=... names a Python that has torch, ptb_lm's
requirements and its extra pages; the script then installs nothing.

On a GPU small, medium and large take minutes each. On two CPU cores without bfloat16 small takes half an
hour to an hour, and so does each step of ablation-small; medium takes three to seven hours, and large
more than a day. The result bench takes some six hours."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    name = NAMES.get(given[0] if given else "", "python -m results")

    def body() -> int:
        arguments = _parser().parse_args(given)
        status: int = arguments.function(arguments)
        return status

    return cli.run(name, body)


def _parser() -> cli.Parser:
    parser = cli.Parser(prog="python -m results", description="Make and keep this repository's results.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    text = "Write all pages and draw all charts that are made from results/."
    tables = commands.add_parser("tables", prog=NAMES["tables"], description=text, help=text)
    tables.add_argument(
        "--check", action="store_true", help="write nothing; show what would change, with status 1"
    )
    tables.set_defaults(function=_tables)

    text = "Make the measured results again, and keep them in results/."
    reproduce = commands.add_parser("reproduce", prog=NAMES["reproduce"], description=text, help=text)
    reproduce.formatter_class = argparse.RawDescriptionHelpFormatter
    reproduce.epilog = _list_results()
    reproduce.add_argument("names", nargs="*", metavar="RESULT", help="what to make, in this order")
    flag = "print the commands for this machine, of all results if none is named, and run nothing"
    reproduce.add_argument("--dry-run", action="store_true", help=flag)
    reproduce.add_argument("--check", action="store_true", help="check the names and do nothing else")
    reproduce.set_defaults(function=_reproduce)

    text = "Keep a run in results/, as far as it has come, and write the pages."
    keep = commands.add_parser("keep", prog=NAMES["keep"], description=text, help=text)
    keep.add_argument("run", type=Path, metavar="RUN", help="a run's folder")
    keep.add_argument("--id", help="id in results/ (default: the folder's name)")
    text = "put it into its list of records, with these words on what changed"
    keep.add_argument("--record", default="", metavar="WHAT", help=text)
    text = "compute its test perplexity again by these models, in float32, and keep that too"
    default = "default: torch/cudnn tensorflow/block_fused"
    keep.add_argument("--check", nargs="*", metavar="FRAMEWORK/MODEL", help=f"{text} ({default})")
    keep.set_defaults(function=_keep)
    return parser


def _list_results() -> str:
    results = {name: result.text for name, result in plan.read().items()}
    results["all"] = "the usual results that this machine can make"
    lines = (
        textwrap.fill(f"{name:<{WIDTH}}{text}", 110, initial_indent="  ", subsequent_indent=" " * (WIDTH + 2))
        for name, text in results.items()
    )
    return "\n".join([*lines, "", PROMISES])


# What takes long to import is imported when the flags are known to be right.


def _tables(arguments: argparse.Namespace) -> int:
    from results import pages

    if arguments.check:
        found = pages.differences(ROOT)
        sys.stdout.write(found or "the pages are those that the data make\n")
        return cli.EXIT_FAILED if found else 0
    pages.write(ROOT)
    return 0


def _reproduce(arguments: argparse.Namespace) -> int:
    if not arguments.names and not arguments.dry_run:
        raise UserError("say what to make: a result, or all, which takes hours; --help lists them")
    known = [*plan.read(), "all"]
    names = arguments.names or ["all"]
    for name in names:
        if name not in known:
            raise UserError(f"unknown result {name!r}; choose from {' '.join(known)}")
    if arguments.check:
        return 0
    if arguments.dry_run:
        device = plan.find_device()
        for name in plan.results_of(names, device):
            print(f"# {name}: {plan.read()[name].text}")
            for step in plan.steps_of(name, device):
                if not step.is_absent:
                    print(step.command(device))
        return 0
    from results import reproduce

    return reproduce.reproduce(names, ROOT)


def _keep(arguments: argparse.Namespace) -> int:
    from results import checks, keep, pages, records

    results, run = ROOT / "results", arguments.run
    name = arguments.id or files.resolve_links(run).name
    if arguments.record:
        records.add(results, run, name, arguments.record)
    elif not keep.run(results, run, name):
        raise UserError(f"{run} has no finished epoch, or {name} is a finished run already")
    print(f"kept {name}")
    if arguments.check is not None:
        for each in checks.check(results, run, name, arguments.check or checks.BY):
            print(f"{each['test_perplexity']:.6f} by {each['by']} in {each['precision']}: {each['engine']}")
    pages.write(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
