"""Suites: the tables that a benchmark makes, each of some workloads.

A checkout has more of them (checkout.py).
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptb_lm.bench import checkout

if TYPE_CHECKING:  # --help wants the suites' names, and NumPy takes longer to import
    from ptb_lm.bench.workloads import Workload


@dataclass(frozen=True)
class Suite:
    """Workloads that are measured together, and reported in one table.

    Attributes:
        description: Sentence for people.
        declared: Place of the workloads, MODULE:NAME.
    """

    description: str
    declared: str

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """Its workloads, each with one of its variants a second time: the A/A test."""
        return tuple(map(_with_repetition, pkgutil.resolve_name(self.declared)))


def _with_repetition(workload: Workload) -> Workload:
    (twice,) = (each for each in workload.variants if each.name == workload.measured_twice)
    return replace(workload, variants=(*workload.variants, twice.again()))


SUITES: dict[str, Suite] = {
    "quick": Suite("small, in four to five minutes on two cores", "ptb_lm.bench.language_workloads:QUICK"),
    "ptb": Suite(
        "words per second of the tutorial's configurations, of medium as it is trained by default, and of "
        "pytorch/examples' language model",
        "ptb_lm.bench.language_workloads:PTB",
    ),
    "executions": Suite(
        "every model × execution of both frameworks, on small and medium",
        "ptb_lm.bench.language_workloads:EXECUTIONS",
    ),
    "cells": Suite("small with each cell, by most that compute it", "ptb_lm.bench.language_workloads:CELLS"),
    "scaling": Suite(
        "1, 2 and 4 processes on small and medium: the same batch (strong), and one that grows (weak)",
        "ptb_lm.bench.language_workloads:SCALING",
    ),
    "peak": Suite(
        "the fastest on a CUDA device: CUDA graphs and lower precisions against a plain loop in TF32",
        "ptb_lm.bench.language_workloads:PEAK",
    ),
    **{name: Suite(**about) for name, about in checkout.read_toml("suites").items()},
}
DEFAULT_SUITE = "quick"
