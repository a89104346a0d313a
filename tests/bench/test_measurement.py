"""What a measurement says of a row beside its figures."""

import contextlib
import dataclasses
import itertools
import locale
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest

from ptb_lm.bench import check_command
from ptb_lm.bench import rows as bench_rows
from ptb_lm.bench.results import ResultGroup
from ptb_lm.bench.rows import Row
from ptb_lm.bench.run import pool, process, runner
from ptb_lm.bench.run.machine import Product, products
from ptb_lm.bench.run.measurement import Measurement
from ptb_lm.bench.run.process import WorkerError
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.run.timed_steps import WarmUp
from ptb_lm.bench.selection import Options, select_workloads
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.summary import summarise
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import Workload
from ptb_lm.common.errors import UserError

MACHINE: Any = SimpleNamespace(device="cpu", environment={})

(SMALL,) = SUITES["quick"].workloads
AGAIN = "torch/cudnn#again"
VARIANTS = ("torch/cudnn", "torch/block_fused", AGAIN)
WRITTEN = "what it wrote: \ufffd"  # as what is no text is decoded


def measurement(folder: Path, machine: Any) -> Measurement:
    return Measurement(Options(suite="quick"), SMALL, Record(folder, {}), machine, session="", command="")


@pytest.mark.parametrize(("distinct", "numbers"), [(20, []), (5, ["20", "5"])])
def test_a_comparison_on_copies_of_some_rows_says_so(
    distinct: int, numbers: list[str], tmp_path: Path
) -> None:
    worker: Any = SimpleNamespace(facts={"parity": {"rows": 20, "distinct_rows": distinct}})
    note = measurement(tmp_path, MACHINE)._copies_note(worker)
    assert re.findall(r"\d+", note or "") == numbers


def test_the_limit_is_the_larger_of_before_and_after_a_block_and_blocks_share_it(tmp_path: Path) -> None:
    """A copy never comes right before a block."""
    events: list[Any] = []
    rates = iter((100.0, 120.0, 90.0))

    def gemm(precision: str, products: Sequence[Product]) -> dict[str, Any]:
        events.append((precision, products))
        return {"gemm_gflops": next(rates), "gemm_library": "a library"}

    def block(pass_name: str, steps: int) -> dict[str, Any]:
        events.append((pass_name, steps))
        return {"seconds": 1.0, "others": None}

    def copy_gbytes() -> float:
        events.append("copy")
        return 20.0

    machine = SimpleNamespace(device="cpu", environment={}, gemm=gemm, copy_gbytes=copy_gbytes)
    worker: Any = SimpleNamespace(block=block)
    found = measurement(tmp_path, machine)
    limit = {"gemm_gflops": 120.0, "gemm_library": "a library", "copy_gbytes": 20.0}
    for steps in (5, 7):
        timed, beside = found._block(worker, "train", steps, "bf16")
        assert (timed, beside) == ({"seconds": 1.0, "others": None}, limit)
    asked = ("bf16", products(SMALL.task))
    assert events == [asked, ("train", 5), "copy", asked, ("train", 7), "copy", asked]


@pytest.mark.parametrize(("batch", "cut"), [(20, ""), (2, "batch 2 of 20"), (64, "batch 64 instead of 20")])
def test_another_batch_size_is_told(batch: int, cut: str, tmp_path: Path) -> None:
    options = Options(suite="quick", batch_size=batch)
    (workload,) = select_workloads(options)
    found = Measurement(options, workload, Record(tmp_path, {}), MACHINE, session="", command="")
    assert found._row(Variant("torch/cudnn"), "train").cut == cut


