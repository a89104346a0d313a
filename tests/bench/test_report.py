"""A report's tables and remarks: every row, in its suite's columns, with published figures and curves."""

import sys
from pathlib import Path
from typing import Any

import pytest
import runs
from bench_rows import (
    ENVIRONMENT,
    EVIL,
    PTB,
    STACKED_SPEEDS,
    WORK,
    cells,
    document,
    results,
    rich,
    rounds,
    row,
    section,
    unmeasured,
    write,
)

from ptb_lm.bench.reporting.headline import to_text
from ptb_lm.bench.reporting.report import build, write_report
from ptb_lm.bench.summary import summarise
from ptb_lm.bench.variants import TITLES
from ptb_lm.common.errors import UserError
from ptb_lm.common.markdown_tables import Name
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.pages import plots
from ptb_lm.pages.bars import BarPlot
from ptb_lm.pages.document import Document, to_markdown


def remarks(report: Document, title: str = "small") -> list[str]:
    return [*section(report, title).tables[0].remarks]


def number(cell: str) -> float:
    """The number that a cell begins with."""
    return float(cell.split()[0].replace(",", ""))


@pytest.fixture(scope="module")
def rich_report(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(tmp_path_factory.mktemp("rich"), rich())


def test_every_row_is_there_fastest_first_and_troubles_last(rich_report: Document) -> None:
    names = [*results(rich_report, "ptb: small")]
    assert names[: len(PTB)] == sorted(PTB, key=lambda variant: -PTB[variant])
    assert names[len(PTB) :] == ["mine/custom", "mine/wrong"]


def test_unavailable_variants_have_no_row_but_a_line_a_reason(tmp_path: Path) -> None:
    both: dict[str, Any] = {"variant": "tensorflow/cudnn"}
    report = document(
        tmp_path,
        [
            row(),
            row(pass_="forward"),
            *(unmeasured("unavailable", "needs a GPU", pass_=each, **both) for each in ("forward", "train")),
            unmeasured("unavailable", "needs a GPU", variant="torch/cudnn/graph"),
            unmeasured("unavailable", "needs a compiler", variant="torch/cudnn/compile"),
            # Measured in one pass: its row says where it was not.
            row(variant="torch/jit"),
            unmeasured("unavailable", "only trains", variant="torch/jit", pass_="forward"),
        ],
    )
    table = results(report)
    assert table.keys() == {"torch/basic", "torch/jit"}
    first, *others, train = table["torch/jit"].values()
    assert first == "unavailable: only trains"
    assert "" in others
    assert train == "7.3 %"
    assert "not available here, tensorflow/cudnn, torch/cudnn/graph: needs a GPU" in remarks(report)
    assert "not available here, torch/cudnn/compile: needs a compiler" in remarks(report)


def test_where_nothing_is_available_there_is_no_table(tmp_path: Path) -> None:
    (found,) = section(document(tmp_path, [unmeasured("unavailable", "needs a GPU")]), "small").tables
    assert found.table is None
    assert found.remarks == ["not available here, torch/basic: needs a GPU"]


@pytest.mark.parametrize(
    ("gflops", "told"),
    [
        (3000.0, "7.9 %"),  # 3.67 ms and 0.3 of 50
        (200.0, "limit underestimated"),  # 55 ms
    ],
)
def test_peak_has_the_fraction_of_the_roofline(gflops: float, told: str, tmp_path: Path) -> None:
    report = document(tmp_path, [row(suite="peak", copy_gbytes=100.0, gemm_gflops=gflops)])
    for table in (results(report), cells(section(report, "small").details[-1].table)):
        assert table["torch/basic"]["of roofline"] == told


def test_a_fraction_above_one_says_that_the_limit_was_underestimated(tmp_path: Path) -> None:
    """11 GFLOP in 50 ms are 220 GFLOP/s."""
    rates = (("torch/basic", 200.0), ("torch/cudnn", 220.0), ("torch/block", 440.0))
    report = document(tmp_path, [row(variant=variant, gemm_gflops=gflops) for variant, gflops in rates])
    wanted = {"torch/basic": "limit underestimated", "torch/cudnn": "100.0 %", "torch/block": "50.0 %"}
    for table in (results(report), cells(section(report, "small").details[-1].table)):
        assert {variant: row["of GEMM rate"] for variant, row in table.items()} == wanted
    *_, fractions = section(report, "small").plots
    assert isinstance(fractions, BarPlot)
    assert {bar.label: bar.value for bar in fractions.bars} == {
        "torch/basic": 1.0,
        "torch/cudnn": 1.0,
        "torch/block": 0.5,
    }


def test_the_details_say_what_the_limit_was_measured_on(tmp_path: Path) -> None:
    bf16 = {"work": {**WORK, "precision": "bf16"}, "gemm_library": "torch.mm (oneDNN)"}
    report = document(
        tmp_path,
        [
            row(gemm_gflops=100.0),
            row(round=1, gemm_gflops=120.0),
            row(variant="torch/basic@bf16", gemm_shape="1 × 2 × 3 (softmax)", gemm_threads=None, **bf16),
        ],
    )
    assert section(report, "small").details[-1].remarks == [
        "GEMM rate: fp32, torch.mm (MKL), 2048 × 2048 × 2048, threads: 2, blocks: 2, median: 110 GFLOP/s",
        "GEMM rate: bf16, torch.mm (oneDNN), 1 × 2 × 3 (softmax), blocks: 1, median: 3,000 GFLOP/s",
    ]


def test_ptb_has_words_a_second_and_ratios_to_the_baseline_and_the_fastest(rich_report: Document) -> None:
    table = results(rich_report, "ptb: small")
    fastest = PTB["torch/cudnn"]
    for variant, speed in PTB.items():
        _rate, to_baseline, to_fastest, *_ = table[variant].values()
        assert number(to_baseline) == pytest.approx(speed, rel=0.05)
        assert number(to_fastest) == pytest.approx(speed / fastest, rel=0.05)
        assert ("(" in to_baseline) == (variant != "tensorflow/basic")
        assert ("(" in to_fastest) == (variant != "torch/cudnn")
    assert table["torch/cudnn"]["words per second"] == "11,300", (
        "400 words of a step, 40 steps, some 1.4 seconds"
    )


def test_stacked_lm_has_wall_time_elapsed_and_sequences_side_by_side(rich_report: Document) -> None:
    table = results(rich_report, "stacked-lm: 3x256")
    for variant, speed in STACKED_SPEEDS.items():
        train = [cell for title, cell in table[variant].items() if title.startswith("train: ")]
        wall, elapsed, rate, speed_up = train
        seconds, steps = elapsed.split(" / ")
        assert steps == "200"  # five rounds of 40
        assert float(seconds) == pytest.approx(200 * float(wall), rel=0.05)
        assert number(rate) == pytest.approx(128 / float(wall), rel=0.01)
        assert number(speed_up) == pytest.approx(speed, rel=0.1)
    assert "tensorflow/cudnn" not in table
    assert "not part" in next(iter(table["torch/block/jit"].values()))
    told = remarks(rich_report, "stacked-lm: 3x256")
    assert any("tensorflow/cudnn: needs a GPU" in remark for remark in told)
    assert "train, torch/block/jit: failed after 1 of 5 rounds: out of memory" in told
    assert any("torch/block/jit" in remark and "no interval" in remark for remark in told)


def test_acoustic_has_mean_and_deviation(tmp_path: Path) -> None:
    report = document(tmp_path, [row(suite="acoustic", round=n, seconds=s) for n, s in enumerate((4, 8))])
    assert next(iter(results(report)["torch/basic"].values())) == "150 ± 71", "100 and 200 ms"


def test_any_other_suite_has_rates_ratios_and_times(tmp_path: Path) -> None:
    assert [*results(document(tmp_path, [row()]))["torch/basic"].values()] == [
        "8,000",
        "1.00",
        "1.00",
        "50.0",
        "7.3 %",
    ]


def test_every_pair_has_the_ratio_that_a_report_to_that_baseline_has(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/block": 1.02, "torch/cudnn": 2.0, "torch/block_fused": 2.1}
    rows = [*rounds(speeds, noise=0.05)]
    pairs = cells(section(document(tmp_path, rows), "small").details[0].table)
    assert "~" in str(pairs)
    compared = 0
    for other in next(iter(pairs.values())):
        table = results(document(tmp_path, rows, baseline=other))
        for variant, columns in pairs.items():
            if columns[other]:
                assert columns[other] == table[variant][f"× {other} (95 % interval)"]
                compared += 1
    assert compared == 6


def test_published_figures_stand_beside_ours(rich_report: Document) -> None:
    table = cells(section(rich_report, "ptb: small").published[0].table)
    block = table["tensorflow/block"]
    assert (block["hardware"], block["published: words per second"]) == ("Tesla P40", "17,000")
    assert block["published: × BasicLSTMCell"] == "1.13"
    assert number(block["here: × BasicLSTMCell"]) == pytest.approx(1.1, rel=0.05)
    assert table["tensorflow/cudnn"]["here: words per second"] == "–", "it was not measured"
    stacked = section(rich_report, "stacked-lm: 3x256").published
    rows = [row for captioned in stacked if captioned.table for row in captioned.table.rows]
    ours = next(
        row for row in rows if row[:2] == [Name("PyTorch, cuDNN LSTM", "torch/cudnn/eager"), "RTX 2080 Ti"]
    )
    assert ours[2:6] == ["8.6", "0.4291", "14,916.3", "19.85"], "of the forward pass"
    assert any("swapped in the source" in remark for captioned in stacked for remark in captioned.remarks)
    (acoustic,) = section(rich_report, "acoustic: 1x320-CE-short").published
    assert "GTX 1080 Founders Edition" in acoustic.caption
    assert acoustic.table is None, "its results are pictures"


@pytest.mark.parametrize(
    "engine", ["keras.layers.LSTM on cpu (graph; cuDNN needs a GPU)", "CudnnRNNV3 on cuda"]
)
def test_cudnn_s_figures_name_what_computes_here_where_that_is_no_cudnn(engine: str, tmp_path: Path) -> None:
    measured = [row(suite="ptb"), row(suite="ptb", variant="tensorflow/cudnn", engine=engine)]
    table = cells(section(document(tmp_path, measured), "small").published[0].table)
    if "cuda" in engine:
        assert "here: engine" not in table["tensorflow/cudnn"]
        return
    assert table["tensorflow/cudnn"]["here: engine"] == engine
    assert table["tensorflow/basic"]["here: engine"] == "–", "it was not measured"


def test_in_another_suite_only_what_was_measured_has_figures_beside_it(tmp_path: Path) -> None:
    assert not section(document(tmp_path / "a", [row()]), "small").published
    report = document(tmp_path / "b", [row(), row(variant="tensorflow/block")])
    choe, titan = section(report, "small").published  # and not the source whose figures are of large
    assert cells(choe.table)["tensorflow/block"]["here: words per second"] == "8,000"
    assert "Titan X" in str(titan.table)


def test_no_published_figure_stands_beside_a_workload_of_another_size(tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "tensorflow/cudnn": 4.0}
    whole = document(tmp_path / "whole", rounds(speeds, suite="ptb"))
    assert all(captioned.table for captioned in section(whole, "small").published)
    cut = section(document(tmp_path / "cut", rounds(speeds, suite="ptb", cut="batch 2 of 20")), "small")
    assert [captioned.table for captioned in cut.published] == [None]
    assert "batch 2 of 20" in cut.published[0].caption
    assert "batch 2 of 20" in cut.paragraphs[0]


def test_no_published_figure_stands_beside_another_precision(tmp_path: Path) -> None:
    """That of the command, which no name gives."""
    half = {**WORK, "precision": "bf16"}
    rows = rounds({"torch/basic": 1.0, "tensorflow/cudnn": 4.0}, suite="ptb", work=half)
    (captioned,) = section(document(tmp_path / "half", rows), "small").published
    assert captioned.table is None
    assert "bfloat16" in captioned.caption
    beside = [
        *rounds({"tensorflow/cudnn": 4.0}, suite="ptb"),
        row(variant="torch/cudnn@bf16", suite="ptb", work=half),
    ]
    assert all(each.table for each in section(document(tmp_path / "beside", beside), "small").published)


def test_the_title_says_what_was_compared_and_the_subtitle_where(tmp_path: Path) -> None:
    speeds = {
        "torch/basic": 1.0,
        "torch/cudnn": 2.0,
        "tensorflow/block": 1.2,
        "plain-torch/cudnn": 1.1,
        "my/custom": 0.5,
    }
    commit = {**ENVIRONMENT, "commit": "1b4b876fb8f1e14fc6ac12d8dd7b4afcb07c7e84"}
    low = {"variant": "torch/cudnn@bf16", "work": {**WORK, "precision": "bf16"}}
    rows = [*rounds(speeds, environment=commit), row(**low, environment=commit), row(workload="medium")]
    report = document(tmp_path, rows)
    assert report.title == (
        "small and medium on CPU, torch and TensorFlow, float32 and bfloat16: basic, block, cudnn, "
        f"{TITLES['plain-torch']} and my"
    )
    assert report.subtitle == "Benchmark quick, commit 1b4b876; A Processor @ 2.50GHz; 2026-11-21"
    assert document(tmp_path / "none", [unmeasured("failed", "bad luck")]).title == "Nothing was measured"


def test_a_framework_that_somebody_adds_has_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRAMEWORKS, "another", FRAMEWORKS["torch"])
    report = document(tmp_path, rounds({"torch/basic": 1.0, "another/basic": 2.0}))
    assert report.title == "small on CPU, torch and another, float32: basic"


def test_a_block_that_was_measured_again_is_no_round_more(tmp_path: Path) -> None:
    """As the baseline's is beside what a run that goes on still lacked."""
    rows = [
        *(row(round=index, session="1", planned_rounds=2) for index in range(2)),
        row(round=0, session="1", planned_rounds=2, variant="torch/cudnn"),
        *(
            row(round=1, session="2", planned_rounds=2, variant=name)
            for name in ("torch/cudnn", "torch/basic")
        ),
        row(round=0, planned_rounds=2, variant="torch/jit", session="1"),
        row(round=0, planned_rounds=2, variant="torch/jit", session="2"),
        unmeasured("failed", "killed", variant="torch/jit"),
    ]
    report = document(tmp_path, rows)
    table = cells(section(report, "small").details[-1].table)
    assert {variant: row["rounds"] for variant, row in table.items()} == {
        "torch/basic": "2 of 2, 1 again",
        "torch/cudnn": "2 of 2",
        "torch/jit": "1 of 2, 1 again",
    }
    assert "train, torch/jit: failed after 1 of 2 rounds: killed" in remarks(report)


ADDED = {"command": "bench run quick --add before-cudnn=ptb_lm.bench.rivals.before:cudnn mine=my.models:lstm"}
LOW = {"variant": "torch/cudnn@bf16", "label": "PyTorch cudnn", "work": {**WORK, "precision": "bf16"}}
SECOND_MODEL = "in a second model without it; with it, the mean of 4 losses is off by 0.3"
# Case -> its rows, and words of a remark.
REMARKS = {
    "a model": ([row(variant="torch/cudnn")], "torch/cudnn: torch.nn.LSTM"),
    "a second time": ([row(), row(variant="torch/cudnn#again")], "torch/cudnn#again: measured"),
    "an earlier commit": (
        [row(variant="before-cudnn/custom", **ADDED)],
        "cudnn of this package at an earlier",
    ),
    "a variant of the user's": ([row(variant="mine/custom", **ADDED)], "mine/custom: my.models:lstm"),
    # By the clock the faster variant was the slower one in the median round.
    "a fastest that is not first": (
        [
            *(row(round=n, seconds=s) for n, s in enumerate((1.0, 1.0, 10.0))),
            *(row(variant="torch/cudnn", round=n, seconds=s) for n, s in enumerate((1.1, 1.1, 1.2))),
        ],
        "the fastest is torch/cudnn",
    ),
    "precisions": ([row(), row(**LOW)], "compare precisions"),
    "a second model": ([row(check={"dropout": SECOND_MODEL})], "second model"),
    "threads": (
        [row(), row(variant="tensorflow/basic", environment={"threads": "one a core"})],
        "2: torch/basic; one a core: tensorflow/basic",
    ),
    "an A/A test": (
        [*rounds({"torch/basic": 1.0, "torch/basic#again": 1.0}, seed=1)],
        "contains 1, as",
    ),
}
ALIKE = [
    row(),
    *(
        row(variant=f"mine/{each}", environment={"threads": each, "cores": 2})
        for each in ("2", "one a core", "one a core, in products alone")
    ),
    row(variant="torch-2-processes/basic", environment={"threads": 1, "processes": 2}),
]


@pytest.mark.parametrize(("rows", "told"), REMARKS.values(), ids=REMARKS)
def test_remarks_stand_under_the_table(rows: Any, told: str, tmp_path: Path) -> None:
    assert sum(told in remark for remark in remarks(document(tmp_path, rows))) == 1


def test_where_nothing_is_special_the_names_alone_are_explained(tmp_path: Path) -> None:
    names, rounds_, *others = remarks(document(tmp_path, ALIKE))
    assert "elementary operations" in names
    assert "no interval" in rounds_
    assert not others


@pytest.mark.parametrize("noise", [0.5, 0.001])
def test_the_mark_of_no_difference_is_explained_where_it_stands(noise: float, tmp_path: Path) -> None:
    speeds = {"torch/basic": 1.0, "torch/cudnn": 2.0}
    report = document(tmp_path, rounds(speeds, noise=noise))
    small = section(report, "small")
    for captioned in (small.tables[0], small.details[0]):
        is_marked = "~'" in str(captioned.table.rows)
        assert any(remark.startswith("~: ") for remark in captioned.remarks) == is_marked == (noise > 0.1)
    text = to_text(summarise(tmp_path), width=200, encoding="utf-8")
    assert ("~: " in text) == (noise > 0.1)


@pytest.mark.parametrize("blocks", [[], [row()]])
def test_without_figures_there_is_nothing_about_them(blocks: Any, tmp_path: Path) -> None:
    """Also if they are hidden, because they are wrong: neither details nor a ratio to the fastest."""
    rows = [*blocks, unmeasured("wrong", "off"), unmeasured("failed", "killed", variant="torch/cudnn")]
    small = section(document(tmp_path, rows), "small")
    assert (small.paragraphs, small.details) == ([], [])
    titles = [column.title for column in small.tables[0].table.columns]
    assert not any("fastest" in title for title in titles)
    assert "words per second" in titles


def test_precisions_that_differ_are_in_the_labels(tmp_path: Path) -> None:
    report = document(tmp_path, [row(variant="torch/cudnn", label="PyTorch cudnn"), row(**LOW)])
    table = section(report, "small").tables[0].table
    assert {line[0] for line in table.rows} == {
        Name("PyTorch cudnn, bf16", "torch/cudnn@bf16"),
        Name("PyTorch cudnn, fp32", "torch/cudnn"),
    }
    assert "fp32, bf16 on cpu." in section(report, "small").paragraphs[0]


def test_facts_of_the_machine(rich_report: Document) -> None:
    table = section(rich_report, "The machine").tables[0].table
    facts = {str(name): value for name, value in table.rows}
    assert facts["cpu"] == "A Processor @ 2.50GHz"
    assert facts["command"] == "python -m ptb_lm.bench run quick --out OUT"


def test_every_text_and_cell_is_in_the_markdown(rich_report: Document) -> None:
    text = to_markdown(rich_report)
    lines = text.splitlines()
    assert lines[0] == f"# {rich_report.title}"
    for part in rich_report.sections:
        for captioned in (*part.tables, *part.published, *part.details):
            for line in captioned.table.rows if captioned.table else ():
                name, *values = (each.label if isinstance(each, Name) else each for each in line)
                shown = [each for each in lines if all(one in each for one in values if EVIL not in one)]
                assert any(name.partition(" <")[0] in each for each in shown), line
    assert "Student's t" in text
    assert all("<" not in line.replace("&lt;", "") for line in lines)
    assert r"&lt;script>alert('x')&lt;/script> &amp; $5 \| \`a\` \_b\_" in text


def test_control_characters_are_shown_as_escapes(tmp_path: Path) -> None:
    text = to_markdown(document(tmp_path, [row(), row(round=1, variant="mine", label="\udc80\x1b[2J")]))
    assert "\x1b" not in text
    assert r"\udc80\x1b" in text.replace("\\\\", "\\")


def test_without_matplotlib_a_sentence_says_how_to_get_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    summary, first = write_report(write(tmp_path, [row(), row(variant="torch/cudnn")]))
    assert first == tmp_path / "report.md"
    assert first.read_text(encoding="utf-8") == to_markdown(build(summary))
    assert not (tmp_path / "report.html").exists()
    assert capsys.readouterr().out.endswith(
        f"report.html is not written: there are no plots; {plots.MISSING}\n"
    )


@pytest.mark.slow
def test_learning_curves_are_those_of_the_run(plain_run: Path, tmp_path: Path) -> None:
    report = build(summarise(write(tmp_path, [row()])), runs=[plain_run])
    line = results(report, "Learning curves")[plain_run.name]
    assert line["epochs (best)"].startswith("2 (")
    assert number(line["best test"]) == pytest.approx(runs.result(plain_run)["test_perplexity"], abs=0.005)


@pytest.mark.slow
def test_a_run_that_is_none_is_one_sentence(plain_run: Path, tmp_path: Path) -> None:
    summary = summarise(write(tmp_path, [row()]))
    with pytest.raises(UserError, match="does not exist"):
        build(summary, runs=[tmp_path / "missing"])
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_bytes((plain_run / "config.json").read_bytes())
    with pytest.raises(UserError, match="missing"):
        build(summary, runs=[broken])
    for content, why in (("", "epochs"), ('{"epoch": 1}\n', "line 1")):
        (broken / "metrics.jsonl").write_text(content)
        with pytest.raises(UserError, match=why):
            build(summary, runs=[broken])
