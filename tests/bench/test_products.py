"""The products of a training step, counted by hand, and against the work that the tasks declare."""

import re

import pytest
from sequence_classifier import ClassifierConfig

from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench.run.machine import products
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model.config import Config


@pytest.mark.parametrize("tied", [False, True])
def test_products_of_a_language_model(tied: bool) -> None:
    config = Config(num_layers=2, hidden_size=5, num_steps=4, batch_size=2, tie_weights=tied)
    found = products(LanguageTask(config=config, vocabulary_size=7))
    assert [product[1:] for product in found] == [
        (8, 6, 7, ""),  # 8 words, 5 units and a one for the bias, a vocabulary of 7
        (8, 7, 6, "second"),
        (6, 8, 7, "first"),
        (8, 5, 20, ""),  # both layers' inputs, of one width
        (8, 20, 5, "second"),
        (5, 8, 20, "first"),
        (2, 5, 20, ""),  # a time step
        (2, 20, 5, "second"),
        (5, 2, 20, "first"),
    ]
    assert found[2].shape.startswith("6 × 8 × 7 (softmax")


@pytest.mark.parametrize(("loss", "outputs"), [("cross_entropy", 3), ("ctc", 27)])
def test_products_of_a_classifier(loss: str, outputs: int) -> None:
    config = ClassifierConfig(input_size=3, hidden_sizes=(5, 2), classes=4, bidirectional=True, loss=loss)
    found = products(ClassifierTask(config=config, batch_size=3, steps=9, labels=2))
    assert {product[1:] for product in found if not product.transposed} == {
        (outputs, 4, 4, ""),  # both directions of two units, four classes
        (27, 3, 20, ""),
        (27, 10, 8, ""),  # both directions of five units
        (3, 5, 20, ""),
        (3, 2, 8, ""),
    }
    assert {product[1:] for product in found if product.transposed == "second"} == {
        (outputs, 4, 4, "second"),
        (27, 8, 10, "second"),  # and none with respect to the features
        (3, 20, 5, "second"),
        (3, 8, 2, "second"),
    }


def test_every_workload_has_distinct_products_three_for_each_kernel_but_that_of_the_features() -> None:
    for suite in SUITES.values():
        for workload in suite.workloads:
            found = products(workload.task)
            assert len({product[1:] for product in found}) == len(found)
            layouts = [product.transposed for product in found]
            shapes = workload.task.shapes
            above = [shape for name, shape in shapes.items() if re.match(r"lstm\.[1-9].*\.kernel", name)]
            without = isinstance(workload.task, ClassifierTask) and shapes["lstm.0.kernel"] not in above
            assert layouts.count("") == layouts.count("first") == layouts.count("second") + without > 1
