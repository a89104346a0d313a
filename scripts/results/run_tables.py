"""The tables of runs, made from runs.csv and the curves."""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd

from ptb_lm.bench.reporting.doubts import shorten_commit
from ptb_lm.common import cli
from ptb_lm.common.markdown_tables import markdown_code, markdown_text, write_markdown
from ptb_lm.data.preparation import PTB
from ptb_lm.model.config import Config
from ptb_lm.model.presets import PRESETS
from results import flags, store
from results.markdown import format_range, perplexity

CellWriter = Callable[[pd.DataFrame], str]
# Train, valid and test of a last epoch, from the docstring of TensorFlow's tutorial (ptb_word_lm.py).
TUTORIAL_PERPLEXITIES = {
    "small": (37.99, 121.39, 115.91),
    "medium": (48.45, 86.16, 82.07),
    "large": (37.87, 82.62, 78.29),
}
# The steps of an ablation, by the results of scripts/reproduce that they are.
STEPS = {
    "small": {
        "small-tutorial": "0 tutorial",
        "small": "1 average: the default recipe",
        "ablation-small-2-variational": "2 variational",
        "ablation-small-3-words-and-recurrent": "3 words and recurrent",
        "ablation-small-4-schedule": "4 schedule",
        "ablation-small-5-slower-decay": "5 slower decay",
    },
    "medium": {
        "medium-tutorial": "0 tutorial",
        "ablation-medium-1-average": "1 average",
        "ablation-medium-2-variational": "2 variational",
        "ablation-medium-3-words-and-recurrent": "3 words and recurrent",
        "medium": "4 schedule: the default recipe",
    },
}


def read(results: Path) -> pd.DataFrame:
    """Return the runs, with what their tables need beside runs.csv.

    Overrides are those of today's presets. `flags` train a run again, without its seed. The last epoch's
    perplexities and the best of the weights and of their average come from the curves.
    """
    runs = store.read(results, store.RUNS)
    runs = runs[runs["adapted"].isna()].copy()
    texts = ["recipe", "overrides", "other_flags", "commit", "record"]
    runs[texts] = runs[texts].astype(object).fillna("")  # a column that is empty holds numbers
    values = runs["hyperparameters"].map(lambda text: Config.from_json(json.loads(text)))
    runs["config"] = values
    runs["beside_tutorial"] = [
        flags.overrides(config, preset, "tutorial")
        for config, preset in zip(values, runs["preset"], strict=True)
    ]
    runs["overrides"] = [
        flags.overrides(config, preset, recipe)
        for config, preset, recipe in zip(values, runs["preset"], runs["recipe"], strict=True)
    ]
    runs["tied"] = values.map(lambda config: config.tie_weights)
    runs["one_recipe"] = runs["preset"].map(flags.has_one_recipe)
    runs["has_ended"] = runs["test"].notna()
    runs["flags"] = runs.apply(_flags, axis=1)
    epochs = pd.concat([store.read(results, store.curves(preset)) for preset in runs["preset"].unique()])
    return runs.join(epochs.groupby("id").apply(_summarise_curve, include_groups=False), on="id")


def _flags(run: pd.Series) -> str:
    chosen = {
        "recipe": ("default" if run["one_recipe"] else run["recipe"], "default"),
        "framework": (run["framework"], "torch"),
        "precision": (run["precision"], ""),  # by default the fastest of the machine
    }
    parts = [f"--model {run['model']} --config {run['preset']}"]
    parts += [f"--{name} {value}" for name, (value, usual) in chosen.items() if value != usual]
    return " ".join(filter(None, [*parts, run["other_flags"], run["overrides"]]))


def _summarise_curve(epochs: pd.DataFrame) -> pd.Series:
    best, last = epochs.loc[epochs["valid_perplexity"].idxmin()], epochs.iloc[-1]
    other = epochs.get("unaveraged_valid_perplexity", pd.Series(math.nan, epochs.index))
    return pd.Series(
        {
            "train": best["train_perplexity"],
            "last_train": last["train_perplexity"],
            "last_valid": last["valid_perplexity"],
            "best_unaveraged": other.min(skipna=False),
            "last_unaveraged": other.iloc[-1],
        }
    )


