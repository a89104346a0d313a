"""A run that was imported gives the log-probabilities of the original, computed by the original's library."""

import itertools
import json
import os
import re
import shlex
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import safetensors.torch
import torch
from support import assert_arrays
from torch import Tensor, nn

import ptb_lm
from ptb_lm import compare, evaluate, export, import_run, train
from ptb_lm.common.errors import UserError
from ptb_lm.inference.importing import read_tensors, recognition
from ptb_lm.model.cells.lstm import LSTM
from ptb_lm.model.cells.mogrifier_lstm import MogrifierLSTM
from ptb_lm.training import tensors
from ptb_lm.training.run_directory import RunDirectory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # in Keras
]

WORDS = ["<unk>", *"abcdefghi", "</s>"]
V = len(WORDS)
SENTENCE = "c a b i d b b"
IDS = np.array([V - 1, *map(WORDS.index, SENTENCE.split()), V - 1])
ROWS = np.random.default_rng(1).integers(V, size=(8, 6))
State = dict[str, Any]
LogP = Callable[[np.ndarray], np.ndarray]  # from ids [T] to the log-probabilities [T, V] of what follows each
TRAINING = ["--epochs", "1", "--batch-size", "4", "--num-steps", "5", "--device", "cpu"]


class WeightDrop(nn.Module):
    """AWD-LSTM's: the recurrent weights have another name, and some of them are dropped in each window."""

    def __init__(self, module: nn.LSTM) -> None:
        super().__init__()
        self.module = module
        module.register_parameter("weight_hh_l0_raw", nn.Parameter(module.weight_hh_l0.detach().clone()))

    def forward(self, x_BTI: Tensor) -> tuple[Tensor, Any]:
        weights = {"weight_hh_l0": nn.functional.dropout(self.module.weight_hh_l0_raw, 0.5, self.training)}
        return torch.func.functional_call(self.module, weights, (x_BTI,))


class Original(nn.Sequential):
    """An embedding, layers and a softmax; layers are a module of torch, or a ModuleDict of several."""

    def forward(self, x_BT: Tensor) -> Tensor:
        embedding, layers, softmax = self
        x_BTN = embedding(x_BT)
        for layer in layers.values() if isinstance(layers, nn.ModuleDict) else [layers]:
            x_BTN, _ = layer(x_BTN)
        return softmax(x_BTN)


def original(names: Sequence[str], *parts: nn.Module, tied: bool = False) -> Original:
    if tied:
        parts[2].weight = parts[0].weight
    return Original(OrderedDict(zip(names, parts, strict=True)))


def word_language_model(
    rnn: type[nn.RNNBase] = nn.LSTM, width: int = 5, *, tied: bool = False, **more: Any
) -> Original:
    """Return the model of PyTorch's examples."""
    return original(
        ("encoder", "rnn", "decoder"),
        nn.Embedding(V, width),
        rnn(width, 6, 2, batch_first=True, **more),
        nn.Linear(6, V),
        tied=tied,
    )


def stack(sizes: Sequence[int], names: Sequence[str], *, tied: bool = False) -> Original:
    """Return a model with a module for each layer: AWD-LSTM if it is tied; else the softmax has no bias."""
    layers = (nn.LSTM(*each, batch_first=True) for each in itertools.pairwise(sizes))
    numbered = {str(n): WeightDrop(layer) if tied else layer for n, layer in enumerate(layers, 8)}
    return original(
        names,
        nn.Embedding(V, sizes[0]),
        nn.ModuleDict(numbered),
        nn.Linear(sizes[-1], V, bias=tied),
        tied=tied,
    )


def save_torch(path: Path, model: nn.Module, change: Callable[[State], State] = dict) -> LogP:
    """Draw a model's weights and save its state, changed or not; return what it says."""
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -2, 2)
    state = model.eval().state_dict()
    assert all(value.all() for name, value in state.items() if "bias" in name)
    (safetensors.torch.save_file if path.suffix == ".safetensors" else torch.save)(change(state), path)
    return lambda ids: model(torch.from_numpy(ids)[None])[0].detach().double().log_softmax(-1).numpy()


