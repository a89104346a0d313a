"""Whole runs of the benchmark, with real workers: what is recorded, resumed, refused and cleaned up."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
from runs import refusal, run_command, without_checksum

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import commands, variants
from ptb_lm.bench import rows as bench_rows
from ptb_lm.bench.check.bounds import BOUNDS
from ptb_lm.bench.run import machine as bench_machine
from ptb_lm.bench.run import process as bench_process
from ptb_lm.bench.run import record, runner, timed_steps
from ptb_lm.bench.run.machine import THREADS, Machine, Product
from ptb_lm.bench.suites import SUITES
from ptb_lm.model.choice import MAX_SEED
from ptb_lm.torch_backend import cpu, machine_speed

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
# Two variants of the smallest workload, made smaller still.
SMALL = ["--batch-size", "2", "--device", "cpu"]
KEYS = {*bench_rows.Row.__struct_encode_fields__}
QUICK = ["run", "quick", "--variants", "torch/cudnn", "--rounds", "2", *SMALL]
# The command on a machine of its own, which searches as little as the other tests' and measures as briefly.
BRIEFLY = """
import sys
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench.run import machine, timed_steps
machine.WIDTH["cpu"], machine.TRIES, timed_steps.ROOM = 256, 1, 0.1
gemm = machine.Machine.gemm
machine.Machine.gemm = lambda self, precision, products: gemm(self, precision, [])
sys.exit(bench.main())
"""
# For what a single round shows.
BRIEF = ["--rounds", "1", "--row-limit", "0.5"]
AGAIN = "torch/cudnn#again"


class KeptMachine(Machine):
    """A machine whose process serves several runs, and multiplies once in each precision.

    The search for the fastest product takes seconds: it is test_machine.py's. The test of Ctrl-C starts a
    machine of the command's own.
    """

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self._measured: dict[str, dict[str, Any]] = {}

    def gemm(self, precision: str, products: Sequence[Product]) -> dict[str, Any]:
        """Return what was measured first."""
        if precision not in self._measured:
            self._measured[precision] = super().gemm(precision, [])
        return self._measured[precision]

    def close(self) -> None:
        """Leave the process to the next run."""


@pytest.fixture(scope="module", autouse=True)
def _variables() -> Iterator[None]:
    """Without variables that another test's import of a framework has set: a record keeps them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in set(record.variables()) - set(THREADS):
            patch.delenv(name)
        yield


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    """Workers are processes that need not import torch; those of the tests of Ctrl-C do, as users' do."""
    with pytest.MonkeyPatch.context() as patch:
        started = SimpleNamespace(
            Popen=forked.Module, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
        )
        patch.setattr(bench_process, "subprocess", started)
        yield


@pytest.fixture(scope="module")
def machine(_forked: None) -> Iterator[Machine]:
    kept = KeptMachine("cpu")
    with contextlib.ExitStack() as at_the_end:
        at_the_end.callback(Machine.close, kept)
        yield kept


@pytest.fixture(scope="module", autouse=True)
def _brief(machine: Machine) -> Iterator[None]:
    """Let runs share the machine, and measure each block once and in less than the usual second.

    What is measured again, because other tests disturb it, is test_disturbance.py's.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "Machine", lambda device: {"cpu": machine}[device])
        patch.setitem(bench_machine.WIDTH, "cpu", 256)
        patch.setattr(bench_machine, "TRIES", 1)
        patch.setattr(timed_steps, "ROOM", 0.1)
        yield


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers find this folder's modules, and forget added variants."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(variants, "ADDED", {})


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first run of QUICK leaves, for those that go on from it."""
    out = tmp_path_factory.mktemp("quick") / "out"
    assert run_command(bench, *QUICK, "--out", out) == 0
    return out


