"""The report in Markdown: every row, in its suite's columns, with published figures and learning curves."""

import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import runs
from bench_rows import ENVIRONMENT, PTB, STACKED_SPEEDS, WORK, rich, rounds, row, unmeasured, write
from support import ROOT

from ptb_lm.bench.reporting import result_plots
from ptb_lm.bench.reporting.page import to_markdown
from ptb_lm.bench.reporting.report import build, write_report
from ptb_lm.bench.summary import summarise
from ptb_lm.errors import UserError

COMMITTED = {**ENVIRONMENT, "commit": "1b4b876fb8f1e14fc6ac12d8dd7b4afcb07c7e84"}


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has tests of its own; Markdown needs no matplotlib."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def report_of(folder: Path, rows: object, **options: object) -> str:
    write_report(write(folder, rows), **options)  # type: ignore[arg-type]
    return (folder / "report.md").read_text(encoding="utf-8")


def section_of(report: str, title: str) -> str:
    return report.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table_of(section: str, number: int = 0) -> list[list[str]]:
    """Return a table's cells: titles first, without the line below them."""
    tables, lines = [], []
    for line in [*section.splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.replace("\\|", "/").split("|")[1:-1]])
        elif lines:
            tables.append([lines[0], *lines[2:]])
            lines = []
    return tables[number]


def test_a_name_that_is_no_text_is_shown_as_its_escapes(tmp_path: Path) -> None:
    report = report_of(tmp_path, [row(), row(round=1, variant="mine", label="\udc80\x1b[2J")])
    assert "\x1b" not in report
    assert r"\udc80\x1b" in report.replace("\\\\", "\\")


@pytest.fixture(scope="module")
def rich_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        return report_of(tmp_path_factory.mktemp("rich"), rich())


def test_every_row_is_there_fastest_first_and_troubles_last(rich_report: str) -> None:
    names = [line[0] for line in table_of(section_of(rich_report, "ptb: small"))[1:]]
    fastest_first = sorted(PTB, key=lambda variant: -PTB[variant])
    assert names[: len(PTB)] == [f"`{variant}`" for variant in fastest_first]
    assert names[-1] == "`mine/wrong`"
    assert len(names) == len(PTB) + 2


def test_who_is_not_available_has_no_row_but_a_line_a_reason(tmp_path: Path) -> None:
    both: dict[str, Any] = {"variant": "tensorflow/cudnn"}
    rows = [
        row(),
        row(pass_="forward"),
        *(unmeasured("unavailable", "needs a GPU", pass_=each, **both) for each in ("forward", "train")),
        unmeasured("unavailable", "needs a GPU", variant="torch/cudnn/graph"),
        unmeasured("unavailable", "needs a compiler", variant="torch/cudnn/compile"),
        # Measured in one pass: its row says where it was not.
        row(variant="torch/jit"),
        unmeasured("unavailable", "only trains", variant="torch/jit", pass_="forward"),
    ]
    section = section_of(report_of(tmp_path, rows), "small")
    names = [line[0] for line in table_of(section)[1:]]
    assert sorted(names) == ["`torch/basic`", "`torch/jit`"]
    assert "| `torch/jit` | unavailable: only trains |" in section
    assert "- not available here, tensorflow/cudnn, torch/cudnn/graph: needs a GPU\n" in section
    assert "- not available here, torch/cudnn/compile: needs a compiler\n" in section


def test_where_nothing_is_available_there_is_no_table(tmp_path: Path) -> None:
    section = section_of(report_of(tmp_path, [unmeasured("unavailable", "needs a GPU")]), "small")
    assert section.strip() == "- not available here, torch/basic: needs a GPU"


def test_peak_has_the_fraction_of_the_roofline(tmp_path: Path) -> None:
    rows = [row(suite="peak", workload="medium", copy_gbytes=copied) for copied in (100.0,)]
    report = report_of(tmp_path, rows)
    titles, line, *_ = table_of(section_of(report, "medium"))
    assert (titles[-1], line[-1]) == ("of roofline", "7.9 %"), "3.67 ms and 0.3 of 50"
    titles, line = table_of(section_of(report, "medium"), -1)
    assert line[titles.index("of roofline")] == "7.9 %"
    assert "The roofline is an estimate" in section_of(report, "How to read this")


