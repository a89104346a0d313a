"""The headline of a report: words per second by model, and which implementation to use.

A table and one bar chart have the speed of each model in each framework, with 95 % intervals. The
sentences say which implementation to use and by how much it is faster, or by how little two may differ. At
the end of a run the terminal shows the same, with bars of characters, and then every variant.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ptb_lm.bench.intervals import LogMean, joint_confidence
from ptb_lm.bench.reporting import doubts, formats, result_table
from ptb_lm.bench.results import Result, ResultGroup, Summary, distinct, group_by_key, speed_ratio
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.variants import TITLES, Variant, original
from ptb_lm.common.markdown_tables import Column, Table
from ptb_lm.model.frameworks import MODELS
from ptb_lm.pages.bars import Bar, SpeedPlot
from ptb_lm.pages.document import NOTHING, CaptionedTable

_VAGUE = 0.3  # a bound, as a fraction, beyond which two variants are not called alike
_SHORTEST_BAR = 6  # of a terminal, in characters
_FASTEST_EXECUTION = "where a model has several executions, this is the speed of the fastest"


# A row of the table: a model ("block_fused"), and its framework's name for people, with the precision
# where a report has several.
ModelAndFramework: TypeAlias = tuple[str, str]


def choose_groups(groups: Sequence[ResultGroup]) -> list[ResultGroup]:
    """Return a pass of each workload with figures: train, as it is what people wait for, or else forward."""
    chosen = {(group.suite, group.workload): group for group in groups if group.candidates}
    return list(chosen.values())


def speeds(groups: Sequence[ResultGroup]) -> dict[str, dict[ModelAndFramework, LogMean | None]]:
    """Return the speeds of the fastest execution of each model, by workload, and by model and framework.

    All workloads have all pairs, in the order of the models; None stands where a pair was not measured.
    """
    several = len({precision for group in groups for precision in group.precisions}) > 1

    def program(result: Result) -> tuple[str, str, str]:
        framework, model = Variant(result.variant).program
        precision = f", {formats.precision(result.blocks[0].work.precision)}" if several else ""
        return model, framework, precision

    # The fastest execution comes last, and stays.
    rates = [{program(each): each.mean_rate for each in reversed(group.candidates)} for group in groups]
    programs = sorted(
        {key for each in rates for key in each},
        key=lambda key: (formats.place(key[0], MODELS), formats.place(key[1], TITLES), key[2]),
    )
    return {
        _heading(group, groups): {
            (model, f"{TITLES.get(framework, framework)}{precision}"): each.get((model, framework, precision))
            for model, framework, precision in programs
        }
        for group, each in zip(groups, rates, strict=True)
    }


def _heading(group: ResultGroup, groups: Sequence[ResultGroup]) -> str:
    """Return the heading of a group's speeds; the suite is part of it where there are several."""
    suite = f"{group.suite}: " if len({each.suite for each in groups}) > 1 else ""
    kind = "" if group.pass_name == "train" else f", {group.pass_name}"
    return f"{suite}{group.workload}{kind}: {group.work.unit} per second"


def table(groups: Sequence[ResultGroup]) -> Iterator[CaptionedTable]:
    """Yield the table of speeds, if there are any: a row per model and framework, a column per workload."""
    chosen = choose_groups(groups)
    panels = speeds(chosen)
    columns = [
        Column("model", numeric=False),
        Column("framework", numeric=False),
        *(Column(f"{heading} (95 % interval)") for heading in panels),
    ]
    rows = [
        [*key, *(formats.rate(mean) if (mean := panel[key]) else NOTHING for panel in panels.values())]
        for key in next(iter(panels.values()), {})
    ]
    shown = [mean for panel in panels.values() for mean in panel.values() if mean is not None]
    remarks = []
    if len(shown) < sum(len(group.candidates) for group in chosen):
        remarks.append(_FASTEST_EXECUTION)
    if any(mean.unit == "round" and mean.error is not None for mean in shown):
        remarks.append(result_table.ROUNDS_ALONE)
    if rows:
        yield CaptionedTable(table=Table(columns, rows), remarks=remarks)


def plot(groups: Sequence[ResultGroup]) -> Iterator[SpeedPlot]:
    """Yield the bar chart of the speeds, if there are any, with a panel for each workload."""
    chosen = choose_groups(groups)
    panels = {
        heading: group_by_key(
            (model, _bar(framework, mean)) for (model, framework), mean in panel.items() if mean
        )
        for heading, panel in speeds(chosen).items()
    }
    if panels:
        units = distinct(group.work.unit for group in chosen)
        title = f"{formats.join_names(units).capitalize()} per second by model, with 95 % intervals"
        yield SpeedPlot(title=title, panels=panels)


def _bar(framework: str, mean: LogMean) -> Bar:
    text = formats.significant(mean.estimate, 4)
    return Bar(label=framework, value=mean.estimate, text=text, ends=mean.interval)


def sentences(groups: Sequence[ResultGroup]) -> list[str]:
    """Return a sentence or two of all passes together, if several have a choice, and of each."""
    described = [(group, _compare(group)) for group in groups]
    choosing = [
        (group, found)
        for group, found in described
        if group.candidates and sum(not result.is_repetition for result in group.results) > 1
    ]
    together = _compare_all(choosing) if len(choosing) > 1 else {"choices": {}}
    return formats.write_items("headline.md", groups=described, **together)