@pytest.fixture
def out(quick: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return shutil.copytree(quick, tmp_path / "out")


def rows(out: Path) -> list[dict[str, Any]]:
    return [without_checksum(line) for line in (out / "rows.jsonl").read_text().splitlines()]


def test_a_run_records_and_goes_on_where_it_was_interrupted(out: Path) -> None:
    recorded = rows(out)
    assert sorted((row["variant"], row["round"]) for row in recorded) == [
        (name, index) for name in ("plain-torch/cudnn", "torch/cudnn") for index in (0, 1)
    ]
    assert len({row["process"] for row in recorded}) == 4  # quick: a process a round
    libraries = {library.name for library in machine_speed.list_libraries("cpu", "fp32")}
    for row in recorded:
        assert row.keys() == KEYS
        assert (row["status"], row["reason"], row["note"]) == ("measured", None, None)
        work = {"parameters": 4_651_600, "items_per_step": 40, "device": "cpu"}
        assert {name: row["work"][name] for name in work} == work
        assert row["work"]["bytes_per_step"]["update"] == 12 * 2_651_600  # all but the embedding, three times
        assert row["steps"] >= 3
        assert row["parity"]["gradient_error"] < row["parity"]["gradient_bound"]
        assert min(row["seconds"], row["gemm_gflops"], row["copy_gbytes"]) > 0
        assert row["gemm_library"] in libraries
        assert " × " in row["gemm_shape"]
        assert row["gemm_threads"] in (None, 1)
        assert row["peak_memory"]["host_bytes"] > 4 * 4_651_600
        assert row["environment"]["torch"]
        assert row["environment"]["threads"]
        assert row["command"].startswith(bench.PROG)
    assert recorded[0]["loss"] == pytest.approx(recorded[1]["loss"], rel=1e-5)
    assert (out / "report.md").is_file()

    lines = (out / "rows.jsonl").read_text().splitlines(keepends=True)
    # As a crash leaves it: a row missing, another half written.
    (out / "rows.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    assert run_command(bench, *QUICK, "--out", out) == 0
    again = rows(out)
    assert (out / "rows.jsonl").read_text().splitlines(keepends=True)[:2] == lines[:2]
    assert sorted((row["variant"], row["round"]) for row in again[2:]) == [
        ("plain-torch/cudnn", 1),
        ("torch/cudnn", 1),
    ]
    assert not {row["process"] for row in again[2:]} & {row["process"] for row in again[:2]}
    assert len({row["session"] for row in again}) == 2

    before = (out / "rows.jsonl").read_text()
    assert run_command(bench, *QUICK, "--out", out) == 0  # nothing left to do
    assert (out / "rows.jsonl").read_text() == before

    # As two interruptions may leave it: the baseline's only row of a round is of another session.
    changed = [without_checksum(line) for line in before.splitlines()]
    for row in changed:
        if (row["variant"], row["round"]) == ("plain-torch/cudnn", 0):
            row["session"] = "2026-01-01T00:00:00+0000"
    (out / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in changed))
    assert run_command(bench, *QUICK, "--out", out) == 0
    paired = rows(out)[len(changed) :]
    assert sorted((row["variant"], row["round"]) for row in paired) == [
        ("plain-torch/cudnn", 0),
        ("torch/cudnn", 0),
    ]
    assert len({row["session"] for row in paired}) == 1
    before = (out / "rows.jsonl").read_text()
    assert run_command(bench, *QUICK, "--out", out) == 0
    assert (out / "rows.jsonl").read_text() == before


def test_an_a_a_test_is_measured_by_processes_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "LINE_SECONDS", 0)  # a line for each block
    out = tmp_path / "out"
    flags = ["--variants", AGAIN, "--baseline", "torch/cudnn", "--rounds", "3", *SMALL]
    flags += ["--processes", "2", "--row-limit", "2"]
    assert run_command(bench, "run", "quick", *flags, "--out", out) == 0
    read, _ = bench_rows.read(out)
    assert {(row.status, row.baseline) for row in read} == {("measured", "torch/cudnn")}
    by_variant = {name: [row for row in read if row.variant == name] for name in ("torch/cudnn", AGAIN)}
    for of in by_variant.values():
        assert sorted(row.round for row in of) == [0, 1, 2]
        assert len({row.process for row in of}) == 2
        assert len({row.steps for row in of}) == 1, "planned before the first block"
    assert not {row.process for row in by_variant[AGAIN]} & {row.process for row in by_variant["torch/cudnn"]}
    report = (out / "report.md").read_text()
    assert "- A/A test: torch/cudnn, " in report
    printed, told = capsys.readouterr()
    assert re.findall(r"^quick: small torch/cudnn.* train, block (\d) of 6$", told, re.M) == [*"123456"]
    *_, page = printed.rstrip().split("\n\n")
    assert page == str(out / "report.html")
    assert {"PyTorch cudnn (nn.LSTM)", "PyTorch cudnn (nn.LSTM), again"} <= {*printed.splitlines()}


