"""PyTensor's classifier against the NumPy reference."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sequence_classifier import ClassifierConfig, reference
from small_classifiers import make_config, random_batch, random_weights, trained_by_reference
from support import ROOT, pytensor_interpreted

from ptb_lm.bench import variants
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice

pytensor = pytest.importorskip("pytensor")

from benchmarks.rivals.pytensor.classifier import InvertedDropout  # noqa: E402

BOUND = {"fp32": 1e-6, "fp64": 1e-13}


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """The same graphs without a compiler, which takes minutes for them; one test has it, in a process."""
    with pytensor_interpreted():
        yield


def build(config: ClassifierConfig, **choice: Any) -> Any:
    weights = random_weights(config)
    chosen = Choice.create(variants.CLASSIFIERS, framework="pytensor", model="scan", **choice)
    return chosen.builder()(config, weights, chosen)


# Each case is compiled, which takes seconds. Whole batches in float32 are trained on below.
@pytest.mark.parametrize(
    ("lengths", "precision"),
    [(False, "fp64"), *((True, precision) for precision in variants.CLASSIFIERS["pytensor"].precisions)],
)
def test_loss_gradients_and_scores_are_the_references(lengths: bool, precision: str) -> None:
    """With lengths too, whatever the padding holds; a forward step and predict agree with them.

    None of these drops what a training step would.
    """
    config, bound = make_config(keep_prob=0.5), BOUND[precision]
    built, batch = build(config, precision=precision), random_batch(config, lengths=lengths)
    expected_loss, expected = reference.loss_and_gradients(config, random_weights(config), batch)
    loss, gradients = built.loss_and_gradients(batch)
    assert loss == pytest.approx(expected_loss, rel=bound)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradients[name].dtype == built.dtype
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=bound, err_msg=name)
    assert built.read([built.forward_step(batch)]) == [pytest.approx(expected_loss, rel=bound)]
    scores_BC = reference.predict(config, random_weights(config), batch.x_BTI, batch.lengths_B)
    np.testing.assert_allclose(built.predict(batch.x_BTI, batch.lengths_B), scores_BC, rtol=0, atol=bound)


@pytest.mark.parametrize(("changes", "kinds"), [({}, [False]), ({"clip_value": 0.01}, [False, True])])
def test_training_is_the_references_adam(changes: dict[str, Any], kinds: list[bool]) -> None:
    """Clipped, whole batches and those with lengths in turn: two functions, with one optimiser."""
    config = make_config(**changes)
    batches = [random_batch(config, lengths=kinds[step % len(kinds)], seed=10 + step) for step in range(10)]
    losses, weights = trained_by_reference(config, batches)
    built = build(config, precision="fp64")
    found = built.read([built.train_step(batch) for batch in batches])
    np.testing.assert_allclose(found, losses, rtol=1e-11)
    for name, weight in built.export_weights().items():
        np.testing.assert_allclose(weight, weights[name], rtol=0, atol=1e-9, err_msg=name)


COMPILED = """
import json, pathlib, sys
from small_classifiers import make_config, random_batch, random_weights
from ptb_lm.bench import variants
from ptb_lm.bench.variants import Variant
config = make_config(hidden_sizes=(7,))
build = Variant("pytensor/scan", "").builder(variants.CLASSIFIERS, device="cpu", precision="fp32", seed=1)
built = build(config, random_weights(config))
losses = [built.train_step(random_batch(config, lengths=False, seed=10 + step)) for step in range(10)]
pathlib.Path(sys.argv[1]).write_text(json.dumps([built.engine, list(map(float, losses))]))
"""


def test_the_default_compiler_trains_as_the_reference_and_prints_nothing(tmp_path: Path) -> None:
    """As users run it: PyTensor's own choice of compiler, float32, and one layer, to be compiled sooner."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(tmp_path / "found")],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "examples", ROOT / "tests"))),
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    engine, found = json.loads((tmp_path / "found").read_text())
    assert engine == "pytensor.scan on cpu (numba)"
    config = make_config(hidden_sizes=(7,))
    batches = [random_batch(config, lengths=False, seed=10 + step) for step in range(10)]
    losses, _ = trained_by_reference(config, batches)
    np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_each_training_step_drops_others_and_the_seed_decides_which() -> None:
    config = make_config(keep_prob=0.5, learning_rate=1e-30)
    batch, built = random_batch(config, lengths=True), build(config, precision="fp64", seed=3)
    losses = [built.train_step(batch) for _ in range(20)]
    assert len({*losses}) == 20, "each step drops others"
    for seed in (3, 4):
        twin = build(config, precision="fp64", seed=seed)
        built.generator.set_value(twin.generator.get_value())  # the twin itself would be compiled
        assert (built.train_step(batch) == losses[0]) == (seed == 3)


def test_dropout_keeps_values_at_its_rate_and_the_mean() -> None:
    dropout = InvertedDropout(0.8, pytensor.shared(np.random.default_rng(0)))
    ones = pytensor.tensor.ones((400, 500), dtype="float64")
    first, second = pytensor.function([], [dropout(ones), dropout(ones)], updates=dropout.updates)()
    for kept in (first, second):
        assert set(np.unique(kept)) == {0, 1 / 0.8}
        assert kept.mean() == pytest.approx(1, abs=0.01)
    assert (first != second).any()


def test_weights_come_back_as_they_were_loaded() -> None:
    config = make_config()
    weights = random_weights(config)
    exported = build(config).export_weights()
    assert list(exported) == list(weights)
    for name, weight in exported.items():
        assert weight.dtype == np.float32
        np.testing.assert_array_equal(weight, weights[name].astype(np.float32))


def test_it_says_what_computes() -> None:
    built = build(make_config())
    assert {"pytensor", "device", "threads"} == built.environment().keys()
    assert built.device_memory() is None


@pytest.mark.parametrize(
    ("changes", "choice", "noun"),
    [
        ({"loss": "ctc"}, {}, "ctc"),
        ({"bidirectional": True}, {}, "one direction"),
        ({}, {"device": "cuda"}, "--device cuda: .*CPU"),
    ],
)
def test_pytensor_refuses_what_it_does_not_do(
    changes: dict[str, Any], choice: dict[str, Any], noun: str
) -> None:
    with pytest.raises(UserError, match=noun):
        build(make_config(**changes), **choice)
