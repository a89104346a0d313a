"""The example that classifies sequences: every model against the reference, its files, its errors."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import runs
import sequence_classifier
from sequence_classifier import Batch, ClassifierConfig, reference
from support import ROOT, installed
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench.suites import SUITES
from ptb_lm.common.errors import DivergenceError
from ptb_lm.model import reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS, Framework

pytestmark = pytest.mark.slow

FILE = ROOT / "examples" / "sequence_classification.py"
# Some seconds of training that get somewhere.
SIZES = ["--sequences", "500", "--hidden-size", "7", "--num-layers", "1"]
SHORT = [*SIZES, "--epochs", "5", "--learning-rate", "0.03"]
TAGS = ["train/loss", "valid/loss", "valid/accuracy", "valid/auc"]
Curve = dict[str, list[float]]

spec = importlib.util.spec_from_file_location("sequence_classification", FILE)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

needs_sklearn = installed("sklearn")


class Reference:
    """The NumPy reference in float64, as a classifier that the example can train."""

    engine = "NumPy"

    def __init__(self, config: ClassifierConfig, weights: Mapping[str, np.ndarray], choice: Choice) -> None:
        self.config = config
        self.load_weights(weights)
        self.adam = reference_updates.adam_zero_state(self.weights)

    def train_step(self, batch: Batch) -> float:
        loss, gradients = reference.loss_and_gradients(self.config, self.weights, batch)
        self.weights, self.adam = reference_updates.adam(
            self.weights,
            gradients,
            self.adam,
            learning_rate=self.config.learning_rate,
            clip_value=self.config.clip_value,
        )
        return loss

    def predict(self, x_BTI: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
        return reference.predict(self.config, self.weights, x_BTI, lengths_B)

    def read(self, losses: Sequence[float]) -> Sequence[float]:
        return losses

    def export_weights(self) -> dict[str, np.ndarray]:
        return self.weights

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        self.weights = {name: array.astype(np.float64) for name, array in weights.items()}


def run(folder: Path, *arguments: str) -> Curve:
    """Run the example; return the scalars that TensorBoard reads, by tag."""
    assert example.main([*arguments, "--device", "cpu", "--log-dir", str(folder)]) == 0
    events = EventAccumulator(str(folder))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == sorted(TAGS)
    curve = {}
    for tag in TAGS:
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == list(range(1, len(scalars) + 1))
        curve[tag] = [scalar.value for scalar in scalars]
    return curve


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


@pytest.fixture(scope="module")
def reference_curve(tmp_path_factory: pytest.TempPathFactory) -> Curve:
    """The learning curve of the reference."""
    row = Framework(
        build=f"{__name__}:Reference",
        models={"basic": "NumPy"},
        executions=("eager",),
        unrolls=("static",),
        precisions=("fp32",),
        install_hint="",
        refusals={},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sequence_classifier.CLASSIFIERS, "reference", row)
        flags = ["--framework", "reference", "--model", "basic", *SHORT, "--bidirectional"]
        return run(tmp_path_factory.mktemp("reference"), *flags)


@needs_sklearn
@pytest.mark.parametrize(
    ("framework", "model"),
    [
        *(("torch", model) for model in FRAMEWORKS["torch"].models),
        # The others, whose thirty steps take long to trace, are in test_on_tensorflow.py.
        pytest.param("tensorflow", "block_fused", marks=installed("tensorflow")),
    ],
)
def test_every_model_learns_as_the_reference_does(
    framework: str, model: str, reference_curve: Curve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = run(tmp_path, "--framework", framework, "--model", model, *SHORT, "--bidirectional")
    for tag in ("train/loss", "valid/loss"):
        np.testing.assert_allclose(curve[tag], reference_curve[tag], rtol=1e-4, err_msg=tag)
    assert curve["valid/auc"][-1] > 0.9
    assert re.fullmatch(
        r"test accuracy 0\.[89]\d{3}, AUC 0\.9\d{3} \(weights of epoch 5\)", last_line(capsys)
    )


@needs_sklearn
@installed("torch")
def test_the_default_learns_the_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path)
    found = re.search(r"AUC ([\d.]+)", last_line(capsys))
    assert float(found[1]) > 0.95


@needs_sklearn
@installed("torch")
def test_the_weights_of_the_best_epoch_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SHORT, "--learning-rate", "0.06"]
    curve = run(tmp_path / "all", *flags, "--epochs", "4")
    line = last_line(capsys)
    assert np.argmin(curve["valid/loss"]) == 2
    # A run that ends with that epoch scores the same.
    run(tmp_path / "best", *flags, "--epochs", "3")
    assert last_line(capsys) == line
    assert line.endswith("(weights of epoch 3)")


@needs_sklearn
@installed("torch")
def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    flags = [*SHORT, "--epochs", "2", "--keep-prob", "0.8"]
    first, again, other = (
        run(tmp_path / str(number), *flags, "--seed", seed) for number, seed in enumerate("112")
    )
    assert first == again
    assert first["train/loss"] != other["train/loss"]


def test_labels_are_the_sense_of_rotation_within_the_lengths_alone() -> None:
    """The signed area that neighbouring points span is positive for a point that turns counter-clockwise."""
    data = example.make_data(2000, seed=3)
    assert sorted(set(data.lengths_B)) == list(range(10, 31))
    assert data.labels.mean() == 0.5
    x_BT, y_BT = data.x_BTI.astype(np.float64).transpose(2, 0, 1)
    area_BT = x_BT[:, :-1] * y_BT[:, 1:] - y_BT[:, :-1] * x_BT[:, 1:]
    sense_B = np.where(data.labels == 1, 1, -1)
    valid_BT = np.arange(1, 30) < data.lengths_B[:, None]
    # The expected area of two neighbours is the sine of the angle between them: 0.28 on average.
    expected = (np.cos(0.1) - np.cos(0.5)) / 0.4
    for mask_BT, sign in ((valid_BT, 1), (~valid_BT, -1)):
        areas = (sense_B[:, None] * area_BT)[mask_BT]
        assert areas.mean() == pytest.approx(sign * expected, abs=5 * areas.std() / len(areas) ** 0.5)


@needs_sklearn
def test_splits_share_no_sequence_and_have_both_labels_alike() -> None:
    data = example.make_data(200, seed=3)
    training, others = example.split(data, part=0.4, seed=1)
    valid, test = example.split(others, part=0.5, seed=1)
    assert [len(part.labels) for part in (training, valid, test)] == [120, 40, 40]
    assert [part.labels.mean() for part in (training, valid, test)] == [0.5] * 3
    rows = {x_TI.tobytes() for part in (training, valid, test) for x_TI in part.x_BTI}
    assert rows == {x_TI.tobytes() for x_TI in data.x_BTI}
    assert len(rows) == 200


def test_batches_are_of_one_size_and_repeat_no_sequence() -> None:
    data = example.make_data(120, seed=3)
    batches = list(example.batches(data, np.random.default_rng(1)))
    assert [batch.x_BTI.shape for batch in batches] == [(50, 30, 2)] * 2
    place = {x_TI.tobytes(): row for row, x_TI in enumerate(data.x_BTI)}
    rows = [place[x_TI.tobytes()] for batch in batches for x_TI in batch.x_BTI]
    assert len(set(rows)) == 100
    assert rows != sorted(rows)
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), data.labels[rows])
    np.testing.assert_array_equal(
        np.concatenate([batch.lengths_B for batch in batches]), data.lengths_B[rows]
    )


def test_the_benchmark_times_the_example_s_sizes() -> None:
    (workload,) = SUITES["template"].workloads
    assert isinstance(workload.task, ClassifierTask)
    config, chosen = workload.task.config, example.parse([])
    assert config.hidden_sizes == (chosen.hidden_size,) * chosen.num_layers
    assert config.bidirectional == chosen.bidirectional
    assert (config.learning_rate, config.clip_value) == (chosen.learning_rate, chosen.clip_value)
    expected = example.take(example.make_data(100, seed=1), np.arange(example.BATCH_SIZE))
    found = workload.task.batch(seed=1)
    assert found.x_BTI.shape == expected.x_BTI.shape
    assert (found.lengths_B.min(), found.lengths_B.max()) == (example.SHORTEST, example.STEPS)
    assert config.classes == 2


@needs_sklearn
@pytest.mark.parametrize(
    ("arguments", "noun"),
    [
        (["--epochs", "0"], "--epochs"),
        (["--num-layers", "two"], "whole number of at least 1"),
        (["--sequences", "99"], "--sequences"),
        (["--keep-prob", "0"], "keep_prob"),
        (["--learning-rate", "0"], "learning_rate"),
        (["--model", "gru"], "'gru'"),
        (["--execution", "jit"], "--execution jit"),
        (["--log-dir", str(FILE)], str(FILE)),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], noun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert noun in runs.refusal(capsys, example, "--log-dir", tmp_path / "run", *arguments)
    assert not (tmp_path / "run").exists()


@needs_sklearn
@installed("torch")
def test_predictions_of_nan_end_the_run() -> None:
    config = ClassifierConfig(input_size=2, hidden_sizes=(3,), classes=2)
    weights = sequence_classifier.initial(config, seed=1)
    weights["lstm.0.bias"][0] = np.nan
    choice = Choice.create(sequence_classifier.CLASSIFIERS, model="basic", device="cpu")
    model = sequence_classifier.build(config, weights, choice)
    with pytest.raises(DivergenceError, match="--learning-rate"):
        example.measure(model, example.make_data(10, seed=1))


def test_without_scikit_learn_the_error_says_how_to_install_it() -> None:
    code = "import runpy, sys; sys.modules['sklearn'] = None; sys.path.insert(0, sys.argv.pop()); "
    code += "runpy.run_path(sys.argv.pop(1), None, '__main__')"
    done = python("-c", code, str(FILE), str(FILE.parent))  # the folder that `python FILE` looks into
    assert done.returncode == 2
    assert "scikit-learn" in runs.sentence(done.stderr, example)
    assert "pip install -e" in done.stderr
    assert done.stdout == ""


@needs_sklearn
@pytest.mark.parametrize("framework", [pytest.param(each, marks=installed(each)) for each in FRAMEWORKS])
def test_a_program_prints_its_lines_alone(framework: str, tmp_path: Path) -> None:
    flags = ["--framework", framework, "--model", "block_fused", "--epochs", "1", "--sequences", "100"]
    done = python(str(FILE), *flags, "--log-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    first, engine, epoch, last = done.stdout.splitlines()
    assert first.startswith("3,362 parameters; tensorboard --logdir ")
    assert engine.startswith(f"computed by {framework} block_fused on ")
    assert epoch.startswith("epoch 1: train/loss 0.69")
    assert last.startswith("test accuracy ")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this checkout, and without the variables that TensorFlow reads, as a user would."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS"))}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