def test_what_is_added_later_is_measured_beside_its_own_baseline(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["run", "quick", *BRIEF, *SMALL, "--out", str(out)]
    assert run_command(bench, *flags, "--variants", "torch/cudnn") == 0
    first = rows(out)
    assert run_command(bench, *flags, "--variants", "torch/block,torch/cudnn") == 0
    assert rows(out)[:2] == first
    assert sorted(row["variant"] for row in rows(out)[2:]) == ["plain-torch/cudnn", "torch/block"]
    # The baseline's row is lost: what was paired with it is measured again.
    lost = [row for row in rows(out) if row["variant"] != "plain-torch/cudnn"]
    (out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lost))
    assert run_command(bench, *flags, "--variants", "torch/block", "torch/cudnn") == 0
    assert sorted(row["variant"] for row in rows(out)[2:]) == [
        "plain-torch/cudnn",
        "torch/block",
        "torch/cudnn",
    ]
    assert "`plain-torch/cudnn`" in (out / "report.md").read_text()


def test_wrong_and_failing_variants_become_rows_and_are_not_timed(tmp_path: Path) -> None:
    added = [
        "wrong=wrong_variant:build",
        "failing=wrong_variant:build_failing",
        "greedy=wrong_variant:build_greedy",
        "right=wrong_variant:build_right",
        "stale=wrong_variant:build_stale",
    ]
    flags = ["--variants", "*/custom", "--baseline", "torch/cudnn", *BRIEF, *SMALL]
    assert run_command(bench, "run", "quick", *flags, "--add", *added, "--out", tmp_path / "out") == 1
    found = {row["variant"]: row for row in rows(tmp_path / "out")}
    assert {name: row["status"] for name, row in found.items()} == {
        "torch/cudnn": "measured",
        "right/custom": "measured",
        "wrong/custom": "wrong",
        "failing/custom": "failed",
        "stale/custom": "wrong",
        "greedy/custom": "failed",  # not unavailable: without the others there may be enough
    }
    assert "memory" in found["greedy/custom"]["reason"]
    assert "off by" in found["wrong/custom"]["reason"]
    assert "warm-up" in found["stale/custom"]["reason"]
    assert found["failing/custom"]["reason"] == "RuntimeError: out of luck"
    assert "seconds" not in found["wrong/custom"]
    logs = {log.name: log.read_text() for log in (tmp_path / "out" / "failures").iterdir()}
    assert logs.keys() == {"small-failing-custom.log", "small-greedy-custom.log"}
    assert "second line" in logs["small-failing-custom.log"]
    report = (tmp_path / "out" / "report.md").read_text()
    assert "out of luck" in report
    # Of what is not asked for again, the status says nothing.
    flags = ["--variants", "right/custom", *flags[2:]]
    assert run_command(bench, "run", "quick", *flags, "--add", *added, "--out", tmp_path / "out") == 0