def show(runs: pd.DataFrame, columns: Mapping[str, CellWriter], by: list[str]) -> str:
    """Return a table with a row for the runs that are equal in some columns, in the order of the runs."""
    groups = runs.groupby(by, sort=False, dropna=False) if len(runs) else []
    return write_markdown(list(columns), ([cell(group) for cell in columns.values()] for _, group in groups))


def _mean(column: str, *, strong: bool = False, ended: bool = False) -> CellWriter:
    return lambda runs: (
        perplexity(runs[column].astype(float), strong=strong) if not ended or runs["has_ended"].all() else ""
    )


def first(column: str) -> CellWriter:
    """Return a cell with a column's value of the first run."""
    return lambda runs: markdown_text(str(runs[column].iloc[0]))


def _distinct(runs: pd.DataFrame, column: str, between: str) -> str:
    return between.join(dict.fromkeys(map(str, runs[column])))


def _epochs(runs: pd.DataFrame) -> str:
    run = runs.iloc[0]
    unfinished = "" if run["has_ended"] else f" of {run['epochs']}, not ended"
    return f"{run['epochs_done']}{unfinished} (best {_distinct(runs, 'best_epoch', ', ')})"


def _minutes(runs: pd.DataFrame) -> str:
    return "" if runs["seconds"].isna().any() else f"{runs['seconds'].mean() / 60:.0f}"


def short_commit(runs: pd.DataFrame) -> str:
    """Return the short hash of a run's code, and whether there were uncommitted changes."""
    return shorten_commit(runs["commit"].iloc[0])


_ROWS: dict[str, CellWriter] = {
    f"`{cli.TRAIN}` …": lambda runs: markdown_code(runs["flags"].iloc[0]),
    "seeds": lambda runs: _distinct(runs, "seed", ", "),
    "epochs (best):": _epochs,
    "train:": _mean("train"),
    "valid:": _mean("valid"),
    "test:": _mean("test", strong=True),
    "last: train:": _mean("last_train", ended=True),
    "last: valid:": _mean("last_valid", ended=True),
    "last: test:": _mean("last_test"),
    "words/s:": lambda runs: f"{runs['words_per_second'].mean():,.0f}",
    "minutes:": _minutes,
    "device": first("machine"),
    "ids in runs.csv": lambda runs: ", ".join(map(markdown_code, runs["id"])),
}


def all_of_them(runs: pd.DataFrame) -> str:
    """Return a table for each preset, with what was published; runs that differ in the seed share a row."""
    ours = runs[runs["data"] == PTB].copy()
    order = list(dict.fromkeys([*PRESETS, *ours["preset"]]))
    ours["place"] = ours["preset"].map(order.index)
    ours["fewer"] = -ours["epochs"]
    ours["changes"] = ours["overrides"].str.count(" ")
    ours["alone"] = ours["id"].where(~ours["has_ended"], "")
    ours["label"] = ours["recipe"].where(~ours["one_recipe"], "both")
    ours = ours.sort_values(
        ["place", "fewer", "changes", "overrides", "label", "machine", "flags", "seed", "id"]
    )
    parts = []
    for preset, own in ours.groupby("preset", sort=False):
        published = ""
        if preset in TUTORIAL_PERPLEXITIES:
            train, valid, test = TUTORIAL_PERPLEXITIES[preset]
            published = f"The tutorial's docstring has train {train}, valid {valid}, test {test}.\n\n"
        parts.append(f"### {preset}\n\n{published}{show(own, _ROWS, ['machine', 'alone', 'flags'])}")
    return "\n".join(parts)


_BY_HOURS: dict[str, CellWriter] = {
    "hours:": lambda run: f"{run['seconds'].iloc[0] / 3600:.1f}",
    **{name: _ROWS[name] for name in (f"`{cli.TRAIN}` …", "epochs (best):", "valid:", "test:", "device")},
    "id in runs.csv": _ROWS["ids in runs.csv"],
}


def by_hours(runs: pd.DataFrame) -> str:
    """Return the table of the finished runs of two CPU threads that validate better than all faster ones."""
    two = runs["machine"].str.endswith(", threads: 2") & (runs["data"] == PTB) & runs["has_ended"]
    fastest_first = runs[two].sort_values("seconds")
    best_so_far = fastest_first["valid"].cummin().shift(fill_value=math.inf)
    return show(fastest_first[fastest_first["valid"] < best_so_far], _BY_HOURS, ["id"])


