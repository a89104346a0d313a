"""What a run tells: progress bars, lines, the environment."""

import math
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

Row = dict[str, Any]


def progress(total: int, description: str, *, initial: int = 0) -> tqdm:
    """Return a progress bar on stderr; it is silent when stderr is not a terminal."""
    return tqdm(
        total=total,
        desc=description,
        initial=initial,
        unit="step",
        leave=False,
        disable=None,
        dynamic_ncols=True,
    )


def say(line: str) -> None:
    """Print a line on stdout at once, above any progress bar."""
    if sys.stdout is not None:  # it is, when the shell closed it
        tqdm.write(line, file=sys.stdout)
        sys.stdout.flush()


def environment() -> Row:
    """Return versions and machine facts; the backend adds its own."""
    return {
        "ptb_lm": metadata.version("ptb-lm") if _installed() else None,
        "commit": _git_commit(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def perplexity(nll: float, tokens: int) -> float:
    """Return exp(nll / tokens); infinity where that is beyond a float."""
    try:
        return math.exp(nll / tokens)
    except OverflowError:
        return math.inf


def _installed() -> bool:
    try:
        metadata.version("ptb-lm")
    except metadata.PackageNotFoundError:
        return False
    return True


def _git_commit() -> str | None:
    """Return the commit of the checkout that this package lies in, marked if there are changes.

    A copy of a checkout without its .git has the commit that whoever made it put into PTB_LM_COMMIT.
    """
    checkout = Path(__file__).resolve().parents[2]
    if not (checkout / ".git").exists():  # installed, perhaps inside another project's checkout
        return os.environ.get("PTB_LM_COMMIT") or None
    git = ["git", "-C", str(checkout)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
        status = subprocess.run(
            # Of the code: results that a script has just written change nothing of what it ran.
            [*git, "status", "--porcelain", "--untracked-files=no", "--", "*.py"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode:
        return None
    return commit.stdout.strip() + (" with uncommitted changes" if status.stdout else "")


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