def test_what_is_wrong_in_one_process_of_several_stays_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command does not try again until all processes pass."""
    out, asked = tmp_path / "out", tmp_path / "asked"
    monkeypatch.setenv("WRONG_VARIANT_ASKED", str(asked))
    flags = ["--add", "turning=wrong_variant:build_in_turn", "--variants", "turning/custom"]
    flags += ["--baseline", "turning/custom", "--rounds", "2", "--row-limit", "1", *SMALL]
    assert run_command(bench, "run", "quick", *flags, "--out", out) == 1
    recorded = (out / "rows.jsonl").read_text()
    assert [row["status"] for row in rows(out)] == ["measured", "wrong"]
    assert asked.read_text() == "xx", "two processes"
    assert "not measured again" not in capsys.readouterr().out

    assert run_command(bench, "run", "quick", *flags, "--out", out) == 1
    assert (out / "rows.jsonl").read_text() == recorded
    assert asked.read_text() == "xx", "nobody was asked again"
    said = capsys.readouterr().out
    assert re.search(r"^small turning/custom .*not measured again.*--out", said, re.MULTILINE)
    assert "is off by" in (out / "report.md").read_text()


def test_the_check_alone_says_how_near_variants_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the same variant twice, once; and not of the baseline, which nothing is compared with."""
    out = tmp_path / "new" / "check.md"  # in a folder that is not there yet
    check = ["check", "quick", *SMALL, "--out", out]
    assert run_command(bench, *check, "--variants", "torch/cudnn*") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert re.match(r"small torch/cudnn \(fp32\): agrees; .*: loss \S+ of 2e-06, norm \S+ of ", line)
    assert re.search(r"^- torch: ", out.read_text(), re.MULTILINE)
    assert "| small | torch/cudnn | fp32 | agrees |" in out.read_text()

    added = ["--add", "wrong=wrong_variant:build", "greedy=wrong_variant:build_greedy"]
    added += ["stale=wrong_variant:build_stale"]
    assert (
        run_command(bench, *check, *added, "--overwrite", "--variants", "*/custom", "torch/cudnn@tf32") == 1
    )
    wrong, greedy, stale, tf32 = capsys.readouterr().out.splitlines()
    assert tf32.startswith("small torch/cudnn@tf32 (tf32): unavailable; --precision tf32 needs")
    assert wrong.startswith("small wrong/custom (fp32): wrong; its ")
    assert re.match(r"small stale/custom \(fp32\): wrong; .*warm-up", stale)
    assert greedy.startswith("small greedy/custom (fp32): failed; ")
    assert "| wrong: its " in out.read_text()


def test_both_passes_and_another_batch_size(tmp_path: Path) -> None:
    out, alone = tmp_path / "out", ["--variants", "torch/cudnn", "--baseline", "torch/cudnn"]
    assert run_command(bench, "run", "template", *alone, *BRIEF, *SMALL, "--out", out) == 0
    recorded = rows(out)
    assert sorted(row["pass"] for row in recorded) == ["forward", "train"]
    work = {row["pass"]: row["work"] for row in recorded}
    assert 2 < work["train"]["flops_per_step"] / work["forward"]["flops_per_step"] < 3
    assert {row["work"]["items_per_step"] for row in recorded} == {2}
    assert "batch 2 ×" in work["train"]["description"]
    assert len({row["process"] for row in recorded}) == 1