def save_keras(
    path: Path,
    cell: str,
    *,
    units: int = 6,
    softmax: State | None = None,
    names: Sequence[str | None] = (None, None),
    **more: Any,
) -> LogP:
    """Save a model of Keras that was moved from where it began; return what it says."""
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(1)
    layers = (getattr(keras.layers, cell)(units, return_sequences=True, name=name, **more) for name in names)
    model = keras.Sequential(
        [keras.layers.Embedding(V, 5), *layers, keras.layers.Dense(V, **(softmax or {}))],
        name="sequential_2",
    )
    model(ROWS)
    if path.suffixes[0] in (".keras", ".h5"):  # which hold an optimizer's state, too
        model.compile(  # a graph takes longer than it saves
            keras.optimizers.Adam(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=True,
        )
        model.fit(ROWS[:, :-1], ROWS[:, 1:], verbose=0)
    rng = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(weight + rng.uniform(-1, 1, weight.shape))
    arrays = {weight.path: np.array(weight) for weight in model.weights}
    {".npz": lambda path: np.savez(path, **arrays), ".weights": model.save_weights}.get(
        path.suffixes[0], model.save
    )(path)
    return lambda ids: torch.tensor(np.array(model(ids[None]))[0]).double().log_softmax(-1).numpy()


def checkpoint(state: State) -> State:
    return {
        "epoch": 3,
        "loss": torch.tensor(0.5),
        "losses": torch.tensor([0.75, 0.5]),
        "model": {f"module.{name}": value for name, value in state.items()},
        "optimizer": {},
    }


def without(*names: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name not in names}


SOURCES: dict[str, Callable[[Path], LogP]] = {
    "word_language_model.pt": lambda path: save_torch(path, word_language_model()),
    "gru.pt": lambda path: save_torch(path, word_language_model(nn.GRU)),
    "checkpoint.pt": lambda path: save_torch(path, word_language_model(width=6, tied=True), checkpoint),
    "tied.safetensors": lambda path: save_torch(
        path, word_language_model(width=6, tied=True), without("decoder.weight")
    ),
    # What dropout has left of the recurrent weights comes after the raw ones, as fastai has it.
    "awd_lstm.pt": lambda path: save_torch(
        path,
        stack([4, 7, 6, 4], ("encoder", "rnns", "decoder"), tied=True),
        lambda state: dict(reversed(state.items())),
    ),
    # Sorted as text, layer 10 comes before layer 2.
    "own_modules.safetensors": lambda path: save_torch(path, stack([3] * 4, ("word_emb", "steps", "out"))),
    "lstm.keras": lambda path: save_keras(path, "LSTM"),
    "gru.weights.h5": lambda path: save_keras(path, "GRU"),
    "lstm.weights.h5": lambda path: save_keras(path, "LSTM", use_bias=False),
    "lstm.h5": lambda path: save_keras(path, "LSTM", softmax={"activation": "linear"}),
    # The first layer has no number but its model's; a layer's number may not be its place.
    "no_number.h5": lambda path: save_keras(path, "LSTM", units=5, names=("lstm", "lstm_1")),
    "no_number.npz": lambda path: save_keras(path, "GRU", units=5, names=("gru", "gru_1")),
    "other_numbers.h5": lambda path: save_keras(path, "LSTM", units=5, names=("rnn_1", "rnn_0")),
    "own_names.h5": lambda path: save_keras(path, "LSTM", units=5, names=("z_first", "a_second")),
    # A square kernel has no bias beside it that tells its axes.
    "square.weights.h5": lambda path: save_keras(path, "LSTM", units=V, softmax={"use_bias": False}),
    "gru.npz": lambda path: save_keras(path, "GRU"),
    # The names of one layer and of the embedding begin as a run's do.
    "embedding.pt": lambda path: save_torch(
        path,
        stack([3, 3], ("embedding", "lstm", "out")),
        lambda state: {
            name.replace("embedding.weight", "embedding").replace(".8", ""): value
            for name, value in state.items()
        },
    ),
    # The model of the run, block_fused, does not compute the new cell.
    "a run": lambda path: save_torch(
        runs.write_run(path, WORDS, model="block_fused") / "weights.safetensors", word_language_model(nn.GRU)
    ),
}


def given(file: Path, words: Sequence[str] = WORDS) -> list[str | Path]:
    """Return the arguments that make a run of a file in the folder `run` beside it."""
    vocabulary = file.with_name("words.txt")
    vocabulary.write_text("".join(f"{word}\n" for word in words))
    return [file, "--vocabulary", vocabulary, "--run-dir", file.with_name("run")]


@pytest.mark.parametrize("name", SOURCES)
def test_an_imported_run_scores_as_the_original_does(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    log_p, run = SOURCES[name](tmp_path / name), tmp_path / "run"
    assert runs.run_command(import_run, *given(tmp_path / name)) == 0
    (sentence,) = ptb_lm.load(run, device="cpu").score(SENTENCE).sentences
    expected = log_p(IDS[:-1])[range(len(IDS) - 1), IDS[1:]]
    assert np.ptp(expected) > 0.5, "the model says nothing that could be lost"
    np.testing.assert_allclose(sentence.log_probabilities, expected, rtol=0, atol=1e-5)


def test_it_is_an_ordinary_run(
    tmp_path: Path, small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its layers are as wide as those of the original."""
    SOURCES["awd_lstm.pt"](tmp_path / "x.pt")
    run, text = tmp_path / "run", tmp_path / "text.txt"
    assert runs.run_command(import_run, *given(tmp_path / "x.pt")) == 0
    told = capsys.readouterr().out
    assert all(each in told for each in ("AWD-LSTM", "7, 6, 4 units", "tied", "</s>", str(run)))
    assert runs.without_checksum((run / "config.json").read_text())["imported"]["path"] == str(
        tmp_path / "x.pt"
    )
    assert not (run / "result.json").exists()
    before = runs.files(run)
    assert "--overwrite" in runs.refusal(capsys, import_run, *given(tmp_path / "x.pt"))
    for command, *flags in (
        (train, "--resume", run),
        (train, "--init-from", run),
        (evaluate, run),
        (compare, run),
    ):
        assert "imported" in runs.refusal(capsys, command, *flags)
    assert runs.files(run) == before

    text.write_text(f"{SENTENCE}\n")
    model, tuned = ptb_lm.load(run), tmp_path / "tuned"
    assert len([*model.generate("a", length=5, seed=1)]) == 5
    for command, *flags in (
        (evaluate, run, "--text", text),
        (evaluate, run, "--data", small_corpus),
        (export, run, "--format", "torchscript", "--out", tmp_path / "model.pt"),
        (train, "--init-from", run, "--data", small_corpus, "--run-dir", tuned, *TRAINING),
    ):
        assert runs.run_command(command, *flags) == 0
    assert f"{text} perplexity {model.perplexity(SENTENCE):.4f}" in capsys.readouterr().out
    assert "state_dict" in runs.refusal(capsys, import_run, *given(tmp_path / "model.pt"))  # TorchScript
    first, last = (tensors.load(each / "weights.safetensors")[0] for each in (run, tuned))
    assert all((last[name] != array).any() for name, array in first.items())
    assert [first[f"lstm.{layer}.recurrent_kernel"].shape[0] for layer in range(3)] == [7, 6, 4]


# What is saved, made of a good state; a key noun of the refusal; the vocabulary.
WRONG: dict[str, tuple[Callable[[State], Any], str, Sequence[str]]] = {
    "a whole model": (lambda state: word_language_model(), "state_dict", WORDS),
    "two models": (lambda state: {"model": state, "average": state}, "one model", WORDS),
    "two directions": (lambda state: word_language_model(bidirectional=True).state_dict(), "_reverse", WORDS),
    "projections": (lambda state: word_language_model(proj_size=3).state_dict(), "weight_hr", WORDS),
    "another cell": (lambda state: word_language_model(nn.RNN).state_dict(), r"weight_hh \(6, 6\)", WORDS),
    "no layers": (
        lambda state: {"encoder.weight": state["encoder.weight"]},
        r"encoder.weight \(11, 5\)",
        WORDS,
    ),
    "a lost bias": (without("rnn.bias_hh_l1"), "bias_hh", WORDS),
    "a lost layer": (
        without(*(f"rnn.{each}_l0" for each in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))),
        r"\(6, 24\), not \(5, 24\)",
        WORDS,
    ),
    "a lost softmax": (without("decoder.weight"), r"\(11, 5\), not \(11, 6\)", WORDS),
    "a tensor more": (lambda state: {**state, "norm.weight": torch.ones(6)}, r"norm.weight.*\(6,\)", WORDS),
    "a number more": (lambda state: {**state, "logit_scale": torch.tensor(3.0)}, r"logit_scale \(\)", WORDS),
    "a number for a table": (
        lambda state: {"embedding": torch.tensor(3.0), "lstm.0.recurrent_kernel": torch.ones(6, 24)},
        r"embedding \(\)",
        WORDS,
    ),
    "a vector for a Mogrifier's gates": (
        lambda state: {
            "embedding": state["encoder.weight"],
            **{
                f"mogrifier_lstm.0.{name}": torch.ones(shape)
                for name, shape in MogrifierLSTM(rounds=1, rank=2).shapes(5, 6).items()
            },
            "mogrifier_lstm.0.x_gates_right": torch.ones(5),
            "softmax.kernel": torch.ones(6, V),
            "softmax.bias": torch.ones(V),
        },
        r"x_gates_right.* \(5,\), not \(1, 2, 5\)",
        WORDS,
    ),
    "a softmax more": (lambda state: {**state, "head.weight": torch.ones(11, 6)}, r"head.weight \(11", WORDS),
    "weights of the classes": (
        lambda state: {**without("decoder.bias")(state), "criterion.weight": torch.ones(11)},
        r"criterion.weight \(11,\)",
        WORDS,
    ),
    "unclear order": (lambda state: {**state, "top.weight_hh_l0": torch.ones(24, 6)}, "top", WORDS),
    "no number": (lambda state: {**state, "decoder.bias": torch.full((11,), torch.nan)}, "finite", WORDS),
    "Keras' older GRU": (
        lambda state: {
            "encoder.weight": state["encoder.weight"],
            "gru/kernel": torch.ones(5, 9),
            "gru/recurrent_kernel": torch.ones(3, 9),
            "gru/bias": torch.ones(9),
        },
        "reset_after",
        WORDS,
    ),
    "square": (
        lambda state: {**without("decoder.weight")(state), "W": torch.ones(11, 11)},
        r"W \(11, 11\)",
        WORDS,
    ),
    "empty": (lambda state: b"", "empty", WORDS),
    "a list": (lambda state: [*state.values()], "list, not the state_dict", WORDS),
    "a tensor": (lambda state: state["encoder.weight"], "Tensor, not the state_dict", WORDS),
    "numbers for names": (lambda state: dict(enumerate(state.values())), "holds 0", WORDS),
    "text": (lambda state: b"text\n" * 9, "text", WORDS),
    "damaged.h5": (lambda state: b"\x89HDF\r\n\x1a\n" + bytes(90), "damaged", WORDS),
    "damaged.safetensors": (lambda state: safetensors.torch.save(state)[:-4], "damaged", WORDS),
    "damaged.keras": (lambda state: b"PK\x03\x04", "damaged", WORDS),
    "too few words": (dict, "11 words .* 10:", WORDS[1:]),
    "too many words": (dict, "11 words .* 12:", [*WORDS, "more"]),
    "too few words for a run": (
        lambda state: {
            "embedding": torch.ones(V, 5),
            **{f"lstm.0.{name}": torch.ones(shape) for name, shape in LSTM().shapes(5, 6).items()},
            "softmax.kernel": torch.ones(6, V),
            "softmax.bias": torch.ones(V),
        },
        "11 words .* 10:",
        WORDS[1:],
    ),
    "no end of a line": (dict, "<eos>", ["x", *WORDS[:-1]]),
    "counts of words": (dict, "<unk> 7", [f"{word} 7" for word in WORDS]),
    "an empty line": (dict, "line 3: it is empty", [*WORDS[:2], " ", *WORDS[2:]]),
    "a word twice": (dict, "'a' more than once", [*WORDS, "a"]),
    "a word twice, with other ends of lines": (dict, "'a' more than once", [*WORDS, "a\r"]),
    "a word twice, after a byte order mark": (dict, "'a' more than once", ["\ufeffa", *WORDS]),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_model_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, noun, words = WRONG[name]
    content, path = change(word_language_model().state_dict()), tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    assert re.search(noun, runs.refusal(capsys, import_run, *given(path, words)))
    assert not (tmp_path / "run").exists()


def test_a_device_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pt").symlink_to("/dev/null")
    assert "is a pipe or a device" in runs.refusal(capsys, import_run, *given(tmp_path / "x.pt"))


def test_what_would_remove_the_weights_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.write_run(tmp_path / "run", WORDS)
    before = runs.files(run)
    for source in ([run], [run / "weights.safetensors", "--vocabulary", run / "vocabulary.txt"]):
        problem = runs.refusal(capsys, import_run, *source, "--run-dir", run, "--overwrite")
        assert problem == f"--overwrite would remove the weights of {run}, which the new run starts from"
    assert runs.files(run) == before
    assert runs.refusal(capsys, import_run, run, "--overwrite") == "--overwrite needs --run-dir"
    assert runs.refusal(capsys, import_run, tmp_path / "gone") == f"{tmp_path / 'gone'} does not exist"


def test_a_run_that_came_while_the_weights_were_read_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, path = runs.write_run(tmp_path / "source", WORDS), tmp_path / "run"
    before, lock = dict[str, bytes](), RunDirectory.lock

    def lock_after_another(directory: RunDirectory) -> AbstractContextManager[None]:
        before.update(runs.files(runs.write_run(path, WORDS)))
        return lock(directory)

    monkeypatch.setattr(RunDirectory, "lock", lock_after_another)
    assert "exists" in runs.refusal(capsys, import_run, source, "--run-dir", path)
    assert {name: runs.files(path)[name] for name in before} == before


@pytest.mark.parametrize("softmax", ["unembed", "de_embedding", "output_embedding", "embed_out"])
def test_a_softmax_that_is_called_like_an_embedding_is_none(softmax: str) -> None:
    """The sentence says what was taken for what."""

    def recognize(*names: str) -> str:
        state = stack([3] * 4, names).state_dict()  # nothing is told by a bias, or a size
        return recognition.recognize({name: value.numpy() for name, value in state.items()}, V)[2]

    told = recognize("token_emb", "steps", softmax)
    assert f"torch.nn (embedding token_emb.weight, softmax {softmax}.weight): " in told
    with pytest.raises(UserError, match="is not clear"):
        recognize("token", "steps", softmax)


def test_what_is_no_floating_point_tensor_is_left_out(tmp_path: Path) -> None:
    arrays = {"words": np.array(WORDS), "counts": np.ones((2, 2), int), "x": np.ones((1, 2), np.float16)}
    np.savez(tmp_path / "x.npz", **arrays)
    assert_arrays(read_tensors(tmp_path / "x.npz"), {"x": np.ones((1, 2), np.float32)})


@pytest.mark.parametrize("ending", [".npz", ".h5"])
def test_bfloat16_is_read_though_numpy_and_hdf5_have_no_name_for_it(ending: str, tmp_path: Path) -> None:
    """As Keras and JAX write it. A table that was left out could leave another model than the file's."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    arrays = {"x": ROWS.astype(bfloat16) / 7, "layers/scale": np.array(0.1, bfloat16)}
    if ending == ".npz":
        np.savez(tmp_path / "x.npz", **arrays)
    else:
        with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
            for name, array in arrays.items():
                file[name] = array
    expected = {name: array.astype(np.float32) for name, array in arrays.items()}
    assert_arrays(read_tensors(tmp_path / f"x{ending}"), expected)


def test_a_number_of_keras_is_a_tensor_unless_it_is_a_metric_s(tmp_path: Path) -> None:
    """As Keras 2 wrote them."""
    arrays = {
        "layers/x": np.ones((1, 2)),
        "layers/scale": np.array(3.0),
        "metrics/mean/vars/0": np.array(0.5),
    }
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = array
    assert read_tensors(tmp_path / "x.h5").keys() == {"layers/x", "layers/scale"}


@pytest.mark.parametrize("ending", [".h5", ".keras"])
@pytest.mark.parametrize("kind", ["external", "virtual"])
def test_a_tensor_that_hdf5_would_read_from_another_file_is_refused(
    kind: str, ending: str, tmp_path: Path
) -> None:
    """A file of weights says nothing of what else is on the machine."""
    h5py = pytest.importorskip("h5py")
    secret, path = tmp_path / "secret", tmp_path / "model.weights.h5"
    with h5py.File(secret, "w") as file:
        file["s"] = np.ones((1, 2), np.float32)
    with h5py.File(path, "w") as file:
        if kind == "external":
            file.create_dataset("x", (1, 2), np.float32, external=[(str(secret), 0, 8)])
        else:
            layout = h5py.VirtualLayout((1, 2), np.float32)
            layout[...] = h5py.VirtualSource(str(secret), "s", (1, 2))
            file.create_virtual_dataset("x", layout)
    if ending == ".keras":
        with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
            archive.write(path, path.name)
            archive.writestr("config.json", "{}")
        path = tmp_path / "model.keras"
    with pytest.raises(UserError, match=r"^the tensor .x. lies in another file, which is not read$"):
        read_tensors(path)


def test_the_end_of_a_file_s_name_may_be_in_capitals(tmp_path: Path) -> None:
    safetensors.torch.save_file({"x": torch.ones(1, 2)}, tmp_path / "X.SAFETENSORS")
    assert_arrays(read_tensors(tmp_path / "X.SAFETENSORS"), {"x": np.ones((1, 2), np.float32)})


@pytest.mark.skipif(sys.platform == "darwin", reason="the file system of macOS has no other names")
@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".npz", ".h5"])
def test_the_name_of_a_file_need_not_be_utf_8(ending: str, tmp_path: Path) -> None:
    plain, path = tmp_path / f"x{ending}", tmp_path / (os.fsdecode(b"\xff") + ending)
    if ending == ".safetensors":
        safetensors.torch.save_file({"x": torch.ones(1, 2)}, plain)
    elif ending == ".pt":
        torch.save({"x": torch.ones(1, 2)}, plain)
    elif ending == ".npz":
        np.savez(plain, x=np.ones((1, 2), np.float32))
    else:
        with pytest.importorskip("h5py").File(plain, "w") as file:
            file["x"] = np.ones((1, 2), np.float32)
    plain.rename(path)
    assert_arrays(read_tensors(path), {"x": np.ones((1, 2), np.float32)})


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_that_memory_for_the_tensors_of_safetensors_is_missing_is_no_panic(tmp_path: Path) -> None:
    """There is enough for the file, and not for its tensors too."""
    resource = pytest.importorskip("resource")
    size, path = 2**28, tmp_path / "x.safetensors"
    header = json.dumps({"x": {"dtype": "F32", "shape": [1, size // 4], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + size * 3 // 2, before[1]))
    try:
        with pytest.raises(MemoryError):
            read_tensors(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_that_h5py_is_missing_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)  # so that importing it fails
    (tmp_path / "x.h5").touch()
    with pytest.raises(UserError, match=r"x\.h5 needs the package h5py.*; pip install h5py$"):
        read_tensors(tmp_path / "x.h5")


def test_white_space_about_a_word_does_not_count(tmp_path: Path) -> None:
    save_torch(tmp_path / "x.pt", word_language_model())
    words = [f"{word} \r" if number % 2 else f"{word}\t" for number, word in enumerate(WORDS)]
    assert runs.run_command(import_run, *given(tmp_path / "x.pt", ["\ufeff" + words[0], *words[1:]])) == 0
    assert ptb_lm.load(tmp_path / "run", device="cpu").vocabulary.words == (*WORDS[:-1], "<eos>")


@pytest.mark.parametrize("word", ["<unk>", "UNK"])
def test_a_vocabulary_without_unk_is_reported(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_torch(tmp_path / "x.pt", word_language_model())
    assert runs.run_command(import_run, *given(tmp_path / "x.pt", [word, *WORDS[1:]])) == 0
    assert (word != "<unk>") == ("<unk>" in capsys.readouterr().out)


def test_the_commands_that_are_named_take_a_folder_that_looks_like_a_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("a b\n")
    run = runs.write_run(tmp_path / "own", ("a", "<eos>", "b"))
    assert runs.run_command(import_run, run, "--run-dir=-x") == 0
    command = re.search(r"next: python -m ptb_lm\.evaluate (.*), or", capsys.readouterr().out)
    assert command is not None
    assert runs.run_command(evaluate, *shlex.split(command[1].replace("FILE", "text"))) == 0


def test_the_words_of_a_run_stay_as_they_are(tmp_path: Path) -> None:
    words = ("a", "<eos>", "\ufeffa", "[UNK]")
    run = runs.write_run(tmp_path / "own", words, data="text")
    assert runs.run_command(import_run, run, "--run-dir", tmp_path / "new") == 0
    assert ptb_lm.load(tmp_path / "new", device="cpu").vocabulary.words == words


def test_the_words_of_a_run_that_were_edited_are_read_as_any_others(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "own", ("a", "<eos>", "b"))
    (run / "vocabulary.txt").write_bytes(b"a\r\n</s>\r\nb\r\n")
    assert runs.run_command(import_run, run, "--run-dir", tmp_path / "new") == 0
    assert ptb_lm.load(tmp_path / "new", device="cpu").vocabulary.words == ("a", "<eos>", "b")


def test_a_file_cannot_steer_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"encoder.weight": "enc\x1b[2J.weight"}
    save_torch(
        tmp_path / "x.pt",
        word_language_model(),
        lambda state: {names.get(name, name): value for name, value in state.items()},
    )
    terminal = runs.Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert runs.run_command(import_run, *given(tmp_path / "x.pt", WORDS)) == 0
    assert "\\x1b[2J" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize(
    "layers", [{"recurrent_activation": "relu"}, {"softmax": {"activation": "relu"}}], ids=str
)
def test_a_layer_of_keras_that_computes_something_else_is_refused(
    layers: State, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_keras(tmp_path / "x.keras", "LSTM", **layers)
    assert "relu" in runs.refusal(capsys, import_run, *given(tmp_path / "x.keras"))


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_layer_of_keras_that_a_run_does_not_have_is_refused(ending: str, tmp_path: Path) -> None:
    """Also an operator, and a state that a layer is given. What masks word 0 is taken."""
    keras = pytest.importorskip("keras")
    layers, path = keras.layers, tmp_path / f"model{ending}"
    words_BT = layers.Input([None], dtype="int32")
    x_BTE = layers.Embedding(V, 6, mask_zero=True)(words_BT)
    h_BTH, *state = layers.LSTM(6, return_sequences=True, return_state=True)(x_BTE)
    shared = layers.LSTM(6, return_sequences=True)
    given, problem = {"return_sequences": True, "name": "above"}, "above is given its initial state"
    for refused, output in (
        ("", h_BTH),
        ("ReLU", layers.ReLU()(h_BTH)),
        ("Add", x_BTE + h_BTH),
        ("axis=1", layers.Softmax(axis=1)(h_BTH)),
        ("go_backwards=True", layers.RNN(layers.LSTMCell(6), True, go_backwards=True)(x_BTE)),
        ("is used twice", shared(shared(x_BTE))),
        (problem, layers.LSTM(6, **given)(h_BTH, initial_state=state)),
        (problem, layers.LSTM(6, **given)(h_BTH, state)),  # which is written otherwise
        (problem, layers.GRU(6, **given)(h_BTH, initial_state=state[0])),
        (problem, layers.RNN(layers.LSTMCell(6), **given)(h_BTH, initial_state=state)),
    ):
        keras.Model(words_BT, layers.Dense(V)(output)).save(path)
        if not refused:
            assert len(read_tensors(path)) == 6
            continue
        with pytest.raises(UserError, match=refused):
            read_tensors(path)


@pytest.mark.parametrize("ending", [".keras", ".h5"])
def test_a_softmax_of_keras_is_the_last_layer(ending: str, tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    layers = keras.layers

    def read(*tops: Any, functional: bool = True) -> int:
        below = [layers.Embedding(V, 6), layers.LSTM(6, return_sequences=True)]
        model = keras.Sequential([*below, *tops])
        if functional:
            words_BT = layers.Input([None], dtype="int32")
            output = words_BT
            for layer in (*below, *tops):
                output = layer(output)
            model = keras.Model(words_BT, output)
        model(ROWS)
        model.save(tmp_path / f"model{ending}")
        return len(read_tensors(tmp_path / f"model{ending}"))

    def softmax() -> Any:
        return layers.Dense(V, activation="softmax")

    for functional in (True, False):
        for tops in (
            [softmax()],
            [layers.Dense(V), layers.Softmax()],
            [layers.Dense(V), layers.Activation("softmax"), layers.Activation("linear")],
            [layers.TimeDistributed(softmax()), layers.Dropout(0.5)],
            [layers.Dropout(0.5), keras.Sequential([layers.Dense(V), layers.Softmax()])],
        ):
            assert read(*tops, functional=functional) == 6
        for tops in (
            [softmax(), layers.Softmax()],
            [layers.TimeDistributed(softmax()), layers.Activation("softmax")],
            [layers.Activation("softmax"), layers.Dropout(0.5), layers.Dense(V)],
            [layers.Softmax(), layers.TimeDistributed(layers.Dense(V))],
            [keras.Sequential([softmax(), layers.Softmax()])],
        ):
            with pytest.raises(UserError, match="softmax before the last layer"):
                read(*tops, functional=functional)


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ([[["x", 0, 0, {}]]], "holds 0"),
        ([["x", 0, 0, {"y": 0}]], "holds 0"),  # of an operator
        ([[["x", 0, 0, {}], ["h", 0, 0, {}], ["c", 0, 0, {}]]], "initial state"),
        ([[["x", 0, 0, {}]], [["y", 0, 0, {}]]], "used twice"),
    ],
    ids=str,
)
def test_what_a_layer_of_keras_2_is_called_with_is_checked(
    nodes: list[Any], problem: str, tmp_path: Path
) -> None:
    layer = {"class_name": "LSTM", "name": "lstm", "config": {"name": "lstm"}, "inbound_nodes": nodes}
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Functional", "config": {"layers": [layer]}})
    with pytest.raises(UserError, match=problem):
        read_tensors(tmp_path / "x.h5")


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ({"class_name": "ReLU", "config": {"name": "relu_1"}}, "relu_1: ReLU"),
        (
            {"class_name": "TFOpLambda", "config": {"name": "add", "function": "__operators__.add"}},
            "add: TFOpLambda function='__operators__.add'",
        ),
        ({"class_name": "TFOpLambda", "config": {"name": "mask", "function": "math.not_equal"}}, "holds 0"),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_name", [False, True])
def test_a_layer_of_an_older_keras_is_refused(
    layer: State, problem: str, has_name: bool, tmp_path: Path
) -> None:
    """As it described a Sequential: by a list, and later by an object."""
    config = {"name": "model", "layers": [layer]} if has_name else [layer]
    with pytest.importorskip("h5py").File(tmp_path / "x.h5", "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": config})
    with pytest.raises(UserError, match=f"{re.escape(problem)}$"):
        read_tensors(tmp_path / "x.h5")


@pytest.mark.parametrize(
    "flags",
    [
        ["--cell", "gru"],
        ["--tie-weights"],
        ["--cell", "layer_norm_lstm", "--model", "basic"],
        ["--cell", "mogrifier_lstm", "--mogrifier-rounds", "3", "--mogrifier-rank", "2", "--model", "basic"],
    ],
    ids=str,
)
def test_weights_that_were_changed_on_purpose_become_a_run(
    flags: list[str], tmp_path: Path, small_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal names the command. The settings and the text of the run are kept."""
    run, new = (
        runs.train_run(small_corpus, tmp_path / "run", *TRAINING, "--keep-prob", "0.75", *flags),
        tmp_path / "new",
    )
    with safetensors.safe_open(run / "weights.safetensors", framework="pt") as file:
        headers = (file.metadata(), None)  # of the run, and as another program writes it
        edited = {name: 1.5 * file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for header in headers:
        safetensors.torch.save_file(edited, run / "weights.safetensors", header)
        assert f"ptb-lm import {run}" in runs.refusal(capsys, evaluate, run)
    assert runs.run_command(import_run, run, "--run-dir", new) == 0
    assert_arrays(tensors.load(new / "weights.safetensors")[0], edited)
    before, after = (runs.without_checksum((each / "config.json").read_text()) for each in (run, new))
    assert after.pop("imported")
    assert after == before
    assert runs.run_command(evaluate, new) == 0
