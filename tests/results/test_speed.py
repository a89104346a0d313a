"""The tables of speed in README and docs are those of the rows in results/."""

import json
import shutil
from pathlib import Path

from support import ROOT

from ptb_lm.results import __main__ as results

PAGES = ("README.md", "docs/performance.md", "docs/scaling.md", "docs/semantics.md")
ROWS = tuple(
    f"results/{name}/rows.jsonl"
    for name in ("bench-precisions-cpu", "bench-scaling-cpu", "bench-semantics-cpu")
)
TABLES = tuple(
    f"results/{name}/table.md"
    for name in ("contention-medium-cpu", "scoring-medium-fp32-cpu", "scoring-medium-bf16-cpu")
)


def write(root: Path) -> None:
    assert results.main(["speed", "--root", str(root)]) == 0


def test_the_pages_are_as_the_script_writes_them(tmp_path: Path) -> None:
    for name in (*PAGES, *ROWS, *TABLES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), (
            f"{name}: python -m ptb_lm.results speed"
        )
    # And it does write: other rows make another page.
    for name in ROWS:
        lines = [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for row in lines:
            row.pop("crc32", None)  # which rows of before have not
            if "steps" in row:
                row["steps"] *= 3 if "one-call" in row["variant"] else 2  # rates change, and ratios
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    write(tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_text() != (ROOT / name).read_text()
