"""Reading rows.jsonl: what a crash leaves, and one sentence for everything else that is wrong."""

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from bench_rows import WORK, row, unmeasured, write
from runs import without_checksum

from ptb_lm.bench import rows
from ptb_lm.bench.rows import Row
from ptb_lm.bench.run.record import Record
from ptb_lm.bench.suites import SUITES
from ptb_lm.common.errors import UserError


def test_a_row_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = row(label="A label", round=3, process=17, seconds=1.5, steps=30, note="cut: batch 4 of 32")
    (read,), remarks = rows.read(write(tmp_path, [given]))
    assert remarks == []
    assert (read.suite, read.workload, read.pass_name, read.variant) == (
        "quick",
        "small",
        "train",
        "torch/basic",
    )
    assert (read.label, read.baseline, read.note) == ("A label", "torch/basic", "cut: batch 4 of 32")
    assert (read.round, read.process, read.status) == (3, 17, "measured")
    assert read.seconds_per_step == 0.05
    assert read.rate == 400 / 0.05
    assert read.gemm_fraction == pytest.approx(1.1e10 / 0.05 / 3e12)
    # 11 GFLOP at 3 TFLOP/s take longer than 20 MB at 100 GB/s; then come 30 MB more.
    assert read.roofline_fraction == pytest.approx((1.1e10 / 3e12 + 30e6 / 100e9) / 0.05)
    assert read.work.parameters == WORK["parameters"]
    assert read.peak_memory == {"host_bytes": 9e8}, "what is null was not measured"
    assert (read.gemm_library, read.gemm_threads) == ("torch.mm (MKL)", 2)
    assert read.gemm_shape == "2048 × 2048 × 2048"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    given, _ = rows.read(write(tmp_path / "given", [row(environment={"ü": [1, None]}), row(pass_="forward")]))
    given += rows.read(write(tmp_path / "failed", [unmeasured("failed", 'no "luck"\nat all')]))[0]
    (tmp_path / rows.FILE).write_bytes(rows.to_lines(given))
    again, _ = rows.read(tmp_path)
    assert [repr(each) for each in again] == [repr(each) for each in given], "NaN is not itself"


def test_a_path_that_is_no_text_is_read_as_it_was_written(tmp_path: Path) -> None:
    given, _ = rows.read(write(tmp_path, [row(command="--out \udc80")]))
    (tmp_path / rows.FILE).write_bytes(rows.to_line(given[0]) + b"\n")
    assert rows.read(tmp_path)[0][0].command == "--out \udc80"


(SMALL,) = SUITES["quick"].workloads
NAMES: dict[str, Any] = {
    **dict.fromkeys(("suite", "workload", "session", "variant", "label", "baseline"), "a name"),
    "pass_name": "train",
    "planned_rounds": 1,
    "work": SMALL.work("train", precision="fp32", device="cpu"),
}


def test_a_row_that_was_not_measured_is_written_without_a_block() -> None:
    written = json.loads(rows.to_line(Row(**NAMES, status="failed", reason="r")))
    assert not {"round", "process", "steps", "seconds"} & written.keys()
    assert (written["pass"], written["note"]) == ("train", None)


def test_what_is_no_number_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        rows.to_line(Row(**NAMES, status="measured", seconds=math.nan))


def test_a_record_keeps_the_lines_that_it_found(tmp_path: Path) -> None:
    write(tmp_path, [row(colour="green"), row(round=1)], end='{"suite": "qui')
    (tmp_path / "bench.json").write_text("{}")
    lines = (tmp_path / rows.FILE).read_bytes().splitlines(keepends=True)[:2]
    record = Record(tmp_path, {})
    assert (tmp_path / rows.FILE).read_bytes() == b"".join(lines)
    record.add(record.rows[1])
    assert (tmp_path / rows.FILE).read_bytes().startswith(b"".join(lines))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    (given,), _ = rows.read(write(tmp_path / "given", [row()]))
    record = Record(tmp_path, {})
    record.path.unlink(missing_ok=True)
    record.path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as caught:
        record.add(given)
    assert caught.value.filename == str(record.path)


