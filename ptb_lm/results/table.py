"""Write the tables of results/README.md from the runs in results/.

Runs that differ in nothing but the seed are one row. What a run's files lack, because it is going on or was
made before the key existed, is left blank.
"""

import shlex
import sys
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from ptb_lm import cli
from ptb_lm.model.config import PRESETS, RECIPES
from ptb_lm.results import ablation, kept_runs
from ptb_lm.results.kept_runs import Run

PROG = "python -m ptb_lm.results.table"

# Test perplexities in the docstring of TensorFlow's tutorial (ptb_word_lm.py).
PUBLISHED = {"small": 115.91, "medium": 82.07, "large": 78.29}


def main() -> int:
    """Run the command; return its exit status."""
    return cli.run(PROG, _write)


def _write() -> int:
    parser = cli.Parser(prog=PROG, description="Write the tables of results/README.md from the runs there.")
    parser.add_argument("--results", type=Path, default=kept_runs.RESULTS, help="another folder than results")
    results: Path = parser.parse_args().results
    runs, page = kept_runs.read_all(results), results / "README.md"
    kept_runs.write_part(page, "runs", _runs_table(runs))
    for config in ablation.STEPS:
        kept_runs.write_part(page, f"ablation of {config}", ablation.markdown(runs, config))
    print(f"wrote the tables of {len(runs)} runs into {page}")
    return 0


def _runs_table(runs: list[Run]) -> str:
    titles = [
        *("config", "recipe", "model", "seeds", "parameters:", "epochs (best):"),
        *("train:", "valid:", "test:", "last: train:", "last: valid:", "last: test:", "tutorial's test:"),
        *("words/s:", "minutes:", "device", "command", "curves"),
    ]
    alike = groupby(sorted(runs, key=_order), key=_apart_from_the_seed)
    return kept_runs.table(titles, (_row(list(group)) for _, group in alike))


def _apart_from_the_seed(run: Run) -> tuple[Any, ...]:
    """Return all that tells runs apart that are not of one row."""
    alike = {"seed": 0, "data": run.data, "device": "", "recipe": _recipe(run), "execution": _execution(run)}
    return run.device, "" if run.result else run.folder.name, {**run.config.to_json(), **alike}


def _order(run: Run) -> tuple[Any, ...]:
    """Return what to sort by: as the presets are, long runs before short ones, runs of one row together."""
    config = run.config
    return (
        [*PRESETS, config.config].index(config.config),  # those that this version does not know come last
        -config.hyperparameters.epochs,
        len(_overrides(run)),
        run.device,
        _recipe(run),
        config.choice.model,
        repr(_apart_from_the_seed(run)),
        config.choice.seed,
    )


def _recipe(run: Run) -> str:
    """Return the recipe's name; "both" of a preset that they are known not to tell apart."""
    name = run.config.config
    same = name in PRESETS and RECIPES["default"][name] == RECIPES["tutorial"][name]
    return "both" if same else run.config.recipe


def _execution(run: Run) -> str:
    """Return how a step was run; "" for a CPU's or a framework's usual way."""
    choice = run.config.choice
    usual = {choice.row.executions[0]}
    if choice.framework == "torch" and "cuda" not in run.result.get("environment", {}):
        usual.add("eager")
    return "" if choice.execution in usual else choice.execution


def _overrides(run: Run) -> list[str]:
    return kept_runs.overrides(run, recipe=run.config.recipe)


def _row(group: list[Run]) -> list[str]:
    run = group[0]
    results = [each.result for each in group]
    full = not _overrides(run) and run.data == "ptb"
    return [
        run.config.config,
        _recipe(run),
        _model(run),
        ", ".join(f"[{each.config.choice.seed}]({each.folder.name})" for each in group),
        next((f"{result['parameters']:,}" for result in results if "parameters" in result), ""),
        kept_runs.epochs(group),
        kept_runs.perplexity([each.best["train_perplexity"] for each in group]),
        kept_runs.perplexity([each.best["valid_perplexity"] for each in group]),
        kept_runs.perplexity([result.get("test_perplexity") for result in results], strong=True),
        *(
            kept_runs.perplexity([each.epochs[-1][key] for each in group] if run.result else [None])
            for key in ("train_perplexity", "valid_perplexity")
        ),
        kept_runs.perplexity([result.get("final_test_perplexity") for result in results]),
        f"{PUBLISHED[run.config.config]}" if full and run.config.config in PUBLISHED else "",
        f"{fmean(each.words_per_second for each in group):,.0f}",
        _minutes(results),
        run.device,
        f"`{_command(run)}`",
        ", ".join(_curve(each) for each in group if (each.folder / "curve.svg").exists()),
    ]


def _model(run: Run) -> str:
    choice = run.config.choice
    parts = [choice.framework, choice.model, _execution(run)]
    precision = "" if choice.precision == "fp32" else f" @{choice.precision}"
    return " ".join(part for part in parts if part) + precision


def _minutes(results: list[dict[str, Any]]) -> str:
    known = [result["seconds"] for result in results if "seconds" in result]
    return f"{fmean(known) / 60:.0f}" if len(known) == len(results) else ""


def _command(run: Run) -> str:
    """Return what repeats a run, but for its seed and folder; defaults are left out."""
    config, choice = run.config, run.config.choice
    chosen_and_usual = {
        "recipe": ("default" if _recipe(run) == "both" else config.recipe, "default"),
        "framework": (choice.framework, "torch"),
        "execution": (_execution(run), ""),
        "unroll": (choice.unroll, choice.row.unrolls[0]),
        "precision": (choice.precision, "fp32"),
        "data": (run.data, "ptb"),
    }
    flags = ["--model", choice.model, "--config", config.config]
    for name, (chosen, usual) in chosen_and_usual.items():
        if chosen != usual:
            flags += [f"--{name}", chosen]
    return f"{cli.TRAIN} {shlex.join([*flags, *_overrides(run)])}"


def _curve(run: Run) -> str:
    return f"[{run.config.choice.seed}]({run.folder.name}/curve.svg)"


if __name__ == "__main__":
    sys.exit(main())
