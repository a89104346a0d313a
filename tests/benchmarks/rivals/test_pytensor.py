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

BOUND = {"fp32": 1e-6, "fp64": 1e-13}


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    """The same graphs without a compiler, which takes minutes for them; one test has it, in a process."""
    with pytensor_interpreted():
        yield


def build(config: ClassifierConfig, **choice: Any) -> Any:
    weights = random_weights(config)
    chosen = Choice.create(variants.REGISTRY, framework="pytensor", model="scan", **choice)
    return chosen.builder()(config, weights, chosen)


# Each case is compiled, which takes seconds. Whole batches in float32 are trained on below.
@pytest.mark.parametrize("precision", variants.REGISTRY["pytensor"].precisions)
def test_loss_gradients_and_scores_are_the_references(precision: str) -> None:
    """A forward step and predict agree with them."""
    config, bound = make_config(), BOUND[precision]
    built, batch = build(config, precision=precision), random_batch(config, lengths=False)
    expected_loss, expected = reference.loss_and_gradients(config, random_weights(config), batch)
    loss, gradients = built.loss_and_gradients(batch)
    assert loss == pytest.approx(expected_loss, rel=bound)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradients[name].dtype == built.dtype
        np.testing.assert_allclose(gradients[name], gradient, rtol=0, atol=bound, err_msg=name)
    assert built.read([built.forward_step(batch)]) == [pytest.approx(expected_loss, rel=bound)]
    scores_BC = reference.predict(config, random_weights(config), batch.x_BTI)
    np.testing.assert_allclose(built.predict(batch.x_BTI), scores_BC, rtol=0, atol=bound)


def test_training_is_the_references_adam() -> None:
    config = make_config()
    batches = [random_batch(config, lengths=False, seed=10 + step) for step in range(10)]
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
build = Variant("pytensor/scan").builder(variants.REGISTRY, device="cpu", precision="fp32", seed=1)
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
        ({"keep_prob": 0.5}, {}, "no dropout"),
        ({"clip_value": 0.1}, {}, "no clipping"),
        ({}, {"device": "cuda"}, "--device cuda: .*CPU"),
    ],
)
def test_pytensor_refuses_what_it_does_not_do(
    changes: dict[str, Any], choice: dict[str, Any], noun: str
) -> None:
    with pytest.raises(UserError, match=noun):
        build(make_config(**changes), **choice)


def test_sequences_of_different_lengths_are_refused() -> None:
    config = make_config()
    with pytest.raises(UserError, match="different lengths"):
        build(config).train_step(random_batch(config, lengths=True))
