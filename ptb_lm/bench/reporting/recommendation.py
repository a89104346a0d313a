"""What a report says first: which implementation to take on this machine, and how sure that is."""

from collections.abc import Iterator, Sequence

from ptb_lm.bench.findings import Group, Result, paired
from ptb_lm.bench.reporting import formats

_MANY = 4  # labels in a sentence, at most


def lead(groups: Sequence[Group]) -> Iterator[str]:
    """Yield a sentence or two of all passes together, if there are several, and of each."""
    if len(groups) > 1:
        yield from _overall(groups)
    yield from map(_of_group, groups)


def _overall(groups: Sequence[Group]) -> Iterator[str]:
    """Say who is the fastest, or may be, in the most passes."""
    where: dict[str, list[Group]] = {}
    for group in groups:
        for result in _fastest(group):
            where.setdefault(result.variant, []).append(group)
    if not where:
        return
    measured = sum(bool(group.candidates) for group in groups)
    best = max(where, key=lambda variant: len(where[variant]))
    many, label = len(where[best]), where[best][0].label(best)
    if many == measured:
        yield (
            f"On this machine take {label}: in all {measured} passes it is the fastest, or may be as fast as "
            "the fastest."
        )
    else:
        yield (
            f"On this machine no variant is the best for every pass: {label} is the fastest, or may be as "
            f"fast as the fastest, in {many} of {measured}."
        )


def _fastest(group: Group) -> list[Result]:
    """Return the fastest, and those that may be as fast; nobody where nothing was measured."""
    if not group.candidates:
        return []
    first, *others = group.candidates
    return [first, *(other for other in others if _may_be_as_fast(other, first))]


def _may_be_as_fast(result: Result, fastest: Result) -> bool:
    ratio = paired(fastest, result)
    # A variant without an interval may be faster or slower.
    return ratio is not None and ratio.interval is not None and ratio.interval[0] <= 1


def _of_group(group: Group) -> str:
    candidates = group.candidates
    fastest = candidates[0] if candidates else None
    if fastest is None or fastest.rate is None or group.work is None:
        return f"{group.name}: nothing was measured."
    rate = f"{formats.significant(fastest.rate.median)} {group.work.unit} a second"
    if len(candidates) == 1:
        return f"{group.name}: only {fastest.label} was measured: {rate}."
    second = candidates[1]
    take = f"{group.name}: take {fastest.label}, {rate}."
    ratio = paired(fastest, second)
    if ratio is None:
        return f"{take} There is no interval: it has no round in common with {second.label}."
    if ratio.interval is None:
        times = formats.times(ratio.estimate)
        return f"{take} It was {times} times as fast as {second.label}; one round gives no interval."
    lead = f"Its speed is {formats.ratio(ratio)} times that of the second, {second.label}"
    few = "" if ratio.unit == "process" else "; other processes may differ by more than that"
    equals = [result.label for result in _fastest(group)[1:]]
    if not equals:
        return f"{take} {lead}{few}: the 95 % interval is above 1."
    named = ", ".join(equals[:_MANY]) + (f" and {len(equals) - _MANY} more" if len(equals) > _MANY else "")
    return f"{take} {lead}{few}. As fast may be {named}."