def test_a_fraction_above_one_says_that_the_limit_was_underestimated(tmp_path: Path) -> None:
    """11 GFLOP in 50 ms are 220 GFLOP/s."""
    rows = [
        row(suite="ptb", variant=variant, gemm_gflops=gflops)
        for variant, gflops in (("torch/basic", 200.0), ("torch/cudnn", 220.0), ("torch/block", 440.0))
    ]
    report = report_of(tmp_path, rows)
    wanted = {"`torch/basic`": "limit underestimated", "`torch/cudnn`": "100.0 %", "`torch/block`": "50.0 %"}
    for number in (0, -1):
        titles, *lines = table_of(section_of(report, "small"), number)
        assert {line[0]: line[titles.index("of GEMM rate")] for line in lines} == wanted
    assert "110.0 %" not in report
    (group,) = summarise(tmp_path).groups
    *_, fractions = result_plots.plots(group, with_pass=False)
    assert [(bar.label, bar.value, bar.text) for bar in fractions.bars] == [
        ("torch/basic", 1.0, "limit underestimated"),
        ("torch/cudnn", 1.0, "100.0 %"),
        ("torch/block", 0.5, "50.0 %"),
    ]


def test_the_details_say_what_the_limit_was_measured_on(tmp_path: Path) -> None:
    bf16 = {"work": {**WORK, "precision": "bf16"}, "gemm_library": "torch.mm (oneDNN)"}
    rows = [
        row(gemm_gflops=100.0),
        row(round=1, gemm_gflops=120.0),
        row(variant="torch/basic@bf16", gemm_shape="1 × 2 × 3 (softmax)", gemm_threads=None, **bf16),
    ]
    section = section_of(report_of(tmp_path / "a", rows), "small")
    assert (
        "- GEMM rate: fp32, torch.mm (MKL), 2048 × 2048 × 2048, threads: 2, blocks: 2, median: 110 GFLOP/s\n"
        "- GEMM rate: bf16, torch.mm (oneDNN), 1 × 2 × 3 (softmax), blocks: 1, median: 3,000 GFLOP/s\n"
    ) in section
    earlier = row(gemm_library=None, gemm_shape=None, gemm_threads=None)
    assert "GEMM rate:" not in report_of(tmp_path / "b", [earlier])
    assert "7.3 %" in report_of(tmp_path / "b", [earlier])


def test_the_measured_benchmarks_of_this_repository_can_still_be_reported(tmp_path: Path) -> None:
    """Those in results/ were measured by earlier versions, whose rows lack what later ones tell."""
    for folder in sorted((ROOT / "results").glob("bench-*")):
        copy = shutil.copytree(folder, tmp_path / folder.name)
        write_report(copy)
        assert "of GEMM rate" in (copy / "report.md").read_text(encoding="utf-8")


def test_ptb_has_words_a_second_and_the_speed_up_over_basic(rich_report: str) -> None:
    titles, *lines = table_of(section_of(rich_report, "ptb: small"))
    assert titles[1:3] == ["words a second", "× tensorflow/basic (95 % interval)"]
    for name, _, speed_up, *_ in lines[: len(PTB)]:
        assert float(speed_up.split()[0]) == pytest.approx(PTB[name.strip("`")], rel=0.05)
        assert ("(" not in speed_up) == (name == "`tensorflow/basic`")
    assert lines[0][1] == "11,300", "400 words of a step, 40 steps, some 1.4 seconds"


def test_stacked_lm_has_wall_time_elapsed_and_sequences_side_by_side(rich_report: str) -> None:
    titles, *lines = table_of(section_of(rich_report, "stacked-lm: 3x256"))
    of_a_pass = [
        "wall time a batch (s)",
        "elapsed (s / batches)",
        "sequences a second",
        "× torch/basic/eager (95 % interval)",
    ]
    assert titles[1:] == [f"{name}: {title}" for name in ("forward", "train") for title in of_a_pass]
    cells = {line[0].strip("`"): line[1:] for line in lines}
    for variant, speed in STACKED_SPEEDS.items():
        wall, elapsed, rate, speed_up = cells[variant][4:]
        seconds, steps = elapsed.split(" / ")
        assert steps == "200"  # five rounds of 40
        assert float(seconds) == pytest.approx(200 * float(wall), rel=0.05)
        assert float(rate.replace(",", "")) == pytest.approx(128 / float(wall), rel=0.01)
        assert float(speed_up.split()[0]) == pytest.approx(speed, rel=0.1)
    assert "tensorflow/cudnn" not in cells
    assert "- not available here, tensorflow/cudnn: needs a GPU" in rich_report
    assert cells["torch/block/jit"][0] == "not part of this pass"
    assert "- train, torch/block/jit: failed after 1 of 5 rounds: out of memory" in rich_report
    assert "- train, torch/block/jit: one round: no interval" in rich_report


def test_acoustic_has_mean_and_deviation(tmp_path: Path) -> None:
    rows = [
        row(suite="acoustic", workload="1x320-CE-short", round=n, seconds=s) for n, s in enumerate((4, 8))
    ]
    titles, (_, time, *_) = table_of(section_of(report_of(tmp_path, rows), "1x320-CE-short"))
    assert titles[1] == "ms a batch, mean ± sd of rounds"
    assert time == "150 ± 71", "100 and 200 ms"


