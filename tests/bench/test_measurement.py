"""What a measurement says of a row beside its figures."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ptb_lm.bench.rows import Row
from ptb_lm.bench.run import process
from ptb_lm.bench.run.machine import Product, products
from ptb_lm.bench.run.measurement import Measurement
from ptb_lm.bench.run.process import WorkerError
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.run.timed_steps import WarmUp
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.variants import Variant

MACHINE: Any = SimpleNamespace(device="cpu", environment={})

(SMALL,) = SUITES["quick"].workloads


def measurement(folder: Path, machine: Any) -> Measurement:
    return Measurement(Options(suite="quick"), SMALL, Record(folder, {}), machine, session="", command="")


@pytest.mark.parametrize(("distinct", "numbers"), [(20, []), (5, ["20", "5"])])
def test_a_comparison_on_copies_of_some_rows_says_so(
    distinct: int, numbers: list[str], tmp_path: Path
) -> None:
    worker: Any = SimpleNamespace(facts={"parity": {"rows": 20, "distinct_rows": distinct}})
    note = measurement(tmp_path, MACHINE)._copies_note(worker)
    assert re.findall(r"\d+", note or "") == numbers


@pytest.mark.parametrize("rates", [(100.0, 120.0), (120.0, 100.0)])
def test_the_limit_is_the_larger_of_before_and_after_and_a_copy_comes_last(
    rates: tuple[float, float], tmp_path: Path
) -> None:
    events: list[Any] = []

    def gemm(precision: str, products: Sequence[Product]) -> dict[str, Any]:
        events.append((precision, products))
        return {
            "gemm_gflops": rates[len(events) // 2],
            "gemm_library": "a library",
            "gemm_shape": "a shape",
            "gemm_threads": 1,
        }

    def block(pass_name: str, steps: int) -> dict[str, Any]:
        events.append((pass_name, steps))
        return {"seconds": 1.0, "others": None}

    def copy_gbytes() -> float:
        events.append("copy")
        return 20.0

    machine = SimpleNamespace(device="cpu", environment={}, gemm=gemm, copy_gbytes=copy_gbytes)
    worker: Any = SimpleNamespace(block=block)
    found, beside = measurement(tmp_path, machine)._block(worker, "train", 5, "bf16")
    limit = {"gemm_gflops": 120.0, "gemm_library": "a library", "gemm_shape": "a shape", "gemm_threads": 1}
    assert (found, beside) == ({"seconds": 1.0, "others": None}, {**limit, "copy_gbytes": 20.0})
    asked = ("bf16", products(SMALL.task))
    assert events == [asked, ("train", 5), asked, "copy"]


@pytest.mark.parametrize(("batch", "cut"), [(20, ""), (2, "batch 2 of 20"), (64, "batch 64 instead of 20")])
def test_another_batch_size_is_told(batch: int, cut: str, tmp_path: Path) -> None:
    workload = dataclasses.replace(SMALL, task=SMALL.task.with_batch_size(batch))
    found = Measurement(
        Options(suite="quick"), workload, Record(tmp_path, {}), MACHINE, session="", command=""
    )
    assert found._row(Variant("torch/cudnn", ""), "train").cut == cut


def test_a_block_may_take_all_of_a_long_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Process:
        def __init__(self, *arguments: str, timeout: float, environment: Mapping[str, str]) -> None:
            asked.append(timeout)

        def ask(self, **question: Any) -> dict[str, Any]:
            return {}

        def close(self) -> None:
            pass

    monkeypatch.setattr(process, "Process", Process)
    options = Options(suite="quick", row_limit=7200.0)
    found = Measurement(options, SMALL, Record(tmp_path, {}), MACHINE, session="", command="")
    found.prepare(Variant("torch/cudnn", ""))
    assert asked == [7200.0 + process.TIMEOUT]


@pytest.mark.parametrize("enough_alone", [True, False])
def test_what_fails_beside_others_is_tried_again_alone(
    enough_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[str] = []

    class Process:
        def __init__(self, *arguments: str, **more: Any) -> None:
            self.variant = ""

        def ask(self, **question: Any) -> dict[str, Any]:
            self.variant = question["order"]["variant"]
            alive.append(self.variant)
            fails = self.variant == "torch/block" and (len(alive) > 1 or not enough_alone)
            if fails:
                raise WorkerError("failed", "no memory")
            return {}

        def stderr(self) -> str:
            return "what it wrote"

        def close(self) -> None:
            alive.remove(self.variant)

    monkeypatch.setattr(process, "Process", Process)
    found = measurement(tmp_path, MACHINE)
    assert found.prepare(Variant("torch/cudnn", "")) is not None
    greedy = found.prepare(Variant("torch/block", ""))
    logs = [log.read_text() for log in tmp_path.glob("failures/*")]
    if enough_alone:
        assert greedy is not None
        assert alive == ["torch/block"]
        assert (found.record.rows, logs) == ([], [])
    else:
        assert greedy is None
        assert alive == []
        assert [(each.variant, each.reason) for each in found.record.rows] == [("torch/block", "no memory")]
        assert logs == ["what it wrote"]


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


def test_a_pass_that_is_complete_stays_so_and_what_is_wrong_is_wrong_by_both_names(tmp_path: Path) -> None:
    record = Record(tmp_path, {})
    for index in range(SMALL.rounds):
        record.add(row(index, 1.0))
    both = [Variant("torch/cudnn", ""), Variant("torch/cudnn", "").again()]
    workload = dataclasses.replace(SMALL, variants=tuple(both))
    found = Measurement(Options(suite="quick"), workload, record, MACHINE, session="2", command="")
    for variant in both:
        found._give_up(variant, "train", WorkerError("failed", "killed"))
    assert [each.variant for each in record.rows if not each.is_measured] == ["torch/cudnn#again"]
    found = Measurement(Options(suite="quick"), workload, record, MACHINE, session="3", command="")
    assert not found.should_skip("torch/cudnn#again", "train", 0)
    found._give_up(both[0], "train", WorkerError("wrong", "its loss is off"))
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
    planned = found._plan(Variant("torch/cudnn", ""), "train", warm_up)
    assert (planned.steps, planned.rounds) == (1, 4)
    over = [found.should_skip("torch/cudnn", "train", index) for index in range(5)]
    assert over == [False] * 4 + [True]
