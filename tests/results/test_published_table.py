"""The table of published figures: ours are the rows's, and commands work."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import bench_rows
import pytest
from support import ROOT

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import selection
from ptb_lm.bench.reporting import published
from ptb_lm.results import published_table
from ptb_lm.training.run_directory import RunDirectory


def rows(results: Path) -> dict[str, list[str]]:
    """The tables' cells by their first column."""
    lines = [line for line in published_table.markdown(results).splitlines() if line.startswith("| ")]
    every = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    cells = [row for row in every if row != [*published_table.TITLES] and set(row) != {"---"}]
    assert {len(row) for row in cells} == {len(published_table.TITLES)}
    found = {row[0]: row for row in cells}
    assert len(found) == len(cells), "no row is there twice"
    return found


def test_a_figure_is_the_median_of_the_rows(tmp_path: Path) -> None:
    seconds = (2.0, 1.0, 4.0)  # of 40 steps of 400 words
    measured = [
        bench_rows.row(suite="ptb", variant="tensorflow/basic", round=n, seconds=s)
        for n, s in enumerate(seconds)
    ]
    bench_rows.write(tmp_path / "bench-ptb-cpu", measured)
    found = rows(tmp_path)
    assert found["small, train: BasicLSTMCell"][1:] == [
        "15,000 words a second (Tesla P40)",
        "`python -m ptb_lm.bench run ptb --workloads small --variants tensorflow/basic`",
        "[8,000 words a second](bench-ptb-cpu/report.md)",
    ]
    assert found["small, train: LSTMBlockCell"][-1] == published_table.NOT_MEASURED
    assert found["small, train: BasicLSTMCell, two GPUs"][2:] == [
        "`python -m ptb_lm.bench run scaling --workloads small-batch-40 --variants torch-2-processes/basic`",
        published_table.NOT_MEASURED,
    ]


def test_what_computed_is_said_where_it_is_not_what_the_row_is_called(tmp_path: Path) -> None:
    loop, onednn = "keras.layers.LSTM on cpu (graph; cuDNN needs a GPU)", "torch.nn.LSTM on cpu (oneDNN)"
    measured = [
        bench_rows.row(suite="ptb", variant="tensorflow/cudnn", engine=loop),
        bench_rows.row(suite="ptb", variant="tensorflow/block", engine="tensorflow block on cpu (graph)"),
    ]
    bench_rows.write(tmp_path / "bench-ptb-cpu", measured)
    short = {"suite": "acoustic", "workload": "1x320-CE-short", "variant": "torch/cudnn", "seconds": 10.0}
    bench_rows.write(tmp_path / "bench-acoustic-short-cpu", [bench_rows.row(**short, engine=onednn)])
    on_gpu = bench_rows.row(**short, engine="torch.nn.LSTM on cuda (cuDNN)")
    bench_rows.write(tmp_path / "bench-acoustic-short-cuda", [on_gpu])
    two = "torch basic on cpu (eager); 2 processes, threads of each: 1"
    two_processes = {"suite": "scaling", "workload": "small-batch-40", "variant": "torch-2-processes/basic"}
    bench_rows.write(tmp_path / "bench-scaling-cpu", [bench_rows.row(**two_processes, engine=two)])
    found = {name: cells[-1] for name, cells in rows(tmp_path).items()}
    assert found["small, train: CudnnLSTM"] == (
        "[8,000 words a second, by keras.layers.LSTM on cpu (graph, cuDNN needs a GPU)]"
        "(bench-ptb-cpu/report.md)"
    )
    assert found["small, train: LSTMBlockCell"] == "[8,000 words a second](bench-ptb-cpu/report.md)"
    assert found["1x320-CE-short, train: PyTorch cuDNNLSTM"].split("; [") == [
        f"[250 ms, by {onednn}](bench-acoustic-short-cpu/report.md)",
        "250 ms](bench-acoustic-short-cuda/report.md)",
    ]
    assert found["small, train: BasicLSTMCell, two GPUs"] == (
        "[8,000 words a second, by torch basic on cpu (eager), 2 processes, threads of each: 1]"
        "(bench-scaling-cpu/report.md)"
    )


def test_a_batch_that_was_cut_is_said_and_each_device_has_its_figure(tmp_path: Path) -> None:
    deep = {"suite": "acoustic", "workload": "4x320-CE-long", "variant": "torch/cudnn", "seconds": 10.0}
    bench_rows.write(tmp_path / "bench-acoustic-deep-cpu", [bench_rows.row(**deep, cut="batch 2 of 32")])
    bench_rows.write(tmp_path / "bench-acoustic-deep-cuda", [bench_rows.row(**{**deep, "seconds": 1.0})])
    *_, command, measured = rows(tmp_path)["4x320-CE-long, train: PyTorch cuDNNLSTM"]
    assert measured.split("; ") == [
        "[250 ms (batch 2 of 32)](bench-acoustic-deep-cpu/report.md)",
        "[25.0 ms](bench-acoustic-deep-cuda/report.md)",
    ]
    whole = "python -m ptb_lm.bench run acoustic --workloads 4x320-CE-long --variants torch/cudnn"
    assert command.split("; ") == [f"`{whole} --batch-size 2`", f"`{whole}`"]


