"""Runs a suite: all variants of a workload in interleaved rounds, each in a process of its own."""

import contextlib
import dataclasses
import fnmatch
import itertools
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ptb_lm import runlog
from ptb_lm.bench.pool import Pool
from ptb_lm.bench.process import Gemm, WarmUp, Worker, WorkerError
from ptb_lm.bench.record import Record, Row
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.worker import Order
from ptb_lm.bench.workloads import Workload
from ptb_lm.errors import UserError

# By how much the losses of two variants may differ: far above rounding, far below another computation.
LOSS_TOLERANCE = 1e-3
# How long a timed block is at least, so that the clock's own grain and the last synchronisation do not count.
BLOCK_SECONDS = 1.0


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


def run(options: Options, workloads: Sequence[Workload], record: Record, *, command: str) -> None:
    """Measure what the record lacks; a round of which something is lacking with its baseline.

    Raises:
        UserError: The machine's matrix multiplication cannot be measured, on no such device for example.
        OSError: The disk is full.
    """
    blocks = sum(len(w.variants) * len(w.passes) * w.rounds for w in workloads)
    session = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    gemm = Gemm(options.device, options.precision)
    with contextlib.closing(gemm), runlog.progress(blocks, options.suite) as bar:
        for workload in workloads:
            measurement = _Measurement(options, workload, record, gemm, session, command)
            with contextlib.closing(measurement.pool):
                for done in measurement.rounds():
                    bar.set_description(f"{options.suite}: {workload.name} {done}")
                    bar.update()


@dataclass
class _Plan:
    """How a variant's pass is timed: alike in every round."""

    steps: int  # a block
    spent: float  # seconds, in blocks so far
    limit: float

    @property
    def is_spent(self) -> bool:
        """Whether one more block would exceed the limit; the first never does."""
        return self.spent > 0 and self.spent > 0.9 * self.limit


