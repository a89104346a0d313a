"""Variants of the user's own: what is not there is found out before anything is measured."""

import sys
from pathlib import Path

import pytest
from runs import refusal

from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import commands, variants

pytestmark = pytest.mark.slow

MODULE = """
import sys

print("a module that prints")
raise_in = None


def build(config, weights, **chosen):
    return None
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules, on the path of processes to come."""
    folder = tmp_path / "modules"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").touch()
    (folder / "package" / "own.py").write_text(MODULE)
    (folder / "own.py").write_text(MODULE)
    (folder / "broken.py").write_text("import own\nown.nothing\n")
    (folder / "needing.py").write_text("import a_framework_that_is_not_there\n")
    (folder / "dying.py").write_text("import os; os.kill(os.getpid(), 11)\n")
    (folder / "leaving.py").write_text("raise SystemExit('no GPU, no module')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(variants, "ADDED", {})
    return folder


def test_a_module_is_imported_elsewhere_and_its_text_is_known(modules: Path) -> None:
    digests = commands._import_added(["one=own:build", "two=own:build"])
    assert not {"own", "package"} & sys.modules.keys()
    assert digests["one=own:build"] == digests["two=own:build"]


def test_the_text_of_a_module_is_that_of_what_it_imports_from_beside_it(modules: Path) -> None:
    """And that of the kernels there, which nobody imports by name."""
    given = "mine=own:build"
    (modules / "own.py").write_text(f"import helper, package.own\n{MODULE}")
    (modules / "helper.py").write_text("a = 1\n")
    (modules / "kernel.cu").write_text("// 1\n")
    found = [commands._import_added([given])]
    for changed in ("own.py", "helper.py", "package/own.py", "kernel.cu"):
        with (modules / changed).open("a") as file:
            file.write("\n")
        found.append(commands._import_added([given]))
        assert found.count(found[-1]) == 1, changed
    (modules / "broken.py").write_text("# which it does not import\n")
    assert commands._import_added([given]) == found[-1]


@pytest.mark.parametrize("init", [True, False], ids=["package", "namespace package"])
def test_the_text_of_a_package_is_all_of_its_sources(init: bool, modules: Path) -> None:
    if not init:
        (modules / "package" / "__init__.py").unlink()
    given = "mine=package.own:build"
    before = commands._import_added([given])
    (modules / "package" / "inner").mkdir()
    (modules / "package" / "inner" / "helper.py").write_text("a = 1\n")
    assert commands._import_added([given]) != before


@pytest.mark.parametrize(
    ("build", "noun"),
    [
        ("absent:build", "no module absent;"),
        ("package.absent:build", "no module package.absent;"),
        ("absent.own:build", "no module absent;"),
        ("own:bild", "no function bild"),
        ("own:raise_in", "no function raise_in"),
        (
            "broken:build",
            "AttributeError: module 'own' has no attribute 'nothing'",
        ),
        (
            "needing:build",
            "ModuleNotFoundError: No module named 'a_framework_that_is_not_there'",
        ),
        ("dying:build", "signal 11"),
        ("leaving:build", "status 1: no GPU, no module"),
    ],
)
def test_a_missing_function_ends_the_run_before_it_begins(
    build: str, noun: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--add", f"mine={build}", "--out", tmp_path / "out"]
    message = refusal(capsys, bench, "run", "quick", *given)
    assert message.startswith(f"--add mine={build}: ")
    assert noun in message
    assert not (tmp_path / "out").exists()


def test_another_command_of_the_process_may_use_the_name_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a notebook, after a fix."""
    for build, noun in (("own:bild", "bild"), ("own:bilt", "bilt")):
        message = refusal(capsys, bench, "check", "quick", "--add", f"mine={build}")
        assert message.endswith(f"no function {noun}")
    given = ["--add", "mine=own:bild", "mine=own:bilt"]
    assert "'mine' is taken" in refusal(capsys, bench, "check", "quick", *given)
