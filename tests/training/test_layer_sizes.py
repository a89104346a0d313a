"""Layers of different widths, by --layer-sizes: as a flag, in config.json, and in all uses of a run."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from rank_program import stopped_after
from support import installed, random_weights, reference_perplexity

import ptb_lm
from ptb_lm import compare, evaluate, export, generate, import_run, neighbours, predict, score, train
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.inference.play import page as play_page
from ptb_lm.model import parameters, reference
from ptb_lm.model.config import Config
from ptb_lm.model.presets import PRESETS
from ptb_lm.training import run_flags, tensors
from ptb_lm.training.fine_tuning import ParentRun
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

SIZES = (12, 9, 7)
LAYERS = ("--layer-sizes", "12", "9", "7", "--tie-weights")
TRAINING = ("--num-steps", "5", "--batch-size", "4", "--epochs", "2", "--device", "cpu")


# The flag.


def parse_flags(*flags: str) -> dict[str, Any]:
    return train.parse_flags(flags)


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        (LAYERS, SIZES),
        (("--layer-sizes", "12", "9", "--num-layers", "2"), (12, 9)),
        (("--layer-sizes", "5"), (5,)),
        (("--layer-sizes", "5", "5", "5"), (5, 5, 5)),
        (("--config", "awd"), (1150, 1150, 400)),
        (("--config", "awd", "--layer-sizes", "30", "20"), (30, 20)),
        (("--config", "awd", "--layer-sizes", "6", "6"), (6, 6)),
        (("--config", "awd", "--num-layers", "2"), (1150, 1150)),
        (("--config", "awd", "--hidden-size", "30"), (30, 30, 30)),
        (("--config", "awd", "--hidden-size", "30", "--num-layers", "1"), (30,)),
        (("--config", "awd", "--num-layers", "3"), (1150, 1150, 400)),
        (("--config", "awd", "--hidden-size", "1150", "--num-layers", "3"), (1150, 1150, 1150)),
        (("--config", "medium", "--num-layers", "3"), (650, 650, 650)),
    ],
    ids=str,
)
def test_the_flags_say_how_wide_each_layer_is(
    flags: tuple[str, ...], sizes: tuple[int, ...], tmp_path: Path
) -> None:
    """And config.json says it, too; one model has one description."""
    run = run_flags.new_config(parse_flags(*flags))
    config = run.hyperparameters
    assert (config.hidden_sizes, config.num_layers) == (sizes, len(sizes))
    assert config.embedding_width == sizes[-1]
    assert bool(config.layer_sizes) == (len({*sizes}) > 1)
    assert config.hidden_size == max(sizes)
    written = json.loads(json.dumps(run.to_json()))
    assert RunConfig.from_json(written, tmp_path) == run
    assert run_flags.resumed_config(run, parse_flags(*flags)) == run, "the same flags continue it"
    if "awd" in flags:  # the sizes alone are others
        kept = config.replace(
            **{n: getattr(PRESETS["awd"], n) for n in ("num_layers", "hidden_size", "layer_sizes")}
        )
        assert kept == PRESETS["awd"]


@pytest.mark.parametrize(
    ("flags", "nouns"),
    [
        (("--layer-sizes", "12", "9", "--num-layers", "3"), "--num-layers 3 .*--layer-sizes, .* 2"),
        (("--layer-sizes", "12", "12", "--num-layers", "3"), "--num-layers 3 .*--layer-sizes, .* 2"),
        (("--layer-sizes", "12", "9", "--hidden-size", "9"), "--layer-sizes or --hidden-size"),
        (("--layer-sizes", "12", "0"), "--layer-sizes: must be at least 1"),
        (("--layer-sizes", "12", "x"), "--layer-sizes: must be a whole number"),
        (("--layer-sizes",), "--layer-sizes"),
        (
            ("--layer-sizes", "12", "9", "--tie-weights", "--embedding-size", "12"),
            "--embedding-size 9, not 12",
        ),
        (("--config", "awd", "--embedding-size", "300"), "--embedding-size 400, not 300"),
    ],
    ids=str,
)
def test_contradictions_are_refused(
    flags: tuple[str, ...], nouns: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    problem = runs.refusal(capsys, train, *flags, "--run-dir", tmp_path / "run")
    assert re.search(nouns, problem), problem
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [3, "3", [3, "x"], [0], [3.5], {"a": 1}, None], ids=str)
def test_config_json_refuses_what_is_no_list_of_sizes(value: Any, tmp_path: Path) -> None:
    written = json.loads(json.dumps(run_flags.new_config(parse_flags(*LAYERS)).to_json()))
    written["hyperparameters"]["layer_sizes"] = value
    with pytest.raises(UserError, match="--layer-sizes must be"):
        RunConfig.from_json(written, tmp_path)


# A run.


@pytest.fixture(scope="module")
def run(small_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sizes") / "run"
    flags = ("--data", str(small_corpus), "--run-dir", str(folder), *LAYERS, *TRAINING)
    assert train.main([*flags, "--keep-prob", "0.8", "--recurrent-keep-prob", "0.9"]) == 0
    return folder


@pytest.fixture(scope="module")
def weights(run: Path) -> dict[str, np.ndarray]:
    return {
        name: array.astype(np.float64) for name, array in tensors.load(run / "weights.safetensors")[0].items()
    }


def ids_of(run: Path, text: str) -> list[int]:
    words = (run / "vocabulary.txt").read_text().splitlines()
    return [words.index(word) if word in words else words.index("<unk>") for word in text.split()]


def log_probabilities(run: Path, weights: dict[str, np.ndarray], text: str) -> np.ndarray:
    """Of each word of a line and of its end, by the reference."""
    ids = [ids_of(run, "<eos>")[0], *ids_of(run, text), ids_of(run, "<eos>")[0]]
    zero = reference.zero_state(weights, 1)
    found = reference.log_probabilities(weights, np.array([ids[:-1]]), zero)[1][0]
    scored: np.ndarray = found[range(len(ids) - 1), ids[1:]]
    return scored


@pytest.mark.slow
def test_the_run_has_these_layers(run: Path, weights: dict[str, np.ndarray], small_corpus: Path) -> None:
    config = RunDirectory(run).read_config().hyperparameters
    assert (config.hidden_sizes, config.embedding_width) == (SIZES, 7)
    shapes = {name: array.shape for name, array in weights.items() if "recurrent" in name}
    assert shapes == {f"lstm.{layer}.recurrent_kernel": (h, 4 * h) for layer, h in enumerate(SIZES)}
    expected = reference_perplexity(weights, corpus.load(small_corpus).splits["test"])
    assert runs.result(run)["test_perplexity"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [7, 45])
def test_stopped_and_resumed_equals_never_stopped(
    steps: int, run: Path, small_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data", str(small_corpus), "--run-dir", str(tmp_path / "run"), *LAYERS, *TRAINING]
    with stopped_after(steps):
        assert train.main([*flags, "--keep-prob", "0.8", "--recurrent-keep-prob", "0.9"]) == 143
    carried = runs.final_state(tmp_path / "run")["training.h"]
    assert carried.shape == (3, 4, 12)
    assert carried[1, :, :9].all()
    assert not carried[1, :, 9:].any()
    resume = ("--resume", tmp_path / "run")
    for wrong in (("--layer-sizes", "12", "9", "8"), ("--num-layers", "2"), ("--hidden-size", "12")):
        assert wrong[0] in runs.refusal(capsys, train, *resume, *wrong)
    # What is the run's may be said again.
    assert runs.run_command(train, *resume, *LAYERS, "--num-layers", "3") == 0
    runs.assert_equal_runs(tmp_path / "run", run)


@pytest.mark.slow
def test_a_plain_run_may_be_told_the_width_of_each_layer(plain_run: Path) -> None:
    config = RunDirectory(plain_run).read_config()
    assert run_flags.resumed_config(config, parse_flags("--layer-sizes", "6", "6")) == config
    with pytest.raises(UserError, match=r"--layer-sizes 6 5 .* 6 6"):
        run_flags.resumed_config(config, parse_flags("--layer-sizes", "6", "5"))


def test_a_run_may_be_told_the_width_of_its_embedding() -> None:
    """By its number, or by the 0 that stands for the top layer's."""
    for flags in ((), ("--embedding-size", "650"), ("--embedding-size", "0")):
        config = run_flags.new_config(parse_flags("--config", "modern", *flags))
        for width in ("650", "0"):
            assert run_flags.resumed_config(config, parse_flags("--embedding-size", width)) == config
        with pytest.raises(UserError, match=r"--embedding-size 600 differs from the run's 650;"):
            run_flags.resumed_config(config, parse_flags("--embedding-size", "600"))
    wider = run_flags.new_config(parse_flags("--embedding-size", "300"))
    with pytest.raises(UserError, match=r"--embedding-size 0 differs from the run's 300;"):
        run_flags.resumed_config(wider, parse_flags("--embedding-size", "0"))