def test_any_other_suite_has_times_and_rates(tmp_path: Path) -> None:
    titles, line = table_of(section_of(report_of(tmp_path, [row()]), "small"))
    assert titles[1:3] == ["words a second", "× torch/basic (95 % interval)"]
    assert line[1:] == ["8,000", "1.00", "1.00", "50.0", "7.3 %"]


def test_what_a_label_holds_stays_text(rich_report: str) -> None:
    assert "<script" not in rich_report
    evil = "&lt;script>alert('x')&lt;/script> &amp; $5 \\| \\`a\\` \\_b\\_"
    assert f"| Mine {evil} `mine/custom` | failed: {evil} |" in rich_report


def test_published_figures_stand_beside_ours(rich_report: str) -> None:
    titles, *lines = table_of(section_of(rich_report, "ptb: small"), 1)
    assert titles[2:] == [
        "published: words a second",
        "published: × BasicLSTMCell",
        "here: words a second",
        "here: × BasicLSTMCell",
        "here: 95 % interval",
    ]
    block = lines[1]
    assert block[:4] == ["LSTMBlockCell `tensorflow/block`", "Tesla P40", "17,000", "1.13"]
    assert float(block[5]) == pytest.approx(1.1, rel=0.05)
    assert lines[2][4:] == ["–", "–", "–"], "tensorflow/cudnn was not measured"
    stacked = section_of(rich_report, "stacked-lm: 3x256")
    assert (
        "| PyTorch, cuDNN LSTM `torch/cudnn/eager` | RTX 2080 Ti | 23.6 | 1.1809 | 5,419.76 | 20.08 |"
        in stacked
    )
    assert "look swapped in the source" in stacked
    acoustic = section_of(rich_report, "acoustic: 1x320-CE-short")
    assert "Its results are pictures without numbers" in acoustic
    assert "GTX 1080 Founders Edition" in acoustic


@pytest.mark.parametrize(
    "engine", ["keras.layers.LSTM on cpu (graph; cuDNN needs a GPU)", "CudnnRNNV3 on cuda"]
)
def test_cudnn_s_figures_name_what_computes_here_where_that_is_no_cudnn(engine: str, tmp_path: Path) -> None:
    measured = [row(suite="ptb"), row(suite="ptb", variant="tensorflow/cudnn", engine=engine)]
    titles, *lines = table_of(section_of(report_of(tmp_path, measured), "small"), 1)
    if "cuda" in engine:
        assert "here: engine" not in titles
        return
    engines = {line[0]: line[titles.index("here: engine")] for line in lines}
    assert engines["CudnnLSTM `tensorflow/cudnn`"] == engine
    assert engines["BasicLSTMCell `tensorflow/basic`"] == "–", "it was not measured"


def test_in_another_suite_only_what_was_measured_has_figures_beside_it(tmp_path: Path) -> None:
    assert "### Published figures" not in report_of(tmp_path / "a", [row()])
    report = report_of(tmp_path / "b", [row(), row(variant="tensorflow/block")])
    assert "| LSTMBlockCell `tensorflow/block` | Tesla P40 | 17,000 | 1.13 | 8,000 |" in report
    assert "GTX 1080" not in report, "whose figures are of large"


