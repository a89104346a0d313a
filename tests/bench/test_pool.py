"""Which workers are kept between rounds: as many as the memory holds."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ptb_lm.bench.run import pool
from ptb_lm.common import control_groups, host

GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "kept"), [("max", ["a", "b", "c"]), (10 * GIB, ["a", "b", "c"]), (8 * GIB, ["b", "c"])]
)
def test_a_container_s_limit_counts(
    limit: str | int, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside two workers of 2 GiB a third leaves 4 GiB of 10, and 2 of 8, which is less than 0.3."""
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(host, "machine_memory", lambda: (60 * GIB, 64 * GIB))
    start: Any = lambda _: SimpleNamespace(memory=2 * GIB, close=lambda: None)  # noqa: E731
    workers = pool.Pool(start)
    for variant in ("a", "b", "c"):
        workers.get(variant)
    assert list(workers._workers) == kept
