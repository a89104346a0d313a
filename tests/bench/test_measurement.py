"""What a measurement says of a row beside its figures."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptb_lm.bench.machine import Gemm, Product, products
from ptb_lm.bench.measurement import Measurement
from ptb_lm.bench.record import Record
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES

MACHINE: Any = SimpleNamespace(device="cpu")

(SMALL,) = SUITES["quick"].workloads


def measurement(folder: Path, machine: Any) -> Measurement:
    return Measurement(Options(suite="quick"), SMALL, Record(folder, {}), machine, session="", command="")


@pytest.mark.parametrize(
    ("facts", "note"),
    [
        ({"whole_rows": 20}, None),
        ({}, None),  # a classifier's, which has no such check
        ({"whole_rows": 5}, "its loss was compared on 5 of 20 rows"),
    ],
)
def test_a_loss_that_was_compared_on_some_rows_says_so(
    facts: dict[str, Any], note: str | None, tmp_path: Path
) -> None:
    worker: Any = SimpleNamespace(facts={"parity": facts})
    assert measurement(tmp_path, MACHINE)._unchecked(worker) == note


@pytest.mark.parametrize("rates", [(100.0, 120.0), (120.0, 100.0)])
def test_the_limit_is_the_larger_of_before_and_after_the_block(
    rates: tuple[float, float], tmp_path: Path
) -> None:
    events: list[Any] = []

    def gemm(precision: str, products: Sequence[Product]) -> Gemm:
        events.append((precision, products))
        return Gemm(rates[len(events) // 2], "a library", "a shape", 1)

    def block(pass_name: str, steps: int) -> dict[str, Any]:
        events.append((pass_name, steps))
        return {"seconds": 1.0}

    machine, worker = SimpleNamespace(device="cpu", gemm=gemm), SimpleNamespace(block=block)
    found = measurement(tmp_path, machine)._block(worker, "train", 5, "bf16")  # type: ignore[arg-type]
    assert found == (Gemm(120.0, "a library", "a shape", 1), {"seconds": 1.0})
    beside = ("bf16", products(SMALL.task))
    assert events == [beside, ("train", 5), beside]
