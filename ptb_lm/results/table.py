"""Write the tables of results/README.md, and that of README.md, from the runs in results/.

Runs that differ only in the seed are one row. Values that a run lacks, because it is unfinished or was
made before the key existed, are left blank.
"""

from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ptb_lm import cli
from ptb_lm.comparison.runs import Run
from ptb_lm.data.preparation import PTB
from ptb_lm.model.config import PRESETS
from ptb_lm.results import ablation, checks, command, markdown, measured, published_table
from ptb_lm.results.markdown import epochs, perplexity, table, write_part


class Perplexities(NamedTuple):
    """Of a run's last epoch."""

    train: float
    valid: float
    test: float


# From the docstring of TensorFlow's tutorial (ptb_word_lm.py).
PUBLISHED = {
    "small": Perplexities(37.99, 121.39, 115.91),
    "medium": Perplexities(48.45, 86.16, 82.07),
    "large": Perplexities(37.87, 82.62, 78.29),
}


def write(results: Path) -> int:
    """Write the tables of results/README.md and the README above it; return of how many runs.

    Raises:
        UserError: A run cannot be read, or the page lacks its markers.
    """
    found, page = markdown.read_all(results), results / "README.md"
    write_part(page, "runs", _runs_tables(found))
    write_part(page, "second checks", checks.markdown(found))
    for config in ablation.STEPS:
        write_part(page, f"ablation of {config}", ablation.markdown(found, config))
    write_part(page, published_table.PART, published_table.markdown(results))
    write_part(page, measured.PART, measured.markdown(results))
    front = results.parent / "README.md"
    if front.is_file():  # of a checkout
        write_part(front, "perplexities", _perplexities(found))
    return len(found)


def _perplexities(found: list[Run]) -> str:
    """Return the short table: finished runs of the tutorial's configurations by either recipe.

    Of runs with changed hyper-parameters it has only those with tied weights. Runs of one recipe and the same
    hyper-parameters are one row, whatever computed them.
    """
    titles = [
        *("configuration", "test perplexity, best epoch:", "last epoch:", "published by the tutorial:"),
        *("minutes:", "runs", "precision", "processor or GPU"),
    ]
    full = [
        run
        for run in found
        if run.result
        and run.data == PTB
        and run.config.init_from is None
        and run.config.config in PUBLISHED
        and "final_test_perplexity" in run.result
        and (run.config.hyperparameters.tie_weights or not command.overrides(run, recipe=run.config.recipe))
    ]
    alike = groupby(sorted(full, key=_hyperparameters), key=_hyperparameters)
    return table(titles, (_short_row(list(group)) for _, group in alike))


def _hyperparameters(run: Run) -> tuple[Any, ...]:
    """Return recipe and hyper-parameters, which runs of a row share; sorts by configuration and changes."""
    config, changes = run.config.config, command.overrides(run, recipe=run.config.recipe)
    return [*PRESETS].index(config), bool(changes), command.recipe(run), repr(run.config.hyperparameters)


def _short_row(group: list[Run]) -> list[str]:
    run, results = group[0], [each.result for each in group]
    minutes = _minutes(results)
    changes = command.overrides(run, recipe=run.config.recipe)
    flags = f", `{' '.join(changes)}`" if changes else ""
    processors = (each.device.partition(", threads")[0] for each in group)
    return [
        f"{run.config.config}, {command.recipe(run)} recipe{flags}",
        perplexity([result["test_perplexity"] for result in results], strong=True),
        perplexity([result["final_test_perplexity"] for result in results]),
        "–" if changes else f"{PUBLISHED[run.config.config].test}",
        " to ".join(dict.fromkeys(f"{bound:.0f}" for bound in (min(minutes), max(minutes))))
        if minutes
        else "",
        ", ".join(f"[{number}](results/{each.folder.name})" for number, each in enumerate(group, start=1)),
        " or ".join(dict.fromkeys(each.config.choice.precision for each in group)),
        ", ".join(dict.fromkeys(processors)),
    ]


def _runs_tables(found: list[Run]) -> str:
    """Return a table for each preset, with what was published of it."""
    of_presets = groupby(sorted(found, key=_order), key=lambda run: run.config.config)
    return "\n".join(f"### {_of_preset(name, [*of_preset])}" for name, of_preset in of_presets)


def _of_preset(name: str, found: list[Run]) -> str:
    titles = [
        *(f"`{cli.TRAIN}` …", "seeds", "epochs (best):", "train:", "valid:", "test:"),
        *("last: train:", "last: valid:", "last: test:", "words/s:", "minutes:", "device"),
    ]
    rows = (_row(list(group)) for _, group in groupby(found, key=_apart_from_the_seed))
    published = ""
    if name in PUBLISHED:
        train, valid, test = PUBLISHED[name]
        published = f"The tutorial's docstring has train {train}, valid {valid}, test {test}.\n\n"
    return f"{name}\n\n{published}{table(titles, rows)}"


def _apart_from_the_seed(run: Run) -> tuple[Any, ...]:
    """Return the values that must be equal for runs to share a row."""
    alike = {
        "seed": 0,
        "data": run.data,
        "device": "",
        "recipe": command.recipe(run),
        "execution": command.execution(run),
        "command": command.command_of(run),
    }
    return run.device, "" if run.result else run.folder.name, {**run.config.to_json(), **alike}


def _order(run: Run) -> tuple[Any, ...]:
    """Return the sort key: the order of the presets, long runs first, runs of one row together."""
    config = run.config
    return (
        [*PRESETS, config.config].index(config.config),  # presets that this version does not know come last
        -config.hyperparameters.epochs,
        len(command.overrides(run, recipe=run.config.recipe)),
        command.recipe(run),
        run.device,
        config.choice.model,
        repr(_apart_from_the_seed(run)),
        config.choice.seed,
    )


def _row(group: list[Run]) -> list[str]:
    run = group[0]
    results = [each.result for each in group]
    return [
        f"`{command.flags_of(run)}`",
        ", ".join(f"[{each.config.choice.seed}]({each.folder.name})" for each in group),
        epochs(group),
        perplexity([each.best["train_perplexity"] for each in group]),
        perplexity([each.best["valid_perplexity"] for each in group]),
        perplexity([result.get("test_perplexity") for result in results], strong=True),
        *(
            perplexity([each.epochs[-1][key] for each in group] if run.result else [None])
            for key in ("train_perplexity", "valid_perplexity")
        ),
        perplexity([result.get("final_test_perplexity") for result in results]),
        f"{fmean(each.words_per_second for each in group):,.0f}",
        f"{fmean(minutes):.0f}" if (minutes := _minutes(results)) else "",
        run.device,
    ]


def _minutes(results: list[dict[str, Any]]) -> list[float]:
    """Return how long each run took; nothing unless all say so."""
    known = [result["seconds"] / 60 for result in results if "seconds" in result]
    return known if len(known) == len(results) else []
