"""The tables that `train --help-presets` and `--help-models` print: presets, models and cells."""

import textwrap
from collections.abc import Iterable, Sequence

from ptb_lm.common.errors import UserError
from ptb_lm.model.cells import CELLS
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.hyperparameter import format_value
from ptb_lm.model.presets import AWD_PRESETS, PRESETS, RECIPES
from ptb_lm.training import run_flags

_IDLE = "-"  # stands for a hyper-parameter that has no effect


def list_presets() -> str:
    """Return each preset's hyper-parameters: by the default recipe, and by the tutorial's if different."""
    about = (
        "The hyper-parameters of each --config, and [in brackets] of --recipe tutorial, if different.\n"
        "A dash: the preset's other values leave this one without effect. A table leaves out flags\n"
        "that have no effect in it."
    )
    others = [name for name in PRESETS if name not in AWD_PRESETS]
    meanings = _list("What they are:", ((each.flag, each.help) for each in HYPERPARAMETERS), 24)
    return "\n\n".join([about, _tabulate(others), _tabulate(AWD_PRESETS), meanings])


def _tabulate(presets: Sequence[str]) -> str:
    """Return a table of what differs between presets, and below it what they have in common."""
    rows, same = [("", *presets)], list[str]()
    for each in HYPERPARAMETERS:
        values = [_by_both_recipes(preset, each.name) for preset in presets]
        if len({*values}) > 1:
            rows.append((each.flag, *values))
        elif values[0] != _IDLE:
            same.append(f"{each.flag} {values[0]}")
    return f"{_align(rows)}\n\n" + textwrap.fill(f"All have {', '.join(same)}.", 100, break_on_hyphens=False)


def list_models() -> str:
    """Return what the models of each framework are, and the cells."""
    parts = [_list(f"--framework {name} --model", row.models.items()) for name, row in FRAMEWORKS.items()]
    parts.append(_list("--cell", ((name, row.about) for name, row in CELLS.items())))
    parts.append(
        _list("--execution, the default first", ((n, ", ".join(r.executions)) for n, r in FRAMEWORKS.items()))
    )
    return "\n\n".join(parts)


def _by_both_recipes(preset: str, field: str) -> str:
    default, tutorial = (_effective(RECIPES[name][preset], field) for name in ("default", "tutorial"))
    return default if default == tutorial else f"{default} [{tutorial}]"


def _effective(config: Config, field: str) -> str:
    value = getattr(config, field)
    try:
        run_flags.check_effects(config, {field: value})
    except UserError:
        return _IDLE
    return f"{value:.4g}" if isinstance(value, float) else format_value(value) or "no"


def _align(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _list(title: str, rows: Iterable[tuple[str, str]], width: int = 17) -> str:
    lines = (
        textwrap.fill(
            f"{name:<{width}}{text}",
            100,
            initial_indent="  ",
            subsequent_indent=" " * (2 + width),
            break_on_hyphens=False,
        )
        for name, text in rows
    )
    return "\n".join([title, *lines])