class FakeProcess:
    """A worker's process that answers what a right one does."""

    alive: ClassVar[list[str]] = []
    timeouts: ClassVar[list[float]] = []
    asked: ClassVar[list[tuple[str, str]]] = []  # variants, and "build", "check", "confirm" or "block"
    blocks_left = 10_000  # before a Ctrl-C
    noise = 0.01
    rng: np.random.Generator
    needs_all_memory = ""  # a variant that fails beside others
    fails_in = "build"  # or in its first "step"
    fails_alone = False
    refused, refusal = "", "unavailable"  # a variant, and its status

    def __init__(self, *arguments: str, timeout: float, environment: Mapping[str, str]) -> None:
        self.timeouts.append(timeout)

    def send(self, *, order: Mapping[str, Any]) -> None:
        self.variant = order["variant"]
        self.alive.append(self.variant)

    def receive(self) -> dict[str, Any]:
        self.asked.append((self.variant, "build"))
        if self.variant == self.refused:
            raise WorkerError(self.refusal, "no compiler")
        self.take_memory("build")
        return {"engine": "", "environment": {}, "build_seconds": 1.0}

    def take_memory(self, when: str) -> None:
        is_large = self.variant == self.needs_all_memory and when == self.fails_in
        if is_large and (len(self.alive) > 1 or self.fails_alone):
            raise WorkerError("failed", "no memory", WRITTEN)

    def ask(self, **question: Any) -> dict[str, Any]:
        if "pass" not in question:
            (what,) = question
            self.asked.append((self.variant, what))
            if what == "check":
                parity = {"rows": 20, "distinct_rows": 20}
                seconds = {"check_seconds": 1.0, "first_step_seconds": 0.25}
                return {"parity": parity, "check": {}, "loss": 1.0, **seconds}
            return {"check_seconds": 1.0, "same": question["confirm"] == [1.0], "first_losses": [1.0]}
        self.take_memory("step")
        if question["untimed"]:
            type(self).blocks_left -= 1
            if self.blocks_left < 0:
                raise KeyboardInterrupt
            self.asked.append((self.variant, "block"))
        seconds = math.exp(self.rng.normal(0, self.noise))
        return {"seconds": seconds, "others": None, "peak_memory": {"host_bytes": 1}}

    def close(self) -> None:
        self.alive.remove(self.variant)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcess]:
    fake = type(
        "Fake", (FakeProcess,), {"alive": [], "timeouts": [], "asked": [], "rng": np.random.default_rng(1)}
    )
    monkeypatch.setattr(pool, "Process", fake)
    sessions = map(str, itertools.count(1))  # of runs that begin within a second, too
    clock = SimpleNamespace(monotonic=time.monotonic, strftime=lambda _: next(sessions))
    monkeypatch.setattr(runner, "time", clock)
    return fake


def test_a_block_may_take_all_of_a_long_limit(tmp_path: Path, fake: type[FakeProcess]) -> None:
    options = Options(suite="quick", row_limit=7200.0)
    found = Measurement(options, SMALL, Record(tmp_path, {}), MACHINE, session="", command="")
    found.prepare([Variant("torch/cudnn")])
    assert fake.timeouts == [7200.0 + process.TIMEOUT]


@pytest.fixture
def ascii_locale() -> Iterator[None]:
    """A locale whose encoding lacks most characters."""
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    yield
    locale.setlocale(locale.LC_CTYPE, before)


