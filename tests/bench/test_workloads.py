"""The declared work of the benchmark's tasks, its roofline, and the suites' agreement with other tables."""

import numpy as np
import pytest
from sequence_classifier import ClassifierConfig

from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench import roofline
from ptb_lm.bench.roofline import Traffic
from ptb_lm.bench.rows import Work
from ptb_lm.bench.run.timed_steps import plan_blocks
from ptb_lm.bench.selection import Options, select_workloads
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import ROUNDS_OF_A_PROCESS, LanguageTask, Workload
from ptb_lm.data import corpus
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import PRECISIONS
from ptb_lm.model.presets import PRESETS, RECIPES


def workload(suite: str, name: str) -> Workload:
    (found,) = (workload for workload in SUITES[suite].workloads if workload.name == name)
    return found


def work(suite: str, name: str, pass_name: str = "train") -> Work:
    return workload(suite, name).work(pass_name, precision="fp32", device="cpu")


def test_the_work_of_a_language_model_counted_by_hand() -> None:
    config = Config(num_layers=2, hidden_size=5, embedding_size=3, num_steps=4, batch_size=2)
    task = LanguageTask(config=config, vocabulary_size=7)
    # A word: (3 + 5) * 20 in the first layer, (5 + 5) * 20 in the second, 5 * 7 in the softmax.
    assert task.multiply_adds == 8 * (8 * 20 + 10 * 20 + 35)
    assert task.items == 8
    train, forward = (
        Workload(name="w", task=task, variants=(), baseline="").work(name, precision="fp32", device="cpu")
        for name in ("train", "forward")
    )
    assert (train.flops_per_step, forward.flops_per_step) == (
        6 * task.multiply_adds,
        2 * task.multiply_adds,
    )
    assert train.parameters == 7 * 3 + 8 * 20 + 20 + 10 * 20 + 20 + 5 * 7 + 7


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_softmax_is_as_much_work_as_any(tied: bool) -> None:
    """The embedding multiplies nothing: words pick its rows, and their gradients are added into rows."""
    config = Config(num_layers=1, hidden_size=5, num_steps=4, batch_size=2, tie_weights=tied)
    task = LanguageTask(config=config, vocabulary_size=7)
    assert task.multiply_adds == 8 * (10 * 20 + 5 * 7)


@pytest.mark.parametrize(("rank", "gates"), [(0, 3 * 15 + 2 * 15), (2, 3 * (10 + 6) + 2 * (6 + 10))])
def test_the_gates_of_a_mogrifier_are_work_and_its_biases_are_none(rank: int, gates: int) -> None:
    """Of five rounds three gate the 3 inputs by the 5 units, and two the units by the inputs."""
    config = Config(
        cell="mogrifier_lstm",
        mogrifier_rank=rank,
        num_layers=1,
        hidden_size=5,
        embedding_size=3,
        num_steps=4,
        batch_size=2,
    )
    task = LanguageTask(config=config, vocabulary_size=7)
    assert task.multiply_adds == 8 * (8 * 20 + gates + 5 * 7)


@pytest.mark.parametrize("loss", ["cross_entropy", "ctc"])
def test_the_work_of_a_classifier_counted_by_hand(loss: str) -> None:
    config = ClassifierConfig(input_size=3, hidden_sizes=(5, 2), classes=4, bidirectional=True, loss=loss)
    task = ClassifierTask(config=config, batch_size=3, steps=9, shortest=5, labels=2)
    lengths_B = task.batch(seed=8).lengths_B
    assert sorted(lengths_B) == [5, 7, 9]
    # A frame: both directions of 3 -> 5 and of 10 -> 2. The dense layer: 4 by 4, a frame or a sequence.
    frames, dense = 21, 16
    lstm = frames * 2 * ((3 + 5) * 20 + (10 + 2) * 8)
    assert task.multiply_adds == lstm + dense * (frames if loss == "ctc" else 3)
    assert task.flops("forward") == 2 * task.multiply_adds
    # Of the features, 3 of each frame to both directions, nobody computes a gradient.
    assert task.flops("train") == 6 * task.multiply_adds - 2 * frames * 2 * 3 * 20


