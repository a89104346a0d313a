"""An exported model gives what the reference gives, in the program that it was exported for."""

import importlib.util
import json
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import runs
from support import ROOT, random_weights

import ptb_lm
from ptb_lm import export
from ptb_lm.common.errors import OutOfMemoryError, UserError
from ptb_lm.data.preparation import SPACE
from ptb_lm.export import write_model
from ptb_lm.model import parameters, reference
from ptb_lm.model.presets import SMALL
from ptb_lm.training import tensors
from ptb_lm.training.run_directory import RunDirectory

torch = pytest.importorskip("torch")

from ptb_lm.inference import torch_module  # noqa: E402

pytestmark = pytest.mark.slow

WORDS = ("a", "<eos>", *"bcdefghij", "<unk>")
SIZES: dict[str, dict[str, Any]] = {
    "untied": {"embedding_size": 5, "num_layers": 3, "hidden_size": 6},
    "tied": {"tie_weights": True, "hidden_size": 6},
    # What is written has layers of the widest one's units, of which some are zero.
    "widths, tied": {"layer_sizes": (4, 6, 5), "tie_weights": True},
}
SHAPES = [(1, 1), (4, 1), (1, 9), (3, 5), (2, 40)]  # batch, time
# With its scope, without which each test would have a run of its own.
untied_alone = pytest.mark.parametrize("run", ["untied"], indirect=True, scope="module")
Call = Callable[[np.ndarray, np.ndarray, np.ndarray], list[np.ndarray]]


