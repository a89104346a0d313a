"""The results of a benchmark: of each variant in a pass of a workload, with its ratio to the baseline.

`summarise` makes them of raw rows. All variants of a pass must declare equal work. They must compute in one
precision too, but for those whose names give another: the report says so beside their ratios.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.bench import rows, variants
from ptb_lm.bench.results import Result, ResultGroup, Summary, distinct, group_by_key, pair
from ptb_lm.bench.rows import MEASURED, SECOND_MODEL, WRONG, Row
from ptb_lm.bench.selection import instead_of
from ptb_lm.bench.variants import Variant, original
from ptb_lm.common.errors import UserError

_EQUAL_WORK = ("parameters", "flops_per_step", "items_per_step", "unit")


def summarise(folder: Path, *, baseline: str | None = None) -> Summary:
    """Read a benchmark's folder and work out its results.

    Args:
        folder: The folder with rows.jsonl, or a NAME.jsonl.gz.
        baseline: The variant that ratios are to; None: the one that the rows name.

    Raises:
        UserError: The rows cannot be read (rows.read), variants did unequal work, or no workload has the
            baseline.
    """
    loaded, remarks = rows.read(folder)
    known = distinct(row.variant for row in loaded)
    if baseline not in (None, *known):
        instead = instead_of(str(baseline), known)
        raise UserError(f"--baseline {baseline}: {folder} has no such variant; {instead}")
    by_group = group_by_key(((row.suite, row.workload, row.pass_name), row) for row in loaded)
    # A workload's passes stand together, forward first, as they are in a training step.
    workloads = distinct(key[:2] for key in by_group)
    keys = [(*workload, each) for workload in workloads for each in rows.PASSES]
    # Wrong in one pass is wrong in all. A program that is measured twice, by two names, is wrong by both.
    wrong = {_program(row): row for row in reversed(loaded) if row.status == WRONG}
    times = sorted({row.time for row in loaded if row.time})
    return Summary(
        groups=tuple(
            _group(by_group[key], wrong, baseline=baseline, source=rows.find_file(folder))
            for key in keys
            if key in by_group
        ),
        environment=collect_facts(row.environment for row in loaded),
        sessions=tuple(distinct(row.session for row in loaded if row.is_measured)),
        commands=tuple(distinct(row.command for row in loaded if row.command)),
        times=(times[0], times[-1]) if times else (),
        remarks=tuple(remarks),
    )


def _program(row: Row) -> tuple[str, str, str]:
    return row.suite, row.workload, original(row.variant)


def _group(
    members: Sequence[Row],
    wrong: Mapping[tuple[str, str, str], Row],
    *,
    baseline: str | None,
    source: Path,
) -> ResultGroup:
    first = members[0]
    name = f"{first.workload}, {first.pass_name}"
    baselines = distinct(row.baseline for row in members)
    if len(baselines) > 1 and baseline is None:
        raise UserError(f"{source}: {name} has several baselines: {', '.join(baselines)}; choose --baseline")
    baseline = baseline or baselines[0]
    measured = [row for row in members if row.is_measured]
    _check_work(measured, name, source)
    by_variant = group_by_key((row.variant, row) for row in members)
    # Wrong is never fast: what was timed before the error came to light is no figure.
    blocks = {
        variant: tuple(
            sorted((row for row in own if row.is_measured), key=lambda row: row.round)
            if _program(own[0]) not in wrong
            else ()
        )
        for variant, own in by_variant.items()
    }
    several = len({row.work.precision for row in members}) > 1
    results = [
        _result(
            own,
            blocks[variant],
            wrong.get(_program(own[0])),
            blocks.get(baseline, ()),
            _planned_rounds(own, members),
            several,
        )
        for variant, own in by_variant.items()
    ]
    return ResultGroup(
        suite=first.suite,
        workload=first.workload,
        pass_name=first.pass_name,
        baseline=baseline,
        work=(measured or members)[0].work,
        results=tuple(sorted(results, key=lambda each: -each.rate.median if each.blocks else math.inf)),
    )


def _planned_rounds(own: Sequence[Row], members: Sequence[Row]) -> int:
    """Return the number of rounds that a variant was to have, or has where a later plan has no more of them.

    Args:
        own: Rows of the variant.
        members: All rows of the group, the newest last.
    """
    # The number of processes may be planned when some variants of the session have already ended.
    plans = group_by_key((row.session, row.planned_rounds) for row in members)
    planned = max(max(plans[row.session]) for row in own)
    newest = next((max(plans[row.session]) for row in reversed(members) if row.is_measured), planned)
    return min(planned, max(newest, len({row.round for row in own if row.is_measured})))


def _result(
    members: Sequence[Row],
    blocks: tuple[Row, ...],
    wrong: Row | None,
    base: tuple[Row, ...],
    planned: int,
    several: bool,
) -> Result:
    """Return the result of a variant.

    Args:
        members: All its rows.
        blocks: Those that count, by round.
        wrong: A row that says that its program is wrong, if it is.
        base: Blocks of the baseline.
        planned: Number of rounds of its plan.
        several: True if the group has several precisions, so that the label names the variant's.
    """
    first = members[0]
    trouble = wrong or next((row for row in members if not row.is_measured), None)
    done = len({row.round for row in blocks})
    ratio = pair(blocks, base)
    notes = list(_join_notes(row.note for row in members if row.note))
    if any((row.check.get("dropout") or "").startswith(SECOND_MODEL) for row in blocks):
        notes.append("its gradients were compared with the reference in a second model without dropout")
    if blocks and trouble:
        notes.append(f"{trouble.status} after {done} of {planned} rounds: {trouble.reason}")
    elif 0 < done < planned:
        notes.append(f"only {done} of {planned} rounds")
    if base and blocks and ratio is None:
        notes.append("it has no round in common with the baseline")
    elif ratio and ratio.error is None and blocks != base:
        notes.append("there is no interval, because it has one round in common with the baseline")
    given = Variant(first.variant).precision
    precision = given or first.work.precision
    is_in_name = first.label == first.variant and given
    return Result(
        variant=first.variant,
        label=f"{first.label}, {precision}" if several and not is_in_name else first.label,
        status=trouble.status if trouble else MEASURED,
        reason=trouble.reason if trouble else "",
        blocks=blocks,
        planned_rounds=planned,
        ratio=ratio,
        notes=tuple(notes),
        description=variants.description(
            original(first.variant), next((row.command for row in members if row.command), "")
        ),
    )


def _join_notes(notes: Iterable[str]) -> Iterator[str]:
    """Join notes that differ in numbers alone: "4 of 80 steps", "6 of 80 steps" are "4 to 6 of 80 steps"."""
    # A whole number or a decimal, and no part of a longer thing, such as a version of three parts.
    number = re.compile(r"(?<![\d.,])\d+(?:,\d{3})*(?:\.\d+)?(?![.,]?\d)")
    by_words = group_by_key((tuple(number.split(note)), number.findall(note)) for note in notes)
    for words, values in by_words.items():
        ranges = (
            sorted(set(column), key=lambda each: float(each.replace(",", "")))
            for column in zip(*values, strict=True)
        )
        shown = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in ranges]
        yield "".join(part for pair in zip(words, [*shown, ""], strict=True) for part in pair)


def collect_facts(environments: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the distinct values of each fact that is known of some environment, as texts."""
    items = (item for environment in environments for item in environment.items())
    facts = group_by_key(distinct((name, str(value)) for name, value in items if value is not None))
    return {name: tuple(values) for name, values in facts.items()}


def _check_work(measured: Sequence[Row], name: str, source: Path) -> None:
    """Check that all rows of a workload's pass declare equal work.

    Raises:
        UserError: Two do not; it names them and what differs. Or one is of another precision than its name.
    """
    first: dict[str, Row] = {}
    for row in measured:
        if Variant(row.variant).precision not in (None, row.work.precision):
            raise UserError(f"{source}: {row.variant} of {name} was computed in {row.work.precision}")
        for what, value in comparable_work(row).items():
            other = first.setdefault(what, row)
            if (expected := getattr(other.work, what)) != value:
                raise UserError(
                    f"{source}: the variants of {name} did unequal work: {what} is {expected} for "
                    f"{other.variant} and {value} for {row.variant}"
                )


def comparable_work(row: Row) -> dict[str, Any]:
    """Return the facts of a row's work that all variants share: the precision, if no name gives it, too."""
    shared = _EQUAL_WORK if Variant(row.variant).precision else (*_EQUAL_WORK, "precision")
    return {what: getattr(row.work, what) for what in shared}
