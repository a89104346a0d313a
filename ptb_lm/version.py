"""The version of the package, as in pyproject.toml."""

import functools
import re
from pathlib import Path

NAME = "ptb-lm"


@functools.cache
def version() -> str:
    """Return the version of this checkout, or otherwise of the installed package.

    An installation may be older than the checkout that it leads to, and reading the file is quicker.
    """
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    try:
        declared = pyproject.read_text(encoding="utf-8")
    except OSError:
        declared = ""
    if f'\nname = "{NAME}"\n' in declared and (match := re.search(r'^version = "(.+)"$', declared, re.M)):
        return match[1]
    # Imported here, because it takes a while.
    from importlib import metadata

    return metadata.version(NAME)
