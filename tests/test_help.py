"""The answer of every command to --help and to a mistyped flag."""

import re
import subprocess
import sys

import pytest
import runs

from ptb_lm import __main__ as commands

# Each takes longer to import than --help may take.
HEAVY = (
    "numpy",
    "torch",
    "tensorflow",
    "tqdm",
    "http",
    "matplotlib",
    "asyncio",
    "safetensors",
    "tensorboard",
)
WITH_COMMANDS = {
    "bench": ["list", "run", "check", "report", "compare"],
}
LINES = [
    *([name] for name in commands.COMMANDS),
    *([name, below] for name, belows in WITH_COMMANDS.items() for below in belows),
]


@pytest.mark.slow
def test_no_command_imports_what_takes_long_before_its_flags_are_parsed() -> None:
    """One process for all: what any of them imports is found."""
    program = f"""
import contextlib, io, sys
import ptb_lm
dir(ptb_lm)
from ptb_lm import __main__
for line in {LINES}:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            __main__.main([*line, "--help"])
        except SystemExit as end:
            assert not end.code, line
    assert said.getvalue().startswith("usage: "), line
    heavy = [name for name in {HEAVY} if name in sys.modules]
    assert not heavy, (line, heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_no_line_of_help_is_broken_by_a_terminal_of_80_columns(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    runs.run_command(commands.import_command(line[0]), *line[1:], "--help")
    assert [each for each in capsys.readouterr().out.splitlines() if len(each) > 80] == []


@pytest.mark.parametrize("columns", ["1", "2"])
def test_there_is_help_at_a_terminal_of_few_columns(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert runs.run_command(commands.import_command("train"), "--help") == 0
    assert "--learning-rate" in capsys.readouterr().out


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_mistyped_flag_is_answered_with_the_nearest(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each flag of each command, with a letter too many, which is told before what is missing."""
    lines = [line for line in LINES if line[0] == name]
    module = commands.import_command(name)
    for _, *below in lines:
        runs.run_command(module, *below, "--help")
        flags = set(re.findall(r"^  (?:-\w(?: \w+)?, )?--([a-z][\w-]*)", capsys.readouterr().out, re.M))
        assert "help" in flags
        for flag in flags - {"help"}:
            assert runs.run_command(module, *below, f"--{flag[:2]}x{flag[2:]}", "7") == 2
            problem = f"unknown flag --{flag[:2]}x{flag[2:]}; did you mean --{flag}? (see --help)"
            assert capsys.readouterr().err.partition(": ")[2] == f"{problem}\n"