@pytest.mark.parametrize(
    ("line", "is_json"),
    [
        *((line, True) for line in ("1", "null", "{}", "NaN", '{"suite": 1}')),
        ("[" * 100_000, False),
        ("{", False),
    ],
)
def test_a_record_refuses_a_broken_line_as_a_report_does(line: str, is_json: bool, tmp_path: Path) -> None:
    path = write(tmp_path, [row()], end=f"{line}\n") / "rows.jsonl"
    (tmp_path / "bench.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        Record(tmp_path, {})
    assert str(caught.value) == refusal(tmp_path)
    assert str(caught.value).startswith(f"{path}, line 2{': ' if is_json else ' is not valid JSON'}")


def test_a_row_without_measurement_says_why(tmp_path: Path) -> None:
    (read,), _ = rows.read(write(tmp_path, [unmeasured("unavailable", "no GPU", variant="a/b")]))
    assert (read.status, read.reason, read.label, read.round) == ("unavailable", "no GPU", "a/b", 0)


def test_unknown_keys_are_left_alone(tmp_path: Path) -> None:
    assert len(rows.read(write(tmp_path, [row(colour="green", work={**WORK, "smell": 1})]))[0]) == 1


# The last is cut inside a character.
@pytest.mark.parametrize("cut", [b'{"suite": "qui', b"{", b'{"a": "\\u00', '{"suite": "ü'.encode()[:-1]])
def test_a_last_line_that_was_cut_off_is_left_out_with_a_remark(cut: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, [row()]) / "rows.jsonl"
    path.write_bytes(path.read_bytes() + cut)
    read, (remark,) = rows.read(tmp_path)
    assert len(read) == 1
    assert "cut off" in remark
    path.write_bytes(cut)
    assert "holds no rows" in refusal(tmp_path)


def test_a_whole_last_line_counts_without_its_newline(tmp_path: Path) -> None:
    read, remarks = rows.read(write(tmp_path, [row()], end=json.dumps(row(round=1))))
    assert (len(read), remarks) == (2, [])


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        rows.read(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# A change that breaks a row, and the key with its value as the error names them.
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"seconds": 0}, "seconds cannot be 0"),
    ({"seconds": float("nan")}, "seconds cannot be nan"),
    ({"seconds": "2"}, "seconds cannot be '2'"),
    ({"seconds": True}, "seconds cannot be True"),
    ({"seconds": 10**400}, "seconds cannot be 1"),
    ({"seconds": 1e-100}, "seconds cannot be 1e-100"),
    ({"seconds": None}, "'seconds' is missing"),
    ({"label": None}, "'label' is missing"),
    ({"label": 3}, "label cannot be 3"),
    ({"steps": 0}, "steps cannot be 0"),
    ({"steps": True}, "steps cannot be True"),
    ({"steps": 10**400}, "steps cannot be 1"),
    ({"round": 1.5}, "round cannot be 1.5"),
    ({"round": 2.0}, "round cannot be 2.0"),
    ({"status": "fine"}, "status cannot be 'fine'"),
    ({"status": "failed"}, "no reason"),
    ({"pass_": "backward"}, "pass cannot be 'backward'"),
    ({"work": {**WORK, "unit": None}}, "'unit' is missing"),
    ({"work": {**WORK, "unit": 3}}, "unit cannot be 3"),
    ({"work": []}, "work cannot be []"),
    ({"work": {**WORK, "bytes_per_step": {"products": 1}}}, "'update' is missing"),
    ({"work": {**WORK, "bytes_per_step": {"products": 1, "update": -1}}}, "update cannot be -1"),
    ({"gemm_gflops": -1}, "gemm_gflops cannot be -1"),
    ({"gemm_library": 3}, "gemm_library cannot be 3"),
    ({"gemm_threads": 0}, "gemm_threads cannot be 0"),
    ({"copy_gbytes": 0}, "copy_gbytes cannot be 0"),
    ({"others": -0.1}, "others cannot be -0.1"),
    ({"startup": {"build_seconds": "long"}}, "startup cannot be"),
    ({"environment": "here"}, "environment cannot be 'here'"),
    ({"environment": {"cpu_quota": "x"}}, "cpu_quota cannot be 'x'"),
    ({"environment": {"processes": "x"}}, "processes cannot be 'x'"),
    ({"environment": {"processes": 0}}, "processes cannot be 0"),
    ({"check": {"dropout": 3}}, "dropout cannot be 3"),
    ({"loss": float("inf")}, "loss cannot be inf"),
    ({"parity": {"loss_error": float("nan")}}, "parity cannot be {'loss_error': nan}"),
]