@pytest.mark.usefixtures("ascii_locale")
@pytest.mark.parametrize("fails_in", ["build", "step"])
@pytest.mark.parametrize("enough_alone", [True, False])
def test_what_fails_beside_others_is_tried_again_alone(
    enough_alone: bool,
    fails_in: str,
    tmp_path: Path,
    fake: type[FakeProcess],
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.needs_all_memory, fake.fails_alone, fake.fails_in = "torch/block", not enough_alone, fails_in
    found = measurement(tmp_path, MACHINE)
    found.prepare([Variant("torch/cudnn"), Variant("torch/block")])
    logs = [log.read_text(encoding="utf-8") for log in tmp_path.glob("failures/*")]
    told = "".join(capsys.readouterr().out.split())  # its lines may be broken
    if enough_alone:
        assert fake.alive == ["torch/block"]
        assert (found.record.rows, logs, told) == ([], [], "")
    else:
        assert told.count(f"{tmp_path}/failures/small-torch-block.log") == 1
        assert fake.alive == []
        assert [(each.variant, each.reason) for each in found.record.rows] == [("torch/block", "no memory")]
        assert logs == [WRITTEN]


@pytest.mark.usefixtures("ascii_locale")
def test_what_a_check_s_process_wrote_is_told(fake: type[FakeProcess]) -> None:
    fake.needs_all_memory, fake.fails_alone = "torch/block", True
    variant = Variant("torch/block")
    assert check_command._verdict(Options(suite="quick"), SMALL, variant, MACHINE).log == WRITTEN


def test_nothing_is_built_while_another_program_is_checked(tmp_path: Path, fake: type[FakeProcess]) -> None:
    """Its steps would be disturbed; and what the first process of a program took to build is its own time."""
    variants = [Variant(name) for name in ("torch/cudnn", AGAIN, "torch/block", "torch/block#again")]
    measurement(tmp_path, MACHINE).prepare(variants)
    started = [*fake.asked]
    for variant in ("torch/cudnn", "torch/block"):
        begin = started.index((variant, "build"))
        assert started[begin + 1 : begin + 3] == [(variant, "check"), (variant, "confirm")]
    assert started.index((AGAIN, "build")) < started.index(("torch/block", "build"))


def run_quick(folder: Path, *, passes: tuple[str, ...] = ("train",), **chosen: Any) -> ResultGroup:
    """Run quick with some variants, all of which take the same time; return its training pass."""
    options = Options(suite="quick", baseline="torch/cudnn", **chosen)
    rates = {"gemm_gflops": 1.0, "gemm_library": "", "gemm_shape": "", "gemm_threads": 1}
    machine: Any = SimpleNamespace(
        device="cpu", environment={}, gemm=lambda *_: rates, copy_gbytes=lambda: 1.0
    )
    (workload,) = select_workloads(options)
    folder.mkdir(exist_ok=True)
    workload = dataclasses.replace(workload, passes=passes)
    runner.run(options, [workload], Record(folder, {}), machine, command="")
    *_, group = summarise(folder).groups
    return group


@pytest.mark.parametrize("passes", [("train",), ("forward", "train")])
def test_what_cannot_be_measured_is_tried_once(
    passes: tuple[str, ...], tmp_path: Path, fake: type[FakeProcess]
) -> None:
    """Not in each of five processes, nor for each pass."""
    fake.refused = "torch/block_fused"
    group = run_quick(tmp_path, passes=passes, variants=VARIANTS, processes=5)
    assert {each.variant: each.processes for each in group.results} == {
        "torch/cudnn": 5,
        AGAIN: 5,
        "torch/block_fused": 0,
    }
    builds = [variant for variant, what in fake.asked if what == "build"]
    assert Counter(builds) == {"torch/cudnn": 5, AGAIN: 5, "torch/block_fused": 1}
    rows, _ = bench_rows.read(tmp_path)
    assert [each.pass_name for each in rows if not each.is_measured] == [*passes]


def test_what_needs_a_cuda_device_is_not_started_on_a_cpu(tmp_path: Path, fake: type[FakeProcess]) -> None:
    workload = dataclasses.replace(SMALL, needs_cuda="a CPU has no graphs", passes=("forward", "train"))
    runner.run(Options(suite="quick"), [workload], Record(tmp_path, {}), MACHINE, command="")
    assert fake.asked == []
    rows, _ = bench_rows.read(tmp_path)
    assert {(each.status, each.reason) for each in rows} == {("unavailable", "a CPU has no graphs")}
    assert Counter(each.variant for each in rows) == {each.name: 2 for each in SMALL.variants}


def run(folder: Path, *, minutes: float, variants: tuple[str, ...] = VARIANTS) -> Workload:
    """Run quick with these variants; return the last plan, which all of them followed."""
    group = run_quick(folder, minutes=minutes, variants=variants)
    rounds = max(each.planned_rounds for each in group.results)
    assert {each.rounds for each in group.results} == {rounds}
    return dataclasses.replace(SMALL, rounds=rounds, processes=rounds // 2)


def test_a_program_is_checked_once_and_its_processes_measure_a_round_and_its_reverse(
    tmp_path: Path, fake: type[FakeProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    planned = run(tmp_path, minutes=1e-6)
    assert planned.processes == 5, "the least"
    assert "small: 5 processes of each variant" in capsys.readouterr().out
    checked = [variant for variant, what in fake.asked if what == "check"]
    assert sorted(checked) in (["torch/block_fused", each] for each in ("torch/cudnn", AGAIN))
    assert len([what for _, what in fake.asked if what == "confirm"]) == 5 * len(VARIANTS)
    blocks = [variant for variant, what in fake.asked if what == "block"]
    for begin in range(0, 30, 6):
        first = blocks[begin : begin + 3]
        assert sorted(first) == sorted(VARIANTS)
        assert blocks[begin + 3 : begin + 6] == first[::-1]
    (group,) = summarise(tmp_path).groups
    assert {(each.ratio.unit, each.ratio.units) for each in group.results[:2] if each.ratio} <= {
        ("process", 5),
        ("round", 10),  # the baseline itself
    }
    rows = [row for result in group.results for row in result.blocks]
    assert sum("process" in row.check for row in rows) == 2 * (5 * len(VARIANTS) - 2)
    assert fake.alive == []


def test_processes_are_as_many_as_their_spread_needs_or_the_time_allows(
    tmp_path: Path, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RATIOS_FOR_A_SPREAD", 2)
    assert run(tmp_path / "near", minutes=600.0).processes == runner.LEAST
    fake.noise = 0.07
    assert runner.LEAST < run(tmp_path / "far", minutes=600.0).processes < 60


@pytest.mark.parametrize("blocks", [10, 10_000])
def test_a_variant_that_was_no_part_of_a_plan_is_planned_anew(
    blocks: int,
    tmp_path: Path,
    fake: type[FakeProcess],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Though its pilot is interrupted, too. Who has been part of the last plan keeps it."""
    monkeypatch.setattr(runner, "MOST", 9)
    assert run(tmp_path, minutes=600.0, variants=(AGAIN,)).processes == 9
    monkeypatch.setattr(runner, "RATIOS_FOR_A_SPREAD", 2)
    fake.blocks_left = blocks
    with contextlib.suppress(KeyboardInterrupt):
        run_quick(tmp_path, minutes=600.0, variants=VARIANTS)
    fake.blocks_left = 10_000
    group = run_quick(tmp_path, minutes=600.0, variants=VARIANTS)
    rounds = {result.variant: (result.rounds, result.planned_rounds) for result in group.results}
    assert rounds == {"torch/cudnn": (18, 18), AGAIN: (18, 18), "torch/block_fused": (16, 16)}
    assert group.unfinished is None
    capsys.readouterr()
    assert run_quick(tmp_path, minutes=600.0, variants=(AGAIN,)) == group
    said = capsys.readouterr().out
    assert re.search(r"^small: 8 processes of each variant .*, .* \d minutes in all$", said, re.MULTILINE)


def test_a_run_that_was_interrupted_and_is_planned_anew_lacks_no_round(
    tmp_path: Path, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first plan, of 18 rounds, two variants have done 12."""
    monkeypatch.setattr(runner, "MOST", 9)
    fake.blocks_left = 24
    with pytest.raises(KeyboardInterrupt):
        run_quick(tmp_path, minutes=600.0, variants=(AGAIN,))
    fake.blocks_left = 10_000
    monkeypatch.setattr(runner, "RATIOS_FOR_A_SPREAD", 2)
    group = run_quick(tmp_path, minutes=600.0, variants=VARIANTS)
    assert {(each.rounds, each.planned_rounds) for each in group.results} == {(16, 16)}
    assert group.unfinished is None


@pytest.mark.parametrize("refusal", ["wrong", "unavailable"])
def test_a_run_keeps_its_plan_if_what_was_no_part_of_it_cannot_be_measured(
    refusal: str, tmp_path: Path, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong has no row of its second measurement; what is not there was not asked for before."""
    monkeypatch.setattr(runner, "MOST", 9)
    fake.refusal = refusal
    fake.refused = "torch/cudnn" if refusal == "wrong" else "torch/block"
    fake.blocks_left = 22 if refusal == "wrong" else 30  # of 16, or 24, before the plan
    every = (*VARIANTS, "torch/block")
    with pytest.raises(KeyboardInterrupt):
        run_quick(tmp_path, minutes=600.0, variants=every if refusal == "wrong" else VARIANTS)
    fake.blocks_left = 10_000
    group = run_quick(tmp_path, minutes=600.0, variants=every)
    assert {(each.rounds, each.planned_rounds) for each in group.measured_results} == {(18, 18)}


@pytest.mark.parametrize("blocks", [3, 23, 24, 27])
def test_an_interrupted_run_keeps_its_plan(blocks: int, tmp_path: Path, fake: type[FakeProcess]) -> None:
    fake.blocks_left = blocks  # of 24 before the plan
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, minutes=1e-6)
    assert fake.alive == []
    fake.blocks_left = 10_000
    assert run(tmp_path, minutes=600.0 if blocks > 24 else 1e-6).processes == 5


def test_a_run_that_is_interrupted_at_the_end_of_its_pilot_and_again_is_planned(
    tmp_path: Path, fake: type[FakeProcess]
) -> None:
    """Not as long as its workload declares for want of a plan."""
    for blocks in (24, 2):
        fake.blocks_left = blocks
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, minutes=600.0)
    fake.blocks_left = 10_000
    assert run(tmp_path, minutes=600.0).processes >= runner.LEAST


def test_the_pause_before_a_run_goes_on_is_not_counted(
    tmp_path: Path, fake: type[FakeProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was interrupted in a process, went on a day later, and was interrupted again."""
    monkeypatch.setattr(runner, "MOST", runner.LEAST)
    fake.blocks_left = 9  # the second process of each variant has done one of two
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, minutes=600.0)
    rows, _ = bench_rows.read(tmp_path)
    earlier = [datetime.fromisoformat(each.time) - timedelta(days=1) for each in rows]
    moved = [
        msgspec.structs.replace(each, time=at.isoformat()) for each, at in zip(rows, earlier, strict=True)
    ]
    (tmp_path / bench_rows.FILE).write_bytes(bench_rows.to_lines(moved))
    fake.blocks_left = 6
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, minutes=600.0)
    fake.blocks_left = 10_000
    assert run(tmp_path, minutes=600.0).processes == runner.LEAST


def test_the_time_of_a_process_is_that_of_both_sessions_without_the_pause() -> None:
    """Each block is a row of a process of its own, whose start took two seconds."""
    blocks = [(2, "1", "2026-11-21T20:00:00"), (2, "1", "2026-11-21T20:00:10")]
    blocks += [(3, "2", "2026-11-22T08:00:00"), (3, "2", "2026-11-22T08:00:20")]
    measured = [
        msgspec.structs.replace(
            row(index, 1.0),
            session=session,
            time=f"{at}+00:00",
            process=process,
            startup={"build_seconds": 0.5, "warm_up_seconds": 1.5},
        )
        for process, (index, session, at) in enumerate(blocks)
    ]
    assert runner._earlier_laps(measured) == {1: 10 + 20 + 4 * 2}


def test_the_seconds_of_the_first_training_step_are_told_once(
    tmp_path: Path, fake: type[FakeProcess]
) -> None:
    run_quick(tmp_path, passes=("forward", "train"), variants=VARIANTS, processes=1)
    rows, _ = bench_rows.read(tmp_path)
    compared = [row for row in rows if row.round == 0 and "process" not in row.check]
    assert {row.pass_name for row in compared} == {"forward", "train"}
    for row in compared:
        assert row.startup["check_seconds"] == 0.75
        assert (row.startup["first_step_seconds"] == 0.25) == (row.pass_name == "train")


def test_a_process_of_two_passes_was_built_and_checked_once_and_warmed_up_twice() -> None:
    startups = {
        "forward": {"build_seconds": 1.0, "check_seconds": 2.0, "warm_up_seconds": 4.0},
        "train": {"build_seconds": 1.0, "check_seconds": 2.0, "warm_up_seconds": 8.0},
    }
    measured = [
        msgspec.structs.replace(row(0, 1.0), pass_name=pass_name, startup=startup)
        for pass_name, startup in startups.items()
    ]
    assert runner._earlier_laps(measured) == {0: 15}


@pytest.mark.parametrize(
    ("rounds", "processes", "by_need"),
    [
        (10, 5, [0, 2, 4, 6, 8, 1, 3, 5, 7, 9]),
        (5, 5, [0, 1, 2, 3, 4]),
        (6, 2, [0, 3, 1, 4, 2, 5]),
        (7, 3, [0, 3, 5, 1, 4, 6, 2]),
    ],
)
def test_first_blocks_of_processes_count_more_than_second_ones(
    rounds: int, processes: int, by_need: list[int]
) -> None:
    workload = dataclasses.replace(SMALL, rounds=rounds, processes=processes)
    assert by_need[:processes] == [first for first, *_ in workload.rounds_by_process]
    assert workload.rounds_by_need == by_need


@pytest.mark.parametrize("chosen", [{"minutes": 1e-6}, {"rounds": 10}])
def test_a_limit_leaves_out_second_blocks_before_processes(
    chosen: dict[str, Any], tmp_path: Path, fake: type[FakeProcess]
) -> None:
    """A step takes a second: four blocks of one fit the limit, and are of four processes."""
    group = run_quick(tmp_path, variants=VARIANTS, row_limit=4.5, **chosen)
    for result in group.results:
        assert (len(result.blocks), result.processes) == (4, 4)
        assert result.variant == group.baseline or (result.ratio.unit, result.ratio.units) == ("process", 4)


@pytest.mark.parametrize(("rounds", "processes"), [(4, 2), (3, None), (6, None)])
def test_a_run_that_does_all_that_was_asked_lacks_no_round(
    rounds: int, processes: int | None, tmp_path: Path, fake: type[FakeProcess]
) -> None:
    """However few rounds were asked for: the workload's own number does not count."""
    group = run_quick(tmp_path, variants=VARIANTS, rounds=rounds, processes=processes)
    assert {(each.rounds, each.planned_rounds) for each in group.results} == {(rounds, rounds)}
    assert not any("rounds" in note for each in group.results for note in each.notes)


def row(index: int, seconds: float) -> Row:
    return Row(
        suite="quick",
        workload="small",
        pass_name="train",
        session="now",
        variant="torch/cudnn",
        label="torch/cudnn",
        planned_rounds=5,
        baseline="plain-torch/cudnn",
        status="measured",
        round=index,
        steps=1,
        seconds=seconds,
        startup={"step_seconds": 3.0},
        work=SMALL.work("train", precision="fp32", device="cpu"),
    )


def test_a_row_without_the_time_of_a_step_is_one_sentence(tmp_path: Path) -> None:
    record = Record(tmp_path, {})
    record.add(msgspec.structs.replace(row(0, 1.0), startup={}))
    with pytest.raises(UserError, match=r"rows\.jsonl: .*step_seconds; restore it, or remove the line"):
        Measurement(Options(suite="quick"), SMALL, record, MACHINE, session="2", command="")


def test_what_was_wrong_is_final_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    record = Record(tmp_path, {})
    record.add(row(0, 1.0))
    for variant, status in (
        ("torch/cudnn#again", "wrong"),
        ("torch/block", "failed"),
        ("torch/basic", "unavailable"),
    ):
        record.add(
            msgspec.structs.replace(row(0, 1.0), variant=variant, status=status, reason=f"of {variant}")
        )
    options = Options(suite="quick")
    found = Measurement(options, SMALL, record, MACHINE, session="", command="")
    both = ("torch/cudnn", "torch/cudnn#again")
    assert found.wrong == dict.fromkeys(both, "of torch/cudnn#again"), "they are one program"
    assert all(found.should_skip(name, "train", index) for name in both for index in range(5))
    assert not found.should_skip("torch/block", "train", 0)
    assert record.wrong_programs("another workload") == {}


def test_a_failure_stays_until_the_same_is_measured_or_fails_otherwise(tmp_path: Path) -> None:
    """A run that is interrupted before it tries again must not lose what is known."""
    failed = msgspec.structs.replace(row(0, 1.0), status="failed", reason="killed", session="1")
    record = Record(tmp_path, {})
    for each in (row(0, 1.0), failed, msgspec.structs.replace(failed, pass_name="forward")):
        record.add(each)
    as_before = record.path.read_bytes()
    record.add(msgspec.structs.replace(failed, session="2"))
    assert record.path.read_bytes() == as_before
    record.add(msgspec.structs.replace(failed, session="2", reason="no compiler"))
    assert [each.reason for each in record.rows] == ["", "killed", "no compiler"]
    record.add(msgspec.structs.replace(row(0, 1.0), session="3"))
    assert "no compiler" in [each.reason for each in record.rows], "that round was measured before"
    record.add(msgspec.structs.replace(row(1, 1.0), session="3"))
    for of in (record, Record(tmp_path, {})):
        assert [(each.pass_name, each.status) for each in of.rows] == [
            ("train", "measured"),
            ("forward", "failed"),
            ("train", "measured"),
            ("train", "measured"),
        ]
        assert [each.note for each in of.rows if each.is_measured] == ["", "", "failed before: no compiler"]
    (group,) = (each for each in summarise(tmp_path).groups if each.pass_name == "train")
    assert "failed before: no compiler" in group.results[0].notes


def test_a_pass_that_is_complete_stays_so_and_what_is_wrong_is_wrong_by_both_names(tmp_path: Path) -> None:
    record = Record(tmp_path, {})
    for index in range(SMALL.rounds):
        record.add(row(index, 1.0))
    both = [Variant("torch/cudnn"), Variant("torch/cudnn").again()]
    workload = dataclasses.replace(SMALL, variants=tuple(both))
    found = Measurement(Options(suite="quick"), workload, record, MACHINE, session="2", command="")
    for variant in both:
        found._give_up(variant, ["train"], WorkerError("failed", "killed"))
    assert [each.variant for each in record.rows if not each.is_measured] == ["torch/cudnn#again"]
    found = Measurement(Options(suite="quick"), workload, record, MACHINE, session="3", command="")
    assert not found.should_skip("torch/cudnn#again", "train", 0)
    found._give_up(both[0], ["train"], WorkerError("wrong", "its loss is off"))
    assert all(found.should_skip(each.name, "train", 0) for each in both)
    assert [each.variant for each in record.rows if each.status == "wrong"] == ["torch/cudnn"]


@pytest.mark.parametrize("seconds", [0.1, 50.0])
def test_what_a_block_took_does_not_change_how_many_there_are(seconds: float, tmp_path: Path) -> None:
    """Four steps of three seconds fit into twelve, and four rounds are done, whatever their blocks took."""
    record = Record(tmp_path, {})
    for index in range(3):
        record.add(row(index, seconds))
    options = Options(suite="quick", row_limit=12.0)
    found = Measurement(options, SMALL, record, MACHINE, session="", command="")
    warm_up = WarmUp(first_step_seconds=1.0, warm_up_seconds=3.0, warm_up_steps=3, step_seconds=seconds)
    planned = found._plan(Variant("torch/cudnn"), "train", warm_up)
    assert (planned.steps, planned.most_rounds) == (1, 4)
    over = [found.should_skip("torch/cudnn", "train", index) for index in range(5)]
    assert over == [False] * 4 + [True]