class _Measurement:
    """One workload's rounds."""

    def __init__(
        self,
        options: Options,
        workload: Workload,
        record: Record,
        gemm: Gemm,
        session: str,
        command: str,
    ) -> None:
        self.options, self.workload, self.record = options, workload, record
        self.gemm, self.session, self.command = gemm, session, command
        record.retry(workload.name, {variant.name for variant in workload.variants})
        self.measured = record.measured()
        used = [row["process"] for row in self.measured.values()]
        self.pool = Pool(itertools.count(max(used, default=-1) + 1), rounds=workload.rounds_a_process)
        (self._declared,) = (w for w in SUITES[options.suite].workloads if w.name == workload.name)
        batch, declared = workload.task.batch_size, self._declared.task.batch_size
        self._cut = None if batch == declared else f"batch {batch} of {declared}"
        self.plans: dict[tuple[str, str], _Plan] = {}
        self.impossible: set[tuple[str, str]] = set()  # variants and passes
        # (the first variant's name, its loss), to which the others' must be equal.
        mine = (row for row in self.measured.values() if row["workload"] == workload.name)
        self.loss: tuple[str, float] | None = next(((row["variant"], row["loss"]) for row in mine), None)

    def rounds(self) -> Iterator[str]:
        """Measure; yield a name after each block, whether it was measured, was there, or cannot be."""
        workload = self.workload
        for index in range(workload.rounds):
            todo = self._todo(index)
            for variant in random.sample(workload.variants, len(workload.variants)):
                for pass_name in random.sample(workload.passes, len(workload.passes)):
                    if (variant.name, pass_name) in todo and not self._is_over(variant.name, pass_name):
                        self._measure(variant, pass_name, index)
                    yield f"{variant.name} {pass_name}"
                self.pool.end_round(variant.name)

    def _todo(self, index: int) -> set[tuple[str, str]]:
        """Return the variants and passes to measure in a round: what it lacks, and what makes pairs of that.

        What was measured in another session is no pair: the baseline is measured again beside what was
        lacking, and where it is lacking itself everything.
        """
        workload = self.workload
        every = {(variant.name, pass_name) for variant in workload.variants for pass_name in workload.passes}
        found = {(v, p) for name, p, v, round_ in self.measured if (name, round_) == (workload.name, index)}
        lacking = {key for key in every - found if not self._is_over(*key)}
        without_baseline = {pass_name for variant, pass_name in lacking if variant == workload.baseline}
        return (
            lacking
            | {(workload.baseline, pass_name) for _, pass_name in lacking}
            | {(variant, pass_name) for variant, pass_name in every if pass_name in without_baseline}
        )

    def _is_over(self, variant: str, pass_name: str) -> bool:
        plan = self.plans.get((variant, pass_name))
        return (variant, pass_name) in self.impossible or (plan is not None and plan.is_spent)

    def _measure(self, variant: Variant, pass_name: str, index: int) -> None:
        row = self._row(variant, pass_name)
        options, workload = self.options, self.workload
        try:
            worker = self._worker(variant)
        except WorkerError as error:
            for each in workload.passes:
                self._give_up(variant, each, error)
            return
        try:
            warm_up = worker.warm_up(pass_name, steps=workload.warm_up, limit=options.row_limit / 5)
            plan = self._plan(variant, pass_name, warm_up)
            gflops = self.gemm.gflops()
            block = worker.block(pass_name, plan.steps)
        except WorkerError as error:
            self.pool.drop(variant.name)
            self._give_up(variant, pass_name, error)
            return
        plan.spent += block["seconds"]
        self.record.add(
            {
                **row,
                "status": "measured",
                "round": index,
                "process": worker.id,
                "steps": plan.steps,
                "seconds": block["seconds"],
                "note": _note(plan, warm_up, workload, options),
                "startup": {
                    "check_seconds": worker.facts["check_seconds"],
                    "build_seconds": worker.facts["build_seconds"],
                    **warm_up._asdict(),
                },
                "peak_memory": block["peak_memory"],
                "gemm_gflops": gflops,
                **{name: worker.facts[name] for name in ("loss", "parity", "engine", "environment")},
            }
        )

    def _worker(self, variant: Variant) -> Worker:
        """Return the variant's worker, checked.

        Raises:
            WorkerError: It cannot do the workload.
        """
        order, log = self._order(variant), self._log(variant)
        try:
            worker = self.pool.get(order, log=log)
        except WorkerError as error:
            if error.status != "failed" or not self.pool.holds_others(variant.name):
                raise
            # Perhaps there was no memory for it beside the others, on the device for example.
            self.pool.close()
            worker = self.pool.get(order, log=log)
        try:
            self._check_loss(variant, worker.facts["loss"])
        except WorkerError:
            self.pool.drop(variant.name)
            raise
        return worker

    def _give_up(self, variant: Variant, pass_name: str, error: WorkerError) -> None:
        self.impossible.add((variant.name, pass_name))
        row = self._row(variant, pass_name)
        self.record.add({**row, "status": error.status, "reason": str(error)})

    def _check_loss(self, variant: Variant, loss: float) -> None:
        if self.loss is None:
            self.loss = variant.name, loss
        other, expected = self.loss
        if not abs(loss - expected) <= LOSS_TOLERANCE * abs(expected):
            raise WorkerError("wrong", f"its first loss is {loss:.6g}, that of {other} {expected:.6g}")

    def _plan(self, variant: Variant, pass_name: str, warm_up: WarmUp) -> _Plan:
        key = (variant.name, pass_name)
        if key not in self.plans:
            limit, rounds = self.options.row_limit, self.workload.rounds
            wanted = max(self.workload.steps, math.ceil(BLOCK_SECONDS / warm_up.step_seconds))
            affordable = int(limit / rounds / warm_up.step_seconds)
            steps, spent = max(1, min(wanted, affordable)), 0.0
            for (workload, row_pass, name, _), row in self.measured.items():  # of a run that was interrupted
                if (workload, row_pass, name) == (self.workload.name, pass_name, variant.name):
                    steps, spent = row["steps"], spent + row["seconds"]
            self.plans[key] = _Plan(steps=steps, spent=spent, limit=limit)
        return self.plans[key]

    def _row(self, variant: Variant, pass_name: str) -> Row:
        """Return what a row says whether or not anything is measured."""
        options, workload = self.options, self.workload
        return {
            "suite": options.suite,
            "workload": workload.name,
            "pass": pass_name,
            "session": self.session,
            "variant": variant.name,
            "label": variant.label,
            "baseline": workload.baseline,
            "reason": None,
            "planned_rounds": max(self._declared.rounds, workload.rounds),
            "cut": self._cut,
            "work": workload.work(pass_name, precision=options.precision, device=self.gemm.device),
            "command": self.command,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }

    def _order(self, variant: Variant) -> Order:
        options = self.options
        return Order(
            suite=options.suite,
            workload=self.workload.name,
            variant=variant.name,
            batch_size=options.batch_size,
            device=self.gemm.device,
            precision=options.precision,
            seed=options.seed,
            added=options.added,
        )

    def _log(self, variant: Variant) -> Path:
        name = f"{self.workload.name}-{variant.name.replace('/', '-')}.log"
        return self.record.folder / "failures" / name


def _note(plan: _Plan, warm_up: WarmUp, workload: Workload, options: Options) -> str | None:
    """Say what was cut to keep within the limit."""
    cuts = [
        f"{done} of {wanted} {what}"
        for done, wanted, what in (
            (plan.steps, workload.steps, "steps a round"),
            (warm_up.warm_up_steps, workload.warm_up, "steps to warm up"),
        )
        if done < wanted
    ]
    return f"{', '.join(cuts)}, to keep within {options.row_limit:g} s" if cuts else None


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
