"""What a run of the benchmark was asked for, and which workloads and variants that selects."""

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

from ptb_lm.backend import PRECISIONS
from ptb_lm.bench import names
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import Workload
from ptb_lm.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a run of the benchmark was asked for.

    Attributes:
        suite: A name in SUITES.
        workloads: Patterns of names; none: all.
        variants: Patterns of names; none: all. The baseline is always among them.
        baseline: The variant that speeds are compared with; None: as the workload declares.
        rounds: None: as the workload declares.
        batch_size: None: as the workload declares.
        row_limit: Seconds that the timed blocks of a workload, pass and variant may take together.
        device: "auto", "cpu" or "cuda".
        precision: A name in ptb_lm.backend.PRECISIONS.
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
    workloads = SUITES[options.suite].workloads
    wanted = [workload.name for workload in workloads]
    if options.workloads:
        wanted = _matching("--workloads", wanted, options.workloads, whose=f"the suite {options.suite}")
    chosen = [_as_asked(workload, options, added) for workload in workloads if workload.name in wanted]
    every = list(dict.fromkeys(variant.name for workload in chosen for variant in workload.variants))
    kept = every
    if options.variants:
        kept = _matching("--variants", every, options.variants, whose=", ".join(wanted))
    return [
        dataclasses.replace(
            workload,
            variants=tuple(v for v in workload.variants if v.name in kept or v.name == workload.baseline),
        )
        for workload in chosen
        if any(variant.name in kept for variant in workload.variants)
    ]


def _as_asked(workload: Workload, options: Options, added: Sequence[Variant]) -> Workload:
    """Return a workload with all its variants, as the options want it measured."""
    variants, batch = (*workload.variants, *added), options.batch_size
    known = [variant.name for variant in variants]
    if options.baseline not in (None, *known):
        instead = names.instead_of(str(options.baseline), known)
        raise UserError(f"--baseline {options.baseline}: no such variant of {workload.name}; {instead}")
    return dataclasses.replace(
        workload,
        task=workload.task if batch is None else workload.task.with_batch_size(batch),
        rounds=options.rounds or workload.rounds,
        variants=variants,
        baseline=options.baseline or workload.baseline,
    )


def _matching(flag: str, known: Sequence[str], patterns: Sequence[str], *, whose: str) -> list[str]:
    """Return the names that match one of the patterns, in their order."""
    matching = set()
    for pattern in patterns:
        found = fnmatch.filter(known, pattern)
        if not found:
            instead = names.instead_of(pattern, known)
            raise UserError(f"{flag} {pattern}: matches nothing of {whose}; {instead}{_precision(pattern)}")
        matching.update(found)
    return [name for name in known if name in matching]


def _precision(pattern: str) -> str:
    """Say what there is to know of a pattern's precision."""
    precision = pattern.partition("@")[2]
    if precision in PRECISIONS:
        return f"; --precision {precision} is for all that name none"
    return f"; precisions are {', '.join(PRECISIONS)}" if precision.isalnum() else ""
