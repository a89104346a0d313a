"""Raw rows to results: the time of each variant in a workload's pass, and its ratio to the baseline.

All variants of a pass must declare equal work. They must compute in one precision too, but for those whose
names give another: the report says so beside their ratios.
"""

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ptb_lm.bench import rows, variants
from ptb_lm.bench.findings import Group, Result, Summary, distinct, speed_ratio
from ptb_lm.bench.rows import MEASURED, SECOND_MODEL, WRONG, Row
from ptb_lm.bench.selection import instead_of
from ptb_lm.bench.variants import declared_precision, original
from ptb_lm.common.errors import UserError

EQUAL_WORK = ("parameters", "flops_per_step", "items_per_step", "unit")


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
        raise UserError(f"--baseline {baseline}: no such variant in {folder}; {instead}")
    by_group: dict[tuple[str, str, str], list[Row]] = {}
    for row in loaded:
        by_group.setdefault((row.suite, row.workload, row.pass_name), []).append(row)
    # A workload's passes stand together, forward first, as they are in a training step.
    workloads = distinct(key[:2] for key in by_group)
    keys = [(*workload, each) for workload in workloads for each in rows.PASSES]
    # Wrong in one pass is wrong in all. A program that is measured twice, by two names, is wrong by both.
    wrong = {_program(row): row for row in reversed(loaded) if row.status == WRONG}
    times = sorted({row.time for row in loaded if row.time})
    return Summary(
        groups=tuple(
            _group(by_group[key], wrong, baseline=baseline, source=folder / rows.FILE)
            for key in keys
            if key in by_group
        ),
        environment=_environment(loaded),
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
) -> Group:
    first = members[0]
    name = f"{first.workload}, {first.pass_name}"
    baselines = distinct(row.baseline for row in members)
    if len(baselines) > 1 and baseline is None:
        raise UserError(f"{source}: {name} has several baselines: {', '.join(baselines)}; choose --baseline")
    baseline = baseline or baselines[0]
    measured = [row for row in members if row.status == MEASURED]
    _check_work(measured, name, source)
    by_variant: dict[str, list[Row]] = {}
    for row in members:
        by_variant.setdefault(row.variant, []).append(row)
    results = {variant: _result(own, wrong.get(_program(own[0]))) for variant, own in by_variant.items()}
    if len({row.work.precision for row in measured}) > 1:
        results = {variant: _with_precision(result) for variant, result in results.items()}
    warnings = []
    base = results.get(baseline)
    if base is None or not base.blocks:
        why = "was not part of it" if base is None else f"was not measured ({base.status})"
        warnings.append(f"There are no ratios: the baseline {baseline} {why}.")
    else:
        results = {variant: _with_ratio(result, base) for variant, result in results.items()}
    return Group(
        suite=first.suite,
        workload=first.workload,
        pass_name=first.pass_name,
        baseline=baseline,
        work=measured[0].work if measured else None,
        results=tuple(sorted(results.values(), key=_slowness)),
        warnings=tuple(warnings),
    )


def _slowness(result: Result) -> float:
    return -result.rate.median if result.rate else math.inf


def _result(members: Sequence[Row], wrong: Row | None) -> Result:
    troubles = [row for row in members if row.status != MEASURED]
    trouble = wrong or (troubles[0] if troubles else None)
    # Wrong is never fast: what was timed before the error came to light is no figure.
    measured = [row for row in members if row.status == MEASURED and not wrong]
    blocks = tuple(sorted(measured, key=lambda row: row.round))
    planned = max(row.planned_rounds for row in members)
    rounds = len({row.round for row in blocks})
    command = next((row.command for row in members if row.command), "")
    notes = list(_join_notes(row.note for row in members if row.note))
    if any(row.check.get("dropout", "").startswith(SECOND_MODEL) for row in blocks):
        notes.append("its gradients were compared in a second model without dropout")
    if blocks and trouble:
        notes.append(f"{trouble.status} after {rounds} of {planned} rounds: {trouble.reason}")
    elif 0 < rounds < planned:
        notes.append(f"only {rounds} of {planned} rounds")
    return Result(
        variant=members[0].variant,
        label=members[0].label,
        status=trouble.status if trouble else MEASURED,
        reason=trouble.reason if trouble else "",
        blocks=blocks,
        planned_rounds=planned,
        ratio=None,
        notes=tuple(notes),
        description=variants.description(original(members[0].variant), command),
    )


def _join_notes(notes: Iterable[str]) -> Iterator[str]:
    """Join notes that differ in numbers alone: "4 of 80 steps", "6 of 80 steps" are "4 to 6 of 80 steps"."""
    number = re.compile(r"\d+(?:[.,]\d+)*")
    alike: dict[tuple[str, ...], list[list[str]]] = {}
    for note in notes:
        alike.setdefault(tuple(number.split(note)), []).append(number.findall(note))
    for words, values in alike.items():
        ranges = (
            sorted(set(column), key=lambda each: float(each.replace(",", "")))
            for column in zip(*values, strict=True)
        )
        shown = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in ranges]
        yield "".join(part for pair in zip(words, [*shown, ""], strict=True) for part in pair)


def _with_precision(result: Result) -> Result:
    """Name the precision in the label, because in this group it tells variants apart."""
    precision = result.blocks[0].work.precision if result.blocks else declared_precision(result.variant)
    if result.label == result.variant and declared_precision(result.variant):
        return result  # which is the name that gives it
    return dataclasses.replace(result, label=f"{result.label}, {precision}") if precision else result


def _with_ratio(result: Result, base: Result) -> Result:
    ratio = speed_ratio(result, base)
    notes = result.notes
    if result.blocks and ratio is None:
        notes = (*notes, "no round in common with the baseline")
    elif ratio and ratio.error is None and result.variant != base.variant:
        notes = (*notes, "one round: no interval")
    return dataclasses.replace(result, ratio=ratio, notes=notes)


def _environment(loaded: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    values: dict[str, list[str]] = {}
    for row in loaded:
        for name, value in row.environment.items():
            if value is not None:
                values.setdefault(name, []).append(str(value))
    return {name: tuple(distinct(each)) for name, each in values.items()}


def _check_work(measured: Sequence[Row], name: str, source: Path) -> None:
    """Check that all rows of a workload's pass declare equal work.

    Raises:
        UserError: Two do not; it names them and what differs. Or one is of another precision than its name.
    """
    for what in EQUAL_WORK:
        _check_equal(measured, what, name, source)
    for row in measured:
        if declared_precision(row.variant) not in (None, row.work.precision):
            raise UserError(f"{source}: {row.variant} of {name} was computed in {row.work.precision}")
    _check_equal(_without_own_precision(measured), "precision", name, source)


def common_precision(measured: Iterable[Row]) -> str | None:
    """Return the precision of the variants whose names give none; None where there are none."""
    return next((row.work.precision for row in _without_own_precision(measured)), None)


def _without_own_precision(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if declared_precision(row.variant) is None]


def _check_equal(rows: Sequence[Row], what: str, name: str, source: Path) -> None:
    for row in rows[1:]:
        one, two = getattr(rows[0].work, what), getattr(row.work, what)
        if one != two:
            raise UserError(
                f"{source}: the variants of {name} did unequal work: {what} is {one} for {rows[0].variant} "
                f"and {two} for {row.variant}"
            )
