"""A Python program in a process that has torch already: importing it takes longer than what is asked."""

import atexit
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def run(program: str, environment: Mapping[str, str], terminal: Path) -> None:
    """Run a program as `python -c` does, in this process.

    Args:
        program: Its text.
        environment: All variables that it finds.
        terminal: A folder, for what it writes on stdout and stderr.
    """
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        with (terminal / name).open("w") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # of the variables before
    try:
        exec(program, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # a process of multiprocessing ends without them
        sys.stdout.flush()