@pytest.mark.slow
def test_another_run_starts_from_its_weights(
    run: Path,
    weights: dict[str, np.ndarray],
    small_corpus: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    parent = ParentRun.read(run)
    again = parent.derive_config({**parse_flags(*LAYERS), "embedding_size": 7, "epochs": 1}).hyperparameters
    assert again == parent.run.hyperparameters.replace(epochs=1, learning_rate=0.5)
    for wrong in (("--layer-sizes", "12", "9", "8"), ("--num-layers", "2"), ("--hidden-size", "12")):
        problem = runs.refusal(capsys, train, "--init-from", run, *wrong)
        assert f"{wrong[0]} {' '.join(wrong[1:])} contradicts the run" in problem
    extended = tmp_path / "text"
    extended.mkdir()
    for split in ("train", "valid", "test"):
        text = (small_corpus / f"{split}.txt").read_text()
        (extended / f"{split}.txt").write_text(text + "zebra\n")
    flags = ("--init-from", run, "--data", extended, "--extend-vocabulary", "--run-dir", tmp_path / "tuned")
    assert runs.run_command(train, *flags, "--epochs", "1", "--learning-rate", "1e-9") == 0
    tuned, _ = tensors.load(tmp_path / "tuned" / "weights.safetensors")
    for name, array in weights.items():
        np.testing.assert_allclose(tuned[name][: len(array)], array, rtol=0, atol=1e-6)
    assert len(tuned["embedding"]) == len(weights["embedding"]) + 1


@pytest.mark.slow
def test_seeds_are_trained_and_continued(small_corpus: Path, tmp_path: Path) -> None:
    flags = ["--data", str(small_corpus), "--run-dir", str(tmp_path / "s"), *LAYERS, *TRAINING]
    for seeds in (["1"], ["1", "2"]):
        assert train.main([*flags, "--seeds", *seeds]) == 0
    for seed in (1, 2):
        config = RunDirectory(tmp_path / "s" / f"seed-{seed}").read_config()
        assert config.hyperparameters.hidden_sizes == SIZES


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=installed("tensorflow"))])
def test_it_is_scored_generated_from_and_predicted_with(
    framework: str, run: Path, weights: dict[str, np.ndarray]
) -> None:
    model = ptb_lm.load(run, framework=framework, device="cpu")
    for text in ("w1 w3 w2", "w9", "w2 zebra w4 w1"):
        (sentence,) = model.score(text).sentences
        np.testing.assert_allclose(
            sentence.log_probabilities, log_probabilities(run, weights, text), rtol=0, atol=1e-5
        )
    assert len([*model.generate("w1", length=5, seed=1)]) == 5
    assert model.embeddings.shape[1] == 7
    assert "(12, 9, 7)" in repr(model)
    words = play_page.read(model, "w1 w3")
    expected = math.exp(-log_probabilities(run, weights, "w1 w3").mean())
    assert 2 ** (sum(word.bits for word in words) / 3) == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
