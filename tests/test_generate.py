"""The commands that write, predict and compare words."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest
import runs
from support import ROOT

import ptb_lm
from ptb_lm import evaluate, generate, neighbours, predict
from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.pages.plots import letters_of_any_font

WORDS = ("a", "<eos>", "b", "<unk>", "$", "d", "e")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("generate") / "run", WORDS)


@pytest.fixture(scope="module")
def without_unk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("a", "<eos>", "b", "c", "d", "e")
    return runs.write_run(tmp_path_factory.mktemp("generate") / "run", words)


@pytest.fixture(scope="module")
def model(run: Path) -> LanguageModel:
    return ptb_lm.load(run)


def run_quietly(capsys: pytest.CaptureFixture[str], *given: object) -> str:
    """Run a command without a word on stderr; return what it prints."""
    capsys.readouterr()
    command, *flags = given
    assert runs.run_command(command, *flags) == 0  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_prompt_cannot_steer_a_terminal(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = runs.Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    assert runs.run_command(generate, run, "--prompt", "a \x1b[31m\nb", "--length", 1) == 0
    assert terminal.getvalue().startswith("a \\x1b[31m\nb")


def test_a_text_is_its_prompt_and_the_words_that_follow(
    run: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    for prompt in ("", "a b", "a b "):
        words = list(model.generate(prompt, seed=5))
        assert run_quietly(capsys, generate, run, "--prompt", prompt, "--seed", 5) == (
            " ".join([*prompt.split(), *words]) + "\n"
        )
    words = list(model.generate("a", 40, seed=5, top_k=6, top_p=0.97, temperature=1.5, unk=True))
    assert {"<eos>", "<unk>"} < set(words)
    text = run_quietly(
        capsys,
        *[generate, run, "--prompt", "a", "--length", 40, "--seed", 5],
        *["--top-k", 6, "--top-p", 0.97, "--temperature", 1.5, "--unk"],
    )
    assert text.replace("\n", " <eos> ").split()[:41] == ["a", *words]
    assert text.endswith("\n")


def test_several_texts_differ_and_come_again_with_their_seed(
    run: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_quietly(capsys, generate, run, "--count", 20, "--seed", 1)
    generator = np.random.default_rng(1)
    texts = [" ".join(model.generate(seed=generator)) + "\n" for _ in range(20)]
    assert text == "\n".join(texts)  # with an empty line between them
    assert len(set(text.splitlines())) > 5
    assert run_quietly(capsys, generate, run, "--count", 20, "--seed", 1) == text
    assert run_quietly(capsys, generate, run, "--count", 20, "--seed", 2) != text


def test_predictions_are_a_table(run: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    for prefix, k in (("", 7), ("a b", 2)):
        rows = [line.split("\t") for line in run_quietly(capsys, predict, run, prefix, "-k", k).splitlines()]
        expected = model.predict(prefix, k)
        assert [word for _, word in rows] == [word for word, _ in expected]
        np.testing.assert_allclose([float(p) for p, _ in rows], [p for _, p in expected], atol=1e-6)


def test_neighbours_are_a_table(run: Path, model: LanguageModel, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split("\t") for line in run_quietly(capsys, neighbours, run, "b", "-k", 3).splitlines()]
    expected = model.nearest("b", 3)
    assert [word for _, word in rows] == [word for word, _ in expected]
    np.testing.assert_allclose([float(c) for c, _ in rows], [c for _, c in expected], atol=1e-6)


def test_by_default_no_more_words_are_asked_for_than_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = runs.write_run(tmp_path / "few", ("a", "<eos>", "b"))
    for command, flags, count in ((predict, [], 3), (neighbours, ["a"], 2)):
        assert len(run_quietly(capsys, command, few, *flags).splitlines()) == count
        problem = runs.refusal(capsys, command, few, *flags, "-k", count + 1)
        assert re.match(f"k .* 1 to {count},", problem)
    many = runs.write_run(tmp_path / "many", ("<eos>", *(f"w{number}" for number in range(20))))
    for command, flags, count in ((predict, [], 5), (neighbours, ["w1"], 10)):
        assert len(run_quietly(capsys, command, many, *flags).splitlines()) == count


@pytest.mark.parametrize("command", [generate, predict])
def test_unknown_words_are_told(
    command: object, run: Path, without_unk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompt", "a zebra\nquagga zebra"] if command is generate else ["a zebra\nquagga zebra"]
    assert runs.run_command(command, run, *flags) == 0  # type: ignore[arg-type]
    told = runs.sentence(capsys.readouterr().err, command)  # type: ignore[arg-type]
    assert told.endswith("<unk>: zebra, quagga")
    problem = runs.refusal(capsys, command, without_unk, *flags)  # type: ignore[arg-type]
    assert re.search("'zebra' .* <unk>", problem)


@pytest.mark.parametrize(
    ("command", "flags", "nouns"),
    [
        (predict, ["zebra", "-k", 8], "k must .* 1 to 7,"),
        (predict, ["a", "-k", "many"], "argument -k: "),
        (generate, ["--top-k", 8], "top-k must .* 1 to 7,"),
        (generate, ["--top-p", 1.5], "top-p .* 0 .* 1.5"),
        (generate, ["--temperature", -1], "temperature"),
        (generate, ["--length", 0], "argument --length: "),
        (generate, ["--temperature", 0, "--seed", 1], "^--seed would .* nothing .* --temperature 0"),
        (
            generate,
            ["--temperature", 0, "--top-p", 0.5, "--top-k", 2],
            "^--top-k, --top-p would .* --temperature 0",
        ),
        (neighbours, ["a", "-k", 7], "k must .* 1 to 6,"),
        (neighbours, ["zebra"], "'zebra'"),
        (neighbours, [], "give a WORD"),
        (neighbours, ["--projector", "x", "-k", 3], "-k .* WORD"),
        (neighbours, ["a", "--words", 5], "need --picture"),
        (neighbours, ["a", "--method", "pca"], "need --picture"),
        (neighbours, ["a", "--picture", "map.pdf"], r"\.svg or \.png"),
        (neighbours, ["a", "--overwrite"], "--overwrite would .* nothing without --picture or --projector"),
    ],
)
def test_impossible_flags_are_refused_in_a_sentence(
    command: object, flags: list[object], nouns: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = runs.refusal(capsys, command, run, *flags)  # type: ignore[arg-type]
    assert re.search(nouns, refusal)


def test_unk_is_refused_where_the_vocabulary_has_none(
    without_unk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--unk would change nothing" in runs.refusal(capsys, generate, without_unk, "--unk")


@pytest.mark.parametrize(
    ("flags", "nouns"),
    [
        (["--model", "block"], "^torch block .* cell gru; .* --model basic or cudnn$"),
        (["--framework", "tensorflow"], "^tensorflow .* gru; .* --framework torch --model basic or cudnn$"),
    ],
)
def test_a_model_that_lacks_a_trained_cell_is_refused(
    flags: list[str], nouns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the framework is imported. No other cell is offered: the weights are of this one."""
    run = runs.write_run(tmp_path / "run", WORDS, cell="gru")
    assert re.search(nouns, runs.refusal(capsys, predict, run, *flags))
    (tmp_path / "text").write_text("a b\n")
    problem = runs.refusal(capsys, evaluate, run, *flags, "--text", tmp_path / "text")
    assert re.search(nouns, problem)


