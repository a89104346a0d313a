"""Two benchmarks against each other, before and after or machine A and B: do their ratios agree?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptb_lm.bench import intervals
from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.formats import NOTHING
from ptb_lm.bench.reporting.page import CaptionedTable, Document, Section
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.summary import EQUAL_WORK, Group, Result, Summary, common_precision, distinct, summarise
from ptb_lm.common.errors import UserError
from ptb_lm.common.tables import Column, Name, Table, TableCell

_CAVEATS = (
    "Ratios are to the baseline of the workload. Two agree if the 95 % interval of B's ratio over A's, which "
    "combines the errors of both (Welch's t on logarithms), contains 1. Of twenty that are the same in "
    "truth, one differs by chance; and those of a workload share the rounds of its baseline, so that "
    "they tend to differ together.",
    "Times of A and B were not measured side by side: machine, load and temperature differ as well as what "
    "is compared, and no interval covers that. Only the ratios are paired.",
)
_BY_ROUNDS = (
    'A verdict "by rounds" rests on fewer than three processes in A or B. What differs between processes is '
    "then not in the interval, which may be too narrow."
)

# Facts of an environment that tell two benchmarks apart.
_DISTINCTIVE_FACTS = ("cpu", "processor", "device", "torch", "tensorflow", "commit")


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A variant's results in both."""

    a: Result
    b: Result
    is_baseline: bool

    @property
    def change(self) -> LogMean | None:
        """B's ratio over A's; None where nothing can be told: of the baseline, or without both ratios."""
        if self.is_baseline or self.a.ratio is None or self.b.ratio is None:
            return None
        return intervals.difference(self.a.ratio, self.b.ratio)

    @property
    def agrees(self) -> bool | None:
        """Whether the interval of the change contains 1; None if there is no interval."""
        differs = self.change.differs if self.change else None
        return None if differs is None else not differs

    @property
    def verdict(self) -> str:
        """The answer in a word or two."""
        if self.is_baseline:
            return "baseline"
        verdict = {True: "agree", False: "differ", None: "no interval"}[self.agrees]
        return f"{verdict}, by rounds" if self.is_by_rounds else verdict

    @property
    def is_by_rounds(self) -> bool:
        """Whether there is an interval that leaves out what differs between processes."""
        ratios = self.a.ratio, self.b.ratio
        return self.agrees is not None and any(ratio and ratio.unit == "round" for ratio in ratios)


def compare(a: Path, b: Path, *, baseline: str | None = None) -> Document:
    """Compare two benchmarks' folders; return a document whose title is the verdict.

    Args:
        a: The folder of one, or a NAME.jsonl.gz.
        b: The folder of the other.
        baseline: The variant that ratios are to; None: the one that the rows name.

    Raises:
        UserError: One of them cannot be read (summary.summarise), or they have no workload in common.
    """
    one, two = summarise(a, baseline=baseline), summarise(b, baseline=baseline)
    common = [(first, second) for first in one.groups for second in two.groups if _key(first) == _key(second)]
    if not common:
        raise UserError(
            f"no workload of a suite is in both: {a} holds {_content(one)}; {b} holds {_content(two)}"
        )
    troubles = [(first, trouble) for first, second in common if (trouble := _incomparable(first, second))]
    comparable = [
        (first, _pairs(first, second)) for first, second in common if not _incomparable(first, second)
    ]
    pairs = [pair for _, members in comparable for pair in members]
    broken_off = "; ".join(_broken_off(common))
    left_out = [
        *(f"{group.name} is not compared: {trouble}" for group, trouble in troubles),
        *(f"only in A: {what}" for what in _alone(one, two)),
        *(f"only in B: {what}" for what in _alone(two, one)),
    ]
    sections = [
        Section(
            title=group.name,
            tables=[CaptionedTable(table=_table(members, group), remarks=list(formats.legend(group)))],
        )
        for group, members in comparable
    ]
    if left_out:
        sections.append(Section(title="Left out", tables=[CaptionedTable(remarks=left_out)]))
    by_rounds = any(pair.is_by_rounds for pair in pairs)
    sections.append(
        Section(title="How to read this", paragraphs=[*_CAVEATS, *([_BY_ROUNDS] if by_rounds else [])])
    )
    return Document(
        title=_verdict(pairs),
        subtitle=formats.title([first for first, _ in common]),
        lead=[f"A is {_about(a, one)}", f"B is {_about(b, two)}"],
        warnings=[f"in one of the two this was not measured to the end: {broken_off}"] * bool(broken_off),
        sections=sections,
    )


