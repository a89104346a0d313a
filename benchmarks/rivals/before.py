"""This package's torch backend as it was at an earlier commit, to be measured beside today's.

    python -m ptb_lm.bench run ptb --add before-cudnn=benchmarks.rivals.before:cudnn --variants ...

PTB_LM_BEFORE names the commit (default: 7c1d749, before there were kernels for a CPU). Its package is
taken out of git into the cache, once, and renamed, so that both can be imported.
"""

import dataclasses
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ptb_lm.common import files, host
from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config

COMMIT = os.environ.get("PTB_LM_BEFORE", "7c1d749")
NAME = "ptb_lm_before"
CHECKOUT = Path(__file__).resolve().parents[2]


def _build(name: str, config: Config, weights: Mapping[str, NDArray[Any]], **chosen: Any) -> Any:
    """Return a model of that commit."""
    commit = _commit()
    if NAME not in sys.modules:
        sys.path.insert(0, str(_take_out(commit)))
    chosen = {**chosen, "framework": "torch", "model": name}
    flat = importlib.util.find_spec(f"{NAME}.config")  # as the package was in its first weeks
    folder = NAME if flat else f"{NAME}.model"
    backend = importlib.import_module(f"{folder}.backend")
    config_class = importlib.import_module(f"{folder}.config").Config
    known = {field.name for field in dataclasses.fields(config_class)}
    values = {name: value for name, value in dataclasses.asdict(config).items() if name in known}
    before = config_class(**values)
    if flat:
        model = backend.build(before, weights, **chosen)
    else:
        choice = importlib.import_module(f"{folder}.choice").Choice
        create = choice.create if hasattr(choice, "create") else choice.of
        model = backend.build(before, weights, create(**chosen))
    if not hasattr(model, "to_device"):  # whose name was place
        model.to_device = model.place
    return _Model(model, commit)


class _Model:
    """A model of that commit, whose engine says so: a name such as HEAD~1 may mean another one tomorrow."""

    def __init__(self, model: Any, commit: str) -> None:
        self._model, self._commit = model, commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def engine(self) -> str:
        return f"{self._model.engine}, as of commit {self._commit[:7]}"


cudnn, block_fused = (functools.partial(_build, name) for name in ("cudnn", "block_fused"))


def _take_out(commit: str) -> Path:
    """Return the folder that holds the renamed package, which every process of a commit shares.

    Raises:
        UserError: Git does not know the commit.
    """
    cache = files.cache_folder()
    folder = cache / f"before-{commit}"
    if folder.is_dir():
        return folder
    # Not in the cache, where a killed process would leave it.
    with tempfile.TemporaryDirectory() as temporary:
        archive = _git("archive", commit, "ptb_lm")
        subprocess.run(["tar", "-x", "-C", temporary], input=archive, check=True)
        package = Path(temporary, "ptb_lm")
        for path in package.rglob("*.py"):
            path.write_text(path.read_text(encoding="utf-8").replace("ptb_lm", NAME), encoding="utf-8")
        new = shutil.copytree(package, cache / f".before-{commit}-{os.getpid()}" / NAME).parent
    try:
        new.rename(folder)
    except OSError:
        shutil.rmtree(new)
        if not folder.is_dir():  # else another process has just put it there
            raise
    return folder


def _commit() -> str:
    """Return the full hash of COMMIT.

    Raises:
        UserError: Git does not know it, or this is no checkout of git's.
    """
    return _git("rev-parse", "--verify", f"{COMMIT}^{{commit}}").decode().strip()


def _git(*arguments: str) -> bytes:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    done = subprocess.run(command, capture_output=True, env=host.git_environment())
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise UserError(f"git cannot take the commit {COMMIT} out of {CHECKOUT}: {reason}")
    return done.stdout
