"""Tables, curves and records of trained runs: python -m ptb_lm.results COMMAND."""

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from ptb_lm import cli, files
from ptb_lm.errors import UserError
from ptb_lm.results import plan, steps

PROG = cli.command_name("results")
_Commands: TypeAlias = "argparse._SubParsersAction[cli.Parser]"
_Function = Callable[[argparse.Namespace], int]
REPRODUCE = "scripts/reproduce"  # which is how a person calls the command of this name


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    named = given and not given[0].startswith("-")
    name = REPRODUCE if named and given[0] == "reproduce" else f"{PROG} {given[0]}" if named else PROG
    return cli.run(name, lambda: _command(given))


def _command(given: list[str]) -> int:
    arguments = _parser().parse_args(given)
    status: int = arguments.function(arguments)
    return status


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG, description="Make tables and pictures from finished runs and benchmark rows."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_tables(commands)
    _add_of_runs(commands)
    _add_reproduce(commands)
    return parser


def _add(commands: _Commands, name: str, text: str, function: _Function) -> cli.Parser:
    command = commands.add_parser(name, prog=f"{PROG} {name}", description=text, help=text)
    command.set_defaults(function=function)
    return command


def _add_results(command: cli.Parser) -> None:
    results = files.home() / "results"
    command.add_argument("--results", type=Path, default=results, help="the folder (default: results)")


def _add_tables(commands: _Commands) -> None:
    """Add the commands that write tables from all that is in results."""
    text = "Write the tables of results/README.md from the runs there."
    _add_results(_add(commands, "table", text, _table))

    text = "Write the table of models that adapt to the text, into results/README.md."
    _add_results(_add(commands, "adaptation", text, _adaptation))

    text = "Write the tables of speed in README.md and docs/ from the benchmark's rows."
    speed = _add(commands, "speed", text, _speed)
    speed.add_argument(
        "--root", type=Path, default=files.home(), help="root of the checkout (default: this one)"
    )


def _add_of_runs(commands: _Commands) -> None:
    """Add the commands for single runs."""
    text = "Draw the learning curve of each run into RUN/curve.svg."
    curve = _add(commands, "curve", text, _curve)
    curve.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="default: all runs in results")

    text = "Add a run to the table of records, records.md in the same folder."
    record = _add(commands, "record", text, _record)
    record.add_argument("run", type=Path, metavar="RUN", help="a run's folder in results")
    record.add_argument(
        "--what", required=True, help="what changed since the previous record, in a few words"
    )

    text = "Copy a run as it is now to results/NAME, with its curve and TensorBoard's log."
    keep = _add(commands, "keep", text, _keep)
    keep.add_argument("run", type=Path, metavar="RUN", help="a run's folder in checkpoints")
    keep.add_argument("--name", help="name of the folder in results (default: as in checkpoints)")
    _add_results(keep)

    text = "Compute the test perplexity of a kept run again, with other models and the other framework."
    check = _add(commands, "check", text, _check)
    check.add_argument(
        "run", type=Path, metavar="RUN", help="a run's folder in checkpoints, with its weights"
    )
    check.add_argument("kept", type=Path, metavar="KEPT", help="the folder of this run in results")
    check.add_argument(
        "--by",
        nargs="+",
        metavar="FRAMEWORK/MODEL",
        help="models that compute it, in float32 (default: torch/cudnn tensorflow/block_fused)",
    )


def _add_reproduce(commands: _Commands) -> None:
    text = "Make the measured results again, and keep them in results/, as scripts/reproduce does."
    width = 18
    listed = "\n".join(
        textwrap.fill(
            f"{name:<{width}}{result.text}", 110, subsequent_indent=" " * (width + 2), initial_indent="  "
        )
        for name, result in plan.RESULTS.items()
    )
    reproduce = commands.add_parser("reproduce", prog=REPRODUCE, description=text, help=text)
    reproduce.formatter_class = argparse.RawDescriptionHelpFormatter
    reproduce.epilog = (
        f"{listed}\n  {'all':<{width}}the usual results that this machine can make\n\n{_PROMISES}"
    )
    reproduce.add_argument("names", nargs="*", metavar="RESULT", help="what to make, in this order")
    reproduce.add_argument(
        "--dry-run",
        action="store_true",
        help="print the commands for this machine, of all results if none is named, and run nothing",
    )
    reproduce.add_argument("--check", action="store_true", help="check the names and do nothing else")
    reproduce.set_defaults(function=_reproduce)