def _key(group: Group) -> tuple[str, str, str]:
    return group.suite, group.workload, group.pass_name


def _content(summary: Summary) -> str:
    passes: dict[str, list[str]] = {}
    for group in summary.groups:
        passes.setdefault(f"{group.suite}/{group.workload}", []).append(group.pass_name)
    return ", ".join(f"{workload} ({' and '.join(names)})" for workload, names in passes.items())


def _incomparable(a: Group, b: Group) -> str:
    """Say why the ratios of two groups do not compare; "" if they do."""
    if a.baseline != b.baseline:
        return f"the baseline is {a.baseline} in A and {b.baseline} in B"
    for what in EQUAL_WORK if a.work and b.work else ():
        one, two = getattr(a.work, what), getattr(b.work, what)
        if one != two:
            return f"the work is not the same: {what} is {one} in A and {two} in B"
    one, two = (
        common_precision(row for result in group.results for row in result.blocks) for group in (a, b)
    )
    if one and two and one != two:
        return f"the work is not the same: precision is {one} in A and {two} in B"
    return ""


def _pairs(a: Group, b: Group) -> list[_Pair]:
    return [
        _Pair(a=result, b=other, is_baseline=result.variant == a.baseline)
        for result in a.results
        if result.blocks and (other := b.result(result.variant)) and other.blocks
    ]


def _broken_off(common: Sequence[tuple[Group, Group]]) -> Iterator[str]:
    """Yield what one benchmark measured and the other did not, or not to the end, and why."""
    passes: dict[tuple[str, str], list[str]] = {}
    for a, b in common:
        for name, one, other in (("B", a, b), ("A", b, a)):
            for result in other.results:
                there = one.result(result.variant)
                if result.status != MEASURED and there and there.status == MEASURED:
                    why = f"{result.status} in {name}: {result.reason}"
                    passes.setdefault((result.label, why), []).append(other.name)
    for (label, why), where in passes.items():
        yield f"{label} of {' and '.join(where)} ({why})"


def _alone(one: Summary, other: Summary) -> Iterator[str]:
    """Yield what was measured in one benchmark and is not part of the other."""
    others = {(*_key(group), result.variant) for group in other.groups for result in group.results}
    for group in one.groups:
        alone = [
            result.variant
            for result in group.results
            if result.blocks and (*_key(group), result.variant) not in others
        ]
        if alone:
            yield f"{group.name}: {', '.join(alone)}"


def _verdict(pairs: Sequence[_Pair]) -> str:
    known = [pair.agrees for pair in pairs if pair.agrees is not None]
    unknown = sum(pair.agrees is None and not pair.is_baseline for pair in pairs)
    if not known:
        return f"No ratio can be compared{', for want of an interval' if unknown else ''}."
    rest = f" {unknown} more cannot be told, for want of an interval." if unknown else ""
    return f"{sum(known)} of {len(known)} ratios agree within their intervals.{rest}"


def _about(folder: Path, summary: Summary) -> str:
    """Name a benchmark by its folder and by the facts that tell machines and versions apart."""
    facts = [f"{name} {value}" for name in _DISTINCTIVE_FACTS for value in summary.environment.get(name, ())]
    days = distinct(time[:10] for time in summary.times)
    told = ", ".join([*facts, " to ".join(days)] if days else facts)
    return f"{folder}{f' ({told})' if told else ''}"


def _table(pairs: Sequence[_Pair], group: Group) -> Table:
    baseline, unit = group.label(group.baseline), group.work.unit if group.work else "items"
    columns = [
        Column("", numeric=False),
        Column(f"A: × {baseline}"),
        Column(f"B: × {baseline}"),
        Column("B over A"),
        Column("verdict", numeric=False),
        Column(f"A: {unit} a second"),
        Column(f"B: {unit} a second"),
        Column("change of speed, not paired"),
    ]
    return Table(columns, [_row(pair) for pair in pairs])


def _row(pair: _Pair) -> list[TableCell]:
    cells: list[TableCell] = [Name(pair.a.label, pair.a.variant)]
    cells += [formats.ratio(each) if each else NOTHING for each in (pair.a.ratio, pair.b.ratio, pair.change)]
    cells.append(pair.verdict)
    if pair.a.rate is None or pair.b.rate is None:
        return [*cells, NOTHING, NOTHING, NOTHING]
    a, b = pair.a.rate.median, pair.b.rate.median
    return [*cells, formats.significant(a, 4), formats.significant(b, 4), f"{100 * (b / a - 1):+.1f} %"]
