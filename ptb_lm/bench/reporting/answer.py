"""What a report says first: which implementation to take on this machine, and by how much it is faster."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Result, speed_ratio
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting.formats import join_names, percent, significant
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.variants import original


def lead(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence or two of all passes together, if several have a choice, and of each."""
    with_a_choice = [group for group in groups if group.candidates and _tried(group) > 1]
    if len(with_a_choice) > 1:
        yield " ".join(_of_all(with_a_choice))
    for group in groups:
        yield f"{group.name}: {' '.join(_of_one(group))}"


def _tried(group: Group) -> int:
    """Return how many variants there were to choose from, measured or not."""
    return sum(not result.is_repetition for result in group.results)


def _of_all(groups: Sequence[Group]) -> Iterator[str]:
    """Say what to take in which passes, in which of them that is sure, and what may be best in all."""
    alike = len({group.pass_name for group in groups}) == 1
    names = [group.workload if alike else f"{group.workload} ({group.pass_name})" for group in groups]
    taken: dict[str, list[str]] = {}
    for name, group in zip(names, groups, strict=True):
        if group.fastest:
            taken.setdefault(group.fastest.label, []).append(name)
    one_for_all = len(taken) == 1
    each = (
        next(iter(taken))
        if one_for_all
        else "; ".join(f"{k} for {join_names(of)}" for k, of in taken.items())
    )
    yield f"On this machine take {each}."
    sure = [name for name, group in zip(names, groups, strict=True) if _is_sure(group)]
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
    return bool(others) and by_processes and not _undecided(group) and not _broken_off(group)


def _broken_off(group: Group) -> list[str]:
    """Return the labels of what was measured, but not to its end."""
    return [
        each.label for each in group.measured_results if each.status != MEASURED and not each.is_repetition
    ]


def _others(group: Group) -> list[tuple[Result, Ratio | None]]:
    """Return every other candidate, and how many times as fast the fastest is."""
    fastest = group.fastest
    return [
        (each, speed_ratio(fastest, each)) for each in group.candidates if fastest and each is not fastest
    ]


def _undecided(group: Group) -> list[tuple[Result, Ratio | None]]:
    """Return what no interval shows to be slower than the fastest."""
    return [(other, ratio) for other, ratio in _others(group) if not _is_above_1(ratio)]


def _is_above_1(ratio: Ratio | None) -> bool:
    return ratio is not None and ratio.interval is not None and ratio.interval[0] > 1


def _of_one(group: Group) -> Iterator[str]:
    """Say what to take in a pass, what is slower at least by how much, and what may be as fast."""
    fastest, others, undecided = group.fastest, _others(group), _undecided(group)
    if fastest is None or fastest.rate is None or group.work is None:
        yield "nothing was measured to the end."
    else:
        rate = f"{significant(fastest.rate.median, 4)} {group.work.unit} a second"
        yield f"take {fastest.label}, {rate}." if others else f"only {fastest.label} was measured: {rate}."
    slower = {
        each.label: ratio.interval[0] - 1
        for each, ratio in others
        if ratio and ratio.interval and _is_above_1(ratio)
    }
    if slower:
        nearest = min(slower, key=lambda label: slower[label])
        than = f"the other {len(slower)}" if undecided else "every other"
        whom = f"{than}; the nearest is {nearest}" if len(slower) > 1 else nearest
        yield f"It is at least {percent(slower[nearest])} faster than {whom}."
    near = [
        f"{each.label} (at most {percent(max(ratio.interval[1], 1 / ratio.interval[0]) - 1)} apart)"
        for each, ratio in undecided
        if ratio and ratio.interval
    ]
    if near:
        yield f"It is not shown to be faster than {join_names(near)}."
    unknown = [each.label for each, ratio in undecided if not ratio or not ratio.interval]
    if unknown:
        yield f"There are too few rounds to compare it with {join_names(unknown)}."
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
