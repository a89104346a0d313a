"""The report of a benchmark: report.md, and report.html with plots.

It begins with the headline (headline.py). Then come the workloads' tables, plots and remarks, training runs,
and the machine.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from ptb_lm.bench import checkout
from ptb_lm.bench.reporting import doubts, formats, headline, result_table
from ptb_lm.bench.results import ResultGroup, Summary, distinct, group_by_key
from ptb_lm.bench.summary import summarise
from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write
from ptb_lm.common.markdown_tables import Column, Table
from ptb_lm.comparison import tables
from ptb_lm.comparison.runs import RunGroup, read_groups
from ptb_lm.pages.bars import Bar, BarPlot
from ptb_lm.pages.document import CaptionedTable, Document, Section, to_html, to_markdown

_HOW_TO_READ = Path(__file__).parent / "templates" / "how_to_read.md"
MARKDOWN, PAGE = "report.md", "report.html"

_PROCESS_FACTS = {"started"}  # they are no machine's
_FACTS_FIRST = ("cpu", "processor", "device", "cores", "threads", "torch", "tensorflow", "commit")


def write_report(
    out: Path, *, baseline: str | None = None, runs: Sequence[Path] = ()
) -> tuple[Summary, Path]:
    """Write OUT/report.md and OUT/report.html from OUT/rows.jsonl, and say so.

    Without matplotlib the page is left out, and a sentence says how to get it.

    Args:
        out: The benchmark's folder.
        baseline: The variant that ratios are to; None: the one that the rows name.
        runs: Run directories whose learning curves to show.

    Returns:
        (summary, page): what was measured, and the file to look at first.

    Raises:
        UserError: The rows or a run cannot be read, work was unequal, or there is no such baseline.
    """
    summary = summarise(out, baseline=baseline)
    document = build(summary, runs=runs)
    atomic_write(out / MARKDOWN, to_markdown(document))
    cli.print_line(f"wrote {out / MARKDOWN}")
    try:
        html = to_html(document)
    except UserError as error:
        cli.print_line(f"{PAGE} is not written: {error}")
        return summary, out / MARKDOWN
    atomic_write(out / PAGE, html)
    cli.print_line(f"wrote {out / PAGE}")
    return summary, out / PAGE


def build(summary: Summary, *, runs: Sequence[Path] = ()) -> Document:
    """Return a report before it is Markdown or a page.

    Raises:
        UserError: A run cannot be read.
    """
    several = len(summary.suites) > 1
    workloads = group_by_key(
        (f"{group.suite}: {group.workload}" if several else group.workload, group) for group in summary.groups
    )
    return Document(
        title=formats.title(summary.groups),
        subtitle=_subtitle(summary),
        tables=list(headline.table(summary.groups)),
        plots=list(headline.plot(summary.groups)),
        lead=headline.sentences(summary.groups),
        warnings=doubts.warnings(summary),
        sections=[
            *(_workload(title, groups) for title, groups in workloads.items()),
            *([_training_runs(runs)] if runs else []),
            _machine(summary),
        ],
        explanation=_HOW_TO_READ.read_text(encoding="utf-8").rstrip(),
    )


def _subtitle(summary: Summary) -> str:
    """Return suites, commit, machine and days."""
    commits = " and ".join(map(doubts.shorten_commit, summary.environment.get("commit", ()))) or "unknown"
    facts = ("processor", "device", "cpu")
    machine = distinct(value for name in facts for value in summary.environment.get(name, ()))
    days = distinct(time[:10] for time in summary.times)
    parts = (
        f"Benchmark {', '.join(summary.suites)}, commit {commits}",
        ", ".join(machine),
        " to ".join(days),
    )
    return "; ".join(part for part in parts if part)


def _workload(title: str, groups: Sequence[ResultGroup]) -> Section:
    """Describe a workload, given its passes."""
    published_tables = checkout.load("published.tables:tables")
    precisions = distinct(precision for group in groups for precision in group.precisions)
    table = result_table.table(groups)
    return Section(
        title=title,
        paragraphs=formats.write_items(
            "work.md",
            works=[group for group in groups if group.measured_results],
            cuts=distinct(cut for group in groups for cut in group.cuts),
            precisions=precisions,
        ),
        tables=[
            CaptionedTable(
                table=table, remarks=[*result_table.explain_mark(table), *_remarks(groups, precisions)]
            )
        ],
        plots=[plot for group in groups for plot in _plots(group, several=len(groups) > 1)],
        published=list(published_tables(groups)) if published_tables else (),
        details=[each for group in groups if group.measured_results for each in _details(group)],
    )


def _remarks(groups: Sequence[ResultGroup], precisions: Sequence[str]) -> list[str]:
    """Return what stands below the table of a workload's passes."""
    blocks = [(result.variant, row) for group in groups for result in group.results for row in result.blocks]
    counts = (
        (doubts.count_threads(row) or row.environment.get("threads"), variant) for variant, row in blocks
    )
    threads = group_by_key((str(count), variant) for count, variant in counts if count is not None)
    return formats.write_items(
        "remarks.md",
        groups=groups,
        legend=distinct(line for group in groups for line in formats.legend(group)),
        threads={count: distinct(variants) for count, variants in threads.items()},
        precisions=precisions,
        notes=[f"{group.pass_name}, {note}" for group in groups for note in formats.notes(group)],
        unavailable=result_table.unavailable(groups),
    )


