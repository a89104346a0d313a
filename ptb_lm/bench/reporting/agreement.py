"""Two benchmarks against each other, before and after or machine A and B: do their ratios agree?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ptb_lm.bench import intervals
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.results import Result, ResultGroup, Summary, distinct, group_by_key
from ptb_lm.bench.rows import MEASURED
from ptb_lm.bench.summary import comparable_work, summarise
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import Column, Name, Table, TableCell
from ptb_lm.pages.document import NOTHING, CaptionedTable, Document, Section

# Facts of an environment that tell two benchmarks apart.
_DISTINCTIVE_FACTS = ("cpu", "processor", "device", "torch", "tensorflow", "commit")


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A variant's results in both.

    Attributes:
        a: The result in A.
        b: The result in B.
        change: B's ratio over A's; None where nothing can be told: of the baseline, or without both ratios.
        verdict: The answer in a word or two.
    """

    a: Result
    b: Result
    change: intervals.LogMean | None
    verdict: str


def compare_benchmarks(a: Path, b: Path, *, baseline: str | None = None) -> Document:
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
            f"the two benchmarks have no workload in common: {a} holds {_content(one)}; "
            f"{b} holds {_content(two)}"
        )
    troubles = [(first, _incomparable(first, second)) for first, second in common]
    compared = [
        (first, _pairs(first, second))
        for (first, second), (_, trouble) in zip(common, troubles, strict=True)
        if not trouble
    ]
    every = [pair for _, pairs in compared for pair in pairs]
    # What is measured once more is no further ratio: to what it repeats it has 1 everywhere.
    verdicts = [pair.verdict for pair in every if not pair.a.is_repetition]
    words = {
        name: formats.write_items(
            "agreement.md",
            part=name,
            agree=sum(verdict.startswith("agree") for verdict in verdicts),
            differ=sum(verdict.startswith("differ") for verdict in verdicts),
            unknown=verdicts.count("no interval"),
            by_rounds=any(pair.verdict.endswith("by rounds") for pair in every),
            troubles=[(group, trouble) for group, trouble in troubles if trouble],
            alone={"A": list(_list_alone(one, two)), "B": list(_list_alone(two, one))},
            broken_off=list(_list_broken_off(common)),
            unfinished=[
                (name, group)
                for pair in common
                for name, group in zip("AB", pair, strict=True)
                if group.unfinished
            ],
        )
        for name in ("verdict", "left out", "how to read", "warnings")
    }
    left_out = [Section(title="Left out", tables=[CaptionedTable(remarks=words["left out"])])]
    return Document(
        title=words["verdict"][0],
        subtitle=formats.title([group for groups in common for group in groups]),
        lead=[f"A is {_describe(a, one)}", f"B is {_describe(b, two)}"],
        warnings=words["warnings"],
        sections=[
            *(
                Section(
                    title=group.name,
                    tables=[
                        CaptionedTable(
                            table=_table(pairs, group),
                            remarks=list(formats.legend(replace(group, results=tuple(p.a for p in pairs)))),
                        )
                    ],
                )
                for group, pairs in compared
            ),
            *(left_out if words["left out"] else []),
            Section(title="How to read this", paragraphs=words["how to read"]),
        ],
    )


def _key(group: ResultGroup) -> tuple[str, str, str]:
    return group.suite, group.workload, group.pass_name


def _content(summary: Summary) -> str:
    passes = group_by_key((f"{group.suite}/{group.workload}", group.pass_name) for group in summary.groups)
    return ", ".join(f"{workload} ({' and '.join(names)})" for workload, names in passes.items())


def _incomparable(a: ResultGroup, b: ResultGroup) -> str:
    """Say why the ratios of two groups do not compare; "" if they do."""
    if a.baseline != b.baseline:
        return f"the baseline is {a.baseline} in A and {b.baseline} in B"
    for name, group in (("A", a), ("B", b)):
        if (base := group.result(group.baseline)) is None or not base.blocks:
            return f"the baseline {group.baseline} was not measured in {name}"
    one, two = (
        dict(fact for each in group.results for row in each.blocks for fact in comparable_work(row).items())
        for group in (a, b)
    )
    for what, value in one.items():
        # Another version may count other FLOPs for the same work.
        if what != "flops_per_step" and what in two and two[what] != value:
            return f"the work is not the same: {what} is {value} in A and {two[what]} in B"
    return ""


def _pairs(a: ResultGroup, b: ResultGroup) -> list[_Pair]:
    """Return the variants that both measured, in A's order."""
    found = []
    for one in a.measured_results:
        two = b.result(one.variant)
        if two is None or not two.blocks:
            continue
        change, verdict = None, "baseline" if one.variant == a.baseline else "no interval"
        if verdict != "baseline" and one.ratio and two.ratio:
            change = intervals.difference(one.ratio, two.ratio)
            if change.differs is not None:
                rounds = ", by rounds" if "round" in (one.ratio.unit, two.ratio.unit) else ""
                verdict = f"{'differ' if change.differs else 'agree'}{rounds}"
        found.append(_Pair(a=one, b=two, change=change, verdict=verdict))
    return found


def _list_broken_off(common: Sequence[tuple[ResultGroup, ResultGroup]]) -> Iterator[str]:
    """Yield what one benchmark measured, if only halfway, and the other not to the end, and why."""
    passes = group_by_key(
        ((result.label, f"{result.status} in {name}: {result.reason}"), other.name)
        for a, b in common
        for name, one, other in (("B", a, b), ("A", b, a))
        for result in other.results
        if result.status != MEASURED
        if (there := one.result(result.variant)) and there.blocks
    )
    for (label, why), where in passes.items():
        yield f"{label} of {' and '.join(where)} ({why})"


def _list_alone(one: Summary, other: Summary) -> Iterator[str]:
    """Yield what was measured in one benchmark and is not part of the other."""
    others = {(*_key(group), result.variant) for group in other.groups for result in group.results}
    for group in one.groups:
        alone = [
            each.variant for each in group.measured_results if (*_key(group), each.variant) not in others
        ]
        if alone:
            yield f"{group.name}: {', '.join(alone)}"


def _describe(folder: Path, summary: Summary) -> str:
    """Name a benchmark by its folder and by the facts that tell machines and versions apart."""
    facts = [f"{name} {value}" for name in _DISTINCTIVE_FACTS for value in summary.environment.get(name, ())]
    days = distinct(time[:10] for time in summary.times)
    facts_text = ", ".join([*facts, " to ".join(days)] if days else facts)
    return f"{folder}{f' ({facts_text})' if facts_text else ''}"


def _table(pairs: Sequence[_Pair], group: ResultGroup) -> Table:
    baseline, unit = group.label(group.baseline), group.work.unit
    columns = [
        Column("", numeric=False),
        Column(f"A: × {baseline}"),
        Column(f"B: × {baseline}"),
        Column("B / A"),
        Column("verdict", numeric=False),
        Column(f"A: {unit} per second"),
        Column(f"B: {unit} per second"),
        Column("change of speed, not paired"),
    ]
    rows: list[list[TableCell]] = []
    for pair in pairs:
        ratios = (pair.a.ratio, pair.b.ratio, pair.change)
        a, b = (each.rate.median for each in (pair.a, pair.b))
        rows.append(
            [
                Name(pair.a.label, pair.a.variant),
                *(formats.ratio(each) if each else NOTHING for each in ratios),
                pair.verdict,
                *(formats.significant(each, 4) for each in (a, b)),
                f"{100 * (b / a - 1):+.1f} %",
            ]
        )
    return Table(columns, rows)
