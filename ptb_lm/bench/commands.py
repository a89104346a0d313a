"""The commands of python -m ptb_lm.bench, after their flags were parsed."""

import argparse
import contextlib
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ptb_lm.bench import check_command, rows, selection, variants
from ptb_lm.bench.reporting import agreement, headline, report
from ptb_lm.bench.run import runner
from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.run.process import WORKER, Process, WorkerError
from ptb_lm.bench.run.record import Record, run_settings
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import Workload
from ptb_lm.common import cli, files
from ptb_lm.common.errors import UserError
from ptb_lm.pages.document import to_markdown


def _list(arguments: argparse.Namespace) -> int:
    for name, suite in SUITES.items():
        if arguments.suite in (None, name):
            cli.print_line(f"{name}: {suite.description}")
            for workload in suite.workloads:
                cli.print_line(f"  {workload.name}: {workload.task.size}")
                if arguments.suite is not None:
                    _list_variants(workload)
    return 0


def _list_variants(workload: Workload) -> None:
    passes = " and ".join(workload.passes)
    planned = f"{workload.processes} processes per variant"
    if workload.minutes is not None:
        planned = f"about {workload.minutes:g} minutes, at least {planned}"
    cli.print_line(
        f"    {passes}; {planned}; blocks of {workload.min_steps} step{'s' * (workload.min_steps > 1)} "
        f"and {workload.min_seconds:g} s or more; {workload.warm_up_steps} warm-up steps"
    )
    for variant in workload.variants:
        baseline = " (baseline)" * (variant.name == workload.baseline)
        cli.print_line(f"    {variant.name:<30} {variant.label}{baseline}")
    registry = workload.task.registry
    frameworks = dict.fromkeys(variant.program[0] for variant in workload.variants)
    precisions = "; ".join(f"{name} {', '.join(registry[name].precisions)}" for name in frameworks)
    cli.print_line(f"    each also as VARIANT@PRECISION: {precisions}")


def _run(arguments: argparse.Namespace) -> int:
    options, workloads, sources = _select(arguments)
    out = arguments.out or files.working_folder() / "bench" / options.suite
    with files.lock(out), contextlib.closing(Machine(options.device)) as machine:
        settings = run_settings(options, gpu=machine.gpu, cpu=machine.cpu, added=sources)
        record = Record(out, settings)
        try:
            runner.run(options, workloads, record, machine, command=arguments.command_line)
        except KeyboardInterrupt:
            cli.print_line(f"{out} keeps the measurements; the same command continues the measurement")
            raise
    summary, page = report.write_report(out)
    width, encoding = shutil.get_terminal_size().columns, getattr(sys.stdout, "encoding", None)
    cli.print_line(f"\n{headline.to_text(summary, width=width, encoding=encoding)}\n\n{page}")
    selected = {(workload.name, variant.name) for workload in workloads for variant in workload.variants}
    results = [
        result
        for group in summary.groups
        for result in group.results
        if (group.workload, result.variant) in selected
    ]
    has_failed = any(result.status in ("failed", rows.WRONG) for result in results)
    has_figures = any(result.blocks for result in results)
    return 0 if has_figures and not has_failed else cli.EXIT_FAILED


def _select(
    arguments: argparse.Namespace, *, with_baseline: bool = True
) -> tuple[Options, list[Workload], dict[str, str]]:
    """Import what --add names, and return what the flags select.

    Args:
        arguments: Parsed flags. Each option whose flag the command has is there by its name in Options.
        with_baseline: True if the baseline is always among the variants, to compare with.

    Returns:
        The options of the run.
        The workloads, with the variants.
        A digest of the source of each NAME=MODULE:FUNCTION.

    Raises:
        UserError: A pattern matches nothing, or what --add names cannot be imported, for example.
    """
    variants.ADDED.clear()  # of an earlier command of this process: a notebook's
    own = [variants.add(given) for given in arguments.added]
    flags = vars(arguments) | {
        "workloads": _patterns("--workloads", arguments.workloads),
        "variants": _patterns("--variants", arguments.variants),
        "added": tuple(arguments.added),
    }
    options = Options(**{each.name: flags[each.name] for each in fields(Options) if each.name in flags})
    workloads = selection.select_workloads(options, own, with_baseline=with_baseline)
    return options, workloads, _import_added(options.added)


def _import_added(added: Sequence[str]) -> dict[str, str]:
    """Import each NAME=MODULE:FUNCTION in a worker, because the module may import a framework.

    Returns:
        A digest of each module's source; "" where it has none.

    Raises:
        UserError: A module cannot be imported, or has no such function.
    """
    digests = {}
    for given in added:
        with contextlib.closing(Process(WORKER)) as process:
            try:
                digests[given] = process.ask(**{"import": given.partition("=")[2]})["digest"]
            except WorkerError as error:
                raise UserError(f"--add {given}: {error}") from None
    return digests


def _patterns(flag: str, given: Sequence[str]) -> tuple[str, ...]:
    """Return patterns that were separated by spaces or commas."""
    patterns = tuple(pattern for each in given for pattern in each.split(",") if pattern)
    if given and not patterns:
        raise UserError(f"{flag} names nothing; without it, everything is measured")
    return patterns


def _report(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.folder
    if rows.is_archive(folder):
        folder = _unpack(folder)
    report.write_report(folder, baseline=arguments.baseline, runs=arguments.runs)
    return 0


def _unpack(archive: Path) -> Path:
    """Write the rows of an archive into a folder below bench/, which gets its report; return the folder.

    Raises:
        UserError: The file cannot be read, or the folder holds other rows.
    """
    folder = files.working_folder() / "bench" / archive.name.removesuffix(rows.ARCHIVE_SUFFIX)
    lines = rows.to_lines(rows.read(archive)[0])
    path = folder / rows.FILE
    if path.exists() and path.read_bytes() != lines:
        raise UserError(f"{folder} holds other rows than {archive}; remove that folder, or rename the file")
    folder.mkdir(parents=True, exist_ok=True)
    files.atomic_write(path, lines)
    return folder


def _compare(arguments: argparse.Namespace) -> int:
    cli.print_line(
        to_markdown(agreement.compare_benchmarks(arguments.a, arguments.b, baseline=arguments.baseline))
    )
    return 0


def _check(arguments: argparse.Namespace) -> int:
    options, workloads, _ = _select(arguments, with_baseline=False)
    with contextlib.closing(Machine(options.device)) as machine:
        return check_command.run(
            options, workloads, machine, command=arguments.command_line, out=arguments.out
        )


COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "list": _list,
    "run": _run,
    "check": _check,
    "report": _report,
    "compare": _compare,
}
