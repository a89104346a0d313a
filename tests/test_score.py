"""The command score: tables, JSON, n-best lists, from files and standard input."""

import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import runs
from support import ROOT

import ptb_lm
from ptb_lm import score
from ptb_lm.inference import n_best, reader
from ptb_lm.inference.language_model import LanguageModel

WORDS = ("a", "<eos>", "b", "<unk>", "c", "d")
LINES = ["a  b\tc", "", "zebra d", "d d d d a"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_run(tmp_path_factory.mktemp("score") / "run", WORDS)


@pytest.fixture(scope="module")
def model(run: Path) -> LanguageModel:
    return ptb_lm.load(run)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("\n".join(LINES))
    return path


def run_score(capsys: pytest.CaptureFixture[str], *given: object) -> list[str]:
    """Run the command; return the lines that it prints."""
    capsys.readouterr()
    assert runs.run_command(score, *given) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("carry_state", [False, True])
@pytest.mark.parametrize("unit", ["nats", "bits"])
def test_the_table_has_a_row_for_each_sentence(
    unit: str,
    carry_state: bool,
    run: Path,
    model: LanguageModel,
    text: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--bits"] * (unit == "bits") + ["--carry-state"] * carry_state
    model.state = None
    expected = model.score(LINES, unit=unit, carry_state=carry_state)  # type: ignore[arg-type]
    header, *rows = run_score(capsys, run, text, *flags)
    assert header == "log_probability\ttokens\tunknown\tsentence"
    for row, sentence, line in zip(rows, expected, LINES, strict=True):
        total, tokens, unknown, words = row.split("\t")
        assert float(total) == pytest.approx(sentence.total, abs=1e-6)
        assert (int(tokens), int(unknown)) == (len(sentence.words), sentence.unknown)
        assert words == " ".join(line.split())
    header, *rows = run_score(capsys, run, text, "--per-word", *flags)
    assert header == "sentence\tword\tlog_probability\tunknown"
    words_of_all = [
        (str(number), word, log_p)
        for number, sentence in enumerate(expected, 1)
        for word, log_p in zip(sentence.words, sentence.log_probabilities, strict=True)
    ]
    for row, (number, word, log_p) in zip(rows, words_of_all, strict=True):
        assert row.split("\t")[:2] == [number, word]
        assert float(row.split("\t")[2]) == pytest.approx(log_p, abs=1e-6)
        assert row.split("\t")[3] == ("1" if word == "zebra" else "0")


def test_lines_of_json_have_every_digit(
    run: Path, model: LanguageModel, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flags in ([], ["--per-word"]):
        rows = [json.loads(line) for line in run_score(capsys, run, text, "--format", "jsonl", *flags)]
        for row, sentence in zip(rows, model.score(LINES), strict=True):
            assert row["log_probability"] == sentence.total
            assert row["sentence"] == " ".join(sentence.words[:-1])
            assert (row["tokens"], row["unknown"], row["unit"]) == (
                len(sentence.words),
                sentence.unknown,
                "nats",
            )
            if flags:
                pairs = zip(sentence.words, sentence.log_probabilities, strict=True)
                assert row["words"] == [[word, log_p, word == "zebra"] for word, log_p in pairs]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_is_json_in_every_encoding(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs.write_run(tmp_path / "run", ("å", "<eos>", "<unk>"))
    (tmp_path / "text").write_text("å 😀 中 \\u4e2d\n", encoding="utf-8")
    (tmp_path / "lists").write_text("é ||| å 😀 中 \\u4e2d ||| 0\n", encoding="utf-8")
    for name, flags, key in (("text", ["--per-word"], "sentence"), ("lists", ["--n-best"], "text")):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr("sys.stdout", stdout)
        assert runs.run_command(score, run, tmp_path / name, "--format", "jsonl", *flags) == 0
        monkeypatch.undo()
        (line,) = stdout.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]
        assert json.loads(line)[key] == "å 😀 中 \\u4e2d"


@pytest.mark.parametrize("flags", [[], ["--per-word"], ["--n-best"]], ids=str)
def test_a_text_cannot_steer_a_terminal(
    flags: list[str],
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file gets it as it is."""
    path, terminal = tmp_path / "text", runs.Terminal()
    path.write_text("\x1b[1m ||| a \x1b[31m ||| 0\n" if "--n-best" in flags else "a \x1b[31m\n")
    expected = run_score(capsys, run, path, *flags)
    assert any("\x1b[31m" in line for line in expected)
    monkeypatch.setattr("sys.stdout", terminal)
    assert runs.run_command(score, run, path, *flags) == 0
    assert terminal.getvalue().splitlines() == [line.replace("\x1b", "\\x1b") for line in expected]


def test_a_closed_stdout_is_no_error(
    run: Path, text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after `>&-` in a shell."""
    for flags in ([], ["--line-buffered"], ["--format", "jsonl"]):
        monkeypatch.setattr("sys.stdout", None)
        assert runs.run_command(score, run, text, *flags) == 0
        sys.stdout.close()
        monkeypatch.undo()
        assert capsys.readouterr().err.startswith(f"{score.PROG}: perplexity ")


def test_how_many_words_were_unknown_is_told(
    run: Path, model: LanguageModel, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for carry_state, flags, other in (
        (False, [], "evaluate --text"),
        (False, ["--bits"], "evaluate --text"),
        (True, ["--carry-state"], "without --carry-state"),
    ):
        assert runs.run_command(score, run, text, *flags) == 0
        model.state = None
        scores = model.score(LINES, carry_state=carry_state)
        first, without, read, computed = capsys.readouterr().err.splitlines()
        assert first.startswith(f"{score.PROG}: perplexity {scores.perplexity:.4f} (4 sentences, 14 words ")
        assert re.search(", 1 of .* <unk>.$", first)
        assert re.search(f" without .* {scores.perplexity_without_unknown:.4f}$", without)
        assert ("independently" if not carry_state else "as one text") in read.partition(";")[0]
        assert other in read
        assert computed.endswith(" by torch cudnn in fp32"), "in which the weights are kept"
    text.write_text("a\n")
    assert runs.run_command(score, run, text) == 0
    told, *_ = capsys.readouterr().err.splitlines()
    assert re.search("1 sentence, 2 words .*, 0 of .* vocabulary.$", told)
    for words, problem in (("", "is empty"), (None, "does not exist")):
        text.unlink() if words is None else text.write_text(words)
        capsys.readouterr()
        assert runs.run_command(score, run, text) == 2
        assert capsys.readouterr() == ("", f"{score.PROG}: {text} {problem}\n")


@pytest.mark.parametrize("name", [[], ["-"]], ids=["without a file", "-"])
def test_standard_input_is_read(
    name: list[str],
    run: Path,
    text: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = run_score(capsys, run, text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    assert run_score(capsys, run, *name) == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb \xff\n")))
    assert runs.run_command(score, run, *name) == 2
    problem = runs.sentence(capsys.readouterr().err, score)
    assert problem.startswith("standard input, line 2: byte 0xff ")


N_BEST = """\
1 ||| a b ||| -1.5
1 ||| a d zebra ||| LM0= -3 W= 2 ||| -2.25
1 |||  ||| -0.5
2 ||| d ||| 1e-1
3 ||| c ||| -4
"""


@pytest.mark.parametrize(
    "weights",
    [
        *({}, {"score_weight": 0.5}, {"lm_weight": 0.3, "word_bonus": 2.0}, {"lm_weight": 0.0}),
        {"score_weight": 0.0, "lm_weight": 0.0},  # all are equal, and the first is the best
        {"word_bonus": -5e-05},  # written as it stands here
    ],
    ids=str,
)
def test_n_best_lists_are_rescored(
    weights: dict[str, float],
    run: Path,
    model: LanguageModel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "lists"
    path.write_text(N_BEST)
    flags = [x for name, weight in weights.items() for x in ("--" + name.replace("_", "-"), weight)]
    given = [
        ("1", "a b", -1.5),
        ("1", "a d zebra", -2.25),
        ("1", "", -0.5),
        ("2", "d", 0.1),
        ("3", "c", -4.0),
    ]
    all_weights = {"score_weight": 1.0, "lm_weight": 1.0, "word_bonus": 0.0, **weights}
    totals = [
        all_weights["score_weight"] * own
        + all_weights["lm_weight"] * model.score(words)[0].total
        + all_weights["word_bonus"] * len(words.split())
        for _, words, own in given
    ]
    every = run_score(capsys, run, path, "--n-best", "--all", *flags)
    for line, (name, words, _), total in zip(every, given, totals, strict=True):
        assert line == f"{name} ||| {words} ||| {line.rpartition(' ')[2]}"
        assert float(line.rpartition(" ")[2]) == pytest.approx(total, abs=2e-6)
    best = [max(range(3), key=totals.__getitem__), 3, 4]
    assert run_score(capsys, run, path, "--n-best", *flags) == [every[index] for index in best]
    as_json = {
        unit: run_score(capsys, run, path, "--n-best", "--all", "--format", "jsonl", *flags, *more)
        for unit, more in (("nats", []), ("bits", ["--bits"]))
    }
    for unit, lines in as_json.items():
        for line, (name, words, own) in zip(lines, given, strict=True):
            told, count = json.loads(line), len(words.split())
            assert (told["id"], told["text"], told["score"], told["unit"]) == (name, words, own, unit)
            assert (told["tokens"], told["unknown"]) == (count + 1, words.count("zebra"))
            in_nats = told["log_probability"] * {"nats": 1, "bits": math.log(2)}[unit]
            assert in_nats == pytest.approx(model.score(words)[0].total, abs=1e-6)
            own_part = all_weights["score_weight"] * own + all_weights["word_bonus"] * count
            expected = own_part + all_weights["lm_weight"] * told["log_probability"]
            assert told["total"] == pytest.approx(expected, abs=1e-12)
    found = run_score(capsys, run, path, "--n-best", "--format", "jsonl", *flags)
    assert found == [as_json["nats"][index] for index in best]


def test_only_some_lines_of_n_best_lists_are_read_ahead(model: LanguageModel) -> None:
    numbers = iter(range(20_000))
    lines = (f"list {number // 3} ||| a b ||| -{number}" for number in numbers)
    for number, each in enumerate(itertools.islice(n_best.rescore(model, lines, unit="nats"), 3000)):
        assert (each.id, each.score) == (f"list {number // 3}", -number)
    assert next(numbers) < 3000 + reader.CHUNK_SENTENCES


def test_unknown_words_of_an_n_best_list_are_told(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lists"
    path.write_text(N_BEST)
    assert runs.run_command(score, run, path, "--n-best") == 0
    told, computed = capsys.readouterr().err.splitlines()
    assert computed.endswith(" in fp32")
    assert re.fullmatch(f"{score.PROG}: 5 hypotheses, 1 of .* 7 words .* <unk>", told)


@pytest.mark.parametrize("flags", [[], ["--all"]], ids=str)
@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("a b", "line 2: it is not ID"),
        ("1 ||| a", "line 2: it is not ID"),
        ("", "line 2: it is not ID"),
        ("1 ||| a ||| x", "line 2: the score 'x'"),
        ("1 ||| a ||| nan", "line 2: the score 'nan'"),
        ("1 ||| a ||| 1_0", "line 2: the score '1_0'"),
        ("1 ||| a ||| 1e400 |||", "line 2: the score ''"),
        # A list that goes on after another would have two best hypotheses.
        ("1 ||| b ||| 0\n2 ||| a ||| 0\n1 ||| c ||| 0", "line 4: "),
    ],
)
def test_lines_that_are_no_lists_are_refused(
    lines: str, key: str, flags: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lists"
    path.write_text(f"1 ||| a ||| 0\n{lines}\n")
    assert f"{path}, {key}" in runs.refusal(capsys, score, run, path, "--n-best", *flags)


@pytest.mark.parametrize(
    "weights", [["--lm-weight", "1e308"], ["--lm-weight", "1e308", "--score-weight", "-1e308"]], ids=str
)
@pytest.mark.parametrize("flags", [[], ["--all", "--format", "jsonl"]], ids=str)
def test_a_total_that_is_no_number_is_refused(
    flags: list[str], weights: list[str], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lists"
    path.write_text(f"1 ||| a d zebra ||| -2.25\n{N_BEST}")
    problem = runs.refusal(capsys, score, run, path, "--n-best", *flags, *weights)
    assert problem.startswith(f"{path}, line 1: its total ")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--lm-weight", "1"], "need --n-best"),
        (["--all"], "need --n-best"),
        (["--n-best", "--per-word"], "--n-best cannot"),
        (["--n-best", "--carry-state"], "--n-best cannot"),
        (["--n-best", "--line-buffered"], "--n-best cannot"),
        (["--n-best", "--lm-weight", "inf"], "argument --lm-weight: must be a finite number"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    flags: list[str], problem: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in runs.refusal(capsys, score, run, *flags)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"a\na \x00\n", "text, line 2: byte 0x00"),
        (b"\xff\xfe", "text, line 1: byte 0xff"),
        (None, "text does not exist"),
        (b"a\n\na zebra\n", "text, line 3: the word 'zebra'"),
    ],
)
def test_a_file_that_cannot_be_scored_is_refused(
    content: bytes | None, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, path = runs.write_run(tmp_path / "run", ("a", "<eos>")), tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    for given, problem in ((path, key), (tmp_path, "is a folder")):
        assert runs.run_command(score, run, given) == 2
        assert problem in runs.sentence(capsys.readouterr().err, score)


@pytest.mark.parametrize(
    ("name", "head", "row", "place"),
    [
        ("a.csv", "id,text\n0,a\n\n1\n", "2,{}\n", "line 5"),
        ("a.jsonl", '{"text": "a"}\n{"text": null}\n', '{{"text": "{}"}}\n', "line 3"),
    ],
)
def test_a_table_is_scored_row_by_row(
    name: str, head: str, row: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows without a text are counted; an error names the line of the table."""
    run, path = runs.write_run(tmp_path / "run", ("a", "<eos>")), tmp_path / name
    path.write_text(head + row.format("a a"))
    assert runs.run_command(score, run, path) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[3] for line in out.splitlines()[1:]] == ["a", "a a"]
    assert f"{score.PROG}: 1 row without a text left out\n" in err
    path.write_text(head + row.format("a zebra"))
    assert runs.refusal(capsys, score, run, path).startswith(f"{path}, {place}: the word 'zebra' ")


def test_a_table_without_names_of_columns_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first line is taken for them, and is not scored."""
    run, path = runs.write_run(tmp_path / "run", ("a", "<eos>")), tmp_path / "a.tsv"
    path.write_text("a a a\t1\na a\t2\n")
    assert runs.run_command(score, run, path) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[3] for line in out.splitlines()[1:]] == ["a a"]
    assert f"{score.PROG}: the text is the column 'a a a', the only one with text; the first line" in err


def test_a_byte_order_mark_and_the_last_line_s_end_do_not_count(
    run: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = run_score(capsys, run, text)
    text.write_bytes(b"\xef\xbb\xbf" + text.read_bytes() + b"\r\n")
    assert run_score(capsys, run, text) == expected
    assert not any(math.isnan(float(row.split("\t")[0])) for row in expected[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "flags"),
    [
        (False, ["--line-buffered", "--carry-state"]),
        pytest.param(
            True,
            [],
            marks=pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals"),
        ),
    ],
)
def test_scores_come_line_by_line_where_asked_or_typed(
    typed: bool, flags: list[str], run: Path, model: LanguageModel
) -> None:
    """The second line is written after the first one's score was read."""
    model.state = None
    expected = model.score(LINES[:2], carry_state="--carry-state" in flags)
    theirs, ours = reversed(os.openpty()) if typed else os.pipe()
    command = [sys.executable, "-m", "ptb_lm.score", str(run), *flags]
    pipes = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process,
        os.fdopen(ours, "w", buffering=1) as keyboard,
    ):
        os.close(theirs)
        late = threading.Timer(60, process.kill)  # else a score that is kept back would be waited for
        late.daemon = True
        late.start()
        assert process.stdout is not None
        for line, scored in zip(LINES, expected, strict=False):
            keyboard.write(f"{line}\n")
            row = process.stdout.readline()
            if row.startswith("log_probability"):
                row = process.stdout.readline()
            assert float(row.split("\t")[0]) == pytest.approx(scored.total, abs=1e-6)
        if typed:
            os.write(ours, b"\4")  # Ctrl-D
        else:
            keyboard.close()
        assert process.stdout.read() == ""
    late.cancel()
    assert process.returncode == 0
