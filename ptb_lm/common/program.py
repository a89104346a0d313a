"""This program: its version, its place, and the form in which it was started, for messages about commands."""

import functools
import keyword
import os
import re
import sys
from pathlib import Path

NAME = "ptb-lm"
PACKAGE = Path(__file__).resolve().parent.parent

# The variable with the command as typed: scripts/train sets it, and train for the processes that it starts.
TYPED_COMMAND = "PTB_LM_TYPED"
# The variable that names the file where the first process writes how to continue: the launcher reads it.
CONTINUATION = "PTB_LM_CONTINUATION"
# The variable with the process id of the launcher of --devices, with which the processes end.
LAUNCHER = "PTB_LM_LAUNCHER"


def command_name(name: str) -> str:
    """Return the words to type for a command of ours, in the form in which this process was started.

    Args:
        name: The command, such as "train".

    Returns:
        `ptb-lm train`, `python -m ptb_lm train` or `python -m ptb_lm.train`; the last one also in a program
        that imports this package.
    """
    if name == "train" and (command := os.environ.get(TYPED_COMMAND)):
        return command
    program = Path("".join(sys.argv[:1])).parts[-2:]
    if program[-1:] == ("ptb-lm",):
        return f"ptb-lm {name}"
    if program == ("ptb_lm", "__main__.py"):
        return f"python -m ptb_lm {name}"
    return f"python -m ptb_lm.{module_name(name)}"


def module_name(name: str) -> str:
    """Return the module of a command; no module can be called by a keyword of Python."""
    return f"{name}_run" if keyword.iskeyword(name) else name


def checkout() -> Path | None:
    """Return the root of the checkout that this program runs in; None if it is installed elsewhere."""
    pyproject = PACKAGE.parent / "pyproject.toml"
    is_ours = pyproject.is_file() and f'\nname = "{NAME}"\n' in pyproject.read_text(encoding="utf-8")
    return PACKAGE.parent if is_ours else None


@functools.cache
def version() -> str:
    """Return the version of this checkout, or otherwise of the installed package.

    An installation may be older than the checkout that it leads to, and reading the file is quicker.
    """
    root = checkout()
    project = (root / "pyproject.toml").read_text(encoding="utf-8") if root else ""
    if match := re.search(r'^version = "(.+)"$', project, re.M):
        return match[1]
    # Imported here, because it takes a while.
    from importlib import metadata

    return metadata.version(NAME)