def test_the_first_lines_say_commit_machine_and_what_to_take(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/block": 1.2, "torch/cudnn": 2.0, "torch/cudnn#again": 2.0}
    report = report_of(tmp_path, rounds(speeds, noise=0.01, environment=COMMITTED))
    title, about, take, *_ = filter(None, report.splitlines())
    assert title == "# small on CPU, float32: basic, block and cudnn"
    assert about == "Benchmark quick, commit 1b4b876; A Processor @ 2.50GHz; 2026-11-21"
    ratio = re.fullmatch(
        r"- small, train: take torch/cudnn, [\d,]+ words a second. Its speed is "
        r"([\d.]+) \(([\d.]+)–([\d.]+)\) times that of the second, torch/block\. Its "
        r"ratio to each other variant has a 95 % interval above 1\.",
        take,
    )
    assert ratio is not None, take
    assert float(ratio[2]) < 2 / 1.2 < float(ratio[3])


def test_a_second_measurement_that_came_out_ahead_is_told(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.9, "torch/cudnn": 1.0, "torch/cudnn#again": 2.0}
    ahead = "Measured a second time, torch/cudnn came out faster."
    assert ahead in report_of(tmp_path / "ahead", rounds(speeds))
    assert ahead not in report_of(tmp_path / "behind", rounds({**speeds, "torch/cudnn#again": 1.8}))
    of_the_fastest = rounds({**speeds, "torch/cudnn": 1.95})
    assert ahead not in report_of(tmp_path / "its own", of_the_fastest)


def test_what_may_be_as_fast_is_said_so(tmp_path: Path) -> None:
    same = {"torch/basic": 1.0, "torch/block": 2.0, "torch/cudnn": 2.0}
    for seed in range(3):
        report = report_of(tmp_path / str(seed), rounds(same, noise=0.1, seed=seed))
        assert re.search(r"That is not sure: torch/\w+ may be as fast or faster\.", report)


def first_line(folder: Path, rows: object) -> str:
    return next(line for line in report_of(folder, rows).splitlines() if line.startswith("- "))


def test_several_passes_have_an_answer_together_or_one_each(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    rows = [*rounds(speeds), *rounds(speeds, workload="medium")]
    sure = (
        "- On this machine take torch/cudnn. By 95 % intervals it is faster than every other variant in all "
        "2 passes."
    )
    assert first_line(tmp_path / "a", rows) == sure
    nothing = unmeasured("failed", "bad luck", workload="large")
    assert first_line(tmp_path / "b", [*rows, nothing]) == sure
    rows += rounds({"torch/basic": 1.0, "torch/cudnn": 0.5}, workload="large")
    report = report_of(tmp_path / "c", rows)
    first, *each = [line for line in report.splitlines() if line.startswith("- ")][:4]
    assert first == (
        "- On this machine take torch/cudnn for small and medium; torch/basic for large. By 95 % intervals "
        "each is faster there than every other variant."
    )
    taken = [re.match(r"- (\w+), train: take ([\w/]+), ", line) for line in each]
    assert [found and found.groups() for found in taken] == [
        ("small", "torch/cudnn"),
        ("medium", "torch/cudnn"),
        ("large", "torch/basic"),
    ]


def test_it_is_not_called_slower_what_broke_off(tmp_path: Path) -> None:
    """It was the fastest as far as it came."""
    speeds = {"torch/basic": 1.0, "torch/block": 2.0, "torch/cudnn": 4.0}
    rows = [
        each
        for workload in ("small", "medium")
        for each in (
            *(
                r
                for r in rounds(speeds, workload=workload)
                if r["variant"] != "torch/cudnn" or r["round"] < 3
            ),
            unmeasured("failed", "killed", workload=workload, variant="torch/cudnn", planned_rounds=5),
        )
    ]
    assert first_line(tmp_path, rows) == (
        "- On this machine take torch/block. It came out fastest in all 2 passes. In none of them do 95 % "
        "intervals of three or more processes show that every other is slower."
    )


def test_what_is_not_shown_everywhere_is_not_claimed(tmp_path: Path) -> None:
    """Medium's two may be equal; in large a rival has no round in common with the fastest."""
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    equal = [
        row(workload="medium", variant=variant, round=n, process=10 * place + n, seconds=2.0 + n % 2 * place)
        for place, variant in enumerate(("torch/cudnn", "torch/basic"))
        for n in range(5)
    ]
    of_large: dict[str, Any] = {"workload": "large", "baseline": "torch/cudnn"}
    apart = row(variant="torch/basic", round=7, process=99, seconds=9.0, **of_large)
    large = [*rounds({"torch/cudnn": 2.0}, **of_large), apart]
    assert first_line(tmp_path, [*rounds(speeds), *equal, *large]) == (
        "- On this machine take torch/cudnn. It came out fastest in all 3 passes. By 95 % intervals it is "
        "faster than every other variant in 1 of them. In the others no such interval shows "
        "that."
    )
    report = (tmp_path / "report.md").read_text()
    assert "- large, train: take torch/cudnn" in report
    assert (
        "It has no round in common with the second, torch/basic. That is not sure: torch/basic may be as "
        "fast or faster." in report
    )


def test_who_may_be_the_fastest_everywhere_is_named_and_not_recommended(tmp_path: Path) -> None:
    """Each is first in one pass, by nothing that an interval shows."""
    rows = [
        row(
            workload=workload,
            variant=variant,
            round=n,
            process=10 * place + n,
            seconds=2.0 + n % 2 * (place if workload == "small" else 1 - place),
        )
        for workload in ("small", "medium")
        for place, variant in enumerate(("torch/basic", "torch/cudnn"))
        for n in range(5)
    ]
    assert first_line(tmp_path, rows) == (
        "- On this machine take torch/basic for small; torch/cudnn for medium. No 95 % intervals show that "
        "any of these is faster there than every other variant. torch/basic may be the fastest in every one."
    )
    alone = [each for each in rows if each["round"] == 0]
    assert first_line(tmp_path / "alone", alone) == (
        "- On this machine take torch/basic. It came out fastest in all 2 passes. In none of them do 95 % "
        "intervals of three or more processes show that every other is slower."
    )


def test_one_round_says_not_how_sure_it_is(tmp_path: Path) -> None:
    report = report_of(tmp_path, [row(), row(variant="torch/cudnn", seconds=1.0)])
    assert (
        "take torch/cudnn, 16,000 words a second. In one round it was 2.00 times as fast as the second, "
        "torch/basic. One round is too few to be sure of torch/basic (0.50 of its speed)." in report
    )


def test_rows_of_several_commits_say_so(tmp_path: Path) -> None:
    other = {**COMMITTED, "commit": "2c5c987fc and changes"}
    report = report_of(tmp_path, [row(environment=COMMITTED), row(round=1, environment=other)])
    assert "commit 1b4b876 and 2c5c987 and changes; A Processor" in report
    assert "**Warning:** The rows are of several commits (1b4b876, 2c5c987 and changes). A ratio" in report


def test_a_container_with_fewer_cores_than_threads_is_a_warning(tmp_path: Path) -> None:
    few = {**ENVIRONMENT, "cores": 8, "cpu_quota": 1.5}
    rows = [row(environment=few), row(variant="keras/lstm", environment={**few, "threads": "one a core"})]
    report = report_of(tmp_path / "a", rows)
    assert (
        "**Warning:** small, train: the container has a quota of 1.5 cores, and 8 threads share it: the "
        "system stops them for a part of the time. OMP_NUM_THREADS=1 is steadier."
    ) in report
    enough = report_of(tmp_path / "b", [row(environment={**ENVIRONMENT, "cpu_quota": 2.0})])
    assert "| cpu_quota | 2.0 |" in enough
    assert "quota of" not in enough


def test_a_machine_without_a_compiler_is_a_warning(tmp_path: Path) -> None:
    without = {**ENVIRONMENT, "kernels": "torch", "no_kernels": "there is no C++ compiler; install g++"}
    report = report_of(tmp_path, [row(), row(round=1, environment=without)])
    assert (
        "**Warning:** This package's models for torch ran without its compiled kernels, and more slowly: "
        "there is no C++ compiler; install g++."
    ) in report


def test_a_block_that_was_measured_again_is_no_round_more(tmp_path: Path) -> None:
    """As the baseline's is beside what a run that goes on still lacked."""
    rows = [
        *(row(round=index, session="1", planned_rounds=2) for index in range(2)),
        row(round=0, session="1", planned_rounds=2, variant="torch/cudnn"),
        *(
            row(round=1, session="2", planned_rounds=2, variant=name)
            for name in ("torch/cudnn", "torch/basic")
        ),
        row(round=0, planned_rounds=3, variant="torch/jit", session="1"),
        row(round=0, planned_rounds=3, variant="torch/jit", session="2"),
        unmeasured("failed", "killed", variant="torch/jit"),
    ]
    report = report_of(tmp_path, rows)
    titles, *lines = table_of(section_of(report, "small"), -1)
    found = {line[0]: line[titles.index("rounds")] for line in lines}
    assert found == {
        "`torch/basic`": "2 of 2, 1 again",
        "`torch/cudnn`": "2 of 2",
        "`torch/jit`": "1 of 3, 1 again",
    }
    assert "torch/jit: failed after 1 of 3 rounds: killed" in report


def test_rows_of_several_versions_and_sessions_are_one_warning(tmp_path: Path) -> None:
    sessions = ["2026-11-21T06:00:00+0000", "2026-11-22T07:30:00+0000"]
    newer = {**ENVIRONMENT, "torch": "2.14.0"}
    rows = [
        row(session=sessions[0]),
        row(session=sessions[1], round=1, environment=newer),
        row(session=sessions[1], variant="tensorflow/basic", environment={"tensorflow": "2.21.0"}),
    ]

    def warnings(name: str, rows: list[dict[str, Any]]) -> list[str]:
        lines = report_of(tmp_path / name, rows).splitlines()
        return [line for line in lines if "Warning" in line and "there is no A/A test" not in line]

    (warning,) = warnings("a", rows)
    assert warning.startswith(
        "**Warning:** The rows are of several versions of torch (2.13.0, 2.14.0) and several sessions "
        "(2026-11-21 06:00, 2026-11-22 07:30). "
    )
    assert warnings("b", rows[1:]) == [], "TensorFlow's rows have no torch"


def test_an_a_a_test_is_printed_and_warns_where_its_interval_misses_1(tmp_path: Path) -> None:
    report = report_of(
        tmp_path / "a", rounds({"torch/basic": 1.0, "torch/basic#again": 1.0}, noise=0.02, seed=1)
    )
    assert re.search(
        r"- A/A test: torch/basic, measured twice by two names, is [\d.]+ \([\d.]+–[\d.]+\) times as fast as "
        r"itself: the interval holds 1, as it should; half its width, [\d.]+ %, is the resolution of this "
        r"run\n",
        report,
    )
    assert "Warning" not in report
    unequal = {"torch/basic": 1.0, "torch/basic#again": 1.5}
    report = report_of(tmp_path / "b", rounds(unequal, noise=0.01))
    assert "the interval does not hold 1, though it should; half its width, " in report
    assert "**Warning:** small, train: torch/basic#again is the same program as torch/basic," in report
    assert "only torch/basic was measured" in report, "a second measurement is no rival"


def test_a_run_whose_resolution_is_unknown_says_so(tmp_path: Path) -> None:
    """Without an A/A test, or with one round of it; a single variant is compared with nothing."""
    warning = "there is no A/A test with an interval, so the resolution of this run is not known."
    two = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    assert warning in report_of(tmp_path / "none", rounds(two))
    again = row(variant="torch/basic#again", process=99)
    assert warning in report_of(tmp_path / "one round", [*rounds(two), again])
    assert warning not in report_of(tmp_path / "tested", rounds({**two, "torch/basic#again": 1.0}))
    assert warning not in report_of(tmp_path / "alone", rounds({"torch/basic": 1.0}))


def test_the_recommendation_is_of_the_rounds_that_two_have_in_common(tmp_path: Path) -> None:
    """A baseline of one round puts a variant first that was slower in all the others."""
    seconds = {"torch/block": (2.0, 2.5, 2.6, 2.4), "torch/cudnn": (2.1, 2.0, 2.1, 1.9)}
    rows = [
        row(variant=variant, round=n, process=10 * place + n, seconds=each)
        for place, (variant, times) in enumerate(seconds.items())
        for n, each in enumerate(times)
    ]
    assert first_line(tmp_path, [row(seconds=9.0), *rows]).startswith("- small, train: take torch/cudnn, ")


def test_what_failed_is_not_recommended(tmp_path: Path) -> None:
    """It is the fastest, but ended in the third round."""
    speeds = {"torch/basic": 1.0, "torch/block": 2.0, "torch/cudnn": 4.0}
    kept = [each for each in rounds(speeds) if each["variant"] != "torch/cudnn" or each["round"] < 2]
    line = first_line(tmp_path, [*kept, unmeasured("failed", "killed", variant="torch/cudnn")])
    assert line.startswith("- small, train: take torch/block, ")
    assert line.endswith(" Not counted, because not measured to the end: torch/cudnn.")


def test_without_a_choice_nothing_is_faster_than_others(tmp_path: Path) -> None:
    rows = [*rounds({"torch/basic": 1.0}), *rounds({"torch/basic": 1.0}, workload="medium")]
    assert first_line(tmp_path, rows).startswith("- small, train: only torch/basic was measured: ")


def test_intervals_of_two_processes_prove_nothing(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/cudnn": 4.0}
    few = [
        {**each, "process": 2 * (each["round"] // 3) + (each["variant"] == "torch/cudnn")}
        for workload in ("small", "medium")
        for each in rounds(speeds, count=6, workload=workload)
    ]
    line = first_line(tmp_path, few)
    assert line == (
        "- On this machine take torch/cudnn. It came out fastest in all 2 passes. In none of them do 95 % "
        "intervals of three or more processes show that every other is slower."
    )
    assert (
        "has a 95 % interval above 1, of fewer than three processes." in (tmp_path / "report.md").read_text()
    )


def test_what_cannot_do_a_pass_is_not_recommended_for_all(tmp_path: Path) -> None:
    """Where it failed only one variant is left, which is another."""
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    alone = [
        *rounds({"torch/basic": 1.0}, workload="large"),
        unmeasured("failed", "killed", variant="torch/cudnn", workload="large"),
    ]
    line = first_line(tmp_path, [*rounds(speeds), *rounds(speeds, workload="medium"), *alone])
    assert line == (
        "- On this machine take torch/cudnn for small and medium; torch/basic for large. By 95 % intervals "
        "that is sure for small and medium only."
    )


def test_gradients_of_a_second_model_are_said_so(tmp_path: Path) -> None:
    """In rows of any age: it is the row's own record of the comparison."""
    check = {"dropout": "in a second model without it; with it, the mean of 4 losses is off by 0.3"}
    note = "train, torch/basic: its gradients were compared in a second model without dropout"
    assert note in report_of(tmp_path / "second", [row(check=check), row(variant="torch/cudnn")])
    assert "second model without dropout" not in "\n".join(
        line for line in report_of(tmp_path / "same", [row()]).splitlines() if line.startswith("- ")
    )


def test_a_run_that_resolves_little_warns(tmp_path: Path) -> None:
    """Log ratios of -0.1, 0, 0.1: their standard error is 0.1 / sqrt(3), and t of two degrees 4.303."""
    rows = [
        row(variant=variant, round=n, process=10 * place + n, seconds=2 * math.exp(place * (n - 1) / 10))
        for place, variant in enumerate(("torch/basic#again", "torch/basic"))
        for n in range(3)
    ]
    half = 100 * (math.exp(4.3027 * 0.1 / math.sqrt(3)) - 1)
    report = report_of(tmp_path / "a", rows)
    assert f"half its width, {half:.1f} %, is the resolution of this run" in report
    assert f"**Warning:** small, train: by the A/A test the resolution of this run is {half:.1f} %." in report
    quiet = [{**each, "seconds": 2 * (each["seconds"] / 2) ** 0.1} for each in rows]
    report = report_of(tmp_path / "b", quiet)
    assert f"half its width, {100 * ((1 + half / 100) ** 0.1 - 1):.1f} %" in report
    assert "Warning" not in report


KEPT = sorted(path.parent for path in (ROOT / "results").glob("bench-*/report.md"))


def test_every_kept_benchmark_has_its_report() -> None:
    assert len(KEPT) > 30
    assert [*KEPT] == sorted(path.parent for path in (ROOT / "results").glob("bench-*/rows.jsonl"))


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_kept_reports_come_out_again(folder: Path) -> None:
    kept = (folder / "report.md").read_text(encoding="utf-8")
    assert kept == to_markdown(build(summarise(folder))), f"python -m ptb_lm.bench report {folder}"


def test_threads_that_are_not_the_same_are_said(tmp_path: Path) -> None:
    rows = [row(), row(variant="tensorflow/basic", environment={"threads": "one a core"})]
    section = section_of(report_of(tmp_path, rows), "small")
    assert (
        "- the variants had not the same number of threads: 2: torch/basic; one a core: tensorflow/basic"
        in section
    )
    told = ("2", "one a core", "one a core, in products alone")
    alike = [
        row(),
        *(row(variant=f"mine/{each}", environment={"threads": each, "cores": 2}) for each in told),
    ]
    of_two_processes = row(variant="torch-2-processes/basic", environment={"threads": 1, "processes": 2})
    assert "number of threads" not in report_of(tmp_path / "alike", [*alike, of_two_processes])


def test_another_baseline(tmp_path: Path) -> None:
    report = report_of(tmp_path, rounds({"torch/basic": 1.0, "torch/cudnn": 4.0}), baseline="torch/cudnn")
    assert "× torch/cudnn (95 % interval)" in report
    assert "`torch/cudnn` | " in report


def test_every_pair_has_the_ratio_that_a_report_to_that_baseline_has(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/block": 1.02, "torch/cudnn": 2.0, "torch/block_fused": 2.1}
    report = report_of(tmp_path, rounds(speeds, noise=0.05))
    (_, *others), *lines = table_of(section_of(report, "small"), 1)
    assert len(others) == len(lines) == 3
    assert "~" in str(lines)
    for place, other in enumerate(others, start=1):
        to_other = report_of(tmp_path, rounds(speeds, noise=0.05), baseline=other)
        ratios = {line[0]: line[2] for line in table_of(section_of(to_other, "small"))}
        pairs = {line[0]: line[place] for line in lines if line[place]}
        assert len(pairs) == place
        assert pairs.items() <= ratios.items()


def test_warnings_are_up_front(tmp_path: Path) -> None:
    write(tmp_path, [row(baseline="torch/cudnn")], end="{")
    write_report(tmp_path)
    top = (tmp_path / "report.md").read_text().split("\n## ")[0]
    assert "**Warning:** The last line of rows.jsonl was cut off" in top
    assert "**Warning:** small, train: There are no ratios: the baseline torch/cudnn was not part" in top


def test_facts_of_the_machine_and_how_to_read(rich_report: str) -> None:
    machine = dict(table_of(section_of(rich_report, "The machine"))[1:])
    assert machine["cpu"] == "A Processor @ 2.50GHz"
    assert machine["command"] == "python -m ptb_lm.bench run quick --out OUT"
    assert "Student's t" in section_of(rich_report, "How to read this")


def test_without_matplotlib_a_sentence_says_how_to_get_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_of(tmp_path, [row()])
    assert not (tmp_path / "report.html").exists()
    wrote, page = capsys.readouterr().out.splitlines()
    assert wrote == f"wrote {tmp_path / 'report.md'}"
    assert page == (
        "report.html is not written: matplotlib is not installed; install it in the checkout "
        "with: pip install -e '.[bench]'"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    return runs.train_run(runs.write_corpus(folder / "data"), folder / "a run")


@pytest.mark.slow
def test_learning_curves_are_those_of_the_run(run: Path, tmp_path: Path) -> None:
    section = section_of(report_of(tmp_path, [row()], runs=[run]), "Learning curves")
    (name, epochs, *_, test, _) = table_of(section)[1]
    assert name == "small, torch cudnn `a run`"
    assert epochs == "2"
    assert float(test) == pytest.approx(runs.result(run)["test_perplexity"], abs=0.005)


@pytest.mark.slow
def test_a_run_that_is_none_is_one_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        report_of(tmp_path, [row()], runs=[tmp_path / "missing"])
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((run / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"metrics.jsonl is missing"):
        report_of(tmp_path, [row()], runs=[broken])
    for content, why in (("", "holds no epochs"), ('{"epoch": 1}\n', "line 1: not an epoch's metrics")):
        (broken / "metrics.jsonl").write_text(content)
        with pytest.raises(UserError, match=why):
            report_of(tmp_path, [row()], runs=[broken])


def test_no_published_figure_stands_beside_a_workload_of_another_size(tmp_path: Path) -> None:
    ptb = {"suite": "ptb", "baseline": "torch/basic"}
    whole = report_of(tmp_path / "whole", rounds({"torch/basic": 1.0, "tensorflow/cudnn": 4.0}, **ptb))
    assert "Tesla P40" in whole
    cut = report_of(
        tmp_path / "cut", rounds({"torch/basic": 1.0, "tensorflow/cudnn": 4.0}, cut="batch 2 of 20", **ptb)
    )
    assert "Tesla P40" not in cut
    assert "Published figures are of the whole size; this is batch 2 of 20." in cut
    assert "Not as declared: batch 2 of 20." in cut


def test_who_may_be_as_fast_is_named(tmp_path: Path) -> None:
    rows = [
        *(row(round=n, seconds=4.0) for n in range(4)),
        *(row(variant="torch/cudnn", round=n, seconds=s) for n, s in enumerate((1.0, 1.1, 0.9, 1.0))),
        *(row(variant="torch/block", round=n, seconds=s) for n, s in enumerate((1.1, 1.0, 1.0, 1.0))),
        *(row(variant="torch/jit", round=n, seconds=s) for n, s in enumerate((2.1, 2.0, 2.0, 2.0))),
        row(variant="torch/once", seconds=40.0),  # one round tells no error
    ]
    report = report_of(tmp_path, rows)
    assert "take torch/cudnn, 16,000 words a second. Its speed" in report
    assert (
        "the second, torch/block; other processes may differ by more than that. That is not sure: torch/block"
        " may be as fast or faster. One round is too few to be sure of torch/once (0.025 of its speed)."
        in report
    )


def test_precisions_that_differ_are_named_and_said_to_be_compared(tmp_path: Path) -> None:
    rows = [
        row(
            variant=f"torch/cudnn@{precision}",
            label="PyTorch cudnn",
            baseline="torch/cudnn@fp32",
            work={**WORK, "precision": precision},
            seconds=seconds,
        )
        for precision, seconds in (("fp32", 4.0), ("bf16", 1.0))
    ]
    section = section_of(report_of(tmp_path, rows), "small")
    titles, *lines = table_of(section)
    assert [line[0] for line in lines] == [
        "PyTorch cudnn, bf16 `torch/cudnn@bf16`",
        "PyTorch cudnn, fp32 `torch/cudnn@fp32`",
    ]
    assert "× PyTorch cudnn, fp32 (95 % interval)" in titles
    assert "bf16, fp32 on cpu." in section
    assert "- The variants compute in bf16, fp32: ratios here compare precisions too." in section
    assert "compare precisions" not in report_of(tmp_path / "one", [row()])


def test_blocks_that_others_disturbed_are_counted(tmp_path: Path) -> None:
    quiet = [row(round=index, process=index, others=0.02) for index in range(3)]
    assert "of a core beside" not in report_of(tmp_path, quiet)
    busy = [*quiet[:2], row(round=2, process=2, others=0.4)]
    assert "**Warning:** small, train: other processes took more than 0.1 of a core beside 1 of 3 blocks" in (
        report_of(tmp_path, busy)
    )


def test_a_machine_that_was_faster_beside_some_blocks_warns(tmp_path: Path) -> None:
    """An hour may be slower than the one before it, because of other machines of the same host."""

    def rates(*gflops: float) -> list[dict[str, Any]]:
        on = {"gemm_library": "torch.mm (MKL)", "gemm_shape": "64 × 64 × 64"}
        return [row(round=index, process=index, gemm_gflops=rate, **on) for index, rate in enumerate(gflops)]

    assert "Warning" not in report_of(tmp_path, rates(367, 200, 364, 370, 372, 373, 371, 369))
    report = report_of(tmp_path, rates(367, 264, 264, 372, 372, 372, 264, 264))
    assert (
        "**Warning:** small, train: the machine was not equally fast all the time. Its matrix products made "
        "at most 264 GFLOP/s beside a quarter of the blocks, and at least 372 beside another quarter (fp32, "
        "torch.mm (MKL), 64 × 64 × 64, threads: 2)." in report
    )
