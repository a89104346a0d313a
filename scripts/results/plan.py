"""The reader of plan.toml: what scripts/reproduce can make, and by which commands."""

import importlib.util
import itertools
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError
from results.expand import expand_entries

FILE = Path(__file__).resolve().parent / "plan.toml"
RUN, BENCHMARK, ADAPTATION = "run", "benchmark", "adaptation"
# What a command's result is kept as, and the flags that say where it goes, by how the command begins.
KINDS = {
    "python -m ptb_lm.train ": (RUN, "--device DEVICE --run-dir checkpoints/reproduce-ID --overwrite"),
    "python -m ptb_lm.bench run ": (BENCHMARK, "--device DEVICE --out bench/reproduce-ID"),
    "python -m ptb_lm.evaluate ": (ADAPTATION, "--device DEVICE --out bench/reproduce-ID"),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, or another result that must be there.

    Attributes:
        run: The command, without the flags that `KINDS` adds. Behind " > " the file that gets what it prints.
        id: The id of its result in results/.
        result: The result that a training is, whatever made it; by default the name in the plan.
        keep: The kind of the result: one of `KINDS`, or a study (keep.py); "" if nothing is kept.
        on: The only device that it is for; "" for any.
        needs: A module without which it is left out; "" for none.
        after: The id of a training that it uses, which is made first unless it has ended.
        unless: A result that is made unless results/ has a finished run of it; then there is no command.
        record: The words in the table of records, unless WHAT has others; "" if it is no race.
        alone: True for a step whose failure does not stop the next ones.
    """

    run: str = ""
    id: str = ""
    result: str = ""
    keep: str = ""
    on: str = ""
    needs: str = ""
    after: str = ""
    unless: str = ""
    record: str = ""
    alone: bool = False

    @property
    def is_absent(self) -> bool:
        """Whether a module that it needs is not installed."""
        return bool(self.needs) and importlib.util.find_spec(self.needs) is None

    def command(self, device: str, commit: str = "COMMIT") -> str:
        """Return the whole command for a device, as one would type it."""
        if self.unless:
            return f"scripts/reproduce {self.unless}   # unless results/ has a finished run of it"
        added = next((flags for kind, flags in KINDS.values() if kind == self.keep), "")
        text = f"{self.run} {added}".rstrip().replace("OUT", "bench/reproduce-ID")
        text = text.replace("RUN", f"checkpoints/reproduce-{self.after}").replace("ID", self.id)
        return fill_placeholders(text, device, commit)


@dataclass(frozen=True)
class PlannedResult:
    """A result that can be made by name: its description, and its steps in their order."""

    text: str
    steps: tuple[Step, ...]


def fill_placeholders(text: str, device: str, commit: str = "COMMIT") -> str:
    """Return a text of the plan for a device and a commit."""
    return text.replace("DEVICE", device).replace("COMMIT", commit)


@cache
def _load() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


@cache
def read() -> dict[str, PlannedResult]:
    """Return what can be made, by name."""
    plan = _load()
    known = {field.name for field in fields(Step)}
    found = {}
    for name, entry in plan["results"].items():
        steps = []
        for values in expand_entries(entry["steps"], plan["choices"]):
            kinds = (kind for start, (kind, _) in KINDS.items() if values.get("run", "").startswith(start))
            usual = {"keep": next(kinds, ""), "result": name}
            steps.append(Step(**{**usual, **{key: value for key, value in values.items() if key in known}}))
        found[name] = PlannedResult(entry["text"], tuple(steps))
    return found


def results_of(names: Iterable[str], device: str) -> list[str]:
    """Return the results for some names, of which "all" is one, each once."""
    usual: list[str] = _load()["all"][device]
    return list(dict.fromkeys(itertools.chain(*(usual if name == "all" else [name] for name in names))))


def steps_of(name: str, device: str) -> list[Step]:
    """Return the steps of a result that are for a device, those among them that something is missing for."""
    return [step for step in read()[name].steps if step.on in ("", device)]


def training(step_id: str) -> Step:
    """Return the training with an id."""
    every = itertools.chain(*(result.steps for result in read().values()))
    return next(step for step in every if step.id == step_id and step.keep == RUN)


def find_device() -> str:
    """Return "cuda" if torch is there and can use a GPU, else "cpu".

    Raises:
        UserError: torch is there, and cannot be imported.
    """
    if importlib.util.find_spec("torch") is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return "cpu"
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2] or f"it ended with status {done.returncode}"
        raise UserError(f"{sys.executable} cannot import torch: {reason}")
    return done.stdout.strip()
