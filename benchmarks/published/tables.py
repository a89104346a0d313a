"""Published figures beside ours, in tables for a report."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from benchmarks.published import Figure, Publication, for_workload
from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.formats import significant, times
from ptb_lm.bench.results import Result, ResultGroup, distinct, speed_ratio
from ptb_lm.bench.variants import Variant
from ptb_lm.common.markdown_tables import Column, Name, Table, TableCell
from ptb_lm.pages.document import NOTHING, CaptionedTable

_T = TypeVar("_T")


def tables(groups: Sequence[ResultGroup]) -> Iterator[CaptionedTable]:
    """Yield a table for each source and pass that answers to a workload's passes.

    In another suite than the source's, only if one of its variants was measured there. Beside a part of the
    workload, or another precision than float32, there are no figures, and a sentence says so.
    """
    first = groups[0]
    if cuts := distinct(cut for group in groups for cut in group.cuts):
        yield CaptionedTable(caption=f"Published figures are of the whole size; this is {'; '.join(cuts)}.")
        return
    measured = {result.variant: result for group in groups for result in group.measured_results}
    # A figure stands beside a variant whose name gives no precision.
    unnamed = [result for name, result in measured.items() if Variant(name).precision is None]
    precisions = distinct(formats.precision(result.blocks[0].work.precision) for result in unnamed)
    for source, figures in for_workload(first.suite, first.workload):
        if source.suite != first.suite and measured.keys().isdisjoint(each.variant for each in figures):
            continue
        if precisions not in ([], ["float32"]):
            yield CaptionedTable(caption=f"No published figure is known to be in {precisions[0]}.")
            return
        about = " ".join(f"{text[0].upper()}{text[1:]}." for text in (source.protocol, source.remark) if text)
        caption = f"{source.name} ({source.url}). {about}"
        if not figures:
            yield CaptionedTable(caption=caption)
        for group in groups:
            own = [figure for figure in figures if figure.pass_name == group.pass_name]
            if own:
                title = caption if len(groups) == 1 else f"{group.name}: {caption}"
                yield _table(source, own, group, caption=title)


def _table(
    source: Publication, figures: Sequence[Figure], group: ResultGroup, *, caption: str
) -> CaptionedTable:
    reference = source.references.get(group.workload, "")
    over = next((figure.name for figure in figures if figure.variant == reference), "")
    unit = group.work.unit
    # The columns of a source by their headings; and ours beside them.
    theirs: dict[str, Callable[[Figure], str]] = {
        "ms per batch": lambda figure: _as_published(
            figure.seconds_per_step and figure.seconds_per_step * 1e3
        ),
        "elapsed (s)": lambda figure: _as_published(figure.elapsed),
        f"{unit} per second": lambda figure: _as_published(figure.rate),
        f"× {over}": lambda figure: _format_known(_published_ratio(source, figure), times),
    }
    here: dict[str, Callable[[Result], str]] = {
        "ms per batch": lambda ours: significant(ours.seconds.median * 1e3, 4),
        f"{unit} per second": lambda ours: significant(ours.rate.median, 4),
        f"× {over}": lambda ours: _format_known(
            _ratio(ours, group, reference), lambda known: times(known.estimate)
        ),
        "95 % interval": lambda ours: formats.interval(_ratio(ours, group, reference)),
        "engine": lambda ours: ours.engine or NOTHING,
    }
    # A column that a source lacks is left out, and ours beside it.
    theirs = {title: show for title, show in theirs.items() if any(show(f) != NOTHING for f in figures)}
    # cuDNN's figures stand beside another library's where there is no GPU: then the table says which.
    beside = [title for title in here if title in theirs or title == "95 % interval"]
    beside += ["engine"] * _stands_beside_another_library(group, figures)
    results = {result.variant: result for result in group.measured_results}
    rows: list[list[TableCell]] = [
        [
            Name(figure.name, figure.variant),
            figure.hardware,
            *(show(figure) for show in theirs.values()),
            *(_format_known(results.get(figure.variant), here[title]) for title in beside),
        ]
        for figure in figures
    ]
    heads = [
        Column("", numeric=False),
        Column("hardware", numeric=False),
        *(Column(f"published: {title}") for title in theirs),
        *(Column(f"here: {title}", numeric=title != "engine") for title in beside),
    ]
    remarks = [f"{f.name}, {f.hardware}: {f.remark}." for f in figures if f.remark]
    return CaptionedTable(caption=caption, table=Table(heads, rows), remarks=distinct(remarks))


def _format_known(value: _T | None, show: Callable[[_T], str]) -> str:
    return NOTHING if value is None else show(value)


def _as_published(value: float | None) -> str:
    # Without digits that the source does not have.
    return _format_known(value, lambda known: f"{known:,.6g}")


def _published_ratio(source: Publication, figure: Figure) -> float | None:
    reference = source.reference(figure)
    return figure.times_as_fast_as(reference) if reference else None


def _ratio(ours: Result, group: ResultGroup, reference: str) -> LogMean | None:
    base = group.result(reference)
    return speed_ratio(ours, base) if base else None


def _stands_beside_another_library(group: ResultGroup, figures: Sequence[Figure]) -> bool:
    """Return whether a figure of cuDNN stands beside one of ours that is not."""
    results = (group.result(figure.variant) for figure in figures if "cudnn" in figure.variant)
    return any(" on cpu" in result.engine for result in results if result)
