"""A workload's part of a report."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.reporting import details, formats, published_tables, result_plots, result_table
from ptb_lm.bench.reporting.document import Captioned, Section
from ptb_lm.bench.results import Group, Result, distinct, paired


def lead(group: Group) -> str:
    """Say in a sentence which variant is the fastest, and whether that is more than chance."""
    fastest = next((result for result in group.results if result.rate), None)
    if fastest is None or fastest.rate is None or group.work is None:
        return f"{group.name}: nothing was measured."
    what = f"{group.name}: {fastest.label} is the fastest with {formats.significant(fastest.rate.median)} "
    what += f"{group.work.unit} a second"
    if fastest.variant == group.baseline or fastest.ratio is None:
        return f"{what}."
    what += f", {formats.ratio(fastest.ratio)} times {group.label(group.baseline)}"
    interval = fastest.ratio.interval
    if interval is None:
        return f"{what}; one round tells no error."
    if interval[0] <= 1:
        return f"{what}: no more than chance may do."
    equals = [each.label for each in group.results if each is not fastest and _may_be_as_fast(each, fastest)]
    return f"{what}. Not told apart from it: {', '.join(equals)}." if equals else f"{what}."


def _may_be_as_fast(result: Result, fastest: Result) -> bool:
    lead = paired(fastest, result) if result.blocks else None
    # Of what has no interval nothing is said but its time.
    return lead is not None and lead.interval is not None and lead.interval[0] <= 1


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
        details=[
            Captioned(
                caption=f"How {group.name} was measured",
                table=details.table(group),
                remarks=list(details.limits(group)),
            )
            for group in groups
            if group.work
        ],
    )


def _work(groups: Sequence[Group]) -> Iterator[str]:
    measured = [(group.pass_name, group.work) for group in groups if group.work]
    if not measured:
        return
    work = measured[0][1]
    steps = " and ".join(f"{formats.flops(each.flops_per_step)} ({name})" for name, each in measured)
    cut = "".join(f"Cut: {cut}. " for cut in distinct(cut for group in groups for cut in group.cuts))
    what = f"{cut}{work.description}; " if work.description else cut
    precisions = ", ".join(_precisions(groups))
    step = f"a step is {work.items_per_step:,.0f} {work.unit} and {steps}"
    yield f"{what}{work.parameters:,} parameters; {step}; {precisions} on {work.device}."
    if work.clock:
        yield f"Inside the clock: {work.clock}."


def _precisions(groups: Sequence[Group]) -> list[str]:
    return distinct(precision for group in groups for precision in group.precisions)


def _remarks(groups: Sequence[Group]) -> Iterator[str]:
    if len(precisions := _precisions(groups)) > 1:
        yield f"The variants compute in {', '.join(precisions)}: ratios here compare precisions too."
    for group in groups:
        for note in distinct(note for result in group.results for note in result.notes):
            of = [result.label for result in group.results if note in result.notes]
            everyone = len(of) == sum(bool(result.blocks) for result in group.results) > 1
            yield f"{group.pass_name}, {'all' if everyone else ', '.join(of)}: {note}"
    yield from result_table.unavailable(groups)
