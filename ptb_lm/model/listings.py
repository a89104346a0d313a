"""The presets and the models as text for --help-presets and --help-models; this imports nothing slow."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from ptb_lm.model.cells import CELLS
from ptb_lm.model.config import HYPERPARAMETERS, PRESETS, RECIPES
from ptb_lm.model.frameworks import FRAMEWORKS


def list_presets() -> str:
    """Return each preset's hyper-parameters: by the default recipe, and by the tutorial's if different."""
    rows = [("", *PRESETS)]
    for each in HYPERPARAMETERS:
        if each.name != "cell":  # all presets have the same
            rows.append((each.flag, *(_by_both_recipes(preset, each.name) for preset in PRESETS)))
    about = (
        "The hyper-parameters of each --config. Values [in brackets] are of --recipe tutorial, if different."
    )
    meanings = ((each.flag, each.help) for each in HYPERPARAMETERS if each.name != "cell")
    return f"{about}\n\n{_align(rows)}\n\n{_list('What they are:', meanings, 22)}"


def list_models() -> str:
    """Return what the models of each framework are, and the cells."""
    parts = [_list(f"--framework {name} --model", row.models.items()) for name, row in FRAMEWORKS.items()]
    parts.append(_list("--cell", ((name, row.about) for name, row in CELLS.items())))
    parts.append(
        _list("--execution, the default first", ((n, ", ".join(r.executions)) for n, r in FRAMEWORKS.items()))
    )
    return "\n\n".join(parts)


def one_of(names: Iterable[str], default: str) -> str:
    """Return names as in a sentence, with a note at the default: `lstm (default), gru or elman`."""
    *others, last = (f"{name} (default)" if name == default else name for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def _by_both_recipes(preset: str, field: str) -> str:
    default, tutorial = (_format(getattr(RECIPES[name][preset], field)) for name in ("default", "tutorial"))
    return default if default == tutorial else f"{default} [{tutorial}]"


def _format(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:.4g}"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _list(title: str, rows: Iterable[tuple[str, str]], width: int = 17) -> str:
    lines = (
        textwrap.fill(f"{name:<{width}}{text}", 100, initial_indent="  ", subsequent_indent=" " * (2 + width))
        for name, text in rows
    )
    return "\n".join([title, *lines])
