"""This package's torch backend as it was at an earlier commit, to be measured beside today's.

    python -m ptb_lm.bench run ptb --add before-cudnn=benchmarks.rivals.before:cudnn --variants ...

PTB_LM_BEFORE names the commit (default: 7c1d749, before there were kernels for a CPU). Its package is
taken out of git into a temporary folder, and renamed, so that both can be imported.
"""

import atexit
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

from ptb_lm.model.config import Config

COMMIT = os.environ.get("PTB_LM_BEFORE", "7c1d749")
NAME = "ptb_lm_before"


def _build(name: str, config: Config, weights: Mapping[str, NDArray[Any]], **chosen: Any) -> Any:
    """Return a model of that commit."""
    _take_out()
    chosen = {**chosen, "framework": "torch", "model": name}
    flat = importlib.util.find_spec(f"{NAME}.config")  # as the package was in its first weeks
    folder = NAME if flat else f"{NAME}.model"
    backend = importlib.import_module(f"{folder}.backend")
    config_class = importlib.import_module(f"{folder}.config").Config
    known = {field.name for field in dataclasses.fields(config_class)}
    values = {name: value for name, value in dataclasses.asdict(config).items() if name in known}
    before = config_class(**values)
    if flat:
        return backend.build(before, weights, **chosen)
    choice = importlib.import_module(f"{folder}.choice").Choice
    create = choice.create if hasattr(choice, "create") else choice.of
    return backend.build(before, weights, create(**chosen))


cudnn, block_fused = (functools.partial(_build, name) for name in ("cudnn", "block_fused"))


def _take_out() -> None:
    """Put the renamed package on the path, once."""
    if NAME in sys.modules:
        return
    folder = Path(tempfile.mkdtemp(prefix="ptb_lm-before-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    checkout = Path(__file__).resolve().parents[2]
    archive = subprocess.run(
        ["git", "-C", str(checkout), "archive", COMMIT, "ptb_lm"], capture_output=True, check=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    package = (folder / "ptb_lm").rename(folder / NAME)
    for path in package.rglob("*.py"):
        path.write_text(path.read_text(encoding="utf-8").replace("ptb_lm", NAME), encoding="utf-8")
    sys.path.insert(0, str(folder))