def test_sizes_of_the_published_tables() -> None:
    # The tutorial's parameter counts.
    assert [work("ptb", name).parameters for name in ("small", "medium", "large")] == [
        4_651_600,
        19_775_200,
        66_022_000,
    ]
    assert work("ptb", "medium").items_per_step == 700
    example = workload("ptb", "word_language_model").task
    assert isinstance(example, LanguageTask)
    assert (example.vocabulary_size, example.config.hidden_size, example.config.num_steps) == (
        35_000,
        1500,
        35,
    )

    stacked = workload("stacked-lm", "3x256")
    assert isinstance(stacked.task, LanguageTask)
    shapes = stacked.task.shapes
    assert shapes["embedding"] == (10_001, 128)
    assert shapes["lstm.0.kernel"] == (128, 1024)
    assert shapes["lstm.2.kernel"] == (256, 1024)
    assert shapes["softmax.kernel"] == (256, 10_001)
    assert (stacked.task.batch_size, stacked.task.config.num_steps) == (128, 50)
    assert (stacked.warm_up_steps, ROUNDS_OF_A_PROCESS * stacked.processes * stacked.min_steps) == (10, 50)
    assert work("stacked-lm", "3x256").items_per_step == 128

    # One layer of 123 features; the table gives 8.5 million parameters for the large network.
    short = workload("acoustic", "1x320-CE-short")
    assert short.task.batch(seed=0)[0].shape == (64, 100, 123)  # type: ignore[union-attr]
    assert (short.warm_up_steps, ROUNDS_OF_A_PROCESS * short.processes * short.min_steps) == (100, 400)
    assert work("acoustic", "4x320-CE-long").parameters == pytest.approx(8.5e6, rel=0.01)
    ctc = workload("acoustic", "4x320-CTC-long").task
    assert isinstance(ctc, ClassifierTask)
    batch = ctc.batch(seed=3)
    assert (batch.lengths_B.min(), batch.lengths_B.max()) == (500, 1000)
    assert batch.labels.shape == (32, 100)
    assert batch.labels.min() >= 1
    assert batch.labels.max() <= 58


def test_awd_is_lean_and_has_intervals_of_processes() -> None:
    """A step takes seconds: the number of processes is given. The baseline runs on every processor."""
    options = Options(suite="awd")
    (awd,) = select_workloads(options)
    assert (awd.minutes, awd.processes, awd.rounds) == (None, 5, 10)
    assert plan_blocks(awd, step_seconds=4.0, limit=options.row_limit).steps == 1
    assert isinstance(awd.task, LanguageTask)
    assert awd.task.config == PRESETS["awd"].replace(vary_num_steps=False)
    assert {variant.name for variant in awd.variants} == {
        *("plain-awd/cudnn", "plain-awd/cudnn@bf16"),
        *("torch/block_fused", "torch/block_fused#again", "torch/block_fused@bf16"),
        *("torch/cudnn", "torch/cudnn@bf16"),
    }
    assert "@" not in awd.baseline


def test_ptb_has_what_is_trained_by_default_beside_the_tutorial_s() -> None:
    """The masks of the default recipe: they cost a step something, and plain loops have none."""
    found = workload("ptb", "medium-default-recipe")
    assert isinstance(found.task, LanguageTask)
    assert found.task.config == RECIPES["default"]["medium"]
    config = found.task.config
    assert config.variational
    assert min(config.embedding_keep_prob, config.recurrent_keep_prob) < 1
    assert work("ptb", "medium-default-recipe").flops_per_step == work("ptb", "medium").flops_per_step
    assert "with one mask a window, " in found.task.size
    assert "with one mask" not in workload("ptb", "medium").task.size


def test_rows_hold_as_many_windows_as_are_asked_for_and_repeat_by_seed() -> None:
    task = LanguageTask(
        config=Config(hidden_size=5, num_steps=4, batch_size=2), vocabulary_size=50, unit="sequences"
    )
    rows_BL = task.rows(2, seed=1)
    assert len(list(corpus.windows(rows_BL, 4))) == 2
    np.testing.assert_array_equal(task.rows(2, seed=1), rows_BL)
    assert (task.rows(2, seed=2) != rows_BL).any()
    x_BT, y_BT = task.window(seed=1)
    assert x_BT.shape == (2, 4)
    np.testing.assert_array_equal(y_BT[:, :-1], x_BT[:, 1:])
    assert task.items == 2


