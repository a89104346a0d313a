"""Programs to compare with: other people's frameworks, and this package earlier or without a part."""

from types import ModuleType
from typing import Any


def replace(module: ModuleType, name: str, by: Any) -> None:
    """Replace a module's function or class for the rest of this process, which is one variant's."""
    setattr(module, name, by)
