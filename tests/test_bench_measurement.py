"""What a measurement says of a row beside its figures."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptb_lm.bench.measurement import Measurement
from ptb_lm.bench.record import Record
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES

(SMALL,) = SUITES["quick"].workloads


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
    measurement = Measurement(
        Options(suite="quick"),
        SMALL,
        Record(tmp_path, {}),
        machine=SimpleNamespace(device="cpu"),  # type: ignore[arg-type]
        session="",
        command="",
    )
    worker: Any = SimpleNamespace(facts={"parity": facts})
    assert measurement._unchecked(worker) == note
