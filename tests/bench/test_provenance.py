"""What may not change while rows are added to one record: source, versions, variables."""

import json
from pathlib import Path
from typing import Any

import bench_rows
import numpy as np
import pytest
from support import ROOT

from ptb_lm.bench.run import record
from ptb_lm.bench.run.record import SETTINGS, Record
from ptb_lm.bench.selection import Options
from ptb_lm.common import control_groups, host
from ptb_lm.common.errors import UserError


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "native").mkdir(parents=True)
    (folder / "one.py").write_text("a = 1\n")
    (folder / "two.py").write_text("b = 2\n")
    (folder / "native" / "kernels.cpp").write_text("int c;\n")
    return folder


def test_a_digest_tells_every_source_and_nothing_else(package: Path) -> None:
    seen = {record.sources_digest(package)}
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "one.pyc").write_bytes(b"anything")
    (package / "notes.md").write_text("anything")
    (package / ".#two.py").symlink_to("somebody@somewhere.1:2")  # as Emacs marks a file that is being edited
    assert record.sources_digest(package) in seen
    for kernels in ("kernels.cpp", "kernels.cu"):
        (package / "native" / kernels).write_text("int d;\n")
        seen.add(record.sources_digest(package))
    (package / "two.py").rename(package / "three.py")
    seen.add(record.sources_digest(package))
    (package / "native" / "new.py").touch()
    seen.add(record.sources_digest(package))
    one, three = package / "one.py", package / "three.py"  # the texts of two files change places
    texts = one.read_text(), three.read_text()
    three.write_text(texts[0])
    one.write_text(texts[1])
    seen.add(record.sources_digest(package))
    assert len(seen) == 6


def test_versions_are_those_of_the_packages() -> None:
    assert record.versions()["numpy"] == np.__version__


def test_variables_are_those_that_may_change_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    before = record.variables()
    new = (
        *("ATEN_CPU_CAPABILITY", "CXX", "GLOO_SOCKET_IFNAME", "NCCL_P2P_DISABLE", "OMP_WAIT_POLICY"),
        *("PTB_LM_BEFORE", "PTB_LM_KERNELS", "TRITON_INTERPRET", "XLA_FLAGS"),
    )
    for name in (*new, "PTB_LM_DATA", "TF_CPP_MIN_LOG_LEVEL", "HOME"):
        monkeypatch.setenv(name, "x")
    assert record.variables() == {**before, **dict.fromkeys(new, "x")}


def settings(**changes: Any) -> dict[str, Any]:
    cpu = {"kernels": "native", "float32_products": "MKL", "no_kernels": "of no use here"}
    added = {"mine=own:build": "a digest"}
    found = record.run_settings(Options(suite="quick"), gpu=None, cpu=cpu, added=added)
    return {**found, **changes}


@pytest.mark.slow  # asks git for the commit
def test_a_record_takes_no_rows_of_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in record.variables():
        monkeypatch.delenv(name)
    Record(tmp_path, settings())
    bench_rows.write(tmp_path, bench_rows.rounds({"torch/basic": 1.0}))
    Record(tmp_path, settings())
    kept = json.loads((tmp_path / SETTINGS).read_text())
    sources = (ROOT / "ptb_lm", ROOT / "benchmarks", ROOT / "examples")
    assert kept["source"].split() == [record.sources_digest(folder) for folder in sources]
    for name, other in (
        ("torch", "1.0"),
        ("source", "another digest"),
        ("kernels", "torch"),
        ("float32_products", "oneDNN"),
        ("--add mine=own:build", "another digest"),
        ("--add new=own:build", "a digest"),
        ("OMP_WAIT_POLICY", "active"),
        ("seed", 2),
    ):
        with pytest.raises(UserError) as caught:
            Record(tmp_path, settings(**{name: other}))
        assert f"({name} was {kept.get(name)!r}, now {other!r})" in str(caught.value)
    with monkeypatch.context() as patch:
        patch.setattr(control_groups, "cpu_quota", lambda: 0.5)
        now = settings()
    with pytest.raises(UserError, match=r"\(cpu_quota was \S+, now 0\.5\)"):
        Record(tmp_path, now)
    # Results that were committed meanwhile.
    monkeypatch.setattr(host, "_git_commit", lambda: "0123456789abcdef")
    Record(tmp_path, settings())
    # A variable that was set, and is not any more.
    (tmp_path / SETTINGS).write_text(json.dumps({**kept, "OMP_WAIT_POLICY": "active"}))
    with pytest.raises(UserError, match=r"\(OMP_WAIT_POLICY was 'active', now None\)"):
        Record(tmp_path, settings())


@pytest.mark.parametrize("kept", [True, False], ids=["bench.json", "without it"])
@pytest.mark.parametrize("troubles", [[], ["unavailable", "failed"]], ids=["nothing", "troubles"])
def test_where_nothing_was_measured_other_settings_may_be(
    troubles: list[str], kept: bool, tmp_path: Path
) -> None:
    """As Ctrl-C before the first row leaves a folder, or a run in which everything failed."""
    bench_rows.write(tmp_path, [bench_rows.unmeasured(status, "killed") for status in troubles])
    if kept:
        (tmp_path / SETTINGS).write_text(json.dumps({"seed": 1, "rounds": 3}))
        assert len(Record(tmp_path, {"seed": 1, "rounds": 3}).rows) == len(troubles), "of the same run"
    record = Record(tmp_path, {"seed": 2})
    assert record.rows == []
    assert record.path.read_bytes() == b""
    assert json.loads((tmp_path / SETTINGS).read_text()) == {"seed": 2}


@pytest.mark.parametrize("row", [bench_rows.row(), bench_rows.unmeasured("wrong", "its loss is off")])
def test_what_was_measured_or_wrong_holds_a_folder(row: dict[str, Any], tmp_path: Path) -> None:
    bench_rows.write(tmp_path, [row])
    with pytest.raises(UserError, match=r"bench\.json"):
        Record(tmp_path, {"seed": 2})
    (tmp_path / SETTINGS).write_text(json.dumps({"seed": 1}))
    with pytest.raises(UserError, match=r"\(seed was 1, now 2\)"):
        Record(tmp_path, {"seed": 2})
    with pytest.raises(UserError, match=r"\(seed was 1, now 2; batch_size was None, now 8\)"):
        Record(tmp_path, {"seed": 2, "batch_size": 8})


def test_settings_that_are_no_object_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / SETTINGS).write_text("[]")
    with pytest.raises(UserError, match=r"bench\.json"):
        Record(tmp_path, {"seed": 1})