_PROMISES = """\
If a result fails, the next ones are still made, and a list of the failed ones is printed at the end. Runs
continue where they stopped. After an error, Ctrl-C or a signal to the process group (timeout sends one),
results/ has each run as far as it came, with its learning curve (if matplotlib is installed) and
TensorBoard's log, and results/README.md has the tables of all runs. `kill` of the script alone waits until
the current command ends. `kill -9` leaves results/ as it is. The same command continues after both. A race
needs a commit without changes (in a copy without .git, PTB_LM_COMMIT=... names the commit) and, on a CPU, two
cores at most. If a default has changed since a run, the result is refused until its folder in checkpoints/ is
removed. PYTHON=... names a Python that has torch; the script then installs nothing. python -m ptb_lm.results
reproduce does the same in your own environment.

On a GPU small, medium and large take minutes each. On two CPU cores without bfloat16 small takes half an hour
to an hour, and so does each step of ablation-small; medium takes three to seven hours, and large more than
a day. The result bench takes about three hours."""


# Imported when the flags are known to be right: what they import takes longer than --help should.


def _table(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import table

    count = table.write(arguments.results)
    print(f"wrote the tables of {count} runs into {arguments.results / 'README.md'}")
    return 0


def _adaptation(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import adaptation

    count = adaptation.write(arguments.results)
    print(f"wrote the table of {count} results into {arguments.results / 'README.md'}")
    return 0


def _curve(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import curve, runs

    given: list[Path] = arguments.runs
    for run in map(runs.read, given) if given else runs.read_all(files.home() / "results"):
        print(curve.draw(run))
    return 0


def _record(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import records

    print(records.record(arguments.run, arguments.what))
    return 0


def _speed(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import speed

    speed.write(arguments.root)
    print(f"wrote the tables of speed into {', '.join(speed.PAGES)}, docs/scaling.md and docs/semantics.md")
    return 0


def _keep(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import keep
    from ptb_lm.training.run_directory import RunDirectory

    kept = arguments.results / (arguments.name or arguments.run.resolve().name)
    before = RunDirectory(kept)
    RunDirectory(arguments.run).read_config()  # says if there is no run
    # seed-1 of --seeds has one name in every configuration.
    if before.config.exists() and (changed := keep.differences(RunDirectory(arguments.run), before)):
        raise UserError(f"{kept} holds another run ({', '.join(changed)}); choose another --name")
    if not keep.keep(arguments.run, kept):
        raise UserError(f"{arguments.run} has no finished epoch, or {kept} already holds a finished run")
    print(kept)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from ptb_lm.results import checks

    for each in checks.check(arguments.run, arguments.kept, arguments.by or checks.BY):
        print(f"{each.test_perplexity:.6f} by {each.by} in {each.precision}: {each.engine}")
    print(arguments.kept / checks.FILE)
    return 0


def _reproduce(arguments: argparse.Namespace) -> int:
    if not arguments.names and not arguments.dry_run:
        raise UserError("say what to make: a result, or all, which takes hours; --help lists them")
    names = arguments.names or ["all"]
    for name in names:
        if name not in (*plan.RESULTS, "all"):
            raise UserError(f"unknown result {name!r}; choose from {' '.join([*plan.RESULTS, 'all'])}")
    if arguments.check:
        return 0
    if arguments.dry_run:
        return _print_commands(names)
    from ptb_lm.results import reproduce

    return reproduce.reproduce(names, files.home())


def _print_commands(names: Sequence[str]) -> int:
    device = steps.find_device()
    for name in plan.results_of(names, device):
        print(f"# {name}: {plan.RESULTS[name].text}")
        for step in plan.steps_of(name, device):
            print(steps.command_line(step).replace("DEVICE", device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
