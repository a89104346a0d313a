"""The sections of a report: a workload's tables, plots and remarks; training runs; the machine."""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ptb_lm.bench import suites
from ptb_lm.bench.findings import Group, Result, Summary, distinct
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats, result_table
from ptb_lm.bench.reporting.bar_plot import Bar, BarPlot
from ptb_lm.bench.reporting.formats import NOTHING
from ptb_lm.bench.reporting.page import CaptionedTable, Section
from ptb_lm.bench.reporting.plots import plot_epochs
from ptb_lm.bench.rows import Row
from ptb_lm.bench.variants import original
from ptb_lm.common.tables import Column, Name, Table, TableCell
from ptb_lm.training import run_folders

_PROCESS_FACTS = {"started"}  # they are no machine's
_FACTS_FIRST = ("cpu", "processor", "device", "cores", "threads", "torch", "tensorflow", "commit")
_ONE_A_CORE = "one a core"  # the first words of some libraries about their threads
_SAME = f"{formats.SAME}: the interval holds 1, so that no difference is shown"


def workload(groups: Sequence[Group], *, with_suite: bool) -> Section:
    """Describe a workload, given its passes; the title names its suite if asked to."""
    several, published_tables = len(groups) > 1, suites.load("published.tables:tables")
    suite, name = groups[0].suite, groups[0].workload
    return Section(
        title=f"{suite}: {name}" if with_suite else name,
        paragraphs=list(_work(groups)),
        tables=[CaptionedTable(table=result_table.table(groups), remarks=list(_remarks(groups)))],
        plots=[plot for group in groups for plot in _plots(group, with_pass=several)],
        published=list(published_tables(groups)) if published_tables else (),
        details=[each for group in groups if group.work for each in _details(group)],
    )


def _details(group: Group) -> Iterator[CaptionedTable]:
    if len(group.measured_results) > 1:
        yield CaptionedTable(
            caption=f"Every pair of {group.name}: how many times as fast as the column's the row's is",
            table=result_table.pairs(group),
            remarks=[_SAME],
        )
    yield CaptionedTable(
        caption=f"How {group.name} was measured",
        table=result_table.details(group),
        remarks=list(_limits(group)),
    )


def _work(groups: Sequence[Group]) -> Iterator[str]:
    works = [(group.pass_name, group.work) for group in groups if group.work]
    if not works:
        return
    work = works[0][1]
    steps = " and ".join(f"{formats.flops(each.flops_per_step)} ({name})" for name, each in works)
    cut = "".join(
        f"Not as declared: {cut}. " for cut in distinct(cut for group in groups for cut in group.cuts)
    )
    what = f"{cut}{work.description}; " if work.description else cut
    precisions = ", ".join(_precisions(groups))
    step = f"a step is {work.items_per_step:,.0f} {work.unit} and {steps}"
    yield f"{what}{work.parameters:,} parameters; {step}; {precisions} on {work.device}."
    if work.clock:
        yield f"Inside the clock: {work.clock}."


def _precisions(groups: Sequence[Group]) -> list[str]:
    return distinct(precision for group in groups for precision in group.precisions)


def _remarks(groups: Sequence[Group]) -> Iterator[str]:
    if any(len(group.measured_results) > 1 for group in groups):
        yield _SAME
    for group in groups:
        if group.fastest and group.fastest is not group.candidates[0]:
            yield (
                f"{group.name}: the fastest is {group.fastest.label}, because round by round no other was "
                "faster; its median is not the best"
            )
    yield from distinct(line for group in groups for line in formats.legend(group))
    for group in groups:
        yield from map(_describe_repetition, group.repetitions)
    yield from _threads(groups)
    if len(precisions := _precisions(groups)) > 1:
        yield f"The variants compute in {', '.join(precisions)}: ratios here compare precisions too."
    for group in groups:
        for note in distinct(note for result in group.results for note in result.notes):
            labels = [result.label for result in group.results if note in result.notes]
            everyone = len(labels) == sum(bool(result.blocks) for result in group.results) > 1
            yield f"{group.pass_name}, {'all' if everyone else ', '.join(labels)}: {note}"
    yield from result_table.unavailable(groups)


def _describe_repetition(test: tuple[Result, Ratio]) -> str:
    """Return the finding of an A/A test."""
    result, ratio = test
    what = f"A/A test: {original(result.variant)}, measured twice by two names"
    if ratio.interval is None:
        return f"{what}, is {formats.times(ratio.estimate)} times as fast as itself; one round: no interval"
    holds = "holds 1, as it should" if not ratio.differs else "does not hold 1, though it should"
    resolution = f"half its width, {formats.percent(ratio.half_width or 0.0)}, is the resolution of this run"
    few = "" if ratio.unit == "process" else "; other processes may differ by more than that"
    return (
        f"{what}, is {formats.ratio(ratio)} times as fast as itself: the interval {holds}; {resolution}{few}"
    )


