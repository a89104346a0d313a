"""What a report says first: which implementation to take on this machine, and how sure that is."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Result, paired
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.variants import original

_MANY = 4  # labels in a sentence, at most
_NOT_SHOWN = "In none of them do 95 % intervals of three or more processes show that every other is slower."


def lead(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence or two of all passes together, if several have a choice, and of each."""
    with_a_choice = [group for group in groups if group.candidates and _tried(group) > 1]
    if len(with_a_choice) > 1:
        yield _overall(with_a_choice)
    yield from map(_of_group, groups)


def _tried(group: Group) -> int:
    """Return how many variants there were to choose from, measured or not."""
    return sum(not result.is_repetition for result in group.results)


def _overall(measured: Sequence[Group]) -> str:
    """Say whom to take in all passes, or in which, and how sure that is."""
    count = len(measured)
    first, *others = (group.fastest for group in measured if group.fastest)
    if any(other.variant != first.variant for other in others):
        return _one_each(measured)
    take = f"On this machine take {first.label}."
    proved = sum(_is_proved(group) for group in measured)
    if proved == count:
        return f"{take} By 95 % intervals it is faster than every other variant in all {count} passes."
    shown = f"By 95 % intervals it is faster than every other variant in {proved} of them. " if proved else ""
    rest = "In the others no such interval shows that." if proved else _NOT_SHOWN
    return f"{take} It came out fastest in all {count} passes. {shown}{rest}"


def _one_each(measured: Sequence[Group]) -> str:
    """Say whom to take in which passes."""
    alike = len({group.pass_name for group in measured}) == 1
    names = [group.workload if alike else f"{group.workload} ({group.pass_name})" for group in measured]
    taken: dict[str, list[str]] = {}
    for name, group in zip(names, measured, strict=True):
        if group.fastest:
            taken.setdefault(group.fastest.label, []).append(name)
    each = "; ".join(f"{label} for {formats.listed(of)}" for label, of in taken.items())
    proved = [name for name, group in zip(names, measured, strict=True) if _is_proved(group)]
    if len(proved) == len(measured):
        sure = "By 95 % intervals each is faster there than every other variant."
    elif proved:
        sure = f"By 95 % intervals that is sure for {formats.listed(proved)} only."
    else:
        sure = "No 95 % intervals show that any of these is faster there than every other variant."
    fits = [_fit(group) for group in measured]
    fit = [each for each in measured[0].candidates if all(each.variant in of for of in fits)]
    may_be = f" {fit[0].label} may be the fastest in every one." if fit else ""
    return f"On this machine take {each}. {sure}{may_be}"


def _is_proved(group: Group) -> bool:
    """Return whether intervals of processes show that the fastest is faster than every other.

    They show nothing of a variant that broke off: it may have been faster.
    """
    if _broken_off(group) or len(group.candidates) < 2:
        return False
    return len(_fit(group)) == 1 and not _few_processes(group)


def _broken_off(group: Group) -> list[str]:
    """Return the labels of what was measured, but not to its end."""
    return [
        each.label
        for each in group.results
        if each.blocks and each.status != MEASURED and not each.is_repetition
    ]


def _fit(group: Group) -> list[str]:
    """Return the names of the fastest variant and of all that nothing shows to be slower."""
    fastest = group.fastest
    return [fastest.variant, *(result.variant for result, _ in _unsure(group))] if fastest else []


def _few_processes(group: Group) -> bool:
    """Return whether an interval that puts the fastest first leaves out what differs between processes."""
    return any(ratio and ratio.unit == "round" for _, ratio in _beside_others(group))


def _unsure(group: Group) -> Iterator[tuple[Result, Ratio | None]]:
    """Yield what no interval shows to be slower than the fastest, and how many times as fast that is."""
    for other, ratio in _beside_others(group):
        if ratio is None or ratio.interval is None or ratio.interval[0] <= 1:
            yield other, ratio


def _beside_others(group: Group) -> Iterator[tuple[Result, Ratio | None]]:
    """Yield every other candidate, and how many times as fast the fastest is."""
    fastest = group.fastest
    for other in group.candidates:
        if fastest and other is not fastest:
            yield other, paired(fastest, other)


def _of_group(group: Group) -> str:
    fastest = group.fastest
    broken_off = _broken_off(group)
    left_out = f" Not counted, because not measured to the end: {_some(broken_off)}." if broken_off else ""
    if fastest is None or fastest.rate is None or group.work is None:
        return f"{group.name}: nothing was measured{' to the end' if broken_off else ''}.{left_out}"
    rate = f"{formats.significant(fastest.rate.median)} {group.work.unit} a second"
    others = [each for each in group.candidates if each is not fastest]
    if not others:
        return f"{group.name}: only {fastest.label} was measured: {rate}.{left_out}"
    take = f"{group.name}: take {fastest.label}, {rate}."
    return f"{take} {_beside(fastest, others[0])} {_how_sure(group)}{left_out}"


def _beside(fastest: Result, second: Result) -> str:
    """Say how much faster the fastest is than the second."""
    ratio = paired(fastest, second)
    if ratio is None:
        return f"It has no round in common with the second, {second.label}."
    if ratio.interval is None:
        times = formats.times(ratio.estimate)
        return f"In one round it was {times} times as fast as the second, {second.label}."
    few = "" if ratio.unit == "process" else "; other processes may differ by more than that"
    return f"Its speed is {formats.ratio(ratio)} times that of the second, {second.label}{few}."


def _how_sure(group: Group) -> str:
    equals, unknown, sentences = [], [], []
    for other, ratio in _unsure(group):
        if ratio is None or ratio.interval is not None:
            equals.append(other.label)
        else:
            unknown.append(f"{other.label} ({formats.times(1 / ratio.estimate)} of its speed)")
    if equals:
        sentences.append(f"That is not sure: {_some(equals)} may be as fast or faster.")
    if unknown:
        sentences.append(f"One round is too few to be sure of {_some(unknown)}.")
    few = ", of fewer than three processes" if _few_processes(group) else ""
    sure = " ".join(sentences) or f"Its ratio to each other variant has a 95 % interval above 1{few}."
    return f"{sure}{_faster_again(group)}"


def _faster_again(group: Group) -> str:
    """Name the programs of which the second measurement alone came out faster than the fastest."""
    fastest = group.fastest
    ahead = [
        group.label(original(again.variant))
        for again, _ in group.repetitions
        if fastest and original(again.variant) != fastest.variant
        if (ratio := paired(again, fastest)) and ratio.estimate > 1
    ]
    return f" Measured a second time, {formats.listed(ahead)} came out faster." if ahead else ""


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MANY} more" if len(labels) > _MANY else ""
    return ", ".join(labels[:_MANY]) + more
