"""The behaviour of every command: errors become one sentence and an exit status."""

import contextlib
import errno
import io
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import runs
from support import ROOT

import ptb_lm
from ptb_lm import __main__ as commands
from ptb_lm import score, train
from ptb_lm.bench import __main__ as bench
from ptb_lm.common import cli, host, program, streams
from ptb_lm.common.errors import DivergenceError, UserError


def user_error() -> int:
    raise UserError("the value is wrong")


def divergence() -> int:
    raise DivergenceError("the loss is not finite")


def missing_file() -> int:
    return len(Path("/no/such/file").read_bytes())


def folder_for_a_file() -> int:
    return len(Path("/").read_bytes())


def not_enough_memory() -> int:
    return np.empty(2**59, np.uint8).size


def interrupt() -> int:
    raise KeyboardInterrupt


def test_a_program_that_runs_a_command_has_its_own_stdout_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command prints what an encoding lacks as escapes; a program may count on an error there."""
    written = io.BytesIO()
    with io.TextIOWrapper(written, encoding="ascii") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        assert cli.run("score", lambda: print("é") or 0) == 0
        assert (stdout.errors, written.getvalue()) == ("strict", b"\\xe9\n")


def test_a_program_gives_a_command_words_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for main in (train.main, score.main, bench.main, commands.main):
        assert main(["--data", 1]) == 2
        assert "an argument must be a string or a path, not 1" in capsys.readouterr().err
    assert train.main(["--data", tmp_path / "nothing"]) == 2
    assert f"{tmp_path}/nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (user_error, 2, "the value is wrong"),
        (divergence, 1, "the loss is not finite"),
        (missing_file, 2, "/no/such/file: No such file or directory"),
        (folder_for_a_file, 2, "/: Is a directory"),
        (
            not_enough_memory,
            2,
            f"there is not enough memory ({host.describe_memory_need(2**59, 'the last allocation was')})",
        ),
        (interrupt, 130, "interrupted"),
    ],
)
def test_an_error_is_one_sentence_and_a_status(
    body: Callable[[], int], status: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run("command", body) == status
    assert capsys.readouterr() == ("", f"command: {sentence}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run("command", lambda: Path("/dev/full").write_text("x")) == 1
    assert capsys.readouterr().err == "command: No space left on device; free some space and try again\n"


def test_without_an_error_the_status_is_the_bodys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run("command", lambda: 0) == 0
    assert cli.run("command", lambda: 7) == 7
    assert capsys.readouterr() == ("", "")


def test_a_bug_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run("command", lambda: 1 // 0)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--lr-decay", "x"], "argument --lr-decay: invalid float value: 'x'"),
        (["--lr-decay"], "argument --lr-decay: expected one argument"),
        (["--lr-decay", "-5x"], "argument --lr-decay: invalid float value: '-5x'"),
        (["--lr-decay", "1_0.5"], "argument --lr-decay: invalid float value: '1_0.5'"),
        (["--epochs", "1_0"], "argument --epochs: invalid int value: '1_0'"),
        (["more"], "unrecognized arguments: more"),
        # Not short for --lr-decay: it would be taken for the learning rate.
        (["--lr", "1"], "unknown flag --lr"),
        (["--lr-decai=1"], "unknown flag --lr-decai; did you mean --lr-decay?"),
        (["more", "--lr_decay", "1"], "unknown flag --lr_decay; did you mean --lr-decay?"),
        (["-l", "1"], "unknown flag -l"),
        (["-info"], "unknown flag -info"),
        (["-="], "unknown flag -"),
        (["-1"], "unrecognized arguments: -1"),
    ],
)
def test_a_bad_command_line_is_one_sentence(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    built = cli.Parser(prog="command", description="A command.")
    built.add_argument("--lr-decay", type=float)
    built.add_argument_group().add_argument("--epochs", type=int)
    with pytest.raises(SystemExit) as end:
        built.parse_args(arguments)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"command: {problem} (see --help)\n")


def test_all_that_is_wrong_is_told_in_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    built = cli.Parser(prog="command", description="A command.")
    below = built.add_subparsers().add_parser("walk", prog="command walk", description="Walk.")
    below.add_argument("where")
    below.add_argument("--steps", type=cli.whole_number(1))
    below.add_argument("--pace", choices=("slow", "fast"))
    below.add_argument("--days", type=int, nargs="+")
    group = below.add_mutually_exclusive_group()
    for flag in ("--left", "--right"):
        group.add_argument(flag, type=float)
    line = "walk here --left 1 --right 2 --stepps 3 --steps many --nhid 5 --pace quick --days 1 b --days"
    with pytest.raises(SystemExit) as end:
        built.parse_args(line.split())
    assert end.value.code == 2
    told = capsys.readouterr().err.splitlines()
    found = [re.findall("(?:flag|argument|required:) ([a-z-]+)", problem)[0] for problem in told]
    assert found == ["--stepps", "--nhid", "--right", "--steps", "--pace", "--days", "--days"], told
    assert all(problem.startswith("command walk: ") for problem in told)


@pytest.mark.parametrize(
    "line",
    [
        "export RUN --format onnx --out FILE",
        "neighbours RUN --picture FILE",
        "compare RUN --picture FILE",
        "bench check --out FILE",
    ],
)
def test_no_command_replaces_a_file_unless_told_to(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told before the work: there is no such run."""
    for path, overwrite, problem in (
        (tmp_path / "a.svg", [], "--overwrite"),
        (tmp_path, ["--overwrite"], "not a file"),
        (Path("/dev/null"), ["--overwrite"], "not a file"),
    ):
        if path == tmp_path / "a.svg":
            path.write_text("mine")
        name, *given = [str(path) if word == "FILE" else word for word in line.split()]
        capsys.readouterr()
        assert runs.run_command(commands.import_command(name), *given, *overwrite) == 2
        assert problem in capsys.readouterr().err
    assert (tmp_path / "a.svg").read_text() == "mine"


