"""The package of an earlier commit: it is taken out of git once; what git does not know is one sentence."""

import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.rivals import before
from ptb_lm.common import files
from ptb_lm.common.errors import UserError

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
    folder = before._take_out()
    assert (folder / "ptb_lm_before" / "a.py").read_text() == "import ptb_lm_before\n"
    (folder / "kept").touch()
    assert before._take_out() == folder
    assert (folder / "kept").exists()
    assert list(folder.parent.iterdir()) == [folder], "and nothing is left beside it"


def test_what_git_does_not_know_is_one_sentence(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "COMMIT", "none")
    with pytest.raises(
        UserError, match=r"git cannot take the commit none out of .*checkout: fatal: .*revision"
    ):
        before._take_out()