def test_every_command_reads_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, lists = tmp_path / "text.txt", tmp_path / "lists.txt"
    text.write_text("w1 w3 w2\nw9 w1\n" * 20)
    lists.write_text("a ||| w1 w3 ||| -1.5\na ||| w2 w2 ||| -1.0\n")
    capsys.readouterr()
    assert runs.run_command(evaluate, run) == 0
    assert f"test perplexity {runs.result(run)['test_perplexity']:.4f}" in capsys.readouterr().out
    for command, *flags in (
        (evaluate, run, "--text", text),
        (evaluate, run, "--text", text, "--dynamic"),
        (evaluate, run, "--text", text, "--cache"),
        (score, run, text),
        (score, run, lists, "--n-best"),
        (generate, run, "--length", "4"),
        (predict, run, "w1"),
        (neighbours, run, "w1"),
        (compare, run),
    ):
        assert runs.run_command(command, *flags) == 0, (command, flags, capsys.readouterr().err)


@pytest.mark.slow
def test_it_is_exported_with_layers_of_one_width(
    run: Path, weights: dict[str, np.ndarray], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/inference/test_export.py compares such a file's numbers."""
    for kind in export.FORMATS:
        if kind == "onnx":
            pytest.importorskip("onnx")
        capsys.readouterr()
        assert runs.run_command(export, run, "--format", kind, "--out", tmp_path / kind) == 0
        assert "[3, batch, 12]" in capsys.readouterr().out


@pytest.mark.slow
def test_its_weights_can_be_imported(run: Path, weights: dict[str, np.ndarray], tmp_path: Path) -> None:
    assert runs.run_command(import_run, run, "--run-dir", tmp_path / "imported") == 0
    assert RunDirectory(tmp_path / "imported").read_config().hyperparameters.hidden_sizes == SIZES
    for name, array in tensors.load(tmp_path / "imported" / "weights.safetensors")[0].items():
        np.testing.assert_array_equal(array, weights[name].astype(np.float32))


# The benchmark.


def test_the_benchmark_counts_each_layer_s_products() -> None:
    config = Config(num_layers=3, layer_sizes=SIZES, tie_weights=True, num_steps=4, batch_size=2)
    task = LanguageTask(config=config, vocabulary_size=50)
    layers = sum(4 * size * (below + size) for below, size in zip((7, 12, 9), SIZES, strict=True))
    biases = 4 * sum(SIZES)
    assert task.multiply_adds - 8 * 7 * 50 in (8 * layers, 8 * (layers + biases))
    assert "12 + 9 + 7 units, embedding 7" in task.size


def test_the_benchmark_names_dropout_by_place() -> None:
    config = Config(num_layers=3, input_keep_prob=0.6, between_keep_prob=0.75, output_keep_prob=0.5)
    assert "dropout 0.4 / 0.25 / 0.25 / 0.5" in LanguageTask(config=config, vocabulary_size=50).size


def test_initial_weights_fit() -> None:
    config = Config(num_layers=3, layer_sizes=SIZES, tie_weights=True)
    drawn = parameters.draw_initial(config, 11, seed=1)
    assert {name: array.shape for name, array in drawn.items()} == {
        name: array.shape for name, array in random_weights(config, 11, seed=1).items()
    }
