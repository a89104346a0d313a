"""Options of a run of the benchmark, and the workloads and variants that they select."""

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import ROUNDS_OF_A_PROCESS, Workload
from ptb_lm.common.errors import UserError
from ptb_lm.model.frameworks import PRECISIONS, Framework

NAMES_SHOWN = 4  # of a list of names: more would hide the rest of the sentence


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a run of the benchmark.

    Attributes:
        suite: Name in SUITES.
        workloads: Patterns of names; all workloads if there are none.
        variants: Patterns of names, PATTERN[@PRECISION] (`_match`); all variants if there are none.
        baseline: Variant that speeds are compared with, VARIANT[@PRECISION]; None as the workload declares.
        minutes: Minutes of a workload, by which the number of processes is planned; None as it declares.
        rounds: Blocks of each variant; None as planned.
        processes: Processes per variant, at most one a round; None as planned.
        batch_size: Rows of a batch; None as the workload declares.
        row_limit: Seconds for all timed blocks of a workload, pass and variant.
        device: "auto", "cpu" or "cuda".
        precision: A name in ptb_lm.model.frameworks.PRECISIONS.
        seed: Seed of weights and inputs. The order within rounds is always another.
        added: NAME=MODULE:FUNCTION, variants of the user's own.
    """

    suite: str
    workloads: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    baseline: str | None = None
    minutes: float | None = None
    rounds: int | None = None
    processes: int | None = None
    batch_size: int | None = None
    row_limit: float = 600.0
    device: str = "auto"
    precision: str = "fp32"
    seed: int = 1
    added: tuple[str, ...] = ()


def select_workloads(
    options: Options, added: Sequence[Variant] = (), *, with_baseline: bool = True
) -> list[Workload]:
    """Return the workloads to run, with the variants to run.

    Args:
        options: Options of the run.
        added: Variants of the user's own.
        with_baseline: True if the baseline is always among them, to compare with.

    Raises:
        UserError: A pattern matches nothing, or a workload lacks the baseline.
    """
    workloads = [
        _with_options(workload, options, added)
        for workload in _match_workloads(SUITES[options.suite].workloads, options)
    ]
    if not options.variants:
        return workloads
    for pattern in options.variants:
        if not any(_with_variants(workload, [pattern]) for workload in workloads):
            whose = ", ".join(workload.name for workload in workloads)
            known = [variant for workload in workloads for variant in workload.variants]
            why = _why_nothing(pattern, known)
            raise UserError(f"--variants {pattern}: no variant of {whose} matches; {why}")
    found = [_with_variants(each, options.variants, with_baseline=with_baseline) for each in workloads]
    return [workload for workload in found if workload is not None]


def _match_workloads(workloads: Sequence[Workload], options: Options) -> list[Workload]:
    """Return the workloads that match one of the patterns, in their order."""
    known = [workload.name for workload in workloads]
    for pattern in options.workloads:
        if not fnmatch.filter(known, pattern):
            instead = instead_of(pattern, known)
            raise UserError(f"--workloads {pattern}: no workload of {options.suite} matches; {instead}")
    wanted = options.workloads or ("*",)
    return [each for each in workloads if any(fnmatch.fnmatch(each.name, pattern) for pattern in wanted)]


def _with_options(workload: Workload, options: Options, added: Sequence[Variant]) -> Workload:
    """Return a workload with all its variants, as the options want it measured."""
    variants = [*workload.variants, *added]
    declared = workload.task.batch_size
    batch = options.batch_size or declared
    relation = "of" if batch < declared else "instead of"
    rounds = options.rounds or ROUNDS_OF_A_PROCESS * (options.processes or workload.processes)
    is_planned = options.rounds is None and options.processes is None
    if options.minutes is not None and not is_planned:
        raise UserError(
            "--minutes cannot be combined with --rounds or --processes: each sets the number of processes"
        )
    if options.processes is not None and options.processes > rounds:
        raise UserError(
            f"--processes {options.processes} is more than the {rounds} rounds; each process needs one"
        )
    if options.baseline is not None and options.baseline not in {variant.name for variant in variants}:
        base, _, precision = options.baseline.partition("@")
        like = next((variant for variant in variants if variant.base == base), None)
        if like is None or precision not in PRECISIONS:
            instead = _variants_instead_of(options.baseline, variants)
            raise UserError(f"--baseline {options.baseline}: {workload.name} has no such variant; {instead}")
        variants.append(like.at(precision))
    return replace(
        workload,
        task=workload.task.with_batch_size(batch),
        cut="" if batch == declared else f"batch {batch} {relation} {declared}",
        rounds=rounds,
        processes=options.processes or min(workload.processes, rounds),
        minutes=(options.minutes or workload.minutes) if is_planned else None,
        variants=tuple(variants),
        baseline=options.baseline or workload.baseline,
    )


def _with_variants(
    workload: Workload, wanted: Sequence[str], *, with_baseline: bool = True
) -> Workload | None:
    """Return a workload with the variants that patterns select, and the baseline; None if there are none."""
    found = {
        variant.name: variant
        for pattern in wanted
        for variant in _match(pattern, workload.variants, workload.task.registry)
    }
    if not found:
        return None
    every = {variant.name: variant for variant in workload.variants} | found
    beside = {workload.baseline} if with_baseline else set()
    kept = (variant for name, variant in every.items() if name in found or name in beside)
    return replace(workload, variants=tuple(kept))


def _match(pattern: str, variants: Sequence[Variant], registry: Mapping[str, Framework]) -> list[Variant]:
    """Return the variants that a pattern selects.

    A variant that is named itself is kept in a precision that its framework lacks: its row will say so. What
    a wildcard matches is left out there.

    Args:
        pattern: A name, perhaps with wildcards; with @PRECISION it selects these variants at that precision.
        variants: Variants of a workload.
        registry: Frameworks and programs of these, by name.
    """
    found = {variant.name: variant for variant in variants if fnmatch.fnmatch(variant.name, pattern)}
    base, _, precision = pattern.partition("@")
    if precision in PRECISIONS:
        for variant in variants:
            matches = fnmatch.fnmatch(variant.base, base) and variant.has_precision(precision, registry)
            if matches or variant.base == base:
                found.setdefault(f"{variant.base}@{precision}", variant.at(precision))
    return list(found.values())


def _why_nothing(pattern: str, variants: Sequence[Variant]) -> str:
    """Say why a pattern selects nothing: what there is in its place."""
    base, _, precision = pattern.partition("@")
    if precision in PRECISIONS and any(fnmatch.fnmatch(variant.base, base) for variant in variants):
        return f"none of {base} computes in {precision}"
    return _variants_instead_of(pattern, variants)


def _variants_instead_of(name: str, variants: Sequence[Variant]) -> str:
    """Return what there is in place of a name."""
    known = list(dict.fromkeys(variant.name for variant in variants))
    others = f"; precisions are {', '.join(PRECISIONS)}" if name.partition("@")[2].isalnum() else ""
    return f"{instead_of(name, known)}{others}"


def instead_of(name: str, known: Sequence[str]) -> str:
    """Return what there is in place of an unknown name: everything if that is little, else the nearest."""
    if len(known) <= NAMES_SHOWN:
        return f"choose from {', '.join(known)}"
    if near := difflib.get_close_matches(name, known, n=3):
        return f"the most similar of {len(known)} names: {', '.join(near)}"
    return f"choose from {', '.join(known[: NAMES_SHOWN - 1])} and {len(known) - NAMES_SHOWN + 1} more"