_SHORT: dict[str, CellWriter] = {
    "configuration": lambda runs: runs["title"].iloc[0],
    "test perplexity, best epoch:": _mean("test", strong=True),
    "last epoch:": _mean("last_test"),
    "published by the tutorial:": lambda runs: (
        f"{TUTORIAL_PERPLEXITIES[preset][2]}"
        if (preset := runs["preset"].iloc[0]) in TUTORIAL_PERPLEXITIES and not runs["overrides"].iloc[0]
        else "–"
    ),
    "minutes:": lambda runs: format_range([f"{seconds / 60:.0f}" for seconds in sorted(runs["seconds"])]),
    "runs:": lambda runs: str(len(runs)),
    "precision": lambda runs: _distinct(runs, "precision", " or "),
    "processor or GPU": lambda runs: _distinct(runs, "processor", ", "),
}


def perplexities(runs: pd.DataFrame) -> str:
    """Return the table of finished runs of the tutorial's configurations by either recipe, and of `modern`.

    Runs of the tutorial's with changed hyper-parameters are in it only if they have tied weights. Runs of one
    recipe and the same hyper-parameters are one row, whatever computed them.
    """
    return show(_finished(runs), _SHORT, ["title"])


def perplexities_in_short(runs: pd.DataFrame) -> str:
    """Return the same table with fewer columns, and the flags of each row."""
    return show(_finished(runs), _SHORTER, ["title"])


def _finished(runs: pd.DataFrame) -> pd.DataFrame:
    unchanged, of_tutorial = runs["overrides"] == "", runs["preset"].isin([*TUTORIAL_PERPLEXITIES])
    chosen = of_tutorial & (unchanged | runs["tied"]) | (runs["preset"] == "modern") & unchanged
    full = runs[chosen & (runs["data"] == PTB) & runs["last_test"].notna()].copy()
    changed = full["overrides"].map(lambda flags: f", `{flags}`" if flags else "")
    recipe = (", " + full["recipe"] + " recipe").where(~full["one_recipe"], "")
    full["title"] = full["preset"] + recipe + changed
    full["processor"] = full["machine"].str.partition(", threads")[0]
    full["place"] = full["preset"].map([*PRESETS].index)
    return full.sort_values(["place", "overrides", "recipe", "id"], key=_empty_first)


_NOT_THE_SHORT_NAME = re.compile(r"Intel|AMD|NVIDIA|\(R\)|Processor|\d+GB.*|@.*")  # of a processor or GPU


def _hardware(runs: pd.DataFrame) -> str:
    """Return the short names of the processors or GPUs."""
    names = runs["processor"].map(lambda name: " ".join(_NOT_THE_SHORT_NAME.sub("", name).split()))
    return _on_one_line(" or ".join(dict.fromkeys(names)))


def _on_one_line(text: str) -> str:
    """Return a cell's text with spaces at which no line breaks: the flags beside it break first."""
    return text.replace(" ", "&nbsp;")


def _short_flags(runs: pd.DataFrame) -> str:
    run = runs.iloc[0]
    recipe = "" if run["one_recipe"] or run["recipe"] == "default" else f"--recipe {run['recipe']}"
    flags = filter(None, [run["preset"], recipe, run["overrides"]])
    return f"`{' '.join(flags)}`"


_SHORTER: dict[str, CellWriter] = {
    "`--config` …": _short_flags,
    "test perplexity:": lambda runs: _on_one_line(_SHORT["test perplexity, best epoch:"](runs)),
    "published:": _SHORT["published by the tutorial:"],
    "minutes:": _SHORT["minutes:"],
    "trained on": _hardware,
}


def _empty_first(values: pd.Series) -> pd.Series:
    return values != "" if values.name == "overrides" else values