def test_what_is_inside_the_clock_names_the_cell() -> None:
    tasks = [each.task for suite in SUITES.values() for each in suite.workloads]
    cells = {task.config.cell: task.clock for task in tasks if isinstance(task, LanguageTask)}
    assert {"lstm", "gru", "mogrifier_lstm"} <= cells.keys()
    for cell, clock in cells.items():
        assert f"embedding, {'LSTM' if cell == 'lstm' else cell}, softmax" in clock
    assert work("mogrifier", "medium-mogrifier_lstm").clock == cells["mogrifier_lstm"]


def test_peak_is_the_other_suites_work_in_words() -> None:
    assert work("peak", "medium") == work("ptb", "medium")
    assert work("peak", "large") == work("ptb", "large")
    words, sequences = work("peak", "3x256-words"), work("stacked-lm", "3x256")
    assert (words.items_per_step, words.unit) == (128 * 50, "words")
    assert {n for n in words.__struct_fields__ if getattr(words, n) != getattr(sequences, n)} == {
        "items_per_step",
        "unit",
    }
    assert work("acoustic", "1x320-CE-short").bytes_per_step is None, "no roofline is declared"
    for each in SUITES["peak"].workloads:
        assert each.baseline == "plain-torch/cudnn@tf32"
        assert each.needs_cuda
    assert not any(
        each.needs_cuda for name, suite in SUITES.items() if name != "peak" for each in suite.workloads
    )


# Two layers of 3 and 5 inputs and 5 units, a softmax over 7 words: kernels and biases.
W = (3 * 20 + 5 * 20 + 20) + (5 * 20 + 5 * 20 + 20) + (5 * 7 + 7)


@pytest.mark.parametrize(
    ("pass_name", "precision", "products", "update"),
    [
        ("forward", "fp32", 4 * W, 0),
        ("forward", "bf16", 2 * W, 0),
        # The weights read, their gradients written. Then those read, and the weights read and written.
        ("train", "fp32", (4 + 4) * W, (4 + 4 + 4) * W),
        ("train", "tf32", (4 + 4) * W, (4 + 4 + 4) * W),
        ("train", "fp64", (8 + 8) * W, (8 + 8 + 8) * W),
        # And the copies written that are computed with.
        ("train", "bf16", (2 + 2) * W, (2 + 4 + 4 + 2) * W),
        ("train", "fp16", (2 + 2) * W, (2 + 4 + 4 + 2) * W),
    ],
)
def test_the_bytes_of_a_step_counted_by_hand(
    pass_name: str, precision: str, products: int, update: int
) -> None:
    config = Config(num_layers=2, hidden_size=5, embedding_size=3, num_steps=4, batch_size=2)
    task = LanguageTask(config=config, vocabulary_size=7)
    assert task.traffic(pass_name, precision) == Traffic(products=products, update=update)


def test_a_tied_embedding_is_read_as_the_softmax_s_kernel() -> None:
    config = Config(num_layers=1, hidden_size=5)
    tied = LanguageTask(config=config.replace(tie_weights=True), vocabulary_size=7)
    untied = LanguageTask(config=config, vocabulary_size=7)
    assert tied.traffic("train", "bf16") == untied.traffic("train", "bf16")


def test_every_precision_has_its_sizes() -> None:
    assert roofline.BYTES.keys() == set(PRECISIONS)


@pytest.mark.parametrize(
    ("flops", "least"),
    [
        (4e9, 0.04 + 0.02),  # at 100 GFLOP/s, longer than 100 MB at 10 GB/s; and 200 MB more
        (4e8, 0.01 + 0.02),
    ],
)
def test_the_products_take_as_long_as_the_slower_of_their_two_and_then_comes_the_update(
    flops: float, least: float
) -> None:
    moved = Traffic(products=100_000_000, update=200_000_000)
    assert roofline.seconds(flops, moved, gemm_gflops=100, copy_gbytes=10) == pytest.approx(least)


@pytest.mark.parametrize(
    ("name", "gflop", "weights"),
    [
        # Four gates of 650 units by two inputs of 650, twice; 10,000 words: 19,775,200 less the embedding.
        ("medium", 55.692, 13_275_200),
        ("large", 214.2, 51_022_000),
        ("3x256-words", 153.68, 4_015_121),
    ],
)
def test_the_traffic_that_peak_declares(name: str, gflop: float, weights: int) -> None:
    found = workload("peak", name).work("train", precision="bf16", device="cuda")
    assert found.flops_per_step == pytest.approx(gflop * 1e9, rel=1e-3)
    assert found.bytes_per_step == Traffic(products=4 * weights, update=12 * weights)