def test_what_would_take_too_long_is_cut_and_says_so(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_command(bench, *QUICK, "--row-limit", "1e-6", "--out", out) == 0
    recorded = rows(out)
    assert sorted(row["variant"] for row in recorded) == ["plain-torch/cudnn", "torch/cudnn"]  # a round each
    for row in recorded:
        assert row["steps"] == 1
        cut = re.fullmatch(
            r"1 of 2 rounds \(limit: 1e-06 s\), 1 of (\d+) steps a round \(limit: 1e-06 s\), "
            r"2 of 3 steps to warm up \(limit: 2e-07 s\)",
            row["note"],
        )
        assert int(cut[1]) >= 3  # as the workload declares, or as many as fill a block
        assert row["startup"]["warm_up_steps"] == 2
        assert row["cut"] == "batch 2 of 20"
    report = (out / "report.md").read_text()
    assert "only 1 of 2 rounds" in report
    before = (out / "rows.jsonl").read_bytes()
    assert run_command(bench, *QUICK, "--row-limit", "1e-6", "--out", out) == 0
    assert (out / "rows.jsonl").read_bytes() == before, "the plan stays: no round is added"
    assert "batch 2 of 20" in report


def test_a_precision_that_a_variant_lacks_is_a_row(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_command(bench, *QUICK, *BRIEF, "--precision", "fp64", "--out", out) == 0
    found = {row["variant"]: row for row in rows(out)}
    assert found["plain-torch/cudnn"]["status"] == "unavailable"
    assert "fp64" in found["plain-torch/cudnn"]["reason"]
    assert found["torch/cudnn"]["status"] == "measured"
    before = (out / "rows.jsonl").read_bytes()
    assert run_command(bench, *QUICK, *BRIEF, "--precision", "fp64", "--out", out) == 0
    assert (out / "rows.jsonl").read_bytes() == before, "nothing is measured beside what cannot be"


def test_what_needs_a_gpu_says_so_in_every_row(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_command(bench, "run", "peak", "--device", "cpu", "--out", out) == 1  # nothing was measured
    recorded = rows(out)
    assert {row["status"] for row in recorded} == {"unavailable"}
    (reason,) = {row["reason"] for row in recorded}
    assert "CUDA device" in reason
    assert len(recorded) == sum(len(workload.variants) for workload in SUITES["peak"].workloads)
    for row in recorded:
        assert row["work"]["precision"] == (row["variant"].partition("@")[2] or "fp32")
    report = (out / "report.md").read_text()
    names = ", ".join(sorted(variant.name for variant in SUITES["peak"].workloads[0].variants))
    assert f"- not available here, {names}: {reason}" in report
    assert report.count("| --- |") == 1, "no table of what is not there, but that of the machine"


def test_a_precision_beside_the_run_s_is_measured_and_told_apart(tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ["--variants", "torch/cudnn", "torch/cudnn@fp32", "tensorflow/block_fused@fp64"]
    assert (
        run_command(bench, "run", "quick", "--precision", "bf16", *flags, *BRIEF, *SMALL, "--out", out) == 0
    )
    found = {row["variant"]: row for row in rows(out)}
    assert {name: (row["status"], row["work"]["precision"]) for name, row in found.items()} == {
        "plain-torch/cudnn": ("measured" if cpu.has_bfloat16_lstm() else "unavailable", "bf16"),
        "torch/cudnn": ("measured", "bf16"),
        "torch/cudnn@fp32": ("measured", "fp32"),
        "tensorflow/block_fused@fp64": ("unavailable", "fp64"),
    }
    assert "float32" in found["tensorflow/block_fused@fp64"]["reason"]
    for row in found.values():
        if row["status"] == "unavailable":
            continue
        assert row["parity"]["gradient_bound"] == BOUNDS[row["work"]["precision"]].gradient
    report = (out / "report.md").read_text()
    assert "bf16 `torch/cudnn` |" in report
    assert "fp32 `torch/cudnn@fp32` |" in report


# What is another than in the folder -> flags, settings that were kept, and variables.
OTHERWISE: dict[str, tuple[list[str], dict[str, str], dict[str, str]]] = {
    "seed was 1, now 2": (["--seed", "2"], {}, {}),
    "baseline was None, now 'torch/cudnn'": (["--baseline", "torch/cudnn"], {}, {}),
    "gpu was 'NVIDIA H200', now None": ([], {"gpu": "NVIDIA H200"}, {}),
    "source was 'another', now '": ([], {"source": "another"}, {}),
    "PTB_LM_KERNELS was None, now 'torch'": ([], {}, {"PTB_LM_KERNELS": "torch"}),
    "--add right=wrong_variant:build_right was None, now '": (
        ["--add", "right=wrong_variant:build_right"],
        {},
        {},
    ),
}


@pytest.mark.parametrize("changed", OTHERWISE)
def test_rows_of_other_settings_are_not_mixed(
    changed: str, out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, kept, variables = OTHERWISE[changed]
    settings = json.loads((out / "bench.json").read_text())
    (out / "bench.json").write_text(json.dumps({**settings, **kept}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    message = refusal(capsys, bench, *QUICK, *flags, "--out", out)
    assert message.startswith(str(out))
    assert f"({changed}" in message


def test_without_a_command_quick_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(commands, "COMMANDS", {"run": lambda arguments: asked.append(arguments) or 3})
    assert run_command(bench) == 3
    assert [arguments.suite for arguments in asked] == ["quick"]


@pytest.mark.parametrize(
    ("given", "noun"),
    [
        (["run", "quick", "--workloads", "huge"], "--workloads huge: "),
        (["run", "quick", "--variants", "jax/*"], "--variants jax/*: "),
        (["run", "quick", "--variants", ""], "--variants"),
        (["run", "quick", "--workloads", ","], "--workloads"),
        (["run", "--baseline", ""], "--baseline"),
        (["run", "--rounds", "0"], "--rounds"),
        (["run", "--batch-size", "x"], "--batch-size"),
        (["run", "--row-limit", "nan"], "--row-limit"),
        (["run", "--row-limit", "inf"], "--row-limit"),
        (["run", "--seed", "-1"], "--seed"),
        (["run", "--seed", str(MAX_SEED + 1)], "--seed"),
        (["run", "everything"], "SUITE"),
        (["run", "--add", "mine"], "NAME=MODULE:FUNCTION"),
        (["measure"], "run"),
    ],
)
def test_bad_input_is_one_sentence(given: list[str], noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(bench, *given) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("python -m ptb_lm.bench")
    assert noun in err


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "ended by SIGTERM"),
    ],
)
def test_a_ctrl_c_keeps_the_rows_and_leaves_no_process_behind(
    tmp_path: Path, number: signal.Signals, said: str
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-c", BRIEFLY, "run", "quick", *SMALL, "--out", str(out)]
    variants_flag = ["--variants", "torch/cudnn", "--row-limit", "0.1", "--rounds", "50"]
    process = subprocess.Popen(
        [*command, *variants_flag], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not _has_begun(process.pid, out, with_a_row=number == signal.SIGINT):
        assert process.poll() is None
        time.sleep(0.05)
    children = _children(process.pid)
    assert children
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    *progress, last = stderr.splitlines()
    assert last == f"python -m ptb_lm.bench: {said}"
    for line in progress:  # on a machine that is slow
        assert re.fullmatch(r"quick: small \S+ train, block \d+ of 100", line)
    assert "the same command continues" in stdout
    if number == signal.SIGINT:
        for row in rows(out):
            assert row["status"] == "measured"
            assert row["gemm_gflops"] > 0, "by a machine of the command's own"
            assert " × " in row["gemm_shape"]
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_listing_imports_no_framework() -> None:
    program = (
        "import sys; from ptb_lm.bench import __main__ as bench; bench.main(['list', 'acoustic']);"
        "assert not {'torch', 'tensorflow', 'keras', 'jax', 'pytensor', 'matplotlib'} & sys.modules.keys()"
    )
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "4x320-CTC-long" in listed.stdout
    assert "TensorFlow LSTMBlockFusedCell" in listed.stdout


def _has_begun(command: int, out: Path, *, with_a_row: bool) -> bool:
    """Return whether a command has measured a row, or at least is starting a worker."""
    recorded = out / "rows.jsonl"
    if with_a_row:
        return recorded.exists() and recorded.read_text() != ""
    return any("ptb_lm.bench.run.worker" in _arguments(child) for child in _children(command))


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _children(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and _parent(pid) == parent]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
