"""The package of an earlier commit: it is taken out of git once; what git does not know is one sentence."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.rivals import before
from ptb_lm.common import files
from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config

pytestmark = pytest.mark.slow  # starts git

AUTHOR = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a package of one line, and an empty cache beside it."""
    folder, cache = tmp_path / "checkout", tmp_path / "cache"
    cache.mkdir()
    (folder / "ptb_lm").mkdir(parents=True)
    (folder / "ptb_lm" / "a.py").write_text("import ptb_lm\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a"]):
        subprocess.run(["git", *arguments], cwd=folder, env={**os.environ, **AUTHOR}, check=True)
    monkeypatch.setattr(files, "cache_folder", lambda: cache)
    monkeypatch.setattr(before, "CHECKOUT", folder)
    monkeypatch.setattr(before, "COMMIT", "HEAD")
    return folder


def test_a_commit_is_taken_out_once_for_all_processes(checkout: Path) -> None:
    folder = before._take_out(before._commit())
    assert (folder / "ptb_lm_before" / "a.py").read_text() == "import ptb_lm_before\n"
    (folder / "kept").touch()
    assert before._take_out(before._commit()) == folder
    assert (folder / "kept").exists()
    assert list(folder.parent.iterdir()) == [folder], "and nothing is left beside it"


def test_the_engine_says_which_commit_it_is_of(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = before._take_out(before._commit()) / before.NAME
    (package / "__init__.py").touch()
    (package / "config.py").write_text(
        "import dataclasses\n\n@dataclasses.dataclass\nclass Config:\n    cell: str\n"
    )
    (package / "backend.py").write_text(
        "class build:\n    engine = 'an engine'\n"
        "    def __init__(self, *given, **chosen):\n        self.place = chosen['model']\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    kept = take_out_modules()
    try:
        model = before.cudnn(Config(), {})
    finally:
        take_out_modules()
        sys.modules.update(kept)
    assert model.engine == f"an engine, as of commit {before._commit()[:7]}"
    assert model.to_device == "cudnn"


def take_out_modules() -> dict[str, ModuleType]:
    """Remove the package of before, which is another one in another test, and return its modules."""
    names = [name for name in sys.modules if name.partition(".")[0] == before.NAME]
    return {name: sys.modules.pop(name) for name in names}


def test_what_git_does_not_know_is_one_sentence(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "COMMIT", "none")
    with pytest.raises(
        UserError, match=r"git cannot take the commit none out of .*checkout: fatal: .*revision"
    ):
        before._commit()
