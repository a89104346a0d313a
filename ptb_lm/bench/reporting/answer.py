"""The answer that a report begins with: words per second by cell type, and which implementation to take.

A table and one bar chart have the speed of each cell type in each framework, with 95 % intervals. The
sentences say which implementation to take and by how much it is faster, or by how little two may differ. At
the end of a run the terminal shows the same, with bars of characters, and then every variant.
"""

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ptb_lm.bench.findings import Group, Result, Summary, distinct, speed_ratio
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats, result_table
from ptb_lm.bench.reporting.bar_plot import Bar, SpeedPlot
from ptb_lm.bench.reporting.formats import NOTHING, join_names, percent, rate, significant, wrap
from ptb_lm.bench.reporting.page import CaptionedTable
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.variants import TITLES, original, program
from ptb_lm.common.tables import Column, Table
from ptb_lm.model.frameworks import MODELS

_SHORTEST_BAR = 6  # of a terminal, in characters
_FASTEST_EXECUTION = "where a cell type has several executions, this is the fastest of them"


# A row of the answer: a cell type ("block_fused"), and its framework's name for people, with the precision
# where a report has several.
CellType: TypeAlias = tuple[str, str]


def choose_groups(groups: Sequence[Group]) -> list[Group]:
    """Return a pass of each workload with figures: train, as it is what people wait for, or else forward."""
    chosen = {(group.suite, group.workload): group for group in groups if group.candidates and group.work}
    return list(chosen.values())


def speeds(groups: Sequence[Group]) -> dict[CellType, list[Result | None]]:
    """Return the fastest result of each cell type by group, by cell type in the order of the models."""
    several = len({precision for group in groups for precision in group.precisions}) > 1
    found: dict[CellType, list[Result | None]] = {}
    for place, group in enumerate(groups):
        for result in reversed(group.candidates):  # the fastest comes last, and stays
            found.setdefault(_cell_type(result, several), [None] * len(groups))[place] = result
    known = [*MODELS, *sorted({model for model, _ in found} - {*MODELS})]
    frameworks = [*TITLES.values()]

    def order(key: CellType) -> tuple[int, int, str]:
        model, framework = key
        title = framework.partition(",")[0]
        place = frameworks.index(title) if title in frameworks else len(frameworks)
        return known.index(model), place, framework

    return {key: found[key] for key in sorted(found, key=order)}


def _cell_type(result: Result, with_precision: bool) -> CellType:
    framework, model = program(result.variant)
    title = TITLES.get(framework, framework)
    precision = formats.precision(result.blocks[0].work.precision)
    return model, f"{title}, {precision}" if with_precision else title


def heading(group: Group, groups: Sequence[Group]) -> str:
    """Return the heading of a group's speeds; the suite is part of it where there are several."""
    suite = f"{group.suite}: " if len({each.suite for each in groups}) > 1 else ""
    kind = "" if group.pass_name == "train" else f", {group.pass_name}"
    unit = group.work.unit if group.work else "items"
    return f"{suite}{group.workload}{kind}: {unit} a second"


def table(groups: Sequence[Group]) -> Iterator[CaptionedTable]:
    """Yield the table of speeds, if there are any: a row a cell type and framework, a column a workload."""
    chosen = choose_groups(groups)
    found = speeds(chosen)
    columns = [
        Column("cell type", numeric=False),
        Column("framework", numeric=False),
        *(Column(f"{heading(group, chosen)} (95 % interval)") for group in chosen),
    ]
    rows = [[*key, *(_speed(result) for result in results)] for key, results in found.items()]
    shown = sum(result is not None for results in found.values() for result in results)
    left_out = shown < sum(len(group.candidates) for group in chosen)
    if rows:
        yield CaptionedTable(table=Table(columns, rows), remarks=[_FASTEST_EXECUTION] * left_out)


def _speed(result: Result | None) -> str:
    return rate(result.mean_rate) if result and result.mean_rate else NOTHING


