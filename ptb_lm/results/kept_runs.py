"""The runs that results/ keeps, and the parts of its pages that scripts write."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.model.config import RECIPES, Config
from ptb_lm.model.hyperparameter import flag_name
from ptb_lm.training.run_config import RunConfig
from ptb_lm.training.run_directory import RunDirectory

RESULTS = Path(__file__).resolve().parents[2] / "results"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, ended or on its way.

    Attributes:
        folder: Where its files are.
        config: What config.json says.
        epochs: The rows of metrics.jsonl; there is one at least.
        result: What result.json says, which older runs have fewer keys in; empty until the run has ended.
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
        """The GPU, or processor and threads, that it was computed on, as far as its files tell."""
        environment: dict[str, str] = self.result.get("environment", {})
        name = environment.get("device", self.config.choice.device)
        if not name.startswith("cpu") or "processor" not in environment:
            return name
        threads = environment.get("threads")
        return environment["processor"] + (f", threads: {threads}" if threads else "")

    @property
    def commit(self) -> str:
        """The short hash of its code's commit, and whether there were uncommitted changes; "" if unknown."""
        commit, _, changes = (self.result.get("environment", {}).get("commit") or "").partition(" ")
        return f"{commit[:7]} {changes}".rstrip()

    @property
    def data(self) -> str:
        """The name of its corpus: "ptb" however its folder was given."""
        return Path(self.config.data).name


def read(folder: Path) -> Run:
    """Read a run.

    Raises:
        UserError: A file is missing or broken, or no epoch has ended.
    """
    files = RunDirectory(folder)
    return Run(
        folder=folder,
        config=files.read_config(),
        epochs=files.read_metrics(),
        result=files.read_result() or {},
    )


def read_all(results: Path) -> list[Run]:
    """Read the runs in a folder, sorted by name.

    Raises:
        UserError: As `read` does.
    """
    return [read(path.parent) for path in sorted(results.glob("*/metrics.jsonl"))]


def overrides(run: Run, *, recipe: str) -> list[str]:
    """Return the flags that make a run of its preset by a recipe; none if this version lacks either."""
    config = run.config
    preset = RECIPES.get(recipe, {}).get(config.config, config.hyperparameters)
    return flags(config.hyperparameters, beside=preset)


def flags(config: Config, beside: Config) -> list[str]:
    """Return the command-line flags that make one configuration of another."""
    chosen = []
    for name in vars(config):
        value = getattr(config, name)
        if value == getattr(beside, name):
            continue
        if isinstance(value, bool):
            chosen.append(flag_name(name) if value else flag_name(name).replace("--", "--no-", 1))
        elif isinstance(value, str):
            chosen += [flag_name(name), value]
        else:
            short = f"{value:g}"
            chosen += [flag_name(name), short if float(short) == value else repr(value)]
    return chosen


def epochs(runs: Sequence[Run]) -> str:
    """Return how many epochs some runs of one configuration have done, and which was each one's best."""
    best = ", ".join(dict.fromkeys(str(run.best["epoch"]) for run in runs))
    done, planned = len(runs[0].epochs), runs[0].config.hyperparameters.epochs
    going_on = "" if runs[0].result else f" of {planned}, going on"
    return f"{done}{going_on} (best {best})"


def perplexity(values: Sequence[float | None], *, strong: bool = False) -> str:
    """Return the mean and, of several, the lowest and the highest; nothing unless all are known."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    mean = f"{math.fsum(known) / len(known):.2f}"
    spread = f" ({min(known):.2f} to {max(known):.2f})" if len(known) > 1 else ""
    return f"**{mean}**{spread}" if strong else mean + spread


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; a title with a colon at its end is of a column of numbers, flush right."""
    lines = [[title.rstrip(":") for title in titles], ["--:" if t.endswith(":") else "---" for t in titles]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [*lines, *rows])


def write_part(page: Path, name: str, content: str) -> None:
    """Replace what a page has between `<!-- NAME: ... -->` and `<!-- end of NAME -->`, a line each.

    Raises:
        UserError: The page is missing, or has not these two lines, once each and in this order.
    """
    try:
        text = page.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{page} is missing") from None
    escaped = re.escape(name)
    parts = re.split(rf"(?m)(^<!-- {escaped}: .*-->\n|^<!-- end of {escaped} -->$)", text)
    if [marker.startswith("<!-- end of") for marker in parts[1::2]] != [False, True]:
        raise UserError(f"{page} has not one part between <!-- {name}: … --> and <!-- end of {name} -->")
    before, begin, _, end, after = parts
    changed = f"{before}{begin}\n{content}\n{end}{after}"
    if changed != text:
        atomic_write(page, changed)
