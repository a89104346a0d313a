"""Numbers, names and files at the edge: one sentence, and soon."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import runs

from ptb_lm import evaluate, train
from ptb_lm.common import host, streams
from ptb_lm.common.errors import DivergenceError, OutOfMemoryError, UserError
from ptb_lm.data import text, text_file
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import parameters
from ptb_lm.model.presets import SMALL
from ptb_lm.training import evaluation, tensors
from ptb_lm.training.run_directory import RunDirectory


def test_a_learning_rate_beyond_a_float_is_refused() -> None:
    for epochs in (13, 99):  # beyond a double, too
        with pytest.raises(UserError, match=rf"--lr-decay 1e\+30 .*epoch {epochs} "):
            SMALL.replace(lr_decay=1e30, epochs=epochs)
    assert SMALL.replace(lr_decay=1e30, epochs=5).learning_rate_at(4) == 1e30
    assert SMALL.replace(lr_decay=0.5, epochs=2**31 - 1).learning_rate_at(2**31 - 2) == 0.0


@pytest.mark.parametrize(
    "sizes",
    [{"num_layers": 1000, "hidden_size": 60_000}, {"hidden_size": 2**31 - 1}],
)
def test_a_model_beyond_the_memory_is_refused_before_anything_is_built(sizes: dict[str, int]) -> None:
    with pytest.raises(
        OutOfMemoryError, match=rf"weights .*\d.*iB, .* {host.format_size(host.memory_limit())}\)"
    ):
        parameters.check_fits(SMALL.replace(**sizes), 10_000)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3, 7])
def test_the_counted_parameters_are_those_that_are_built(
    layers: int, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SMALL.replace(num_layers=layers, hidden_size=300, tie_weights=tied)
    needed = 4 * parameters.count_scalars(parameters.draw_initial(config, 99, seed=1))
    monkeypatch.setattr(host, "memory_limit", lambda: needed)
    parameters.check_fits(config, 99)
    monkeypatch.setattr(host, "memory_limit", lambda: needed - 1)
    with pytest.raises(OutOfMemoryError):
        parameters.check_fits(config, 99)


@pytest.mark.parametrize(("value", "problem"), [(np.nan, "number"), (np.inf, "overflows")])
def test_a_perplexity_that_is_not_finite_is_no_result(value: float, problem: str) -> None:
    with pytest.raises(DivergenceError, match=f"perplexity of x .*{problem}"):
        evaluation.check_finite(value, "x")
    assert evaluation.check_finite(3.0, "x") == 3.0


@pytest.mark.slow
@pytest.mark.parametrize(("value", "problem"), [(np.nan, "number"), (1e30, "overflows")])
def test_evaluate_fails_where_there_is_no_perplexity(
    value: float, problem: str, plain_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights have no hash, as they were written before."""
    run = shutil.copytree(plain_run, tmp_path / "run")
    arrays, metadata = tensors.load(run / "weights.safetensors")
    arrays["softmax.bias"][1] = value
    tensors.save(run / "weights.safetensors", arrays, metadata)
    assert problem in runs.refusal(capsys, evaluate, run, status=1)


# Text.


def test_a_text_without_a_space_is_read_in_linear_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: of a word of 400 pieces, each was copied 200 times on average."""
    monkeypatch.setattr(text_file, "CHUNK_BYTES", 1000)
    path = tmp_path / "text"
    path.write_bytes(b"a b\n" + b"c" * 400_000 + b" d")
    copied = 0

    class Counted(str):
        def __getitem__(self, part: slice) -> "Counted":  # type: ignore[override]
            nonlocal copied
            found = Counted(super().__getitem__(part))
            copied += len(found)
            return found

    decoded = text_file._decode
    monkeypatch.setattr(text_file, "_decode", lambda path: map(Counted, decoded(path)))
    vocabulary, ids = text.build_vocabulary(text_file.TextSlice(path))
    assert [vocabulary.words[index] for index in ids] == ["a", "b", "<eos>", "c" * 400_000, "d", "<eos>"]
    assert copied < 3 * 400_000


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
def test_an_error_while_a_file_is_read_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a broken disk has no name of its own."""

    def broken(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = RunDirectory(tmp_path)
    unreadable = Path("/proc/self/mem")  # a file that cannot be read from its beginning
    monkeypatch.setattr(Path, "read_bytes", broken)
    for path, read in (
        (directory.config_path, directory.read_config),
        (directory.metrics_path, directory.read_metrics),
        (directory.vocabulary_path, lambda: Vocabulary.load(directory.vocabulary_path)),
        (unreadable, lambda: text.build_vocabulary(text_file.TextSlice(unreadable))),
    ):
        with pytest.raises(OSError, match="Input/output error") as caught:
            read()
        assert caught.value.filename == str(path)


# What is said.


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\x9b2J \u202eabc", "\\x9b2J \\u202eabc"),
        ("ü — 漢字 €", "ü — 漢字 €"),
        ("a\udc80", "a\\udc80"),
        ("a\uffff", "a\\uffff"),
    ],
)
def test_control_characters_are_made_visible(
    said: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert streams.escape_controls(said) == shown
    streams.print_to_stderr(said)
    assert capsys.readouterr().err == f"{shown}\n"


@pytest.mark.slow
def test_a_path_that_is_no_text_is_said_in_any_encoding(data: Path, tmp_path: Path) -> None:
    run = tmp_path / os.fsdecode(b"run-\xff-\xc3\xbc")
    data = shutil.copytree(data, tmp_path / os.fsdecode(b"data-\xff"))
    # In each encoding trained, and refused because it is there.
    program = """
import shutil, sys
from ptb_lm import train
for encoding in ("ascii", "latin-1", "utf-8"):
    sys.stdout.reconfigure(encoding=encoding, errors="strict")
    sys.stderr.reconfigure(encoding=encoding, errors="backslashreplace")  # as Python starts it
    print([train.main(sys.argv[2:]) for _ in range(2)], "ends")
    if encoding != "utf-8":
        shutil.rmtree(sys.argv[1])
"""
    command = [sys.executable, "-c", program, run, *runs.arguments(data, run, "--epochs", "1")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    *said, rest = done.stdout.split(b"[0, 2] ends\n")
    assert (len(said), rest) == (3, b"")
    for each in said:
        for name in (b"run-\\udcff-", b"data-\\udcff"):
            assert name in each
    refusals = done.stderr.splitlines()
    assert len(refusals) == 3
    assert all(b"run-\\udcff-" in refusal for refusal in refusals)
    assert runs.result(run)["epochs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "problem"),
    [({"num_layers": 10**6, "hidden_size": 16}, "--num-layers"), ({"embedding_size": 10**5}, "differ")],
)
def test_no_model_is_built_of_a_config_json_that_is_not_the_runs(
    sizes: dict[str, int],
    problem: str,
    plain_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = shutil.copytree(plain_run, tmp_path / "run")
    runs.change(run / "config.json", lambda config: config["hyperparameters"].update(sizes))
    monkeypatch.setattr(parameters, "draw_initial", lambda *_, **__: pytest.fail("weights are drawn"))
    assert problem in runs.refusal(capsys, train, "--resume", run)
