"""What a run of the benchmark was asked for, and which workloads and variants that selects."""

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from ptb_lm.bench import names, patterns
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.tasks import registry
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import Workload
from ptb_lm.errors import UserError
from ptb_lm.model.backend import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run of the benchmark was asked for.

    Attributes:
        suite: A name in SUITES.
        workloads: Patterns of names; none: all.
        variants: Patterns of names, PATTERN[@PRECISION] (patterns.py); none: all. The baseline is always
            among them.
        baseline: The variant that speeds are compared with, VARIANT[@PRECISION]; None: as the workload
            declares.
        rounds: None: as the workload declares.
        batch_size: None: as the workload declares.
        row_limit: Seconds that the timed blocks of a workload, pass and variant may take together.
        device: "auto", "cpu" or "cuda".
        precision: A name in ptb_lm.model.backend.PRECISIONS.
        seed: Of weights and inputs. The order within rounds is always another.
        added: NAME=MODULE:FUNCTION, variants of the user's own.
    """

    suite: str
    workloads: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    baseline: str | None = None
    rounds: int | None = None
    batch_size: int | None = None
    row_limit: float = 600.0
    device: str = "auto"
    precision: str = "fp32"
    seed: int = 1
    added: tuple[str, ...] = ()


def selected(options: Options, added: Sequence[Variant] = ()) -> list[Workload]:
    """Return the workloads to run, with the variants to run.

    Raises:
        UserError: The suite is unknown, a pattern matches nothing, or a workload lacks the baseline.
    """
    if options.suite not in SUITES:
        raise UserError(f"unknown suite {options.suite!r}; choose from {', '.join(SUITES)}")
    workloads = [
        _as_asked(workload, options, added)
        for workload in _matching(SUITES[options.suite].workloads, options)
    ]
    if not options.variants:
        return workloads
    for pattern in options.variants:
        if not any(_with_variants(workload, [pattern]) for workload in workloads):
            whose = ", ".join(workload.name for workload in workloads)
            known = [variant for workload in workloads for variant in workload.variants]
            why = patterns.nothing(pattern, known)
            raise UserError(f"--variants {pattern}: matches nothing of {whose}; {why}")
    return [kept for workload in workloads if (kept := _with_variants(workload, options.variants))]


def _matching(workloads: Sequence[Workload], options: Options) -> list[Workload]:
    """Return the workloads that match one of the patterns, in their order."""
    known = [workload.name for workload in workloads]
    for pattern in options.workloads:
        if not fnmatch.filter(known, pattern):
            instead = names.instead_of(pattern, known)
            raise UserError(f"--workloads {pattern}: matches nothing of the suite {options.suite}; {instead}")
    wanted = options.workloads or ("*",)
    return [each for each in workloads if any(fnmatch.fnmatch(each.name, pattern) for pattern in wanted)]


def _as_asked(workload: Workload, options: Options, added: Sequence[Variant]) -> Workload:
    """Return a workload with all its variants, as the options want it measured."""
    variants, batch = [*workload.variants, *added], options.batch_size
    if options.baseline is not None and options.baseline not in {variant.name for variant in variants}:
        base, _, precision = options.baseline.partition("@")
        like = next((variant for variant in variants if variant.base == base), None)
        if like is None or precision not in PRECISIONS:
            instead = patterns.instead_of(options.baseline, variants)
            raise UserError(f"--baseline {options.baseline}: no such variant of {workload.name}; {instead}")
        variants.append(like.at(precision))
    return dataclasses.replace(
        workload,
        task=workload.task if batch is None else workload.task.with_batch_size(batch),
        rounds=options.rounds or workload.rounds,
        variants=tuple(variants),
        baseline=options.baseline or workload.baseline,
    )


def _with_variants(workload: Workload, wanted: Sequence[str]) -> Workload | None:
    """Return a workload with the variants that patterns select, and the baseline; None if there are none."""
    found = {
        variant.name: variant
        for pattern in wanted
        for variant in patterns.select(pattern, workload.variants, registry(workload.task))
    }
    if not found:
        return None
    every = {variant.name: variant for variant in workload.variants} | found
    kept = (variant for name, variant in every.items() if name in found or name == workload.baseline)
    return dataclasses.replace(workload, variants=tuple(kept))