def test_a_run_without_weights_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("config.json", "vocabulary.txt"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    for command, flags in ((generate, []), (predict, ["a"]), (neighbours, ["a"])):
        problem = runs.refusal(capsys, command, tmp_path, *flags)
        assert f"{tmp_path}/weights.safetensors is missing" in problem


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_picture_shows_the_commonest_words(
    suffix: str, method: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    path = tmp_path / f"map{suffix}"
    assert runs.run_command(neighbours, run, "--picture", path, "--method", method, "--words", 6) == 0
    assert capsys.readouterr() == ("", f"{neighbours.PROG}: wrote {path}, a map of 6 words\n")
    content = path.read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
        return
    svg = content.decode()
    for word in ("a", "&lt;eos&gt;", "b", "&lt;unk&gt;", "$", "d"):
        assert f">{word}</text>" in svg
    assert ">e</text>" not in svg


def test_words_with_control_characters_leave_an_svg_readable(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    run, path = runs.write_run(tmp_path / "run", ("a\x01b", "<eos>", "c\uffff")), tmp_path / "map.svg"
    assert runs.run_command(neighbours, run, "--picture", path, "--method", "pca") == 0
    texts = [each.firstChild.data for each in minidom.parse(str(path)).getElementsByTagName("text")]
    assert texts == ["a\\x01b", "<eos>", "c\\uffff"]


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_words_that_a_font_lacks_are_text_in_an_svg_and_told_once_of_a_png(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Matplotlib warns of each letter, and a warning is an error here."""
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    run, path = runs.write_run(tmp_path / "run", ("日本", "<eos>", "b", "<unk>")), tmp_path / f"map.{kind}"
    assert runs.run_command(neighbours, run, "--picture", path, "--method", "pca") == 0
    *warning, line = capsys.readouterr().err.splitlines()
    assert line == f"{neighbours.PROG}: wrote {path}, a map of 4 words"
    if kind == "svg":
        assert not warning
        assert ">日本</text>" in path.read_text()
    else:
        assert re.search(r"^warning: .*fonts .*\.png.*\.svg", *warning)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_other_warnings_of_a_plot_stay() -> None:
    with pytest.warns(FutureWarning, match="soon"), letters_of_any_font("png"):
        warnings.warn("soon", FutureWarning, stacklevel=1)


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_picture_of_embeddings_of_one_number_is_refused(
    method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = runs.write_run(tmp_path / "run", WORDS, embedding_size=1)
    problem = runs.refusal(capsys, neighbours, narrow, "--picture", tmp_path / "map.svg", "--method", method)
    assert re.search("embeddings .* 2 .* 1$", problem)
    assert not (tmp_path / "map.svg").exists()


def test_the_projector_s_files_are_what_tensorboard_reads(
    run: Path, model: LanguageModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from google.protobuf import text_format
    from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

    assert runs.run_command(neighbours, run, "--projector", tmp_path / "new" / "folder") == 0
    assert f"tensorboard --logdir {tmp_path / 'new' / 'folder'} " in capsys.readouterr().err
    folder = tmp_path / "new" / "folder"
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    vectors = np.loadtxt(folder / embedding.tensor_path, delimiter="\t")
    np.testing.assert_allclose(vectors, model.embeddings, rtol=0, atol=1e-5)
    assert tuple((folder / embedding.metadata_path).read_text().splitlines()) == WORDS


@pytest.mark.parametrize("name", ["vectors.tsv", "metadata.tsv", "projector_config.pbtxt"])
def test_the_projector_s_files_of_another_origin_are_kept(
    name: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"mine \xff\n")
    problem = runs.refusal(capsys, neighbours, run, "--projector", tmp_path)
    assert f"{tmp_path / name} exists" in problem
    assert runs.files(tmp_path) == {name: b"mine \xff\n"}


@pytest.mark.parametrize("below", ["", "folder"])
def test_a_file_in_the_place_of_the_projector_s_folder_is_told_before_the_work(
    below: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "file", tmp_path / "map.svg"
    file.write_text("mine")
    problem = runs.refusal(capsys, neighbours, run, "--picture", picture, "--projector", file / below)
    assert str(file) in problem
    assert runs.files(tmp_path) == {"file": b"mine"}


def test_the_projector_s_files_of_another_run_are_replaced_by_overwrite(
    run: Path, without_unk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.run_command(neighbours, without_unk, "--projector", tmp_path / "both") == 0
    before = runs.files(tmp_path / "both")
    flags = ["a", "--projector", tmp_path / "both", "--picture", tmp_path / "map.svg"]
    assert "--overwrite" in runs.refusal(capsys, neighbours, run, *flags)
    assert runs.files(tmp_path / "both") == before
    assert not (tmp_path / "map.svg").exists(), "the refusal comes first"
    for folder in ("both", "one"):
        assert runs.run_command(neighbours, run, "--projector", tmp_path / folder, "--overwrite") == 0
    assert runs.files(tmp_path / "both") == runs.files(tmp_path / "one")


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_it_quietly(run: Path) -> None:
    """As in `generate RUN --length 1000000000 | head -n 1`."""
    command = [sys.executable, "-m", "ptb_lm.generate", str(run), "--length", "1000000000", "--seed", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
