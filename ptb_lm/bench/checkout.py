"""What a checkout has beside the package: benchmarks/, with suites, programs and others' published figures.

TOML files declare the suites and the programs, so that listing them imports nothing.
"""

import importlib
import importlib.util
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def _is_there() -> bool:
    """Return whether `import benchmarks` finds the checkout's, and no package of the user's own."""
    if not (FOLDER.parent / "setup.py").is_file():
        return False
    if str(FOLDER.parent) not in sys.path:
        sys.path.append(str(FOLDER.parent))  # behind the user's own
    found = importlib.util.find_spec(FOLDER.name)
    return found is not None and Path(str(found.origin)).resolve().parent == FOLDER


IS_THERE = _is_there()


def declared(kind: str) -> Mapping[str, Any]:
    """Return what benchmarks/KIND.toml declares, by name; nothing where only the package is installed."""
    return tomllib.loads((FOLDER / f"{kind}.toml").read_text(encoding="utf-8")) if IS_THERE else {}


def load(where: str) -> Any:
    """Return what MODULE:NAME names in benchmarks/; None where only the package is installed."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"{FOLDER.name}.{module}"), name) if IS_THERE else None
