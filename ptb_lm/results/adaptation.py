"""The table of models that adapt to the text, in results/README.md, from results/adaptation-*.

It is a table of its own, because an adapted perplexity is of another kind than those of the runs.
"""

from pathlib import Path
from typing import Any

from ptb_lm.errors import UserError
from ptb_lm.inference.adaptation.settings import Cache, Dynamic
from ptb_lm.program import command_name
from ptb_lm.results.markdown import table, write_part
from ptb_lm.training import json_files

PART = "adaptation"
TITLES = (
    *("adapted to the text by", "of", "settings", "tuned on", "trials:"),
    *("there, not adapted:", "there, adapted:", "text", "not adapted:", "adapted:", "command"),
)


def write(results: Path) -> int:
    """Write the table; return of how many results.

    Raises:
        UserError: A result cannot be read, or the page lacks its markers.
    """
    rows = [_row(path, results) for path in sorted(results.glob("adaptation-*/*/result.json"))]
    write_part(results / "README.md", PART, table(TITLES, rows))
    return len(rows)


def _row(path: Path, results: Path) -> list[str]:
    try:
        found: dict[str, Any] = json_files.read(path, remedy="restore it")
        settings = [str(kind(**found[name])) for name, kind in _KINDS.items() if found[name] is not None]
        return [
            f"[{found['adapted_by']}]({path.parent.relative_to(results).as_posix()})",
            f"{found['run']['config']}, commit {(found['run_commit'] or 'unknown')[:7]}",
            "; ".join(settings),
            found["tuned_on"] or "",
            str(len(found["trials"]) or ""),
            _perplexity(_unadapted_there(found)),
            _perplexity(found["adapted_perplexity_there"]),
            found["text"],
            _perplexity(found["unadapted_perplexity"]),
            _both(found),
            f"`{found['command']}`",
        ]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not what {command_name('evaluate')} --out writes") from None


_KINDS: dict[str, Any] = {"dynamic": Dynamic, "cache": Cache}


def _both(found: dict[str, Any]) -> str:
    """Return the adapted perplexity, and that of dynamic evaluation alone where a cache came on top."""
    alone = found["adapted_perplexity_without_cache"]
    adapted = f"**{_perplexity(found['adapted_perplexity'])}**"
    return adapted if alone is None else f"{adapted} (without the cache {_perplexity(alone)})"


def _unadapted_there(found: dict[str, Any]) -> float | None:
    plain = [trial["perplexity"] for trial in found["trials"] if trial["settings"] is None]
    return plain[0] if plain else None


def _perplexity(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