def test_what_takes_too_long_at_the_full_batch_is_looked_for_among_fewer_rows(tmp_path: Path) -> None:
    deep = {"suite": "acoustic", "workload": "4x320-CE-long", "seconds": 10.0}
    full = [bench_rows.row(**deep, variant="torch/block_fused")]
    bench_rows.write(tmp_path / "bench-acoustic-deep-cpu", full)
    name = "4x320-CE-long, train: TensorFlow LSTMCell"
    assert rows(tmp_path)[name][-1] == published_table.NOT_MEASURED
    fewer = [bench_rows.row(**deep, variant="tensorflow/basic/graph/loop", cut="batch 2 of 32")]
    bench_rows.write(tmp_path / "bench-acoustic-deep-batch-2-cpu", fewer)
    by_fewer = "[250 ms (batch 2 of 32)](bench-acoustic-deep-batch-2-cpu/report.md)"
    assert rows(tmp_path)[name][-1] == by_fewer
    full.append(bench_rows.row(**deep, variant="tensorflow/basic/graph/loop"))
    bench_rows.write(tmp_path / "bench-acoustic-deep-cpu", full)
    assert rows(tmp_path)[name][-1] == "[250 ms](bench-acoustic-deep-cpu/report.md)"


def test_the_machines_of_what_is_quoted_come_first(tmp_path: Path) -> None:
    facts = {
        **bench_rows.ENVIRONMENT,
        "processor": "A Xeon",
        "device": "cpu",
        "cores": 2,
        "commit": "0123456789",
    }
    here = {"environment": facts}
    short = {"suite": "acoustic", "workload": "1x320-CE-short", "variant": "torch/cudnn"}
    bench_rows.write(
        tmp_path / "bench-ptb-cpu", [bench_rows.row(suite="ptb", variant="tensorflow/basic", **here)]
    )
    bench_rows.write(tmp_path / "bench-acoustic-short-cpu", [bench_rows.row(**short, **here)])
    of_no_row = bench_rows.row(suite="scaling", workload="medium", variant="torch/basic", **here)
    bench_rows.write(tmp_path / "bench-scaling-cpu", [of_no_row])
    gpu = {**facts, "device": "A GPU", "commit": "fedcba9876"}
    bench_rows.write(tmp_path / "bench-acoustic-short-cuda", [bench_rows.row(**short, environment=gpu)])
    torch = bench_rows.ENVIRONMENT["torch"]
    above = published_table.markdown(tmp_path).partition("\n\n")[0].splitlines()
    assert above == [
        f"- A Xeon, 2 cores, torch {torch}, commit 0123456: [bench-ptb-cpu](bench-ptb-cpu/report.md), "
        "[bench-acoustic-short-cpu](bench-acoustic-short-cpu/report.md)",
        f"- A GPU, torch {torch}, commit fedcba9: "
        "[bench-acoustic-short-cuda](bench-acoustic-short-cuda/report.md)",
    ]
    assert not published_table.markdown(Path("nowhere")).startswith("-")


def test_a_row_says_why_it_was_not_measured(tmp_path: Path) -> None:
    short = {"suite": "acoustic", "workload": "1x320-CE-short", "variant": "keras-tensorflow/cudnn"}
    why = bench_rows.unmeasured("unavailable", "there is no cuDNN on a CPU", **short)
    bench_rows.write(tmp_path / "bench-acoustic-short-cpu", [why])
    found = rows(tmp_path)["1x320-CE-short, train: Keras/TensorFlow cuDNNLSTM"]
    assert found[-1] == "not measured: there is no cuDNN on a CPU"


def test_scores_and_perplexities_are_those_of_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "template-torch-block-cpu"
    folder.mkdir()
    (folder / "log.txt").write_text("epoch 1: ...\ntest accuracy 0.9650, AUC 0.9880 (weights of epoch 7)\n")
    run = tmp_path / "large-tutorial-cudnn-cuda"
    run.mkdir()
    kept = dict.fromkeys(
        ("test_perplexity", "valid_perplexity", "best_epoch", "epochs", "words_per_second"), 1
    )
    RunDirectory(run).write_result({**kept, "final_test_perplexity": 78.291})
    found = rows(tmp_path)
    template = "the template: test accuracy and ROC AUC, torch"
    assert found[f"{template} block"][-1] == "[accuracy 0.9650, AUC 0.9880](template-torch-block-cpu/log.txt)"
    assert found[f"{template} basic"][-1] == published_table.NOT_MEASURED
    assert found["large: test perplexity"][-1] == "[78.29](large-tutorial-cudnn-cuda)"


def test_every_published_figure_of_the_documents_has_a_row(tmp_path: Path) -> None:
    found = rows(tmp_path)
    figures = [f for s in published.SOURCES if s.name not in published_table.LATER for f in s.figures]
    assert len(figures) > 50
    for figure in figures:
        cells = found[f"{figure.workload}, {figure.pass_name}: {figure.name}"]
        assert f"({figure.hardware})" in cells[1]
        number = figure.seconds_per_step * 1e3 if figure.seconds_per_step else figure.rate
        assert f"{number:,.6g} " in cells[1]


@pytest.mark.parametrize("command", sorted({row[2] for row in rows(Path("nowhere")).values()}))
def test_a_row_s_command_measures_its_variant(command: str) -> None:
    words = shlex.split(command.strip("`"))
    if words[:3] != ["python", "-m", "ptb_lm.bench"]:
        assert words[0] in ("–", "python", "scripts/reproduce")
        return
    measures_its_variant(words)


def test_a_command_of_a_cut_batch_measures_that_batch() -> None:
    found = [row for row in rows(ROOT / "results").values() if "--batch-size" in row[2]]
    assert found
    for _, _, command, measured in found:
        words = shlex.split(command.strip("`"))
        measures_its_variant(words)
        assert f" ms (batch {words[words.index('--batch-size') + 1]} of 32)" in measured


def measures_its_variant(words: Sequence[str]) -> None:
    given = bench._parser().parse_args(words[3:])
    (workload,) = selection.selected(
        selection.Options(
            suite=given.suite,
            workloads=tuple(given.workloads),
            variants=tuple(given.variants),
            batch_size=given.batch_size,
        )
    )
    assert given.variants[0] in {variant.name for variant in workload.variants}
