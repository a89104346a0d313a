"""How much faster sentences are scored side by side, from rows in results/: docs/performance.md shows it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.bench.studies import scoring as study
from ptb_lm.errors import UserError
from ptb_lm.results.measured import of_study

FOLDERS = {"float32": "scoring-medium-fp32-cpu", "bfloat16": "scoring-medium-bf16-cpu"}
GOAL = 10  # times as fast side by side as one after the other


def markdown(results: Path) -> str:
    """Return a table for each precision, and whether the goal is reached.

    Raises:
        UserError: Rows are missing, or are none.
    """
    return "\n\n".join(_of(precision, results / folder) for precision, folder in FOLDERS.items())


def _of(precision: str, folder: Path) -> str:
    path = folder / "rows.jsonl"
    try:
        facts, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        return f"In {precision} ({of_study(facts)}):\n\n{study.table(rows)}\n\n{_goal(rows)}"
    except (FileNotFoundError, ValueError, KeyError):
        raise UserError(f"{path} is missing, or holds no rows of the study scoring") from None


def _goal(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say for which sentences the goal is reached."""
    ratios: dict[int, list[float]] = {}
    for row in rows:
        ratios.setdefault(row["longest"], []).append(row["batched"] / row["alone"])
    outcomes = [
        f"{'reached' if statistics.median(of) >= GOAL else 'missed'} for sentences of 1 to {longest} words"
        for longest, of in ratios.items()
    ]
    return f"The goal, {GOAL} times as fast, is {', and '.join(outcomes)}."
