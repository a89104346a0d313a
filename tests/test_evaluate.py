"""Scoring a saved run: the number that training reported, whatever way it is asked for."""

import argparse
import dataclasses
import io
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from support import installed

from ptb_lm import evaluate, score, train
from ptb_lm.data import corpus
from ptb_lm.inference import run_evaluation
from ptb_lm.model import backend, reference
from ptb_lm.model.backend import Backend
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.rules import BFLOAT16, MachineFacts
from ptb_lm.torch_backend import runtime
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.training import evaluation, tensors
from ptb_lm.training.run_directory import RunDirectory

pytestmark = pytest.mark.slow

# Bounds on the relative difference between two ways to the same number.
TOLERANCE = {"fp32": 1e-6, "fp64": 1e-12}

PRECISIONS = sorted(TOLERANCE)


@pytest.fixture(scope="module")
def run(plain_run: Path) -> Path:
    """A finished run in float32."""
    return plain_run


@pytest.fixture(scope="module")
def run_fp64(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in float64, whose training drops units."""
    flags = ("--precision", "fp64", "--keep-prob", "0.5")
    return runs.train_run(data, tmp_path_factory.mktemp("evaluate") / "run_fp64", *flags)


@pytest.fixture(params=PRECISIONS)
def any_run(request: pytest.FixtureRequest) -> Path:
    """A finished run, in each precision."""
    chosen: Path = request.getfixturevalue("run" if request.param == "fp32" else "run_fp64")
    return chosen


def run_evaluate(capsys: pytest.CaptureFixture[str], *given: object) -> tuple[str, int]:
    """Run the command; return the perplexity as it is printed, and the tokens that were scored."""
    capsys.readouterr()
    assert runs.run_command(evaluate, *given) == 0
    out, err = capsys.readouterr()
    match = re.fullmatch(
        r"(?:scored in fp32: .*\n)?"
        r"\S+ perplexity (\d+\.\d{4}) \(([\d,]+) tokens? scored(?:, [\d,]+ .* <unk>)?\)\n"
        r"(?:.* one stream .*\n(?:without .*\n)?.* each line .*\n)?"
        r"computed by (?:torch|tensorflow) \w+ in (?:fp|bf|tf)\d\d: .*\n",
        out,
    )
    assert match, out
    assert err == ""
    return match[1], int(match[2].replace(",", ""))


def build_model(run: Path, model: str | None = None) -> Backend:
    """Build a model from a run's files, as the command does."""
    directory = RunDirectory(run)
    config = directory.read_config()
    return backend.build(
        config.hyperparameters,
        directory.read_weights(config, directory.read_vocabulary()),
        dataclasses.replace(config.choice, model=model or config.choice.model),
    )


def perplexity(
    run: Path, data: Path, split: str = "test", model: str | None = None, window: int | None = None
) -> float:
    """Return it, scored in windows as evaluation has them, or of another length."""
    config = RunDirectory(run).read_config().hyperparameters
    rows = evaluation.row_count(split, config)
    return evaluation.evaluate_perplexity(
        build_model(run, model),
        corpus.load(data).splits[split],
        config if window is None else config.replace(batch_size=rows, num_steps=window),
        batch_size=rows,
        description=split,
    )


def test_a_split_scores_what_training_reported(
    any_run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The weights of validation are those before they are saved in float32.
    for split in ("test", "valid") if any_run.name == "run" else ("test",):
        expected = runs.result(any_run)[f"{split}_perplexity"]
        assert perplexity(any_run, data, split) == expected
        tokens = len((data / f"{split}.txt").read_text().replace("\n", " <eos> ").split())
        printed, scored = run_evaluate(capsys, any_run, "--split", split)
        assert printed == f"{expected:.4f}"
        if split == "test":
            assert scored == tokens - 1
            assert run_evaluate(capsys, any_run) == (printed, scored)
    assert 1 < float(run_evaluate(capsys, any_run, "--split", "train")[0]) < 100


def test_no_bit_depends_on_how_often_the_device_is_waited_for(
    run_fp64: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock decides it. In float64 each sum of windows rounds; in float32 so few may not."""
    found: dict[float, list[float]] = {}
    for seconds in (-1.0, math.inf):
        monkeypatch.setattr(evaluation, "READ_SECONDS", seconds)
        found[seconds] = [
            perplexity(run_fp64, data, split, window=window)
            for split in ("valid", "test")
            for window in (1, 2, 3, 5)
        ]
    assert found[-1.0] == found[math.inf]


def test_a_text_is_scored_as_the_test_split_is(
    any_run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for the first word, which a split has no `<eos>` before."""
    path = data / "test.txt"
    nll_N, _ = reference_nll(any_run, tokens_of_text(path.read_text()))
    nll, tokens = nll_N.sum(), len(nll_N)
    perplexity, scored = run_evaluate(capsys, any_run, "--text", path)
    assert scored == tokens == run_evaluate(capsys, any_run)[1] + 1
    assert float(perplexity) == pytest.approx(np.exp(nll / tokens), abs=6e-5)


def reference_nll(run: Path, tokens: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return what NumPy gives each token but the first in float64, in one row, and which are known."""
    weights, _ = tensors.load(run / "weights.safetensors")
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    words = (run / "vocabulary.txt").read_text().splitlines()
    ids_L = np.array([words.index(token if token in words else "<unk>") for token in tokens])
    log_p_1LV = reference.log_probabilities(weights, ids_L[None, :-1], reference.zero_state(weights, 1))[1]
    is_known_N = np.array([token in words for token in tokens[1:]])
    return -log_p_1LV[0, np.arange(len(ids_L) - 1), ids_L[1:]], is_known_N


def tokens_of_text(content: str) -> list[str]:
    return ["<eos>", *content.replace("\n", " <eos> ").split()]


def test_the_reference_agrees_over_the_whole_test_split(any_run: Path, data: Path) -> None:
    """NumPy in float64, one row, every token but the first: from the saved weights alone."""
    nll_N, _ = reference_nll(any_run, (data / "test.txt").read_text().replace("\n", " <eos> ").split())
    precision = RunDirectory(any_run).read_config().choice.precision
    assert runs.result(any_run)["test_perplexity"] == pytest.approx(
        np.exp(nll_N.mean()), rel=TOLERANCE[precision]
    )


@pytest.mark.parametrize("window", [1, 3, 7, 1000])
def test_the_window_of_evaluation_does_not_matter(window: int, any_run: Path, data: Path) -> None:
    precision = RunDirectory(any_run).read_config().choice.precision
    expected = runs.result(any_run)["test_perplexity"]
    assert perplexity(any_run, data, window=window) == pytest.approx(expected, rel=TOLERANCE[precision])


@pytest.mark.parametrize("model", FRAMEWORKS["torch"].models)
def test_every_model_gives_the_same_perplexity(
    model: str, any_run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    precision = RunDirectory(any_run).read_config().choice.precision
    expected = runs.result(any_run)["test_perplexity"]
    assert perplexity(any_run, data, model=model) == pytest.approx(expected, rel=TOLERANCE[precision])
    # Beyond the last digit printed lies the rounding of float32.
    assert float(run_evaluate(capsys, any_run, "--model", model)[0]) == pytest.approx(expected, abs=1.1e-4)


@pytest.mark.parametrize("model", ["block_fused", "cudnn"])  # the backends' contract has all of them
def test_another_framework_gives_the_same_perplexity(
    model: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    expected = runs.result(run)["test_perplexity"]
    given = run_evaluate(capsys, run, "--framework", "tensorflow", "--model", model)[0]
    assert float(given) == pytest.approx(expected, abs=1.1e-4)


@pytest.mark.parametrize(
    ("trained", "flags"),
    [
        ("bf16", ["--precision", "fp32"]),
        pytest.param("bf16", ["--framework", "tensorflow"], marks=installed("tensorflow")),
        pytest.param(
            "fp64", ["--framework", "tensorflow", "--model", "block_fused"], marks=installed("tensorflow")
        ),
        ("tf32", []),
    ],
)
def test_a_precision_that_cannot_be_had_is_no_obstacle(
    trained: str, flags: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights are kept in float32."""
    copy = trained_in(trained, run, tmp_path / "run")
    expected = runs.result(run)["test_perplexity"]
    assert float(run_evaluate(capsys, copy, *flags)[0]) == pytest.approx(expected, abs=1.1e-4)


@pytest.mark.slow
def test_a_precision_that_the_fastest_model_lacks_is_kept(run: Path) -> None:
    """In TensorFlow block_fused is the fastest of layers so wide, and it has no fp64; cudnn has it."""
    pytest.importorskip("tensorflow")
    trained = RunDirectory(run).read_config()
    choice = Choice.create(framework="tensorflow", model="cudnn", precision="fp64", device="cpu")
    wide = dataclasses.replace(
        trained, choice=choice, hyperparameters=trained.hyperparameters.replace(hidden_size=200)
    )
    flags = argparse.Namespace(framework=None, model=None, execution=None, device=None, precision=None)
    decision = run_evaluation.choose(flags, wide)
    assert (decision.choice.precision, decision.reason) == ("fp64", "")


@pytest.mark.parametrize(
    ("trained", "features", "precision"),
    [
        ("bf16", {BFLOAT16}, "bf16"),
        ("bf16", set[str](), "fp32"),
        ("fp16", {BFLOAT16}, "fp32"),
        ("tf32", {BFLOAT16}, "fp32"),
    ],
)
def test_a_precision_that_is_slow_here_is_not_taken_and_the_first_line_says_so(
    trained: str,
    features: set[str],
    precision: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where a run of a GPU is scored on a CPU."""
    machine = MachineFacts(device="cpu", name="a CPU here", features=frozenset(features))
    monkeypatch.setattr(runtime, "examine", lambda device: machine)
    copy = trained_in(trained, run, tmp_path / "run")
    assert runs.run_command(evaluate, copy) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert f" in {precision}: " in last
    assert first.startswith("test perplexity" if trained == precision else f"scored in fp32: {trained}, ")
    if trained != "tf32":
        assert runs.run_command(evaluate, copy, "--precision", trained) == 0
        assert f" in {trained}: " in capsys.readouterr().out


def trained_in(precision: str, run: Path, copy: Path) -> Path:
    """Copy a run; let its files say that it was trained in another precision."""
    shutil.copytree(run, copy)
    runs.change(copy / "config.json", lambda config: config.update(precision=precision))
    arrays, metadata = tensors.load(copy / "weights.safetensors")
    metadata["config"]["precision"] = precision
    tensors.save(copy / "weights.safetensors", arrays, metadata)
    return copy


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_run_in_tf32_is_scored_in_tf32_on_a_gpu(
    device: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = trained_in("tf32", run, tmp_path / "run")
    for chosen, precision in ((device, "tf32"), ("cpu", "fp32")):
        assert runs.run_command(evaluate, copy, "--device", chosen) == 0
        out, _ = capsys.readouterr()
        assert f"computed by torch cudnn in {precision}: " in out
        (perplexity_there,) = re.findall(r"^test perplexity (\S+)", out, re.M)
        assert float(perplexity_there) == pytest.approx(runs.result(run)["test_perplexity"], rel=1e-2)


def test_a_run_in_tf32_asks_whether_it_is_on_a_gpu(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU that says that it is one, tf32 is chosen, and the model refuses it."""
    copy = trained_in("tf32", run, tmp_path / "run")
    monkeypatch.setattr(runtime, "examine", lambda device: MachineFacts(device="cuda", name="a GPU"))
    problem = runs.refusal(capsys, evaluate, copy, "--device", "cpu")
    assert re.match("--precision tf32 .* CUDA", problem)


def test_unknown_words_are_scored_as_unk(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange, plain = tmp_path / "strange.txt", tmp_path / "plain.txt"
    strange.write_text("w1 zebra w2\nquagga w1\n")
    plain.write_text("w1 <unk> w2\n<unk> w1\n")
    assert run_evaluate(capsys, run, "--text", strange) == run_evaluate(capsys, run, "--text", plain)


@pytest.mark.parametrize(
    ("content", "counts", "missing"),
    [
        ("w1 zebra w2\nquagga w1\n", "7 tokens .*2 .* <unk>", "2 .* are not in"),
        ("zebra w1 w2\n", "4 tokens .*1 .* <unk>", "1 .* is not in"),
        ("w1\n", r"2 tokens \S+", "all"),
        ("\n", r"1 token \S+", "all"),
        ("zebra\n\n<unk>\n", "5 tokens .*2 .* <unk>", "1 .* is not in"),
    ],
)
def test_how_many_words_were_unknown_is_told(
    content: str, counts: str, missing: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text of unknown words is an easy one."""
    text = tmp_path / "text.txt"
    text.write_text(content)
    assert runs.run_command(evaluate, run, "--text", text) == 0
    scored, stream, *without, other, computed = capsys.readouterr().out.splitlines()
    assert re.search(rf" \({counts}\)$", scored)
    assert re.search(f"one stream .*; .*{missing}", stream)
    assert "ptb_lm.score RUN FILE" in other
    assert re.match(r".* torch cudnn in fp32: torch\.nn\.LSTM ", computed)
    nll_N, is_known_N = reference_nll(run, tokens_of_text(content))
    known = [np.exp(nll_N[is_known_N].mean())] * (not is_known_N.all())
    evaluated = [float(line.split()[-1]) for line in without]
    assert evaluated == pytest.approx(known, abs=6e-5)
    # Where score reads the text in the same way, it has the same numbers.
    assert runs.run_command(score, run, text, "--carry-state") == 0
    summary, *without, _, _ = capsys.readouterr().err.splitlines()
    assert float(summary.partition(" perplexity ")[2].split()[0]) == pytest.approx(
        float(scored.split()[2]), abs=2e-4
    )
    assert f" {len(nll_N)} word" in summary
    assert re.search(f" {np.sum(~is_known_N)} of .* vocabulary", summary)
    assert [float(line.split()[-1]) for line in without] == pytest.approx(evaluated, abs=2e-4)


def test_rows_without_a_text_are_counted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "table.jsonl"
    table.write_text('{"text": "w1 w2"}\n' + '{"body": "w3"}\n' * 9)
    assert runs.run_command(evaluate, run, "--text", table) == 0
    scored, _, note, *_ = capsys.readouterr().out.splitlines()
    assert "(3 tokens scored)" in scored
    assert note == "9 rows without a text left out"


def test_a_text_is_scored_in_bounded_memory(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, sizes, score = tmp_path / "text.txt", list[int](), TorchBackend.log_probabilities
    text.write_text("w1 w2 w3\n" * 9)
    expected = run_evaluate(capsys, run, "--text", text)

    def log_probabilities(self: TorchBackend, x_BT: Any, y_BT: Any, *given: Any, **named: Any) -> Any:
        sizes.append(y_BT.size)
        return score(self, x_BT, y_BT, *given, **named)

    monkeypatch.setattr(TorchBackend, "log_probabilities", log_probabilities)
    monkeypatch.setattr(backend, "MAX_LOGITS", 3 * 8 * 6)  # of layers of 6 units
    assert run_evaluate(capsys, run, "--text", text) == expected
    assert max(sizes) == 3


def test_standard_input_is_a_text_too(
    run: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run_evaluate(capsys, run, "--text", data / "test.txt")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((data / "test.txt").read_bytes())))
    capsys.readouterr()
    assert runs.run_command(evaluate, run, "--text", "-") == 0
    assert capsys.readouterr().out.startswith(f"standard input perplexity {expected[0]} (")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert runs.refusal(capsys, evaluate, run, "--text", "-") == "standard input is empty"


def test_a_moved_run_is_scored_with_its_data_elsewhere(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run_evaluate(capsys, run)
    moved = shutil.copytree(run, tmp_path / "run")
    elsewhere = shutil.copytree(data, tmp_path / "elsewhere")
    gone = str(tmp_path / "gone")
    runs.change(moved / "config.json", lambda config: config.update(data=gone))
    runs.change(moved / "config.json", lambda config: config["source"].update(path=gone))
    problem = runs.refusal(capsys, evaluate, moved)
    assert gone in problem
    assert "--data" in problem
    for command, *given in ((evaluate, moved), (train, "--resume", moved)):
        problem = runs.refusal(capsys, command, *given, "--data", gone)
        assert problem.startswith(f"--data {gone}: ")
        assert "ptb" in problem
    assert run_evaluate(capsys, moved, "--data", elsewhere) == expected


def test_what_is_scored_in_rows_as_in_training_is_compiled(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = ("--split", "valid", "--model", "basic", "--execution", "jit")
    assert runs.run_command(evaluate, run, *compiled) == 0
    assert "(jit)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--text", "x", "--data", "y"], "--data"),
        (["--text", "x", "--split", "valid"], "not allowed with argument --text"),
        (["--execution", "compile"], "--execution compile would change nothing"),
        (["--execution", "jit", "--model", "basic"], "--execution jit would change nothing"),
        (["--execution", "graph", "--split", "valid"], "--execution graph would change nothing"),
        *(
            ([flag, "nonsense"], f"argument {flag}: invalid choice: 'nonsense'")
            for flag in ("--split", "--model", "--framework", "--device")
        ),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    flags: list[str], key: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert key in runs.refusal(capsys, evaluate, run, *flags)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"", "text is empty"),
        (b"w1\nw2 \x00\n", "text, line 2: byte 0x00"),
        (b"w1\nw2\n\nw1 \xff\n", "text, line 4: byte 0xff"),
        (None, "text does not exist"),
    ],
)
def test_a_text_that_cannot_be_scored_is_refused(
    content: bytes | None, key: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    assert key in runs.refusal(capsys, evaluate, run, "--text", path)
    assert "is a folder" in runs.refusal(capsys, evaluate, run, "--text", tmp_path)


def test_an_unknown_word_without_unk_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = runs.write_corpus(tmp_path / "data")
    for path in data.iterdir():
        path.write_text(re.sub("<unk>|w1?[0-9]|w2[0-9]", "w0", path.read_text()))
    run = runs.train_run(data, tmp_path / "run", "--epochs", "1")
    path = tmp_path / "text"
    path.write_text("w0 w0\nw0 zebra\n")
    problem = runs.refusal(capsys, evaluate, run, "--text", path)
    unknown = ", line 2: .* 'zebra' .* <unk>"
    assert re.fullmatch(f"{path}{unknown}", problem)
    # What a new run could do about it, neither of these can.
    shutil.copy(path, data / "test.txt")
    told = f"{data / 'test.txt'}{unknown}: it is not the text of .*, or vocabulary.txt has changed"
    for command, *given in ((evaluate, run, "--data", data), (train, "--resume", run, "--data", data)):
        assert re.fullmatch(told, runs.refusal(capsys, command, *given))


def test_data_of_another_vocabulary_are_refused(
    run: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(data, tmp_path / "other")
    (other / "train.txt").write_text((data / "train.txt").read_text() + "zebra\n")
    problem = runs.refusal(capsys, evaluate, run, "--data", other)
    assert str(other) in problem
    assert "vocabulary" in problem


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("weights.safetensors", b"", "truncated"),
        ("weights.safetensors", b"text\n" * 100, "truncated"),
        ("weights.safetensors", None, "missing"),
        ("config.json", b"{", "JSON"),
        ("config.json", b"{}", "'config'"),
        ("config.json", None, "config.json is missing"),
        ("vocabulary.txt", b"w1\nw1\n", "one distinct word"),
        ("vocabulary.txt", b"w1\nw2\n", "another vocabulary"),
        ("vocabulary.txt", b"", "another vocabulary"),
        ("vocabulary.txt", None, "missing"),
    ],
)
def test_a_damaged_run_is_refused(
    name: str,
    content: bytes | None,
    problem: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged = shutil.copytree(run, tmp_path / "run")
    (damaged / name).unlink()
    if content is not None:
        (damaged / name).write_bytes(content)
    sentence = runs.refusal(capsys, evaluate, damaged)
    assert problem in sentence
    assert name in sentence
