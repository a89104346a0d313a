"""The table of the benchmark's folders says what their rows say."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_rows
import pytest

from ptb_lm.bench.summary import summarise
from ptb_lm.errors import UserError
from ptb_lm.results import measured


def write(folder: Path, *, day: str, variants: dict[str, int], **environment: Any) -> None:
    """Write rows of some variants, each of so many processes."""
    bench_rows.write(
        folder,
        [
            bench_rows.row(
                variant=variant,
                round=process,
                process=10 * index + process,
                time=f"{day}T10:00:00+0000",
                environment={**bench_rows.ENVIRONMENT, **environment},
            )
            for index, (variant, processes) in enumerate(variants.items())
            for process in range(processes)
        ],
    )


def test_a_folder_has_its_commit_machine_day_and_processes(tmp_path: Path) -> None:
    commit = "0123456789abcdef with uncommitted changes"
    write(tmp_path / "bench-of-old", day="2026-11-20", variants={"torch/basic": 3})
    on_a_gpu = {"processor": "A Xeon", "device": "A GPU", "commit": commit}
    write(
        tmp_path / "bench-cuda", day="2026-11-22", variants={"torch/basic": 2, "torch/cudnn": 5}, **on_a_gpu
    )
    on_a_cpu = {"processor": "A Xeon", "device": "cpu (x86_64)", "commit": commit}
    write(tmp_path / "bench-cpu", day="2026-11-21", variants={"torch/basic": 5}, **on_a_cpu)
    lines = measured.markdown(tmp_path).splitlines()
    assert [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[2:]] == [
        ["[bench-cuda](bench-cuda/report.md)", "0123456", "A GPU", "2026-11-22", "2 to 5", "–", "–"],
        ["[bench-cpu](bench-cpu/report.md)", "0123456", "A Xeon", "2026-11-21", "5", "–", "–"],
        ["[bench-of-old](bench-of-old/report.md)", "", "A Processor @ 2.50GHz", "2026-11-20", "3", "–", "–"],
    ]
    assert lines[0].startswith("| folder | commit |")


def test_a_folder_has_its_tests_of_a_program_against_itself(tmp_path: Path) -> None:
    """Log ratios of -d, 0, d: their standard error is d / sqrt(3), and t of two degrees 4.303."""

    def rows(workload: str, of: Callable[[int], float]) -> list[dict[str, Any]]:
        return [
            bench_rows.row(
                workload=workload,
                variant=variant,
                round=n,
                process=10 * place + n,
                seconds=2 * math.exp(place * of(n)),
            )
            for place, variant in enumerate(("torch/basic", "torch/basic#again"))
            for n in range(3)
        ]

    noise = (0.02, 0.04)
    bench_rows.write(
        tmp_path / "bench-a",
        [
            *rows("small", lambda n: noise[0] * (n - 1)),
            *rows("medium", lambda n: noise[1] * (n - 1)),
            *rows("large", lambda n: 0.5 + noise[0] * (n - 1)),
        ],
    )
    *_, row, _, sentence = measured.markdown(tmp_path).splitlines()
    low, high = (math.exp(4.3027 * each / math.sqrt(3)) - 1 for each in noise)
    assert row.strip("| ").split(" | ")[-2:] == ["2 of 3", f"{low:.1%} to {high:.1%}".replace("%", " %")]
    assert sentence == "Of all A/A tests, 2 of 3 intervals contain 1."


def test_rows_without_a_commit_say_so(tmp_path: Path) -> None:
    write(tmp_path, day="2026-11-20", variants={"torch/basic": 3}, processor="A Xeon", device="cpu", cores=2)
    found = measured.where(summarise(tmp_path), tmp_path)
    assert found == f"A Xeon, 2 cores, torch {bench_rows.ENVIRONMENT['torch']}, commit unknown"
    study = {"processor": "A Xeon", "cores": 2, "commit": None}
    assert measured.of_study(study) == "A Xeon, 2 cores, commit unknown"


def test_the_instructions_that_torch_uses_tell_processors_of_one_name_apart(tmp_path: Path) -> None:
    told = {"processor": "AMD EPYC", "device": "cpu (x86_64, AVX512)", "cores": 2}
    rows = [
        bench_rows.row(variant=variant, environment={**bench_rows.ENVIRONMENT, **told, "device": device})
        for variant, device in (("plain-tensorflow/keras", "cpu (x86_64)"), ("torch/basic", told["device"]))
    ]
    bench_rows.write(tmp_path / "bench-a", rows)
    assert "| AMD EPYC with AVX512 |" in measured.markdown(tmp_path)
    found = measured.where(summarise(tmp_path / "bench-a"), tmp_path)
    assert found.startswith("AMD EPYC with AVX512, 2 cores, torch ")


def test_a_folder_without_a_measured_row_is_left_out(tmp_path: Path) -> None:
    bench_rows.write(tmp_path / "bench-none", [bench_rows.row(status="unavailable", reason="no GPU")])
    assert len(measured.markdown(tmp_path).splitlines()) == 2


def test_rows_of_failures_alone_are_one_sentence(tmp_path: Path) -> None:
    bench_rows.write(tmp_path, [bench_rows.unmeasured("failed", "out of memory")])
    with pytest.raises(UserError, match=f"^{tmp_path}: nothing was measured$"):
        measured.where(summarise(tmp_path), tmp_path)


def test_a_framework_that_measured_nothing_has_no_version(tmp_path: Path) -> None:
    write(tmp_path, day="2026-11-20", variants={"torch/basic": 3}, processor="A Xeon", device="cpu", cores=2)
    found = measured.where(summarise(tmp_path), tmp_path, "tensorflow")
    assert found == "A Xeon, 2 cores, commit unknown"
