"""How messages name the commands of this program, and where it says it lies."""

import sys
from pathlib import Path

import pytest
from support import ROOT

from ptb_lm.common import errors, files, program


@pytest.mark.parametrize(
    ("started", "named"),
    [
        ("/venv/bin/ptb-lm", "ptb-lm train"),
        ("/src/ptb_lm/__main__.py", "python -m ptb_lm train"),
        ("/src/ptb_lm/train.py", "python -m ptb_lm.train"),
        ("-m", "python -m ptb_lm.train"),  # while Python looks for the module
        ("/other/__main__.py", "python -m ptb_lm.train"),
        ("", "python -m ptb_lm.train"),  # in a notebook
    ],
)
def test_a_command_is_named_as_the_one_at_work_was_typed(
    started: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(program.TYPED_COMMAND, raising=False)
    monkeypatch.setattr(sys, "argv", [started, "train"])
    assert program.command_name("train") == named
    monkeypatch.setenv(program.TYPED_COMMAND, "scripts/train")
    assert program.command_name("train") == "scripts/train"
    assert program.command_name("download") == named.replace("train", "download")


def test_the_checkout_is_named_only_in_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert program.checkout() == ROOT
    assert "checkout" in errors.how_to_install("text")
    packages = tmp_path / "site-packages"
    packages.mkdir()
    for name in ("setup.py", "pyproject.toml"):  # which a wheel of another package may have put there
        (packages / name).write_text('[project]\nname = "another"\n')
    monkeypatch.setattr(program, "PACKAGE", packages / "ptb_lm")
    assert program.checkout() is None
    assert "checkout" not in errors.how_to_install("text")
    assert files.working_folder() == Path.cwd()
