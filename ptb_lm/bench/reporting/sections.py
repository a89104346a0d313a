"""A workload's part of a report."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Result, distinct
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import details, formats, names, published_tables, result_plots, result_table
from ptb_lm.bench.reporting.document import Captioned, Section
from ptb_lm.bench.variants import original

_SAME = f"{formats.SAME}: the interval holds 1, so that no difference is shown"


def section(groups: Sequence[Group], *, with_suite: bool) -> Section:
    """Describe a workload, given its passes; the title names its suite if asked to."""
    several = len(groups) > 1
    suite, workload = groups[0].suite, groups[0].workload
    return Section(
        title=f"{suite}: {workload}" if with_suite else workload,
        paragraphs=list(_work(groups)),
        tables=[Captioned(table=result_table.table(groups), remarks=list(_remarks(groups)))],
        plots=[plot for group in groups for plot in result_plots.plots(group, with_pass=several)],
        published=list(published_tables.tables(groups)),
        details=[each for group in groups if group.work for each in _details(group)],
    )


def _details(group: Group) -> Iterator[Captioned]:
    if len(group.measured) > 1:
        yield Captioned(
            caption=f"Every pair of {group.name}: how many times as fast as the column's the row's is",
            table=result_table.pairs(group),
            remarks=[_SAME],
        )
    yield Captioned(
        caption=f"How {group.name} was measured",
        table=details.table(group),
        remarks=list(details.limits(group)),
    )


def _work(groups: Sequence[Group]) -> Iterator[str]:
    measured = [(group.pass_name, group.work) for group in groups if group.work]
    if not measured:
        return
    work = measured[0][1]
    steps = " and ".join(f"{formats.flops(each.flops_per_step)} ({name})" for name, each in measured)
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
    if any(len(group.measured) > 1 for group in groups):
        yield _SAME
    for group in groups:
        if group.fastest and group.fastest is not group.candidates[0]:
            yield (
                f"{group.name}: the fastest is {group.fastest.label}, because round by round no other was "
                "faster; its median is not the best"
            )
    yield from distinct(line for group in groups for line in names.legend(group))
    for group in groups:
        yield from map(_of_repetition, group.repetitions)
    yield from _threads(groups)
    if len(precisions := _precisions(groups)) > 1:
        yield f"The variants compute in {', '.join(precisions)}: ratios here compare precisions too."
    for group in groups:
        for note in distinct(note for result in group.results for note in result.notes):
            of = [result.label for result in group.results if note in result.notes]
            everyone = len(of) == sum(bool(result.blocks) for result in group.results) > 1
            yield f"{group.pass_name}, {'all' if everyone else ', '.join(of)}: {note}"
    yield from result_table.unavailable(groups)


def _of_repetition(test: tuple[Result, Ratio]) -> str:
    """Say what an A/A test found."""
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
    """Say who computed with how many threads, where these are not the same for all."""
    by_threads: dict[str, list[str]] = {}
    for result in (result for group in groups for result in group.results):
        for threads in distinct(
            details.threads(row) or row.environment.get("threads") for row in result.blocks
        ):
            if threads is not None:
                by_threads.setdefault(str(threads), []).append(result.variant)
    if len(by_threads) > 1:
        each = "; ".join(f"{threads}: {', '.join(distinct(of))}" for threads, of in by_threads.items())
        yield f"the variants had not the same number of threads: {each}"