@pytest.mark.parametrize(("changes", "noun"), BROKEN)
def test_a_broken_row_is_one_sentence_with_file_and_line(
    changes: dict[str, Any], noun: str, tmp_path: Path
) -> None:
    path = write(tmp_path, [row(), row(**{"round": 1, **changes}), row(round=2)]) / "rows.jsonl"
    said = refusal(tmp_path)
    assert said.startswith(f"{path}, line 2: ")
    assert noun in said


@pytest.mark.parametrize(
    ("line", "is_json"),
    [
        *((line, False) for line in (b'{"suite": "qui', b"", b"words", b"[" * 100_000, b"\xff\xfe")),
        *((line, True) for line in (b"[1]", b"null")),
    ],
)
def test_a_broken_line_that_is_not_the_last_is_an_error(line: bytes, is_json: bool, tmp_path: Path) -> None:
    path = write(tmp_path, [row()]) / "rows.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n" + json.dumps(row(round=1)).encode())
    assert refusal(tmp_path).startswith(f"{path}, line 2{': ' if is_json else ' is not valid JSON'}")


def test_a_round_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, [row(round=4), row(round=4, process=2)])
    assert "holds round 4 of torch/basic (small, train) twice" in refusal(tmp_path)


def test_the_same_round_of_another_pass_is_none_of_its_business(tmp_path: Path) -> None:
    assert len(rows.read(write(tmp_path, [row(), row(pass_="forward"), row(workload="medium")]))[0]) == 3


def test_places_that_hold_no_benchmark(tmp_path: Path) -> None:
    assert refusal(tmp_path / "missing") == f"the folder {tmp_path / 'missing'} does not exist"
    assert refusal(tmp_path) == f"{tmp_path} holds no benchmark: rows.jsonl is missing"
    (tmp_path / "rows.jsonl").touch()
    assert "holds no rows" in refusal(tmp_path)
    assert refusal(tmp_path / "rows.jsonl") == f"{tmp_path / 'rows.jsonl'} is not a folder"
    (tmp_path / "d" / "rows.jsonl").mkdir(parents=True)
    assert "cannot be read" in refusal(tmp_path / "d")


def test_an_archive_is_missing_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl.gz"
    assert refusal(path) == f"{path} cannot be read: No such file or directory"
    lines = (write(tmp_path, [row(), row(round=1)]) / rows.FILE).read_bytes()
    whole = gzip.compress(lines)
    path.write_bytes(whole)
    assert rows.read(path) == rows.read(tmp_path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (whole[:-9], whole[:5], flipped, b"rows", lines):
        path.write_bytes(content)
        assert refusal(path) == f"{path} is damaged, or is not a benchmark"
    path.write_bytes(gzip.compress(lines + b"[1]\n"))
    assert refusal(path).startswith(f"{path}, line 3: ")
    path.write_bytes(b"")
    assert "holds no rows" in refusal(path)


def test_what_flips_in_a_row_is_refused_or_changes_no_value(tmp_path: Path) -> None:
    expected, _ = rows.read(write(tmp_path, [row(command="ü", note="\\u00fc"), row(round=1, seconds=1 / 3)]))
    path, rng, said = tmp_path / rows.FILE, random.Random(0), []
    content = rows.to_lines(expected)
    for at in rng.sample(range(len(content)), 300):
        byte = content[at]
        others = set(b"0123456789") - {byte} if chr(byte).isdigit() else {byte ^ 1 << rng.randrange(8)}
        path.write_bytes(content[:at] + bytes([rng.choice(sorted(others))]) + content[at + 1 :])
        try:
            found, remarks = rows.read(tmp_path)
            assert found == expected or remarks, content[at:]
        except UserError as error:
            said.append(str(error))
    assert all(each.startswith(f"{path}, line ") and "\n" not in each for each in said)
    assert sum("crc32 does not fit" in each for each in said) > 50


def test_a_row_that_was_changed_by_hand_is_refused_until_its_checksum_is_removed(tmp_path: Path) -> None:
    (given,), _ = rows.read(write(tmp_path, [row(seconds=0.25)]))
    text = rows.to_line(given).decode().replace('"seconds": 0.25', '"seconds": 0.24')
    (tmp_path / rows.FILE).write_text(f"{text}\n")
    said = refusal(tmp_path)
    assert said.startswith(f"{tmp_path / rows.FILE}, line 1 ")
    assert said.endswith("crc32")
    (tmp_path / rows.FILE).write_text(json.dumps(without_checksum(text)))
    assert rows.read(tmp_path)[0][0].seconds == 0.24
