"""The table of docs/reliability.md, written from the counts that scripts/reliability --write keeps."""

from pathlib import Path
from typing import Any

from faults.table import AS_PROMISED, FAULTS
from ptb_lm.common.tables import write_markdown

ROOT = Path(__file__).resolve().parents[2]
COUNTS, PAGE = ROOT / "docs" / "reliability.json", ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- counts: written by scripts/reliability --write -->\n", "<!-- end of counts -->\n"
TITLES = ("fault", "what is promised", "framework", "tries", "as promised", "before")


def with_table(text: str, kept: dict[str, Any]) -> str:
    """Return the page's text with the table of these counts in it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    day, where = kept["started"][:10], f"{kept['processor']}, Python {kept['python']}"
    counted = f"Counted on {day} on {where}, with --seed {kept['seed']}."
    table = write_markdown(TITLES, map(_row, kept["counts"]))
    return f"{before}{BEGIN}\n{counted}\n\n{table}\n{END}{after}"


def _row(counts: dict[str, Any]) -> list[str]:
    fault, outcomes = FAULTS[counts["fault"]], counts["outcomes"]
    others = "".join(f"; {n}: {outcome}" for outcome, n in outcomes.items() if outcome != AS_PROMISED)
    # What was found before was found with torch.
    before = fault.before if counts["framework"] == fault.frameworks[0] else "not tried"
    about = [fault.what, fault.promise, counts["framework"], str(counts["tries"])]
    return [*about, f"{outcomes.get(AS_PROMISED, 0)}{others}", before]