@pytest.fixture(scope="module", params=SIZES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights are random ones, biases too."""
    folder = tmp_path_factory.mktemp(f"export {request.param}")
    return runs.write_run(folder / "run", WORDS, **SIZES[request.param])


def run_export(run: Path, path: Path, *flags: str) -> Path:
    assert runs.run_command(export, run, "--out", path, *flags) == 0
    return path


def reference_outputs(
    run: Path, words_BT: np.ndarray, h_LBH: np.ndarray, c_LBH: np.ndarray
) -> list[np.ndarray]:
    """By the NumPy reference, in float64: log-probabilities, then h and c after of each layer's own units."""
    weights, _ = tensors.load(run / "weights.safetensors")
    weights = {name: array.astype(np.float64) for name, array in weights.items()}
    h, c = (own_units(weights, state_LBH.astype(np.float64)) for state_LBH in (h_LBH, c_LBH))
    after, log_p_BTV = reference.log_probabilities(weights, words_BT, list(zip(h, c, strict=True)))
    return [log_p_BTV, *(h_BH for h_BH, _ in after), *(c_BH for _, c_BH in after)]


def own_units(weights: Mapping[str, np.ndarray], state_LBH: np.ndarray) -> list[np.ndarray]:
    """The state of each layer, without the units that it has been widened by."""
    sizes = [len(weights[f"lstm.{layer}.recurrent_kernel"]) for layer in range(len(state_LBH))]
    return [state_BH[:, :size] for state_BH, size in zip(state_LBH, sizes, strict=True)]


def check(run: Path, call: Call, shapes: list[tuple[int, int]]) -> None:
    """Compare with the plain module at all shapes, and with the reference at the small ones."""
    config, vocabulary, weights = RunDirectory(run).read_model()
    module = torch_module.to_torch(config.hyperparameters, weights)
    layers, hidden = config.hyperparameters.num_layers, max(config.hyperparameters.hidden_sizes)
    for batch, time in shapes:
        rng = np.random.default_rng(time)
        words_BT = rng.integers(len(vocabulary), size=(batch, time))
        h_LBH, c_LBH = rng.uniform(-1, 1, (2, layers, batch, hidden)).astype(np.float32)
        found = call(words_BT, h_LBH, c_LBH)
        with torch.no_grad():
            logits, state = module(torch.tensor(words_BT), (torch.tensor(h_LBH), torch.tensor(c_LBH)))
        for ours, theirs in zip(found, (logits, *state), strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-5, atol=2e-6)
        if batch * time <= 4:
            log_p_BTV = reference.log_softmax(found[0].astype(np.float64))
            after = [own for state_LBH in found[1:] for own in own_units(weights, state_LBH)]
            for ours, theirs in zip(
                [log_p_BTV, *after], reference_outputs(run, words_BT, h_LBH, c_LBH), strict=True
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def vocabulary_of(run: Path) -> list[str]:
    return (run / "vocabulary.txt").read_text().splitlines()


def onnx_session(path: Path) -> tuple[Any, Call]:
    runtime = pytest.importorskip("onnxruntime", reason="an ONNX file is run by onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def call(words_BT: np.ndarray, h_LBH: np.ndarray, c_LBH: np.ndarray) -> list[np.ndarray]:
        arrays: list[np.ndarray] = session.run(None, {"words": words_BT, "h": h_LBH, "c": c_LBH})
        return arrays

    return session, call


def test_onnx_of_a_sequence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    path = run_export(run, tmp_path / "m.onnx", "--format", "onnx")
    layers = json.loads((run / "config.json").read_text())["hyperparameters"]["num_layers"]
    size = len(vocabulary_of(run))
    widened = "; all layers have the units of the widest, by weights of zero" if "widths" in str(run) else ""
    assert capsys.readouterr().out == (
        f"wrote {path}: ONNX, opset 17; words [batch, time], h and c [{layers}, batch, 6] -> logits [batch, "
        f"time, {size}], h and c{widened}\n"
    )
    session, call = onnx_session(path)
    assert [(each.name, each.shape, each.type) for each in session.get_inputs()] == [
        ("words", ["batch", "time"], "tensor(int64)"),
        ("h", [layers, "batch", 6], "tensor(float)"),
        ("c", [layers, "batch", 6], "tensor(float)"),
    ]
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("logits", ["batch", "time", size]),
        ("h_after", [layers, "batch", 6]),
        ("c_after", [layers, "batch", 6]),
    ]
    assert json.loads(session.get_modelmeta().custom_metadata_map["vocabulary"]) == vocabulary_of(run)
    (opset,) = onnx.load(path).opset_import
    assert (opset.domain, opset.version) == ("", 17)
    check(run, call, SHAPES)


def test_onnx_of_one_step(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    session, call = onnx_session(run_export(run, tmp_path / "m.onnx", "--format", "onnx", "--steps", "1"))
    assert session.get_inputs()[0].shape == ["batch", 1]
    check(run, call, [shape for shape in SHAPES if shape[1] == 1])
    with pytest.raises(Exception, match="invalid dimensions"):
        check(run, call, [(1, 2)])


def test_torchscript(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_export(run, tmp_path / "m.pt", "--format", "torchscript")
    check_printed_state(capsys.readouterr().out, "time")
    extra = {"vocabulary.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(path, _extra_files=extra)
    assert json.loads(extra["vocabulary.json"]) == vocabulary_of(run)
    check(run, torch_call(module), SHAPES)
    words_BT = torch.tensor([[0, 3, 1], [2, 0, 0]])
    with torch.no_grad():
        alone, zero_LBH = module(words_BT)[0], torch.zeros(module.lstm.num_layers, 2, 6)
        assert torch.equal(alone, module(words_BT, (zero_LBH, zero_LBH))[0])
        with pytest.raises(RuntimeError, match="expected at most 3 argument"):
            module(words_BT, zero_LBH, zero_LBH)


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # of torch 2.11's load
@pytest.mark.parametrize(
    ("run", "flags", "steps"),
    [("untied", [], 1), ("tied", [], 1), ("untied", ["--steps", "5"], 5)],
    indirect=["run"],
    scope="module",
    ids=["one step", "one step, tied", "five steps"],
)
def test_a_program_of_torch_export(
    flags: list[str], steps: int, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_export(run, tmp_path / "m.pt2", "--format", "torch-export", *flags)
    check_printed_state(capsys.readouterr().out, steps)
    extra = {"vocabulary.json": ""}
    module = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["vocabulary.json"]) == vocabulary_of(run)
    check(run, torch_call(module), [(batch, steps) for batch in (1, 3, 4)])


def check_printed_state(printed: str, time: object) -> None:
    """Check that the line that export prints says the state as torch takes it: one argument."""
    call = rf"words \[batch, {time}\], \(h, c\) \[\d, batch, 6\] -> logits \[batch, {time}, \d+\], \(h, c\)"
    assert re.search(f"; {call}(; all layers .*)?\n$", printed)


def torch_call(module: Any) -> Call:
    def call(words_BT: np.ndarray, h_LBH: np.ndarray, c_LBH: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            logits, (h, c) = module(torch.tensor(words_BT), (torch.tensor(h_LBH), torch.tensor(c_LBH)))
        return [logits.numpy(), h.numpy(), c.numpy()]

    return call


@untied_alone
def test_a_file_is_replaced_by_overwrite(run: Path, tmp_path: Path) -> None:
    """Without it every command refuses: tests/test_cli.py."""
    path = tmp_path / "m.pt"
    path.write_text("mine")
    before = runs.files(run)
    assert runs.run_command(export, run, "--format", "torchscript", "--out", path, "--overwrite") == 0
    assert path.read_bytes().startswith(b"PK"), "an archive of zip"
    assert runs.files(run) == before


@untied_alone
def test_impossible_flags_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m"
    refused = [
        ([run, "--format", "torchscript", "--steps", "3"], "--steps .* torchscript"),
        ([run, "--format", "onnx", "--steps", "9223372036854775808"], "--steps: .* 2147483647"),
        ([run, "--format", "torch-export", "--steps", "1000000000000"], "--steps: .* 2147483647"),
        ([run, "--format", "pickle"], "--format: .* 'pickle'"),
        ([run], "required: --format"),
        ([tmp_path / "gone", "--format", "torchscript"], "run directory "),
    ]
    for flags, nouns in refused:
        assert re.search(nouns, runs.refusal(capsys, export, *flags, "--out", path))
    missing = tmp_path / "missing" / "m"
    problem = runs.refusal(capsys, export, run, "--format", "torchscript", "--out", missing)
    assert f" {missing}: there is no folder" in problem
    assert not path.exists()


@untied_alone
def test_onnx_without_the_package_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    problem = runs.refusal(capsys, export, run, "--format", "onnx", "--out", tmp_path / "m.onnx")
    assert re.search(r" onnx .* pip install .*\[export\]", problem)


def test_a_model_that_onnx_cannot_hold_is_refused_before_the_work(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    config = SMALL.replace(num_layers=1, hidden_size=1500)
    words = [f"w{number}" for number in range(200_000)]
    # They take no memory here.
    shapes = parameters.shapes(config, len(words))
    weights = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    with pytest.raises(UserError) as caught:
        write_model(tmp_path / "m.onnx", "onnx", config, weights, words, steps=None)
    assert re.search(r" 2\.\d GiB, .* onnx .* 2 GiB; --format torchscript", str(caught.value))
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("layers", [1, 9])
def test_the_size_of_an_onnx_file_is_not_underestimated(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx_graph = pytest.importorskip("ptb_lm.inference.onnx_graph")
    config, words = SMALL.replace(num_layers=layers, hidden_size=3), ["a", "b", "<eos>"]
    drawn = random_weights(config, len(words), seed=1)
    given = config, {name: array.astype(np.float32) for name, array in drawn.items()}, words
    size = len(onnx_graph.model(*given, steps=None).SerializeToString())
    monkeypatch.setattr(onnx_graph, "LARGEST_FILE", size - 1)
    with pytest.raises(UserError, match="--format torchscript"):
        onnx_graph.model(*given, steps=None)


@untied_alone
def test_a_window_that_memory_cannot_hold_is_refused_in_a_sentence(run: Path) -> None:
    model = ptb_lm.load(run)
    with pytest.raises(OutOfMemoryError, match="time steps"):
        torch_module.to_program(model.to_torch(), model.vocabulary.words, steps=10**13)


@pytest.mark.parametrize(
    ("module", "name"), [(torch_module, "state_dict"), (torch.jit, "script")], ids=["to_torch", "torchscript"]
)
@untied_alone
def test_too_little_memory_is_a_sentence(
    module: ModuleType,
    name: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, name, lambda *_: torch.empty(1 << 60))
    problem = runs.refusal(capsys, export, run, "--format", "torchscript", "--out", tmp_path / "m.pt")
    assert "not enough memory" in problem


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The file examples/exported_model.py."""
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    spec = importlib.util.spec_from_file_location("exported_model", ROOT / "examples" / "exported_model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_reads_a_sentence_as_the_run_does(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By characters: by words, each of these would be one unknown word."""
    words = ("a", "<eos>", "b", "<unk>", SPACE)
    run = runs.write_run(tmp_path / "run", words, data="text", tokenize="characters")
    texts = ["ab ba", "", "b\fa\u2028a", "baz"]  # str.splitlines would cut one of them
    sentences = tmp_path / "sentences"
    sentences.write_text("\n".join(texts))
    assert runs.run_command(example, run, sentences) == 0
    header, *rows, summary = capsys.readouterr().out.removesuffix("\n").split("\n")
    assert header == "onnxruntime\tptb_lm\tsentence"
    for row, sentence, scored in zip(rows, texts, ptb_lm.load(run).score(texts), strict=True):
        exported, own, shown = row.split("\t")
        assert shown == sentence
        for number in (exported, own):
            assert float(number) == pytest.approx(scored.total, abs=1e-3)
    assert summary == "the largest difference is below 0.001 nats"


def test_the_example_takes_the_demonstration_run(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sentences").write_text("the judge sues the court\n")
    assert runs.run_command(example, "demo", "sentences") == 0
    _, row, _ = capsys.readouterr().out.splitlines()
    exported, *_ = row.split("\t")
    (scored,) = ptb_lm.load("demo").score(["the judge sues the court"])
    assert float(exported) == pytest.approx(scored.total, abs=1e-3)


def test_the_example_refuses_a_word_that_the_model_cannot_read(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runs.write_run(tmp_path / "run", ("a", "<eos>"))
    (tmp_path / "sentences").write_text("a\na zebra\n")
    problem = runs.refusal(capsys, example, run, tmp_path / "sentences")
    assert re.match("line 2: .* 'zebra' .* <unk>", problem)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\nb é\n".encode("latin-1"), ", line 2: byte 0xe9 is not UTF-8"),
        (b"", " is empty"),
    ],
)
def test_the_example_refuses_what_is_no_text(
    content: bytes,
    problem: str,
    example: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, sentences = tmp_path / "run", tmp_path / "sentences"
    sentences.write_bytes(content)
    assert runs.refusal(capsys, example, run, sentences).startswith(f"{sentences}{problem}")
    problem = "the following arguments are required: sentences (see --help)"
    assert runs.refusal(capsys, example, run) == problem


def test_the_example_ends_as_export_does(
    example: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = runs.write_run(tmp_path / "run", ("a", "<eos>"), cell="gru")
    sentences = tmp_path / "sentences"
    sentences.write_text("a\n")
    assert runs.run_command(example, run, sentences) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"{export.PROG}: ")
    assert "cell gru" in err


def test_the_example_says_that_onnxruntime_is_not_installed(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # so that importing it fails
    problem = runs.refusal(capsys, example, tmp_path / "run", tmp_path / "sentences")
    assert re.match(r"onnxruntime .* pip install .*\[export\]", problem)
