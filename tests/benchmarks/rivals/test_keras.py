"""Keras's classifiers against the NumPy reference; each library in a process of its own, as Keras has it."""

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
from sequence_classifier import Batch, ClassifierConfig, reference
from small_classifiers import make_config, random_batch, random_weights, trained_by_reference

from ptb_lm.bench.variants import REGISTRY
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice

FRAMEWORKS = ("keras-jax", "keras-torch", "keras-tensorflow")
TRAINING_STEPS = 10


class Variant(NamedTuple):
    framework: str
    model: str
    execution: str | None = None
    device: str = "cpu"

    @property
    def config(self) -> ClassifierConfig:
        """What it is: XLA compiles a single layer."""
        return make_config(**({"hidden_sizes": (7,)} if self.execution == "xla" else {}))


def variants() -> list[Any]:
    on_cpu = [Variant(framework, "lstm") for framework in FRAMEWORKS]
    on_cpu += [Variant("keras-torch", "cudnn"), Variant("keras-tensorflow", "lstm", "xla")]
    on_gpu = [Variant(framework, "cudnn", None, "cuda") for framework in FRAMEWORKS]
    return [
        pytest.param(variant, id="-".join(map(str, variant)), marks=[pytest.mark.gpu] * (variant in on_gpu))
        for variant in on_cpu + on_gpu
    ]


def training_batches(config: ClassifierConfig) -> list[Batch]:
    return [random_batch(config, lengths=False, seed=10 + step) for step in range(TRAINING_STEPS)]


def start(terminal: Path) -> None:
    """Begin a library's process: its terminal is a file, and a warning is an error as it is here."""
    written = os.open(terminal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    warnings.simplefilter("error")
    # Keras reads torch's tensors so, and NumPy tells Keras.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy keyword")


def build(variant: Variant, config: ClassifierConfig, **choice: Any) -> Any:
    given = {name: getattr(variant, name) for name in ("framework", "model", "execution", "device")}
    chosen = Choice.create(REGISTRY, **{**given, **choice})
    return chosen.builder()(config, random_weights(config), chosen)


def measure(variant: Variant) -> dict[str, Any]:
    """The results of a variant, in this process."""
    config = variant.config
    built, batch = build(variant, config), random_batch(config, lengths=False)
    results: dict[str, Any] = {"engine": built.engine, "environment": built.environment()}
    results["loss"], results["gradients"] = built.loss_and_gradients(batch)
    (results["forward"],) = built.read([built.forward_step(batch)])
    results["scores"] = built.predict(batch.x_BTI)
    results["weights"] = built.export_weights()
    batches = training_batches(config)
    results["losses"] = built.read([built.train_step(batch) for batch in batches])
    results["trained"] = built.export_weights()
    results["memory"] = built.device_memory()
    built.load_weights(random_weights(config))
    built.reset_optimizer()
    results["losses again"] = built.read([built.train_step(batch) for batch in batches])
    sys.stdout.flush()  # into the file that is its terminal
    return results


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The output of each library's process on stdout and stderr."""
    folder = tmp_path_factory.mktemp("terminals")
    return {framework: folder / framework for framework in FRAMEWORKS}


@pytest.fixture(scope="module")
def processes(terminals: dict[str, Path]) -> Iterator[dict[str, ProcessPoolExecutor]]:
    """A process for each library that is installed; none has written anything when it has ended."""
    pools = {
        framework: ProcessPoolExecutor(1, get_context("spawn"), start, (terminals[framework],))
        for framework in FRAMEWORKS
        if installed(framework)
    }
    yield pools
    for pool in pools.values():
        pool.shutdown()
    assert not any(terminal.read_text() for terminal in terminals.values() if terminal.exists())


@pytest.fixture(scope="module", params=variants())
def measured(
    request: pytest.FixtureRequest, processes: dict[str, ProcessPoolExecutor]
) -> tuple[Variant, dict[str, Any]]:
    variant: Variant = request.param
    if variant.device == "cuda":
        absent = within(processes, variant.framework).submit(absent_device, variant.framework).result()
        if absent:
            pytest.skip(absent)
    return variant, within(processes, variant.framework).submit(measure, variant).result()


def installed(framework: str) -> bool:
    library = framework.removeprefix("keras-")
    return all(importlib.util.find_spec(name) is not None for name in ("keras", library))


def within(processes: dict[str, ProcessPoolExecutor], framework: str) -> ProcessPoolExecutor:
    if framework not in processes:
        pytest.skip(f"{framework} is not installed")
    return processes[framework]


def test_loss_gradients_scores_and_weights_are_the_references(
    measured: tuple[Variant, dict[str, Any]],
) -> None:
    """A forward step and predict agree with them."""
    variant, found = measured
    config = variant.config
    weights, batch = random_weights(config), random_batch(config, lengths=False)
    loss, gradients = reference.loss_and_gradients(config, weights, batch)
    assert found["loss"] == pytest.approx(loss, rel=1e-6)
    assert found["forward"] == pytest.approx(loss, rel=1e-6)
    scores_BC = reference.predict(config, weights, batch.x_BTI)
    np.testing.assert_allclose(found["scores"], scores_BC, rtol=0, atol=1e-6)
    assert found["gradients"].keys() == gradients.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found["gradients"][name], gradient, rtol=0, atol=1e-6, err_msg=name)
    for name, weight in weights.items():  # Gradients were taken in between.
        np.testing.assert_array_equal(found["weights"][name], weight.astype(np.float32))


