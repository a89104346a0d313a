"""What a result is made of: trainings, adapted tests, suites of the benchmark, other commands of Python.

In their texts DEVICE stands for cpu or cuda, COMMIT for the short hash of the code's commit.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TypeAlias

from ptb_lm.errors import UserError


@dataclass(frozen=True)
class Train:
    """A training, kept in results/NAME. A stopped one continues."""

    name: str
    flags: str
    on: str = ""  # the only device that it is for
    needs: str = ""  # a module without which it is left out


@dataclass(frozen=True)
class Race(Train):
    """A training of one process from its first step to its end, and a row of results/records.md."""

    what: str = field(kw_only=True)  # what the row says that it is, unless WHAT says something else


@dataclass(frozen=True)
class Adapt:
    """A trained run tested while it adapts to the text, its settings tuned on valid; kept in results/NAME.

    The run is trained first, unless it is finished. What is kept already is not made again.
    """

    name: str
    run: Train
    flags: str
    on: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Suite:
    """A suite of the benchmark, with rows and reports in results/NAME. A stopped one continues."""

    name: str
    arguments: str
    on: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Python:
    """Any other command of Python, which itself writes below results/."""

    arguments: str
    on: str = ""
    needs: str = ""
    stdout: str = ""  # the file that what it prints is kept in
    run: Train | None = None  # a run that it uses, which is trained first, unless it is finished
    by_itself: bool = False  # nothing after it needs what it makes: if it fails, that is run even so


@dataclass(frozen=True)
class UnlessKept:
    """Another result, unless results/ has a finished run of it, by whatever model and device."""

    result: str
    on: str = ""
    needs: str = ""


Step: TypeAlias = Train | Adapt | Suite | Python | UnlessKept


def find_device() -> str:
    """Return "cuda" if torch is there and can use a GPU, else "cpu".

    Raises:
        UserError: torch is there, and cannot be imported.
    """
    if not installed("torch") or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "cpu"
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    asked = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if asked.returncode:
        reason = asked.stderr.strip().rpartition("\n")[2] or f"it ended with status {asked.returncode}"
        raise UserError(f"{sys.executable} cannot import torch: {reason}")
    return asked.stdout.strip()


def installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def absent(step: Step) -> bool:
    """Return whether a module that a step needs is not installed."""
    return bool(step.needs) and not installed(step.needs)


def arguments(step: Train | Adapt | Suite | Python) -> str:
    """Return what Python is called with; a training's are those of a new run."""
    if isinstance(step, Train):
        folder = f"checkpoints/reproduce-{step.name}"
        return f"-m ptb_lm.train {step.flags} --device DEVICE --run-dir {folder} --overwrite"
    if isinstance(step, Adapt):
        run = f"checkpoints/reproduce-{step.run.name}"
        return f"-m ptb_lm.evaluate {run} {step.flags} --tune --device DEVICE --out results/{step.name}"
    if isinstance(step, Suite):
        return f"-m ptb_lm.bench run {step.arguments} --out bench/reproduce-{step.name} --device DEVICE"
    return step.arguments


def command_line(step: Step) -> str:
    """Return a step as a person would type it, with a remark."""
    if isinstance(step, UnlessKept):
        return f"scripts/reproduce {step.result}   # unless results/ has a finished run of it"
    if isinstance(step, Adapt):
        return f"python {arguments(step)}   # unless it is there; its run is trained first"
    kept = f"   # kept in results/{step.name}" if isinstance(step, Train | Suite) else ""
    if isinstance(step, Python):
        into = f" > {step.stdout}" if step.stdout else ""
        kept = f"{into}   # its run is trained first" if step.run else into
    return f"python {arguments(step)}{kept}"
