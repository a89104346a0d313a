"""What a report says first: which implementation to take on this machine, and how sure that is."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Result, paired
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats

_MANY = 4  # labels in a sentence, at most


def lead(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence or two of all passes together, if several were measured, and of each."""
    measured = [group for group in groups if group.candidates]
    if len(measured) > 1:
        yield _overall(measured)
    yield from map(_of_group, groups)


def _overall(measured: Sequence[Group]) -> str:
    """Say whom to take if one variant came out first in all passes; else that each has its own answer."""
    count = len(measured)
    first = measured[0].candidates[0]
    if any(group.candidates[0].variant != first.variant for group in measured):
        fit = [each for each in measured[0].candidates if all(each.variant in _fit(of) for of in measured)]
        may_be = f" {fit[0].label} may be the fastest in every one." if fit else ""
        return f"No variant came out fastest in all {count} passes: each has its own answer.{may_be}"
    take = f"On this machine take {first.label}."
    proved = sum(len(_fit(group)) == 1 for group in measured)
    if proved == count:
        return f"{take} By 95 % intervals it is faster than every other variant in all {count} passes."
    shown = f"By 95 % intervals it is faster than every other variant in {proved} of them. " if proved else ""
    rest = "In the others" if proved else "In each"
    came_out = f"It came out fastest in all {count} passes."
    return f"{take} {came_out} {shown}{rest} another variant may be as fast or faster."


def _fit(group: Group) -> list[str]:
    """Return the names of the fastest variant and of all that nothing shows to be slower."""
    return [group.candidates[0].variant, *(result.variant for result, _ in _unsure(group))]


def _unsure(group: Group) -> Iterator[tuple[Result, Ratio | None]]:
    """Yield what no interval shows to be slower than the fastest, and how many times as fast that is."""
    fastest, *others = group.candidates
    for other in others:
        ratio = paired(fastest, other)
        if ratio is None or ratio.interval is None or ratio.interval[0] <= 1:
            yield other, ratio


def _of_group(group: Group) -> str:
    candidates = group.candidates
    fastest = candidates[0] if candidates else None
    if fastest is None or fastest.rate is None or group.work is None:
        return f"{group.name}: nothing was measured."
    rate = f"{formats.significant(fastest.rate.median)} {group.work.unit} a second"
    if len(candidates) == 1:
        return f"{group.name}: only {fastest.label} was measured: {rate}."
    take = f"{group.name}: take {fastest.label}, {rate}."
    return f"{take} {_beside(fastest, candidates[1])} {_how_sure(group)}"


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
        sentences.append(f"That is not sure: as fast or faster may be {_some(equals)}.")
    if unknown:
        sentences.append(f"One round is too few to be sure of {_some(unknown)}.")
    return " ".join(sentences) or "The 95 % interval over each other variant is above 1."


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _MANY} more" if len(labels) > _MANY else ""
    return ", ".join(labels[:_MANY]) + more
