"""The measurement of a workload: blocks of steps of its variants, and the row of each."""

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ptb_lm.bench import rows
from ptb_lm.bench.results import group_by_key
from ptb_lm.bench.run import pool
from ptb_lm.bench.run.machine import Machine, least_disturbed, products
from ptb_lm.bench.run.process import TIMEOUT, WorkerError
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.run.timed_steps import WARM_UP_PART, Plan, WarmUp, plan_blocks
from ptb_lm.bench.selection import Options
from ptb_lm.bench.variants import Variant, original
from ptb_lm.bench.workloads import Workload
from ptb_lm.common import cli, host
from ptb_lm.common.errors import UserError


class Measurement:
    """Measures blocks of a workload, in any order, and records their rows.

    Attributes:
        wrong: Reasons of the variants that are wrong in the record. They are not tried again: a variant that
            is wrong in one process might pass in another, and is not believed.
        pool: The processes; the caller closes it.

    Args:
        options: Options of the run.
        workload: Workload with the variants to measure.
        record: Record for the rows.
        machine: Machine, whose rates are measured beside each block.
        session: Time at which this run began.
        command: Command line of this run.

    Raises:
        UserError: A row of the record lacks a fact by which its plan is made.
    """

    def __init__(
        self,
        options: Options,
        workload: Workload,
        record: Record,
        machine: Machine,
        *,
        session: str,
        command: str,
    ) -> None:
        self.options, self.workload, self.record = options, workload, record
        self.machine, self.session, self.command = machine, session, command
        used = [row.process for row in record.measured_rows().values()]
        self._identities = itertools.count(max(used, default=-1) + 1)
        self.pool = pool.Pool(self._start)
        self._products = products(workload.task)
        # A run that goes on keeps the plans that it began with, those of variants that were cut, too.
        self._plans: dict[tuple[str, str], Plan] = {}
        blocks = group_by_key(
            ((row.variant, row.pass_name), row) for row in record.rows_of(workload.name) if row.is_measured
        )
        for key, (first, *_) in blocks.items():
            step_seconds, limit = first.startup.get("step_seconds"), options.row_limit
            if step_seconds is None:
                what = f"a row of {first.variant} has no startup.step_seconds"
                raise UserError(f"{record.path}: {what}; {rows.REMEDY}")
            self._plans[key] = plan_blocks(
                workload, step_seconds=step_seconds, limit=limit, steps=first.steps
            )
        wrong = record.wrong_programs(workload.name)
        names = [variant.name for variant in workload.variants]
        self.wrong = {name: wrong[original(name)] for name in names if original(name) in wrong}
        self._checked: dict[str, Mapping[str, Any]] = {}  # facts of each program's first process
        # The newest GEMM rate, if nothing was started since, by its precision.
        self._gemm: dict[str, dict[str, Any]] = {}
        # Variants and passes.
        self._impossible = {(name, pass_name) for name in self.wrong for pass_name in workload.passes}

    def paired_rounds(self) -> set[tuple[str, str, int]]:
        """Return what counts as measured so far: (variant, pass, round).

        The baseline was measured in the same session, or cannot be: rows of two sessions make no ratio.
        """
        baseline = self.workload.baseline
        found = [row for row in self.record.rows_of(self.workload.name) if row.is_measured]
        paired = {(row.pass_name, row.session, row.round) for row in found if row.variant == baseline}
        is_there = baseline in {variant.name for variant in self.workload.variants}
        return {
            (row.variant, row.pass_name, row.round)
            for row in found
            if (row.pass_name, row.session, row.round) in paired
            or not is_there
            or self.should_skip(baseline, row.pass_name, row.round)
        }

    def should_skip(self, variant: str, pass_name: str, round_: int) -> bool:
        """Return whether a variant's pass cannot be measured, or has no such round in its plan.

        A pass whose blocks were planned in the pilot may already have second blocks that the final plan no
        longer has.
        """
        key = (variant, pass_name)
        return key in self._impossible or (key in self._plans and round_ not in self._rounds_in_plan(key))

    def _rounds_in_plan(self, key: tuple[str, str]) -> list[int]:
        """Return the rounds that a variant's pass has in its plan."""
        return self.workload.rounds_by_need[: self._plans[key].most_rounds]

    def prepare(self, variants: Sequence[Variant]) -> None:
        """Start and check the processes of variants side by side, or record why that is not possible.

        Those of programs that were checked start as many at a time as there are cores: one core does most of
        a start. Steps are done one process after the other, as the threads of a step must not be disturbed.
        One that finds no room in the memory is left for later.
        """
        starting: list[pool.Worker] = []
        for variant in variants:
            if not self.pool.has_room(variant.name):
                continue
            if original(variant.name) not in self._checked:
                self._wait(starting)  # the steps of a check must not be disturbed either
                self._ready(variant)
                continue
            starting.append(self.pool.get(variant.name))
            if len(starting) == len(host.cores()):
                self._wait(starting[:1])
                del starting[0]
        self._wait(starting)
        for variant in variants:
            if variant.name in self.pool:
                self._ready(variant)

    def _wait(self, starting: Sequence[pool.Worker]) -> None:
        """Wait until processes that were started have built their variants."""
        for worker in starting:
            with contextlib.suppress(WorkerError):  # which it raises again when it is to be ready
                worker.build()

    def measure(self, variant: Variant, pass_name: str, index: int) -> None:
        """Measure a block of a round, or record why that is not possible."""
        row = self._row(variant, pass_name)
        workload, worker = self.workload, self._ready(variant)
        if worker is None:
            return
        warm_up = worker.warm_ups[pass_name]
        planned = self._plan(variant, pass_name, warm_up)
        try:
            block, rates = self._block(worker, pass_name, planned.steps, self._precision(variant))
        except WorkerError as error:
            self.pool.drop(variant.name)
            self._give_up(variant, [pass_name], error)
            return
        self.record.add(
            msgspec.structs.replace(
                row,
                status=rows.MEASURED,
                round=index,
                process=worker.id,
                steps=planned.steps,
                seconds=block["seconds"],
                note="; ".join(filter(None, (planned.note(warm_up, workload), self._copies_note(worker)))),
                startup=self._startup(worker, pass_name, warm_up),
                others=block["others"],
                peak_memory=block["peak_memory"],
                **rates,
                **{name: worker.facts[name] for name in ("loss", "parity", "check", "engine", "environment")},
            )
        )

    def _ready(self, variant: Variant) -> pool.Worker | None:
        """Return a variant's process, checked and warmed up; None if it cannot be, which is recorded."""
        try:
            if self.workload.needs_cuda and self.machine.device != "cuda":
                raise WorkerError("unavailable", self.workload.needs_cuda)
            worker = self.pool.get(variant.name)
            try:
                self._warm_up(worker)
            except WorkerError as error:
                if error.status != "failed" or not self.pool.has_others(variant.name):
                    raise
                # Perhaps there was no memory for it beside the others, on the device for example.
                self.pool.close()
                worker = self.pool.get(variant.name)
                self._warm_up(worker)
        except WorkerError as error:
            self.pool.drop(variant.name)
            self._give_up(variant, self.workload.passes, error)
            return None
        self._checked.setdefault(original(variant.name), worker.facts)
        return worker

    def _warm_up(self, worker: pool.Worker) -> None:
        """Check and warm up a worker, if it was not."""
        limit = self.options.row_limit * WARM_UP_PART
        worker.warm_up(self.workload.passes, steps=self.workload.warm_up_steps, limit=limit)

    def _block(
        self, worker: pool.Worker, pass_name: str, steps: int, precision: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a block of steps, and the machine's rates beside it as a row names them.

        Products are measured right before and right after the block, and the larger rate counts: a machine
        whose speed changes is fast at one of its ends at least. What was measured after a block is what was
        measured before the next. The copy comes before that, so that it is never what a block follows: it
        empties the caches.

        Raises:
            WorkerError: The worker failed.
        """
        before = self._gemm.pop(precision, None) or self.machine.gemm(precision, self._products)
        block = least_disturbed(lambda: worker.block(pass_name, steps))
        copy_gbytes = self.machine.copy_gbytes()
        after = self.machine.gemm(precision, self._products)
        self._gemm = {precision: after}
        limit = max(before, after, key=lambda gemm: float(gemm["gemm_gflops"]))
        return block, {**limit, "copy_gbytes": copy_gbytes}

    def _precision(self, variant: Variant) -> str:
        return variant.precision or self.options.precision

    def _start(self, variant: str) -> pool.Worker:
        """Start a variant's process."""
        self._gemm.clear()
        return pool.Worker(
            self.options,
            self.workload.name,
            variant,
            self.machine,
            identity=next(self._identities),
            timeout=TIMEOUT + self.options.row_limit,  # a block may take all of the limit
            checked=self._checked.get(original(variant)),
        )

    def _give_up(self, variant: Variant, passes: Sequence[str], error: WorkerError) -> None:
        """Record why passes of a variant cannot be measured, unless they are complete; tell of a failure.

        What a process that failed wrote is kept. A wrong variant is recorded in any case, and is skipped by
        every name of its program.
        """
        self._impossible |= {(variant.name, each) for each in passes}
        if wrong := error.status == rows.WRONG:
            program = original(variant.name)
            names = [each.name for each in self.workload.variants if original(each.name) == program]
            self._impossible |= set(itertools.product(names, self.workload.passes))
        for each in passes:
            if wrong or not self._is_complete(variant.name, each):
                row = self._row(variant, each)
                self.record.add(msgspec.structs.replace(row, status=error.status, reason=str(error)))
        if error.status == "failed":
            what = f"{self.workload.name}-{variant.name.replace('/', '-')}"
            log = self.record.folder / "failures" / f"{what}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(error.log, encoding="utf-8")
            cli.print_line(
                f"{self.workload.name} {variant.name}: failed: {error}; what its process wrote is in {log}"
            )

    def _is_complete(self, variant: str, pass_name: str) -> bool:
        if (variant, pass_name) not in self._plans:
            return False
        done = {index for *key, index in self.paired_rounds() if key == [variant, pass_name]}
        return done >= set(self._rounds_in_plan((variant, pass_name)))

    def _copies_note(self, worker: pool.Worker) -> str | None:
        """Return a note on a comparison whose batch had copies of rows; None if it had none."""
        found = worker.facts["parity"]
        every, distinct = int(found["rows"]), int(found["distinct_rows"])
        if distinct == every:
            return None
        return f"it was compared on a batch of {every} rows of which {distinct} are distinct"

    def _startup(self, worker: pool.Worker, pass_name: str, warm_up: WarmUp) -> dict[str, float]:
        """Return the seconds before the first timed block; those of a comparison's training step once."""
        seconds = {name: worker.facts[name] for name in ("check_seconds", "build_seconds")}
        seconds |= warm_up._asdict()
        first = worker.facts.get("first_step_seconds", 0.0) * ("train" in self.workload.passes)
        seconds["check_seconds"] -= first
        if first and pass_name == "train":
            seconds["first_step_seconds"] = first
            seconds["warm_up_seconds"] += first
        return seconds

    def _plan(self, variant: Variant, pass_name: str, warm_up: WarmUp) -> Plan:
        key, limit = (variant.name, pass_name), self.options.row_limit
        if key not in self._plans:
            self._plans[key] = plan_blocks(self.workload, step_seconds=warm_up.step_seconds, limit=limit)
        return self._plans[key]

    def _row(self, variant: Variant, pass_name: str) -> rows.Row:
        """Return the facts that every row has, measured or not."""
        options, workload = self.options, self.workload
        return rows.Row(
            suite=options.suite,
            workload=workload.name,
            pass_name=pass_name,
            session=self.session,
            variant=variant.name,
            label=variant.label,
            baseline=workload.baseline,
            status="failed",
            planned_rounds=workload.rounds,
            cut=workload.cut,
            work=workload.work(pass_name, precision=self._precision(variant), device=self.machine.device),
            command=self.command,
            time=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
