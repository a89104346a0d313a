"""Published figures beside ours: what a source says of a variant, and what was measured here."""

from collections.abc import Callable, Iterator, Sequence

from ptb_lm.bench.findings import Group, distinct, paired
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats, published
from ptb_lm.bench.reporting.document import Captioned
from ptb_lm.bench.reporting.formats import NOTHING
from ptb_lm.bench.reporting.publication import Figure, Source
from ptb_lm.bench.reporting.tables import Cell, Column, Name, Table


def tables(groups: Sequence[Group]) -> Iterator[Captioned]:
    """Yield a table for each source and pass that answers to a workload's passes.

    In another suite than the source's, only if one of its variants was measured there.
    """
    first = groups[0]
    if cuts := distinct(cut for group in groups for cut in group.cuts):
        yield Captioned(caption=f"Published figures are of the whole size; this is {'; '.join(cuts)}.")
        return
    measured = {result.variant for group in groups for result in group.results if result.blocks}
    for source, figures in published.for_workload(first.suite, first.workload):
        if source.suite != first.suite and measured.isdisjoint(figure.variant for figure in figures):
            continue
        about = " ".join(f"{text[0].upper()}{text[1:]}." for text in (source.protocol, source.remark) if text)
        caption = f"{source.name} ({source.url}). {about}"
        if not figures:
            yield Captioned(caption=caption)
        for group in groups:
            of = [figure for figure in figures if figure.pass_name == group.pass_name]
            if of:
                of_the_pass = caption if len(groups) == 1 else f"{group.name}: {caption}"
                yield _table(source, of, group, caption=of_the_pass)


def _table(source: Source, figures: Sequence[Figure], group: Group, *, caption: str) -> Captioned:
    reference = source.references.get(group.workload, "")
    over = next((figure.name for figure in figures if figure.variant == reference), "")
    unit = group.work.unit if group.work else "items"
    published_columns: dict[str, Callable[[Figure], str]] = {
        "ms a batch": lambda figure: _as_published(figure.seconds_per_step and figure.seconds_per_step * 1e3),
        "elapsed (s)": lambda figure: _as_published(figure.elapsed),
        f"{unit} a second": lambda figure: _as_published(figure.rate),
        f"× {over}": lambda figure: _published_ratio(source, figure),
    }
    here_columns: dict[str, Callable[[Figure], str]] = {
        "ms a batch": lambda figure: _here_time(group, figure),
        f"{unit} a second": lambda figure: _here_rate(group, figure),
        f"× {over}": lambda figure: _estimate(_here_ratio(group, figure, reference)),
    }
    # What a source does not tell is no column of its table, nor what we have beside it.
    told = {title for title, show in published_columns.items() if any(show(f) != NOTHING for f in figures)}
    columns = {title: show for title, show in published_columns.items() if title in told}
    here = {title: show for title, show in here_columns.items() if title in told}
    # cuDNN's figures stand beside another library's where there is no GPU: then the table says which.
    told_engine: dict[str, Callable[[Figure], str]] = {}
    if _others(group, figures):
        told_engine["engine"] = lambda figure: _here_engine(group, figure)
    rows: list[list[Cell]] = [
        [
            Name(figure.name, figure.variant),
            figure.hardware,
            *(show(figure) for show in columns.values()),
            *(show(figure) for show in here.values()),
            formats.interval(_here_ratio(group, figure, reference)),
            *(show(figure) for show in told_engine.values()),
        ]
        for figure in figures
    ]
    heads = [
        Column("", numeric=False),
        Column("hardware", numeric=False),
        *(Column(f"published: {title}") for title in columns),
        *(Column(f"here: {title}") for title in (*here, "95 % interval")),
        *(Column(f"here: {title}", numeric=False) for title in told_engine),
    ]
    remarks = [f"{f.name}, {f.hardware}: {f.remark}." for f in figures if f.remark]
    return Captioned(caption=caption, table=Table(heads, rows), remarks=distinct(remarks))


def _as_published(value: float | None) -> str:
    # Without digits that the source does not have.
    return NOTHING if value is None else f"{value:,.6g}"


def _estimate(ratio: Ratio | None) -> str:
    return NOTHING if ratio is None else formats.times(ratio.estimate)


def _published_ratio(source: Source, figure: Figure) -> str:
    reference = source.reference(figure)
    ratio = figure.times_as_fast_as(reference) if reference else None
    return NOTHING if ratio is None else formats.times(ratio)


def _here_time(group: Group, figure: Figure) -> str:
    result = group.result(figure.variant)
    return formats.significant(result.seconds.median * 1e3, 4) if result and result.seconds else NOTHING


def _here_rate(group: Group, figure: Figure) -> str:
    result = group.result(figure.variant)
    return formats.significant(result.rate.median, 4) if result and result.rate else NOTHING


def _here_engine(group: Group, figure: Figure) -> str:
    result = group.result(figure.variant)
    return result.engine if result and result.engine else NOTHING


def _others(group: Group, figures: Sequence[Figure]) -> bool:
    """Return whether a figure of cuDNN stands beside one of ours that is not."""
    results = (group.result(figure.variant) for figure in figures if "cudnn" in figure.variant)
    return any(" on cpu" in result.engine for result in results if result)


def _here_ratio(group: Group, figure: Figure, reference: str) -> Ratio | None:
    ours, base = group.result(figure.variant), group.result(reference)
    return paired(ours, base) if ours and base else None