def test_training_is_kerass_adam_and_begins_anew(measured: tuple[Variant, dict[str, Any]]) -> None:
    """It is nearly the reference's: epsilon's place matters where a gradient is as small as 1e-6."""
    variant, results = measured
    batches = training_batches(variant.config)
    losses, weights = trained_by_reference(variant.config, batches, kerass=True)
    np.testing.assert_allclose(results["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(results["losses again"], results["losses"], rtol=1e-6)
    nearly, _ = trained_by_reference(variant.config, batches)
    np.testing.assert_allclose(results["losses"], nearly, rtol=1e-4)
    assert_close_for_nearly_all(results["trained"], weights)


def assert_close_for_nearly_all(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Adam divides by the gradient's size: where that is but rounding, the step is too."""
    errors = np.concatenate([np.abs(found[name] - expected[name]).ravel() for name in expected])
    assert np.quantile(errors, 0.98) < 2e-5
    assert errors.max() < 0.01 * TRAINING_STEPS


def test_it_says_what_computes(measured: tuple[Variant, dict[str, Any]]) -> None:
    variant, results = measured
    library = variant.framework.removeprefix("keras-")
    assert f"of {library} on {variant.device}" in results["engine"]
    assert {"keras", library, "device", "threads"} <= results["environment"].keys()
    assert (results["memory"] is None) == (variant.device == "cpu")


def test_the_terminal_stays_quiet(
    measured: tuple[Variant, dict[str, Any]], terminals: dict[str, Path]
) -> None:
    """Whatever was built, trained, evaluated and asked in the variant's process."""
    variant, _ = measured
    assert terminals[variant.framework].read_text() == ""


def refusal(variant: Variant, **changes: Any) -> str:
    """The sentence with which a variant is refused, in this process."""
    lengths = changes.pop("lengths", False)
    config = make_config(**changes)
    try:
        build(variant, config).train_step(random_batch(config, lengths=lengths))
    except UserError as error:
        return str(error)
    return "not refused"


def without_keras(framework: str) -> str:
    """The sentence where Keras is missing, in this process, which has the library."""
    with mock.patch.dict(sys.modules, {"keras": None}):
        for name in [name for name in sys.modules if name.startswith("benchmarks.rivals.keras")]:
            del sys.modules[name]
        return refusal(Variant(framework, "lstm"))


def absent_device(framework: str) -> str | None:
    """The sentence where a GPU is missing; None where there is one."""
    variant = Variant(framework, "lstm")
    return (
        None if build(variant, make_config(), device="auto").gpu else refusal(variant._replace(device="cuda"))
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_keras_refuses_what_it_does_not_do(framework: str, processes: dict[str, ProcessPoolExecutor]) -> None:
    def refused(model: str, **changes: Any) -> str:
        variant = Variant(framework, model, None, changes.pop("device", "cpu"))
        return within(processes, framework).submit(refusal, variant, **changes).result()

    others = {"keras-jax": "torch", "keras-torch": "tensorflow", "keras-tensorflow": "jax"}
    if framework != "keras-torch":
        assert "CPU" in refused("cudnn")
    assert f"{framework} takes no sequences of different lengths" in refused("lstm", lengths=True)
    assert f"{framework} trains with cross_entropy alone, not with ctc" in refused("lstm", loss="ctc")
    for changes in ({"bidirectional": True}, {"keep_prob": 0.5}, {"clip_value": 0.1}):
        assert f"{framework} has layers of one direction alone, no dropout" in refused("lstm", **changes)
    library = framework.removeprefix("keras-")
    other = Variant(f"keras-{others[framework]}", "lstm")
    if installed(other.framework):
        sentence = within(processes, framework).submit(refusal, other).result()
        assert f"Keras on {library} already" in sentence
        assert sentence.endswith(others[framework])
    sentence = within(processes, framework).submit(absent_device, framework).result()
    assert sentence is None or (sentence.startswith("--device cuda: ") and library in sentence)
    sentence = within(processes, framework).submit(without_keras, framework).result()
    assert sentence.startswith(f"{framework} is not installed")
    assert "pip" in sentence


def test_listing_the_classifiers_imports_no_library() -> None:
    program = (
        "import sys; from ptb_lm.bench import variants; from benchmarks.rivals import keras, pytensor; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    modules = done.stdout.split()
    assert "ptb_lm.bench.variants" in modules
    assert not {"torch", "tensorflow", "keras", "jax", "pytensor"} & set(modules)