def _threads(groups: Sequence[Group]) -> Iterator[str]:
    """Yield the variants by their number of threads, where it is not the same for all."""
    by_threads: dict[str, list[str]] = {}
    for result in (result for group in groups for result in group.results):
        for told in distinct(threads(row) or row.environment.get("threads") for row in result.blocks):
            if told is not None:
                by_threads.setdefault(str(told), []).append(result.variant)
    if len(by_threads) > 1:
        each = "; ".join(f"{count}: {', '.join(distinct(names))}" for count, names in by_threads.items())
        yield f"the variants had not the same number of threads: {each}"


def _plots(group: Group, *, with_pass: bool) -> Iterator[BarPlot]:
    """Yield ratios to the baseline with intervals, and fractions of the GEMM rate with quartiles."""
    suffix = f", {group.pass_name}" if with_pass else ""
    ratios = [
        Bar(label=result.label, value=ratio.estimate, ends=ratio.interval, text=formats.ratio(ratio))
        for result in group.results
        if (ratio := result.ratio)
    ]
    if len(ratios) > 1:
        yield BarPlot(title=f"Speed-up over {group.label(group.baseline)}{suffix}", bars=ratios, origin=1)
    fractions = [
        # A bar ends at the limit, also where that was measured too low.
        Bar(
            label=result.label,
            value=min(known.median, 1.0),
            ends=(min(known.low, 1.0), min(known.high, 1.0)) if known.count > 1 else None,
            text=formats.limit_percent(known.median),
        )
        for result in group.results
        if (known := result.gemm_fraction)
    ]
    if fractions:
        yield BarPlot(title=f"Fraction of the GEMM rate{suffix}", bars=fractions, origin=0, percent=True)


def threads(row: Row) -> int | None:
    """Return the number of threads of all processes of a row; None if it is not known."""
    told = str(row.environment.get("threads"))
    found = re.match(r"\d+", told.replace(_ONE_A_CORE, str(row.environment.get("cores"))))
    return int(found[0]) * int(row.environment.get("processes", 1)) if found else None


def _limits(group: Group) -> Iterator[str]:
    """Yield a sentence for each way in which the GEMM rate was measured; some rows do not tell."""
    for on, rates in gemm_rates(group).items():
        median = formats.significant(statistics.median(rates))
        yield f"GEMM rate: {on}, blocks: {len(rates)}, median: {median} GFLOP/s"


def gemm_rates(group: Group) -> Mapping[str, Sequence[float]]:
    """Return the GEMM rates beside the blocks, in GFLOP/s, by what they were measured on.

    Rows of earlier versions do not tell on what, and are left out.
    """
    rates: dict[str, list[float]] = {}
    for row in (row for result in group.results for row in result.blocks):
        if row.work and row.gemm_library and row.gemm_gflops:
            on_threads = f", threads: {row.gemm_threads}" if row.gemm_threads else ""
            on = f"{row.work.precision}, {row.gemm_library}, {row.gemm_shape}{on_threads}"
            rates.setdefault(on, []).append(row.gemm_gflops)
    return rates


def learning_curves(runs: Sequence[Path]) -> Section:
    """Describe some runs: a row and a plot each.

    Raises:
        UserError: A path is not a run directory, or its metrics are missing or broken.
    """
    columns = [
        Column("run", numeric=False),
        Column("epochs"),
        Column("train perplexity"),
        Column("best valid perplexity"),
        Column("test perplexity"),
        Column("words a second"),
    ]
    rows: list[list[TableCell]] = []
    plots = []
    for path in runs:
        run = run_folders.find(path)
        config, epochs = run.read_config(), run.read_metrics()
        title = f"{config.config}, {config.choice.framework} {config.choice.model}"
        best = min(epochs, key=lambda row: row["valid_perplexity"])
        test = run.read_end(len(epochs)).get("test_perplexity")
        rows.append(
            [
                Name(title, path.name),
                str(len(epochs)),
                f"{epochs[-1]['train_perplexity']:,.2f}",
                f"{best['valid_perplexity']:,.2f} (epoch {best['epoch']:.0f})",
                f"{test:,.2f}" if isinstance(test, int | float) else NOTHING,
                formats.significant(epochs[-1]["words_per_second"], 4),
            ]
        )
        plots.append(plot_epochs(epochs, title=f"{title} ({path.name})"))
    return Section(
        title="Learning curves",
        paragraphs=[
            "Perplexity by epoch; train is measured on the way, with dropout where the model has it."
        ],
        tables=[CaptionedTable(table=Table(columns, rows))],
        plots=plots,
    )


def machine(summary: Summary) -> Section:
    """Describe the machine, the versions, the commands and the time of a benchmark."""
    keys = sorted(
        summary.environment.keys() - _PROCESS_FACTS,
        key=lambda name: (_FACTS_FIRST.index(name) if name in _FACTS_FIRST else len(_FACTS_FIRST), name),
    )
    facts = [[key, "; ".join(summary.environment[key])] for key in keys]
    facts += [["command", command] for command in summary.commands]
    if summary.times:
        facts.append(["measured", " to ".join(distinct(summary.times))])
    columns = [Column("", numeric=False), Column("", numeric=False)]
    return Section(title="The machine", tables=[CaptionedTable(table=Table(columns, facts))] if facts else [])