@pytest.mark.parametrize(
    "line",
    ["export RUN --format onnx --out", "neighbours RUN --picture", "compare RUN --picture"],
)
def test_a_missing_folder_is_told_before_the_work(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *given = line.split()
    missing = tmp_path / "missing"
    problem = runs.refusal(capsys, commands.import_command(name), *given, missing / "a.svg")
    assert re.match(f"argument --.*: {missing / 'a.svg'}: .*folder {missing} ", problem)


def test_a_flag_of_another_command_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    built = cli.Parser(prog="command", description="A command.")
    below = built.add_subparsers()
    below.add_parser("walk", prog="command walk", description="Walk.").add_argument("--steps")
    below.add_parser("stand", prog="command stand", description="Stand.").add_argument("--hours")
    assert built.parse_args(["walk", "--steps", "3"]).steps == "3"
    with pytest.raises(SystemExit):
        built.parse_args(["stand", "--steps", "3"])
    assert capsys.readouterr().err == "command stand: unknown flag --steps (see --help)\n"


def test_a_value_may_look_like_a_flag() -> None:
    built = cli.Parser(prog="command", description="A command.")
    built.add_argument("prompt")
    built.add_argument("-k", type=int)
    built.add_argument("--bias", type=float)
    assert vars(built.parse_args(["--no dash in words", "-k3", "--bias", "-1.5"])) == {
        "prompt": "--no dash in words",
        "k": 3,
        "bias": -1.5,
    }
    assert built.parse_args(["--", "--bias"]).prompt == "--bias"
    for value in ("-5e-05", "-1E+3", "-.5e3", "-2.", "-7", "-inf", "-Infinity"):
        assert built.parse_args(["a", "--bias", value]).bias == float(value)
    assert math.isnan(built.parse_args(["a", "--bias", "-nan"]).bias)


def numbers() -> cli.Parser:
    built = cli.Parser(prog="command", description="A command.")
    built.add_argument("--steps", type=cli.whole_number(1))
    built.add_argument("--seconds", type=cli.positive_number)
    built.add_argument("--words", type=cli.whole_number(1, 2**31 - 1))
    return built


def test_numbers_are_parsed() -> None:
    parsed = numbers().parse_args(["--steps", "1", "--seconds", "1e-6", "--words", "2147483647"])
    assert (parsed.steps, parsed.seconds, parsed.words) == (1, 1e-6, 2**31 - 1)


@pytest.mark.parametrize(
    ("flag", "value", "problem"),
    [
        *(("--steps", value, "at least 1") for value in ("0", "-1", "1.5", "1_0", "many", "")),
        *(("--seconds", value, "above 0") for value in ("0", "-1", "nan", "inf", "1_0", "long", "")),
        *(("--words", value, "at most 2147483647") for value in (str(2**31), "9" * 20)),
    ],
)
def test_a_number_that_is_none_is_told(
    flag: str, value: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        numbers().parse_args([f"{flag}={value}"])
    said = capsys.readouterr().err
    assert re.fullmatch(f"command: argument {flag}: .*{problem}.* \\(see --help\\)\n", said)


def printing(length: int) -> list[str]:
    """Return a process that prints some characters, and ends as a command does."""
    body = f"lambda: print('y' * {length}) or 0"
    return [
        sys.executable,
        "-c",
        f"import sys; from ptb_lm.common import cli; sys.exit(cli.run('command', {body}))",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("length", [1, 100_000], ids=["buffered", "beyond the buffer"])
def test_output_that_cannot_be_written_is_told_once_and_a_reader_that_went_away_is_not(length: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone, Path("/dev/full").open("wb") as full:
        for stream, told in ((gone, rb""), (full, rb"command: .*space.*\n")):
            ended = subprocess.run(printing(length), stdout=stream, stderr=subprocess.PIPE, env=buffered())
            assert ended.returncode == 1
            assert re.fullmatch(told, ended.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("name", ["score", "train"])
def test_help_that_cannot_be_written_is_told(
    name: str, unbuffered: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        Path("/dev/full").open("wb", 0 if unbuffered else -1) as file,
        io.TextIOWrapper(file, write_through=unbuffered) as full,
        contextlib.redirect_stdout(full),
    ):
        assert commands.main([name, "--help"]) == 1
    assert re.fullmatch(f".*{name}: .*space.*\n", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["print('y')", "sys.stdout.write('y')"])
def test_a_closed_stdout_is_no_error(text: str) -> None:
    """As after `>&-` in a shell."""
    code = (
        f"import sys; from ptb_lm.common import cli; sys.exit(cli.run('command', lambda: {text} and 0 or 0))"
    )
    closing = ["sh", "-c", 'exec "$@" >&-', "sh"]
    ended = subprocess.run([*closing, sys.executable, "-c", code], stderr=subprocess.PIPE, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.slow
def test_in_a_program_too_a_closed_stdout_is_the_null_device() -> None:
    """No other file has its number, to which a library would print."""
    body = "lambda: not os.path.samestat(os.fstat(1), os.stat(os.devnull))"
    code = f"import os, sys; from ptb_lm.common import cli; sys.exit(cli.run('command', {body}))"
    closing = ["sh", "-c", 'exec "$@" >&-', "sh"]
    assert subprocess.run([*closing, sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.mark.parametrize("given", [[], ["--help"], ["-h"]])
def test_every_command_is_listed(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.main(given) == 0
    printed = capsys.readouterr().out
    for name, text in commands.COMMANDS.items():
        assert f"\n  {name:<12}{text}\n" in printed
        assert program.module_name(name) == name or f"({name}: {program.module_name(name)})" in printed


def test_the_page_on_commands_names_each() -> None:
    table, _, _ = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("\n## ")
    names = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", names)) == commands.COMMANDS.keys()


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_every_command_is_run_by_its_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    by_module = commands.import_command(name).main
    for main, given in ((by_module, ["--help"]), (commands.main, [name, "--help"])):
        with pytest.raises(SystemExit):
            main(given)
        printed.append(capsys.readouterr())
    assert printed[0] == printed[1]
    assert printed[0].out.startswith(f"usage: python -m ptb_lm.{program.module_name(name)} ")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["trian"], "unknown command trian; did you mean train?"),
        (["neighbors", "RUN"], "unknown command neighbors; did you mean neighbours?"),
        (["xyzzy"], "unknown command xyzzy"),
        (["--verison"], "unknown flag --verison; did you mean --version?"),
        (["--seed", "1", "train"], "unknown flag --seed"),
    ],
)
def test_an_unknown_command_is_refused_with_the_nearest(
    given: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.main(given) == 2
    assert capsys.readouterr() == ("", f"{commands.PROG}: {problem} (see --help)\n")


@pytest.mark.parametrize(
    ("command", "given", "name"),
    [
        ("train", ["--data", ""], "--data"),
        ("evaluate", ["demo", "--data", ""], "--data"),
        ("download", ["--to", ""], "--to"),
        ("compare", [""], "RUN"),
    ],
)
def test_an_empty_path_is_not_the_current_folder_s(
    command: str,
    given: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = runs.refusal(capsys, commands.import_command(command), *given)
    assert problem == f"argument {name}: must not be empty (see --help)"


@pytest.mark.parametrize("line", ["compare LINK", "train --resume LINK", "train --resume LINK/.."])
def test_a_link_that_leads_to_itself_is_refused(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(link.name)
    name, *given = line.replace("LINK", str(link)).split()
    problem = runs.refusal(capsys, commands.import_command(name), *given)
    assert problem == f"{given[-1]}/config.json: {os.strerror(errno.ELOOP)}"


@pytest.mark.slow
def test_the_version_is_the_one_that_is_declared(capsys: pytest.CaptureFixture[str]) -> None:
    (declared,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert ptb_lm.__version__ == declared == host.environment()["ptb_lm"]
    assert commands.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ptb-lm {declared}\n"


def test_the_progress_bar_is_silent_unless_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {}
    for stream in (io.StringIO(), runs.Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with cli.progress_bar(3, "epoch 1/2") as bar:
            bar.update(3)
        written[stream.isatty()] = stream.getvalue()
    assert written[False] == ""
    assert "epoch 1/2" in written[True]


class Log:
    """What programs put in place of stdout and stderr: it can only write."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_a_program_s_log_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Log(), Log()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with cli.progress_bar(1) as bar:
        bar.update()
    cli.print_line("said")
    streams.print_to_stderr("told")
    assert (out.text, err.text) == ("said\n", "told\n")


@pytest.mark.parametrize("command", ["python -m ptb_lm.train", "./scripts/train", "/of/a/scripts/train"])
def test_a_command_at_the_end_of_a_line_stays_whole(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    whole = f"{command} --resume {'a' * 20} {'b' * 20}"
    assert f"\n  {whole}" in streams.wrap(f"SIGTERM: saved; continue with: {whole}", runs.Terminal())


def test_flags_may_stand_between_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    from ptb_lm import score

    assert score.main(["nowhere", "--bits", "sentences.txt"]) == 2
    assert capsys.readouterr().err.endswith("the run directory nowhere does not exist\n")
