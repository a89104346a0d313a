"""What a run of the benchmark was asked for, and which workloads and variants that selects."""

import dataclasses
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

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
        UserError: The suite is unknown, or a pattern matches nothing.
    """
    if options.suite not in SUITES:
        raise UserError(f"unknown suite {options.suite!r}; choose from {', '.join(SUITES)}")
    workloads = SUITES[options.suite].workloads
    names = _matching("--workloads", [workload.name for workload in workloads], options.workloads)
    chosen = []
    for workload in workloads:
        if workload.name in names:
            batch = options.batch_size
            chosen.append(
                dataclasses.replace(
                    workload,
                    task=workload.task if batch is None else workload.task.with_batch_size(batch),
                    rounds=options.rounds or workload.rounds,
                    variants=(*workload.variants, *added),
                )
            )
    every = list(dict.fromkeys(variant.name for workload in chosen for variant in workload.variants))
    kept = _matching("--variants", every, options.variants)
    return [
        dataclasses.replace(
            workload,
            variants=tuple(v for v in workload.variants if v.name in kept or v.name == workload.baseline),
        )
        for workload in chosen
        if any(variant.name in kept for variant in workload.variants)
    ]


def _matching(flag: str, names: Sequence[str], patterns: Sequence[str]) -> set[str]:
    if not patterns:
        return set(names)
    matching = set()
    for pattern in patterns:
        found = fnmatch.filter(names, pattern)
        if not found:
            raise UserError(f"{flag} {pattern}: matches none of {', '.join(names)}")
        matching.update(found)
    return matching