def plot(groups: Sequence[Group]) -> Iterator[SpeedPlot]:
    """Yield the bar chart of the speeds, if there are any, with a panel for each workload."""
    chosen = choose_groups(groups)
    found = speeds(chosen)
    panels: dict[str, dict[str, list[Bar]]] = {}
    for place, group in enumerate(chosen):
        panel = panels.setdefault(heading(group, chosen), {})
        for (model, framework), results in found.items():
            result = results[place]
            if result and (mean := result.mean_rate):
                text = significant(mean.estimate, 4)
                bar = Bar(label=framework, value=mean.estimate, text=text, ends=mean.interval)
                panel.setdefault(model, []).append(bar)
    if panels:
        units = distinct(group.work.unit for group in chosen if group.work)
        title = f"{join_names(units).capitalize()} a second by cell type, with 95 % intervals"
        yield SpeedPlot(title=title, panels=panels)


def sentences(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence or two of all passes together, if several have a choice, and of each."""
    with_a_choice = [group for group in groups if group.candidates and _count_choices(group) > 1]
    if len(with_a_choice) > 1:
        yield " ".join(_describe_all(with_a_choice))
    for group in groups:
        yield f"{group.name}: {' '.join(_describe(group))}"


def _count_choices(group: Group) -> int:
    """Return how many variants there were to choose from, measured or not."""
    return sum(not result.is_repetition for result in group.results)


def _describe_all(groups: Sequence[Group]) -> Iterator[str]:
    """Yield what to take in which passes, in which of them that is sure, and what may be best in all."""
    alike = len({group.pass_name for group in groups}) == 1
    titles = [group.workload if alike else f"{group.workload} ({group.pass_name})" for group in groups]
    choices: dict[str, list[str]] = {}
    for title, group in zip(titles, groups, strict=True):
        if group.fastest:
            choices.setdefault(group.fastest.label, []).append(title)
    one_for_all = len(choices) == 1
    each = "; ".join(f"{label} for {join_names(where)}" for label, where in choices.items())
    yield f"On this machine take {next(iter(choices)) if one_for_all else each}."
    sure = [title for title, group in zip(titles, groups, strict=True) if _is_sure(group)]
    where = f": {join_names(sure)}" if 0 < len(sure) < len(groups) else ""
    yield f"That every other is slower is shown in {len(sure)} of {len(groups)} passes{where}."
    slower = {each.variant for group in groups for each, ratio in _others(group) if _is_above_1(ratio)}
    everywhere = [each for each in groups[0].candidates if each.variant not in slower]
    fit = [
        each.label
        for each in everywhere
        if all(group.result(each.variant) in group.candidates for group in groups)
    ]
    if fit and not one_for_all:
        yield f"{fit[0]} may be the fastest in all of them."


def _is_sure(group: Group) -> bool:
    """Return whether intervals of processes show that the fastest is faster than every other.

    They show nothing of a variant that broke off: it may have been faster.
    """
    others = _others(group)
    by_processes = all(ratio and ratio.unit == "process" for _, ratio in others)
    return bool(others) and by_processes and not _rivals(group) and not _broken_off(group)


def _broken_off(group: Group) -> list[str]:
    """Return the labels of what was measured, but not to its end."""
    return [
        each.label for each in group.measured_results if each.status != MEASURED and not each.is_repetition
    ]


def _others(group: Group) -> list[tuple[Result, Ratio | None]]:
    """Return every other candidate, and how many times as fast the fastest is."""
    first = group.fastest
    return [(each, speed_ratio(first, each)) for each in group.candidates if first and each is not first]


def _rivals(group: Group) -> list[tuple[Result, Ratio | None]]:
    """Return the candidates that no interval shows to be slower than the fastest."""
    return [(other, ratio) for other, ratio in _others(group) if not _is_above_1(ratio)]


def _is_above_1(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.interval is not None and ratio.interval[0] > 1


def _describe(group: Group) -> Iterator[str]:
    """Yield what to take in a pass, by how much it is faster at least, and what may be as fast."""
    fastest, others, rivals = group.fastest, _others(group), _rivals(group)
    if fastest is None or fastest.rate is None or group.work is None:
        yield "nothing was measured to the end."
    elif not others:
        yield (
            f"only {fastest.label} was measured: {significant(fastest.rate.median, 4)} {group.work.unit} "
            "a second."
        )
    slower = {
        each.label: ratio.interval[0] - 1
        for each, ratio in others
        if ratio and ratio.interval and _is_above_1(ratio)
    }
    bounds = {
        each.label: percent(max(ratio.interval[1], 1 / ratio.interval[0]) - 1)
        for each, ratio in rivals
        if ratio and ratio.interval
    }
    if fastest and bounds:
        (second, bound), *more = bounds.items()
        also = "".join(f", nor {fastest.label} and {label} by more than {least}" for label, least in more)
        yield f"{fastest.label} and {second} do not differ by more than {bound}{also}."
    if fastest and slower:
        nearest = min(slower, key=lambda label: slower[label])
        start = f"{fastest.label} is" if bounds else f"take {fastest.label}: it is"
        count = f", the nearest of {'the other ' * bool(rivals)}{len(slower)}" if len(slower) > 1 else ""
        yield f"{start} at least {percent(slower[nearest])} faster than {nearest}{count}."
    unknown = [each.label for each, ratio in rivals if not ratio or not ratio.interval]
    if fastest and unknown:
        start = "" if bounds or slower else f"take {fastest.label}, the first by its median. "
        yield f"{start}There are too few rounds to compare it with {join_names(unknown)}."
    if any(ratio and ratio.interval and ratio.unit == "round" for _, ratio in others):
        yield "Other processes may differ by more: some had fewer than three."
    if broken_off := _broken_off(group):
        yield f"Not counted, because not measured to the end: {join_names(broken_off)}."
    ahead = [
        group.label(original(again.variant))
        for again, _ in group.repetitions
        if fastest and original(again.variant) != fastest.variant
        if (ratio := speed_ratio(again, fastest)) and ratio.estimate > 1
    ]
    if ahead:
        yield f"Measured a second time, {join_names(ahead)} came out faster."


def to_text(summary: Summary, *, width: int, encoding: str | None) -> str:
    """Return the speeds by cell type as bars, what to take, a table of each pass with all ratios, and notes.

    Args:
        summary: The results.
        width: The terminal's width in characters.
        encoding: The terminal's encoding; without a character for a bar it is drawn with number signs.
    """
    lines = wrap(formats.title(summary.groups), width)
    groups = choose_groups(summary.groups)
    for place, group in enumerate(groups):
        lines += ["", *wrap(f"{heading(group, groups)} (95 % interval)", width)]
        lines += _bars(groups, place, width, _block(encoding))
    lines.append("")
    for sentence in sentences(summary.groups):
        lines += wrap(sentence, width, indent=2)
    lines += result_table.to_lines(summary.groups, width)
    notes = (note for group in summary.groups for note in _notes(group))
    for note in distinct(notes):
        lines += wrap(note, width, indent=2)
    return "\n".join(lines)


def _block(encoding: str | None) -> str:
    try:
        "█".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"


def _bars(groups: Sequence[Group], place: int, width: int, block: str) -> Iterator[str]:
    """Yield a line a cell type and framework, or two where the terminal is narrow: a bar and the speed."""
    rows = [
        (", ".join(key), mean)
        for key, results in speeds(groups).items()
        if (result := results[place]) and (mean := result.mean_rate)
    ]
    texts = [rate(mean) for _, mean in rows]
    number, label = max(map(len, texts)), max(len(label) for label, _ in rows)
    is_wide = label + number + 2 * _SHORTEST_BAR + 4 <= width
    longest = max(_SHORTEST_BAR, width - number - 2 - (label + 2 if is_wide else 2))
    fastest = max(mean.estimate for _, mean in rows)
    for (name, mean), speed in zip(rows, texts, strict=True):
        bar = block * max(1, math.floor(longest * mean.estimate / fastest))
        if not is_wide:
            yield name
        yield f"{f'{name:<{label}}' if is_wide else ''}  {bar:<{longest}}  {speed:>{number}}"


def _notes(group: Group) -> Iterator[str]:
    """Yield which variants have no figures and why, and what the names of the others stand for."""
    unmeasured = [result for result in group.results if not result.blocks]
    for status, reason in distinct((result.status, result.reason) for result in unmeasured):
        labels = [each.label for each in unmeasured if (each.status, each.reason) == (status, reason)]
        yield f"{group.name}: {status}: {join_names(labels)}: {reason}"
    yield from formats.legend(group)
