"""The published figures: their own arithmetic, and that they answer to workloads and variants of ours."""

import pytest

from benchmarks.published import PUBLICATIONS, Figure, Publication, for_workload
from ptb_lm.bench.suites import SUITES

FIGURES = [(source, figure) for source in PUBLICATIONS.values() for figure in source.figures]


def source_of(suite: str, part: str) -> Publication:
    (source,) = (each for each in PUBLICATIONS.values() if each.suite == suite and part in each.name)
    return source


def figure_of(source: Publication, workload: str, variant: str, hardware: str) -> Figure:
    (figure,) = (
        each
        for each in source.figures
        if (each.workload, each.variant, each.hardware, each.pass_name)
        == (workload, variant, hardware, "train")
    )
    return figure


def ratio_of(source: Publication, figure: Figure) -> float:
    return figure.times_as_fast_as(source.reference(figure))


@pytest.mark.parametrize("source", PUBLICATIONS.values(), ids=lambda source: source.name)
def test_a_source_answers_to_a_suite_and_its_workloads(source: Publication) -> None:
    workloads = {workload.name: workload for workload in SUITES[source.suite].workloads}
    for figure in source.figures:
        assert figure.pass_name in workloads[figure.workload].passes
        assert figure.seconds_per_step or figure.rate
    for workload, variant in source.references.items():
        assert variant in {each.name for each in workloads[workload].variants}
        assert any(figure.variant == variant for figure in source.figures if figure.workload == workload)


@pytest.mark.parametrize(("source", "figure"), FIGURES, ids=lambda each: each.name)
def test_a_figure_answers_to_a_variant_once(source: Publication, figure: Figure) -> None:
    key = (figure.workload, figure.pass_name, figure.hardware, figure.variant)
    others = [(f.workload, f.pass_name, f.hardware, f.variant) for f in source.figures]
    assert others.count(key) == 1


STACKED = source_of("stacked-lm", "stacked LSTM").figures


def test_the_stacked_tables_are_whole() -> None:
    assert len(STACKED) == 2 * (9 + 12)
    assert len([each for each in STACKED if "cudnn" in each.variant]) == 6


@pytest.mark.parametrize("figure", STACKED, ids=lambda f: f"{f.hardware}-{f.name}-{f.pass_name}")
def test_the_stacked_figures_follow_from_each_other_or_say_that_they_do_not(figure: Figure) -> None:
    """A batch is 128 sequences, and 50 were timed: a slip in copying a digit would show."""
    elapsed, rate = 50 * figure.seconds_per_step, 128 / figure.seconds_per_step
    follows = figure.elapsed == pytest.approx(elapsed, rel=5e-3) and figure.rate == pytest.approx(
        rate, rel=5e-3
    )
    assert follows != bool(figure.remark)
    if "swapped" in figure.remark:
        # A batch is printed to four decimals, and the forward time of the GPU is off by some more.
        assert (figure.rate, figure.elapsed) == pytest.approx((elapsed, rate), rel=1e-2)


def test_the_ratios_are_those_that_the_sources_state() -> None:
    choe = source_of("ptb", "TFCudnnLSTM")
    assert ratio_of(choe, figure_of(choe, "small", "tensorflow/block", "Tesla P40")) == pytest.approx(
        1.1, abs=0.05
    )
    assert ratio_of(choe, figure_of(choe, "small", "tensorflow/cudnn", "Tesla P40")) == pytest.approx(
        2.1, abs=0.05
    )
    post = source_of("ptb", "deeplearningathome")
    assert 1.9 < ratio_of(post, figure_of(post, "large", "plain-torch/cudnn", "GTX 1080")) < 2, "it says 2"
    forum = source_of("semantics", "forum")
    one_call = figure_of(forum, "3x1024", "one-call-torch/cudnn", "a GPU that is not named")
    assert ratio_of(forum, one_call) == pytest.approx(16 / 17)
    assert "took that back" in forum.remark


def test_a_ratio_is_of_times_where_a_rate_beside_them_is_a_slip() -> None:
    """The rate of TensorFlow's eager forward pass on a CPU is the elapsed time of another row: 0.28."""
    source = source_of("stacked-lm", "stacked LSTM")
    (eager,) = (
        each
        for each in source.figures
        if (each.variant, each.pass_name, each.hardware[:5]) == ("tensorflow/basic/eager", "forward", "Intel")
    )
    assert ratio_of(source, eager) == pytest.approx(0.4806 / 1.5050)
    assert ratio_of(source, eager) == pytest.approx(0.32, abs=0.005)


def test_a_figure_on_other_hardware_has_no_reference() -> None:
    choe = source_of("ptb", "TFCudnnLSTM")
    assert choe.reference(figure_of(choe, "small", "", "2 × Tesla P40")) is None


def test_a_time_and_a_rate_do_not_compare() -> None:
    choe = source_of("ptb", "TFCudnnLSTM")
    rate = figure_of(choe, "small", "tensorflow/basic", "Tesla P40")
    time = figure_of(choe, "word_language_model", "plain-torch/cudnn", "Tesla P40")
    assert rate.times_as_fast_as(time) is None


def test_a_source_without_figures_goes_with_its_suite() -> None:
    assert [s.name for s, _ in for_workload("acoustic", "4x320-CTC-long")] == [
        "S. Braun, rnn_benchmarks, 2018"
    ]
    assert list(for_workload("quick", "no such workload")) == []


def test_a_workloads_figures_go_with_it_in_every_suite() -> None:
    assert {s.name for s, _ in for_workload("quick", "small")} == {
        s.name for s, _ in for_workload("ptb", "small")
    }