def _compare(group: ResultGroup) -> dict[str, Any]:
    """Return how a pass's fastest compares with the other candidates, by their names."""
    first = group.fastest
    ratios = {
        each.variant: speed_ratio(first, each) for each in group.candidates if first and each is not first
    }
    known = {name: ratio for name, ratio in ratios.items() if ratio and ratio.interval}
    # The fastest is the fastest of so many by these rows: what it is ahead by is said of all pairs at once.
    confidence = joint_confidence(len(ratios) + 1)
    slower = {
        name: interval[0] - 1
        for name, ratio in known.items()
        if (interval := ratio.interval_of(confidence)) and interval[0] > 1
    }
    near = {
        name: max(ratio.interval[1], 1 / ratio.interval[0]) - 1
        for name, ratio in known.items()
        if name not in slower and ratio.interval
    }
    unknown = [group.label(name) for name in ratios if name not in known]
    # It may have been faster than all of these.
    broken_off = [
        each.label for each in group.measured_results if each.status != MEASURED and not each.is_repetition
    ]
    units = {ratio.unit for ratio in known.values()}
    return {
        "alone": not ratios,
        "slower": slower,
        "near": near,
        "is_vague": max(near.values(), default=0.0) > _VAGUE,
        "unknown": unknown,
        "broken_off": broken_off,
        "by_rounds": "round" in units,
        # Intervals of processes show that it is faster than every other.
        "is_sure": units == {"process"} and not (near or unknown or broken_off),
        "ahead": [
            group.label(original(again.variant))
            for again, _ in group.repetitions
            if first and original(again.variant) != first.variant
            if (ratio := speed_ratio(again, first)) and ratio.estimate > 1
        ],
    }


def _compare_all(described: Sequence[tuple[ResultGroup, dict[str, Any]]]) -> dict[str, Any]:
    """Return what to use in which passes, in which of them that is sure, and what may be best in all."""
    groups = [group for group, _ in described]
    is_one_pass = len({group.pass_name for group in groups}) == 1
    titles = [group.workload if is_one_pass else f"{group.workload} ({group.pass_name})" for group in groups]
    choices = group_by_key(
        (group.fastest.label, title) for title, group in zip(titles, groups, strict=True) if group.fastest
    )
    fit = [
        each.label
        for each in groups[0].candidates
        if not any(each.variant in found["slower"] for _, found in described)
        if all(group.result(each.variant) in group.candidates for group in groups)
    ]
    sure = [title for title, (_, found) in zip(titles, described, strict=True) if found["is_sure"]]
    return {"choices": choices, "sure": sure, "compared": len(groups), "fit": fit}


def to_text(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return the speeds by model as bars, what to use, warnings, a table of each pass, and notes.

    Args:
        summary: The results.
        width: The terminal's width in characters.
        encoding: The terminal's encoding; without a character for a bar it is drawn with number signs.
    """
    lines = formats.wrap(formats.title(summary.groups), width)
    for heading, panel in speeds(choose_groups(summary.groups)).items():
        lines += ["", *formats.wrap(f"{heading} (95 % interval)", width)]
        known = {", ".join(key): mean for key, mean in panel.items() if mean}
        lines += _bars(known, width, _block(encoding))
    lines.append("")
    for sentence in (*sentences(summary.groups), *(f"warning: {each}" for each in doubts.warnings(summary))):
        lines += formats.wrap(sentence, width, indent=2)
    lines += result_table.to_lines(summary.groups, width)
    notes = (note for group in summary.groups for note in _notes(group))
    for note in distinct(notes):
        lines += formats.wrap(note, width, indent=2)
    return "\n".join(lines)


def _block(encoding: str | None) -> str:
    try:
        "█".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _bars(speeds: Mapping[str, LogMean], width: int, block: str) -> Iterator[str]:
    """Yield a line per model and framework, or two where the terminal is narrow: a bar and the speed."""
    number, label = max(len(formats.rate(mean)) for mean in speeds.values()), max(map(len, speeds))
    is_wide = label + number + 2 * _SHORTEST_BAR + 4 <= width
    longest = max(_SHORTEST_BAR, width - number - 2 - (label + 2 if is_wide else 2))
    fastest = max(mean.estimate for mean in speeds.values())
    for name, mean in speeds.items():
        bar = block * max(1, math.floor(longest * mean.estimate / fastest))
        if not is_wide:
            yield name
        yield f"{f'{name:<{label}}' if is_wide else ''}  {bar:<{longest}}  {formats.rate(mean):>{number}}"


def _notes(group: ResultGroup) -> Iterator[str]:
    """Yield which variants have no figures and why, what was cut, and what the names stand for."""
    unmeasured = group_by_key(
        ((result.status, result.reason), result.label) for result in group.results if not result.blocks
    )
    for (status, reason), labels in unmeasured.items():
        yield f"{group.name}: {status}: {formats.join_names(labels)}: {reason}"
    yield from (f"{group.name}, {note}" for note in formats.notes(group))
    yield from formats.legend(group)
