"""What a checkout has beside the package: benchmarks/, with the figures that others published."""

import importlib
import importlib.util
import sys
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
    return bool(found and found.origin) and Path(str(found.origin)).resolve().parent == FOLDER


IS_THERE = _is_there()


def load(where: str) -> Any:
    """Return what MODULE:NAME names in benchmarks/; None where only the package is installed."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(f"{FOLDER.name}.{module}"), name) if IS_THERE else None