def ablation(runs: pd.DataFrame, preset: str) -> str:
    """Return the table of an ablation: a row a step, from the tutorial's recipe to the default and beyond.

    To average the weights changes nothing that is trained, so that one run tells of the weights and of their
    average. The first row of a step gains points of the best validation perplexity on the row above, of the
    average where there is one, if both have ended. Within a run the average gains on the weights of the same
    run. The test split is left out, because nothing is chosen by it.
    """
    steps = runs[(runs["result"].isin([*STEPS[preset]])) & (runs["data"] == PTB)]
    steps = steps[~steps["result"].isin([preset, f"{preset}-tutorial"]) | (steps["overrides"] == "")].copy()
    steps["step"] = steps["result"].map(STEPS[preset])
    steps = steps.sort_values(["step", "machine"])
    averaged = steps["config"].map(lambda config: config.average_epochs > 0)
    steps["weights"] = steps["best_unaveraged"].where(averaged, steps["valid"])
    steps["average"] = steps["valid"].where(averaged)
    steps["last_weights"] = steps["last_unaveraged"].where(averaged, steps["last_valid"])
    steps["last_average"] = steps["last_valid"].where(averaged)
    best = steps["valid"].where(steps["has_ended"])
    # Only in the first row of a step: two rows of one differ in seed or processor.
    steps["gained"] = (best.shift() - best).where(steps["step"] != steps["step"].shift())
    steps["within"] = steps["weights"] - steps["average"]
    columns: dict[str, CellWriter] = {
        "step": first("step"),
        "beside the tutorial's": lambda run: (
            f"`{flags}`" if (flags := run["beside_tutorial"].iloc[0]) else ""
        ),
        "epochs (best):": _epochs,
        "best valid: weights:": _mean("weights", strong=True),
        "best valid: average:": _mean("average", strong=True),
        "gained on the row above:": lambda run: _format_signed(run["gained"].iloc[0]),
        "average: gained within the run:": lambda run: _format_signed(run["within"].iloc[0]),
        "last valid: weights:": _mean("last_weights", ended=True),
        "last valid: average:": _mean("last_average", ended=True),
        "model": _model,
        "seed:": first("seed"),
        "device": first("machine"),
        "commit": short_commit,
    }
    return show(steps, columns, ["id"])


def without_a_piece(runs: pd.DataFrame) -> str:
    """Return the table of `modern` in 8 epochs with one or a few other values, the best validation first.

    A row gains as much as its validation perplexity is below that of modern's own 8 epochs. The test split is
    left out, because nothing is chosen by it.
    """
    is_short = (runs["preset"] == "modern") & (runs["epochs"] == 8) & (runs["data"] == PTB)
    short = runs[is_short & runs["has_ended"]].sort_values("valid")
    short["beside"] = short["overrides"].str.replace(r" ?--epochs 8\b", "", regex=True).str.strip()
    short["gained"] = short.loc[short["beside"] == "", "valid"].mean() - short["valid"]
    columns: dict[str, CellWriter] = {
        "beside modern's": lambda runs: (
            markdown_code(changes) if (changes := runs["beside"].iloc[0]) else "nothing"
        ),
        "train:": _mean("train"),
        "valid:": _mean("valid", strong=True),
        "gained:": lambda runs: _format_signed(runs["gained"].mean()) if runs["beside"].iloc[0] else "",
        "precision": lambda runs: _distinct(runs, "precision", ", "),
        "ids in runs.csv": _ROWS["ids in runs.csv"],
    }
    return show(short, columns, ["beside"])


def _format_signed(value: float) -> str:
    return "" if pd.isna(value) else f"{value:+.2f}"


def _model(runs: pd.DataFrame) -> str:
    run = runs.iloc[0]
    precision = "" if run["precision"] == "fp32" else f" @{run['precision']}"
    return f"{run['framework']} {run['model']}{precision}"


def fine_tuning(runs: pd.DataFrame) -> str:
    """Return the table of the runs on other texts."""
    columns: dict[str, CellWriter] = {
        "id": lambda run: markdown_code(run["id"].iloc[0]),
        "flags": lambda run: markdown_code(run["flags"].iloc[0]),
        "learning rate:": lambda run: f"{run['config'].iloc[0].learning_rate:g}",
        "valid:": _mean("valid"),
        "test:": _mean("test", strong=True),
        "commit": short_commit,
    }
    return show(runs[runs["data"] != PTB], columns, ["id"])
