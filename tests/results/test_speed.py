"""The tables of speed in README and docs are those of the rows in results/."""

import shutil
from pathlib import Path

from support import ROOT

from ptb_lm.results import __main__ as results

PAGES = ("README.md", "docs/performance.md")
RESULTS = ("results/bench-precisions-cpu/rows.jsonl", "results/contention-medium-cpu/table.md")


def write(root: Path) -> None:
    assert results.main(["speed", "--root", str(root)]) == 0


def test_the_pages_are_as_the_script_writes_them(tmp_path: Path) -> None:
    for name in (*PAGES, *RESULTS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    write(tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_text() == (ROOT / name).read_text(), (
            f"{name}: python -m ptb_lm.results speed"
        )
    # And it does write: other rows make another page.
    rows = tmp_path / RESULTS[0]
    rows.write_text(rows.read_text().replace('"steps": 5,', '"steps": 7,'))
    write(tmp_path)
    for name in PAGES:
        assert (tmp_path / name).read_text() != (ROOT / name).read_text()
