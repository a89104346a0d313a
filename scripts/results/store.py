"""The data in results/: tables as CSV, one line a row, and a file for each benchmark.

runs.csv                a row for each run, finished or not, and for each adapted test of one
curves/PRESET.csv       a row for each epoch of each run
bench/ID.jsonl.gz       a benchmark (ptb_lm/bench/rows.py)
studies/NAME.csv        the other measurements; studies/studies.csv says when and where each was made
"""

import io
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ptb_lm.common import files
from ptb_lm.common.errors import UserError

RUNS, BENCH = "runs.csv", "bench"
STUDIES = "studies/studies.csv"
CHECKS = "studies/checks.csv"
ADAPTATION, TRIALS = "studies/adaptation.csv", "studies/adaptation-trials.csv"


def curves(preset: str) -> str:
    """Return the name of the table with the epochs of a preset's runs."""
    return f"curves/{preset}.csv"


def read(results: Path, name: str) -> pd.DataFrame:
    """Read a table. Whole numbers stay whole where a row lacks one.

    Raises:
        UserError: It is missing, or no CSV.
    """
    path = results / name
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype={"id": str})
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no table: {error}") from None
    whole = [
        name
        for name in frame.select_dtypes("float")
        if frame[name].isna().any() and frame[name].notna().any() and (frame[name].dropna() % 1 == 0).all()
    ]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def rows(results: Path, name: str, key: str) -> list[dict[Hashable, Any]]:
    """Return the rows of a table that have an id; none if there is no table."""
    if not (results / name).exists():
        return []
    table = read(results, name)
    return table[table["id"] == key].to_dict("records")


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table as text: numbers with all of their digits."""
    text = io.StringIO()
    frame.to_csv(text, index=False, lineterminator="\n")
    return text.getvalue()


def put(results: Path, name: str, rows: Sequence[Mapping[str, Any]], *, sort: Sequence[str] = ()) -> None:
    """Put rows into a table, in place of those that have their id.

    Args:
        results: The folder.
        name: The table's file in the folder.
        rows: The values by column; the id, of what they say, is the same in all.
        sort: Columns to sort the table by; none: rows stay in their order, and new ones come last.
    """
    new, path = pd.DataFrame(rows), results / name
    with files.lock(results, wait=True):  # of another process that puts rows there
        table = read(results, name) if path.exists() else pd.DataFrame()
        if not table.empty:
            (value,) = new["id"].unique()
            table = table[table["id"] != value].astype(object)
        both = pd.concat([table, new.astype(object)], ignore_index=True)
        if sort:
            both = both.sort_values(list(sort), kind="stable")
        path.parent.mkdir(parents=True, exist_ok=True)
        files.atomic_write(path, to_csv(both))