def _plots(group: ResultGroup, *, several: bool) -> Iterator[BarPlot]:
    """Yield ratios to the baseline with intervals, and fractions of the GEMM rate with quartiles."""
    suffix = f", {group.pass_name}" if several else ""
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


def _details(group: ResultGroup) -> Iterator[CaptionedTable]:
    """Yield the table of every pair, if there are several, and the details with the machine's rates."""
    if len(group.measured_results) > 1:
        pairs = result_table.pairs(group)
        yield CaptionedTable(
            caption=f"All pairs of {group.name}: the row's speed divided by the column's",
            table=pairs,
            remarks=result_table.explain_mark(pairs),
        )
    yield CaptionedTable(
        caption=f"How {group.name} was measured",
        table=result_table.details(group),
        remarks=[
            f"GEMM rate: {on}, blocks: {len(rates)}, "
            f"median: {formats.significant(statistics.median(rates))} GFLOP/s"
            for on, rates in doubts.gemm_rates(group).items()
        ],
    )


def _training_runs(folders: Sequence[Path]) -> Section:
    """Describe some runs as `compare` does, with a plot each.

    Raises:
        UserError: A path is not a run directory, or its metrics are missing or broken.
    """
    groups = read_groups(folders, command=cli.command_name("bench"))
    shown = [CaptionedTable(table=tables.results(groups), remarks=[tables.HOW_TO_READ])]
    if (different := tables.differences(groups)).rows:
        shown.append(CaptionedTable(caption=tables.DIFFERENCES, table=different))
    return Section(
        title="Learning curves",
        tables=shown,
        details=[CaptionedTable(caption=tables.SHARED_CAPTION, table=tables.common_settings(groups))],
        plots=[tables.curves([RunGroup([run])]) for group in groups for run in group.runs],
    )


def _machine(summary: Summary) -> Section:
    """Describe the machine, the versions, the commands and the time of a benchmark."""
    keys = formats.in_order(summary.environment.keys() - _PROCESS_FACTS, _FACTS_FIRST)
    facts = [[key, "; ".join(summary.environment[key])] for key in keys]
    facts += [["command", command] for command in summary.commands]
    if summary.times:
        facts.append(["measured", " to ".join(distinct(summary.times))])
    columns = [Column("", numeric=False), Column("", numeric=False)]
    return Section(title="The machine", tables=[CaptionedTable(table=Table(columns, facts))] if facts else [])
