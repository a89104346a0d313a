"""Measure LSTM implementations: python -m ptb_lm.bench list | run SUITE | report DIR | compare A B."""

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm import cli, files
from ptb_lm.bench import added, runner, selection, tasks, variants
from ptb_lm.bench.machine import Machine
from ptb_lm.bench.record import Record
from ptb_lm.bench.reporting import compare, report
from ptb_lm.bench.suites import DEFAULT_SUITE, SUITES
from ptb_lm.bench.workloads import Workload
from ptb_lm.errors import UserError
from ptb_lm.model import backend
from ptb_lm.training import runlog

PROG = "python -m ptb_lm.bench"
# The variables that libraries read how many threads to use from.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, lambda: _command(sys.argv[1:] if argv is None else argv))


def _command(argv: Sequence[str]) -> int:
    arguments = _parser().parse_args(argv)
    status: int = arguments.function(arguments)
    return status


def _parser() -> cli.Parser:
    parser = cli.Parser(
        prog=PROG, description="Measure how fast each LSTM implementation is on this machine."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    text = "List the suites and what is in them."
    listing = commands.add_parser("list", prog=f"{PROG} list", description=text, help=text)
    listing.add_argument("suite", nargs="?", choices=tuple(SUITES), help="only this one, with its variants")
    listing.set_defaults(function=_list)

    text = "Measure a suite, or go on where that was interrupted; report."
    run = commands.add_parser("run", prog=f"{PROG} run", description=text, help=text)
    run.add_argument(
        "suite", nargs="?", choices=tuple(SUITES), default=DEFAULT_SUITE, help="default: %(default)s"
    )
    run.add_argument("--out", type=Path, help="folder for rows and report (default: bench/SUITE)")
    run.add_argument(
        "--workloads",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help="only these, as 4x320-*",
    )
    run.add_argument(
        "--variants",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATTERN",
        help="only these and the baseline, as torch/*, or as torch/*@bf16 at that precision",
    )
    run.add_argument(
        "--add",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=MODULE:FUNCTION",
        help="your own variants",
    )
    run.add_argument(
        "--baseline",
        metavar="VARIANT[@PRECISION]",
        help="what speeds are compared with (default: as the workload declares)",
    )
    run.add_argument("--rounds", type=cli.whole(1), help="default: as the workload declares (list SUITE)")
    run.add_argument("--batch-size", type=cli.whole(1), help="default: as the workload declares")
    run.add_argument(
        "--row-limit",
        type=cli.positive,
        default=600.0,
        metavar="SECONDS",
        help="cut steps and rounds of what would take longer, a variant and pass (default: %(default)g)",
    )
    run.add_argument("--device", choices=backend.DEVICES, default="auto", help="default: %(default)s")
    run.add_argument(
        "--precision",
        choices=backend.PRECISIONS,
        default="fp32",
        help="of the variants whose names give none (default: %(default)s)",
    )
    run.add_argument("--seed", type=cli.whole(0), default=1, help="default: %(default)s")
    run.set_defaults(function=_run)

    text = "Write the tables and the page of what was measured, again."
    reporting = commands.add_parser("report", prog=f"{PROG} report", description=text, help=text)
    reporting.add_argument("folder", type=Path, metavar="DIR", help="what run wrote")
    kept = "; kept for later reports and comparisons"
    reporting.add_argument("--baseline", metavar="VARIANT", help=f"what speeds are compared with{kept}")
    reporting.add_argument(
        "--runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help=f"training runs, to show the learning curves of{kept}",
    )
    reporting.set_defaults(function=_report)

    text = "Compare two measurements of a suite: before and after, or of two machines."
    comparing = commands.add_parser("compare", prog=f"{PROG} compare", description=text, help=text)
    comparing.add_argument("a", type=Path, metavar="A", help="what run wrote")
    comparing.add_argument("b", type=Path, metavar="B", help="what another run wrote")
    comparing.set_defaults(function=_compare)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    for name, suite in SUITES.items():
        if arguments.suite in (None, name):
            runlog.say(f"{name}: {suite.description}")
            for workload in suite.workloads:
                runlog.say(f"  {workload.name}: {workload.task.size}")
                if arguments.suite is not None:
                    _list_variants(workload)
    return 0


def _list_variants(workload: Workload) -> None:
    passes = " and ".join(workload.passes)
    runlog.say(
        f"    {passes}; {workload.rounds} rounds of at least {workload.steps} steps, "
        f"{workload.warm_up} steps to warm up"
    )
    for variant in workload.variants:
        baseline = " (baseline)" * (variant.name == workload.baseline)
        runlog.say(f"    {variant.name:<30} {variant.label}{baseline}")
    frameworks = dict.fromkeys(str(variant.parts["framework"]) for variant in workload.variants)
    rows = {name: tasks.registry(workload.task)[name] for name in frameworks}
    precisions = "; ".join(f"{name} {', '.join(row.precisions)}" for name, row in rows.items())
    runlog.say(f"    each also as VARIANT@PRECISION: {precisions}")


def _run(arguments: argparse.Namespace) -> int:
    own = [variants.add(given) for given in arguments.add]
    options = selection.Options(
        suite=arguments.suite,
        workloads=_patterns("--workloads", arguments.workloads),
        variants=_patterns("--variants", arguments.variants),
        baseline=arguments.baseline,
        rounds=arguments.rounds,
        batch_size=arguments.batch_size,
        row_limit=arguments.row_limit,
        device=arguments.device,
        precision=arguments.precision,
        seed=arguments.seed,
        added=tuple(arguments.add),
    )
    workloads = selection.selected(options, own)
    added.check(options.added)
    out = arguments.out or files.home() / "bench" / options.suite
    command = shlex.join([*PROG.split(), *sys.argv[1:]])
    with files.locked(out), contextlib.closing(Machine(options.device)) as machine:
        record = Record(out, _settings(options, machine))
        try:
            runner.run(options, workloads, record, machine, command=command)
        except KeyboardInterrupt:
            runlog.say(f"{out} keeps what was measured; the same command goes on")
            raise
    report.write_report(out)
    return 0 if record.measured() else cli.EXIT_FAILED


def _patterns(flag: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that were separated by spaces or commas."""
    patterns = tuple(pattern for each in given for pattern in each.split(",") if pattern)
    if given and not patterns:
        raise UserError(f"{flag} names nothing; without it, everything is measured")
    return patterns


def _settings(options: selection.Options, machine: Machine) -> dict[str, Any]:
    """Return what rows that stand in one table have in common."""
    environment = runlog.environment()
    kept = ("suite", "baseline", "rounds", "batch_size", "row_limit", "device", "precision", "seed")
    return {
        **{name: getattr(options, name) for name in kept},
        **{name: environment[name] for name in ("ptb_lm", "commit", "python", "processor", "cores")},
        "gpu": machine.gpu,
        **{name: os.environ.get(name) for name in THREADS},
    }


def _report(arguments: argparse.Namespace) -> int:
    report.write_report(arguments.folder, baseline=arguments.baseline, runs=arguments.runs)
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    runlog.say(compare.compare(arguments.a, arguments.b))
    return 0


if __name__ == "__main__":
    sys.exit(main())
