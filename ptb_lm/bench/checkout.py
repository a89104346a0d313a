"""The additions of a checkout to the benchmark: benchmarks/ beside the package, which a wheel does not have.

It has suites, programs and other people's published figures. TOML files declare its suites and programs, so
that listing them imports nothing.
"""

import importlib.util
import pkgutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ptb_lm.common import program

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def _has_checkout() -> bool:
    """Return whether `import benchmarks` finds the checkout's, and no package of the user's own."""
    if program.checkout() is None:
        return False
    if str(FOLDER.parent) not in sys.path:
        sys.path.append(str(FOLDER.parent))  # behind the user's own
    found = importlib.util.find_spec(FOLDER.name)
    return found is not None and Path(str(found.origin)).resolve().parent == FOLDER


HAS_CHECKOUT = _has_checkout()


def read_toml(kind: str) -> Mapping[str, Any]:
    """Return what benchmarks/KIND.toml declares, by name; nothing where only the package is installed."""
    return tomllib.loads((FOLDER / f"{kind}.toml").read_text(encoding="utf-8")) if HAS_CHECKOUT else {}


def load(where: str) -> Any:
    """Return what MODULE:NAME names in benchmarks/; None where only the package is installed."""
    return pkgutil.resolve_name(f"{FOLDER.name}.{where}") if HAS_CHECKOUT else None
