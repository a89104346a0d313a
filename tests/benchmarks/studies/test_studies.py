"""The studies of a step: what they measure is the model that the package trains."""

import json
import math
import os
import platform
import re
from pathlib import Path

import pytest
import runs
import torch

from benchmarks.studies import __main__ as studies
from benchmarks.studies import contention, scoring
from ptb_lm.common import host
from ptb_lm.torch_backend import cpu, machine_speed


@pytest.mark.slow  # asks git for the commit
def test_a_profile_names_the_operations_its_command_and_its_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    flags = ["--config", "test", "--steps", "1", "--out", str(out)]
    assert studies.main(["profile", "torch/cudnn", *flags]) == 0
    kept = (out / "profile.txt").read_text()
    assert kept in capsys.readouterr().out
    assert kept.startswith(f"python -m benchmarks.studies profile torch/cudnn {' '.join(flags)}\n")
    facts = host.environment()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"cpu ({platform.machine()}, "
    assert f"\nMeasured on {facts['processor']}, {facts['cores']} cores, {device}" in kept
    assert "aten::mm" in kept or "ptb_lm::multiply" in kept
    if cpu.get_implementation().kernels == "native":
        assert "ptb_lm::cross_entropy" in kept
    about, *rows = map(json.loads, (out / "rows.jsonl").read_text().splitlines())
    assert (about["processor"], about["commit"]) == (facts["processor"], facts["commit"])
    assert math.isclose(sum(row["self_ms"] for row in rows[:-1]), rows[-1]["self_ms"])
    if not torch.cuda.is_available():
        total, unit = re.findall(r"^Self CPU time total: ([\d.]+)(us|ms|s)$", kept, re.M)[0]
        assert math.isclose(
            rows[-1]["self_ms"], float(total) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit], rel_tol=1e-3
        )
    assert sorted(path.name for path in out.iterdir()) == ["profile.txt", "rows.jsonl"]


def test_contention_times_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """In a process of its own for each way to wait; here in ours."""
    assert studies.main(["contention", "--config", "test", "--seconds", "0.01", "--step"]) == 0
    assert float(capsys.readouterr().out) > 0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is refused")
def test_a_refusal_of_a_timed_process_is_the_study_s_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    found = refusal(capsys, "contention", "--config", "test", "--precision", "tf32")
    assert found.startswith("--precision tf32 ")
    assert "CUDA" in found


def test_contention_knows_the_cores_where_the_system_tells_no_affinity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert {"OMP_NUM_THREADS": "2"} in contention._ways().values()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["torch/cudnn", "--steps", "0"], "argument --steps: "),
        (["torch/cudnn", "--trace"], "--trace "),
        (["torch/cudn"], "unknown model 'cudn' "),
        (["torch/cudnn/quick"], "unknown execution 'quick' "),
        (["torch/cudnn/eager/static/more"], "torch/cudnn/eager/static/more: "),
        (["cudnn"], "cudnn: "),
        (["tensorflow/cudnn"], "tensorflow/cudnn: "),
    ],
)
def test_a_profile_that_cannot_be_is_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(capsys, "profile", *arguments).startswith(sentence)


def refusal(capsys: pytest.CaptureFixture[str], command: str, *given: object) -> str:
    """Run a study that must refuse: one line on stderr, nothing on stdout. Return the line's sentence."""
    capsys.readouterr()
    assert runs.run_command(studies, command, *given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    prefix = f"{studies.PROG} {command}: "
    assert err.startswith(prefix)
    return err.removeprefix(prefix)


@pytest.mark.slow
def test_a_model_does_not_diverge_from_itself_and_a_nudge_is_seen(tmp_path: Path) -> None:
    data = runs.write_corpus(tmp_path / "data")
    variants = ["basic/fp64", "basic/fp64/nudged", "cudnn/fp64"]
    flags = ["--data", str(data), "--config", "test", "--steps", "15", "--out", str(tmp_path / "out")]
    assert studies.main(["divergence", *flags, *variants]) == 0
    facts, *rows = map(json.loads, (tmp_path / "out" / "rows.jsonl").read_text().splitlines())
    assert facts["command"].startswith(f"{studies.PROG} divergence --data ")
    assert [row["step"] for row in rows] == [*range(15)]
    for row in rows:
        assert row["basic/fp64/nudged"] < 1e-8
        assert row["cudnn/fp64"] < 1e-13
    assert rows[-1]["basic/fp64/nudged"] > 0


@pytest.mark.slow
def test_scoring_is_timed_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SENTENCES", 30)
    for seconds in ("SCAN_SECONDS", "MEASUREMENT_SECONDS"):
        monkeypatch.setattr(machine_speed, seconds, 1e-9)
    out = tmp_path / "out"
    assert studies.main(["scoring", "--config", "test", "--rounds", "1", "--out", str(out)]) == 0
    facts, *rows = map(json.loads, (out / "rows.jsonl").read_text().splitlines())
    assert facts["command"].startswith(f"{studies.PROG} scoring --config test")
    assert [row["longest"] for row in rows] == [10, 40]
    assert all(min(row["alone"], row["batched"], row["limit"]) > 0 for row in rows)
    assert (out / "table.md").read_text().count("| 1 to ") == 2


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["foo/fp32"], "unknown model 'foo' "),
        (["foo"], "foo: "),
        (["basic/fp64/pushed"], "basic/fp64/pushed: "),
        (["basic/fp64", "--steps", "-5"], "argument --steps: "),
        (["basic/fp64", "--data", "nowhere"], "--data nowhere: "),
    ],
)
def test_divergence_refuses_in_a_sentence(
    given: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = runs.write_corpus(tmp_path / "data")
    flags = ["--config", "test", "--data", data]
    assert refusal(capsys, "divergence", *flags, *given).startswith(problem)
