"""The roofline of a step: by hand, and for the workloads of the suite peak."""

import pytest

from ptb_lm.bench import roofline
from ptb_lm.bench.roofline import Traffic
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import PRECISIONS

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
    ("workload", "gflop", "weights"),
    [
        # Four gates of 650 units by two inputs of 650, twice; 10,000 words: 19,775,200 less the embedding.
        ("medium", 55.692, 13_275_200),
        ("large", 214.2, 51_022_000),
        ("3x256-words", 153.68, 4_015_121),
    ],
)
def test_the_traffic_that_peak_declares(workload: str, gflop: float, weights: int) -> None:
    (of,) = (each for each in SUITES["peak"].workloads if each.name == workload)
    work = of.work("train", precision="bf16", device="cuda")
    assert work.flops_per_step == pytest.approx(gflop * 1e9, rel=1e-3)
    assert work.bytes_per_step == Traffic(products=4 * weights, update=12 * weights)
