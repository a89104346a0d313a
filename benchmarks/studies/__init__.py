"""Measurements that are no suite: profiles, disturbances and the reliability of the benchmark's numbers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptb_lm.common.files import atomic_write


def write_rows(out: Path | None, rows: Iterable[Mapping[str, Any]], **texts: str) -> None:
    """Write the rows of a study and its texts into a folder.

    Args:
        out: The folder, which is made; None: nothing is written.
        rows: The lines of rows.jsonl; the first has the command, the versions and the machine.
        texts: The content of other files by their names, in which "_" stands for the dot.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for name, text in texts.items():
            atomic_write(out / name.replace("_", "."), text)
