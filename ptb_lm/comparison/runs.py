"""Trained runs, finished or not, read from their folders."""

import math
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ptb_lm.data.corpus import PENN_TREEBANK
from ptb_lm.data.preparation import PTB, is_place
from ptb_lm.training import run_folder
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import NoEpochError

DIGITS = 12  # of a digest that is shown


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, finished or not.

    Attributes:
        folder: Where its files are.
        config: What config.json says.
        epochs: The rows of metrics.jsonl; at least one.
        result: What result.json says; empty until the run has ended, and while it goes on after that.
    """

    folder: Path
    config: RunConfig
    epochs: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def best(self) -> dict[str, Any]:
        """The row of the epoch whose weights are kept: the first with the lowest validation perplexity."""
        return min(self.epochs, key=lambda row: float(row["valid_perplexity"]))

    @property
    def words_per_second(self) -> float:
        """Of all its epochs so far, as result.json has it."""
        words = math.fsum(row["words_per_second"] * row["seconds"] for row in self.epochs)
        return words / max(math.fsum(row["seconds"] for row in self.epochs), 1e-9)

    @property
    def device(self) -> str:
        """The GPU, or processor and threads, and how many there were, as far as its files tell.

        A number that was not the same in all sessions of the run is that of each, in their order.
        """
        environment: dict[str, Any] = self.result.get("environment", {})
        sessions = [*self.result.get("earlier_environments", []), environment]
        parts, usual = (
            [environment.get("device", self.config.choice.device)],
            {"processes": "1", "devices": "1"},
        )
        if parts[0].startswith("cpu") and "processor" in environment:
            parts, usual = [environment["processor"]], {"threads": "unknown", **usual}
        for what, alone in usual.items():
            numbers = [number for number, _ in groupby(str(of.get(what, alone)) for of in sessions)]
            if numbers != [alone]:
                parts.append(f"{what}: {', then '.join(numbers)}")
        return ", ".join(parts)

    @property
    def data(self) -> str:
        """What it read: "ptb" for Penn Treebank, wherever it lay; else a name, and the digest if it is known.

        Several texts may have the name. Penn Treebank and synthetic have no digest.
        """
        data, source = self.config.data, self.config.source
        name = Path(data).name if is_place(data) else data
        if source is None:
            return name
        return PTB if source.sha256 == PENN_TREEBANK else f"{name} (SHA-256 {source.sha256[:DIGITS]}…)"


def read(folder: Path) -> Run:
    """Read a run.

    Raises:
        UserError: A file is missing or broken, or no epoch has ended.
    """
    files = run_folder.find(folder)
    config = files.read_config()
    if config.imported:
        raise NoEpochError(f"{folder} was imported and has no epochs (evaluate tells its perplexity)")
    epochs = files.read_metrics()
    return Run(folder=folder, config=config, epochs=epochs, result=files.read_end(len(epochs)))
