"""The pages of results: their tables, and the parts of them that are written by a command."""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats
from ptb_lm.comparison.curves import picture
from ptb_lm.comparison.run_groups import Group
from ptb_lm.comparison.runs import Run, read
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write

CURVE = "curve.svg"  # beside a run's files
_COMPUTED_BY = re.compile(r"-(cudnn|block_fused|persistent)(-(bf16|fp16))?-(cpu|cuda)$")


def result_of(folder: Path) -> str:
    """Return which result a kept run is of: its folder's name without the model, precision and device."""
    return _COMPUTED_BY.sub("", folder.name)


def read_all(results: Path) -> list[Run]:
    """Return the runs in a folder, sorted by name."""
    return [read(path.parent) for path in sorted(results.glob("*/metrics.jsonl"))]


def commit_of(run: Run) -> str:
    """Return the short hash of a run's commit, and whether there were uncommitted changes; "" if unknown."""
    commit, _, changes = (run.result.get("environment", {}).get("commit") or "").partition(" ")
    return f"{commit[:7]} {changes}".rstrip()


def draw_curve(run: Run) -> Path:
    """Draw a run's learning curves into its folder; return the file."""
    atomic_write(run.folder / CURVE, picture([Group([run])], kind="svg"))
    return run.folder / CURVE


def epochs(runs: Sequence[Run]) -> str:
    """Return how many epochs some runs of one configuration have done, and which was each one's best."""
    best = ", ".join(dict.fromkeys(str(run.best["epoch"]) for run in runs))
    done, planned = len(runs[0].epochs), runs[0].config.hyperparameters.epochs
    unfinished = "" if runs[0].result else f" of {planned}, not ended"
    return f"{done}{unfinished} (best {best})"


def perplexity(values: Sequence[float | None], *, strong: bool = False) -> str:
    """Return the mean and, of several, the lowest and the highest; nothing unless all are known."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    mean = f"{math.fsum(known) / len(known):.2f}"
    spread = f" ({min(known):.2f} to {max(known):.2f})" if len(known) > 1 else ""
    return f"**{mean}**{spread}" if strong else mean + spread


def ratio(value: LogMean | None) -> str:
    """Return a ratio with its 95 % interval, if it has one; nothing if there is no ratio."""
    if value is None:
        return ""
    known = "" if value.interval is None else f" ({interval(value.interval)})"
    return f"{formats.times(value.estimate)}{known}"


def interval(ends: tuple[float, float]) -> str:
    """Return the interval of a ratio."""
    return " to ".join(map(formats.end, ends))


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; a title with a colon at its end is of a column of numbers, flush right."""
    lines = [[title.rstrip(":") for title in titles], ["--:" if t.endswith(":") else "---" for t in titles]]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [*lines, *rows])


def write_part(page: Path, name: str, content: str) -> None:
    """Replace the part of a page between the lines `<!-- NAME: ... -->` and `<!-- end of NAME -->`.

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
        raise UserError(
            f"{page} must have exactly one part between <!-- {name}: … --> and <!-- end of {name} -->"
        )
    before, begin, _, end, after = parts
    changed = f"{before}{begin}\n{content}\n{end}{after}"
    if changed != text:
        atomic_write(page, changed)
