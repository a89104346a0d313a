"""Measurements to data: a run, an adapted test, a benchmark or a study becomes rows in results/."""

import dataclasses
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ptb_lm.bench import rows
from ptb_lm.common import files, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs
from ptb_lm.inference.adaptation import DynamicEvaluation, NeuralCache
from ptb_lm.training.run_directory import RunDirectory
from results import benchmarks, flags, store

EPOCH = re.compile(r"^epoch (\d+): (.*)$", re.M)
OUT = re.compile(r" --out[ =]('[^']*'|\S+)")
SCORES = re.compile(r"test accuracy ([\d.]+), AUC ([\d.]+) \(weights of epoch (\d+)\)")


def run(
    results: Path, folder: Path, name: str, *, result: str = "", record: str = "", replace: bool = False
) -> bool:
    """Keep what a run has done so far.

    Args:
        results: The folder of results.
        folder: The run directory.
        name: The run's id there.
        result: The result of scripts/reproduce that it is; "": none.
        record: The change since the record before, for a run that is in the table of records.
        replace: True for a run that takes the place of another of this name.

    Returns:
        True if the run was kept. False if it has no epoch, or has not ended while a finished run of this name
        is kept.

    Raises:
        UserError: A file of the run is broken, or another run has its name; or its settings were changed when
            it was resumed.
    """
    directory = RunDirectory(folder)
    if not directory.metrics_path.is_file() or not directory.metrics_path.stat().st_size:
        return False
    found, before = runs.read_run(folder), store.rows(results, store.RUNS, name)
    if changes := found.config.changes:
        raise UserError(
            f"no flags train {folder} again: it was resumed with other settings ({'; '.join(changes)})"
        )
    row = {"id": name, "result": result, **_row(found), "record": record}
    if before and not found.result and before[0]["test"] > 0:
        return False
    epochs, curves = [{"id": name, **epoch} for epoch in found.epochs], store.curves(found.config.preset)
    if before:
        valid = [epoch["valid_perplexity"] for epoch in store.rows(results, curves, name)]
        if not replace and (not valid or valid != [row["valid_perplexity"] for row in epochs[: len(valid)]]):
            raise UserError(f"{name} is another run in {results / store.RUNS}; choose another --id")
        row["result"] = result or before[0]["result"]
    if before and before[0]["test"] == row["test"]:  # the same run
        row["record"] = record or before[0]["record"]
    store.put(results, curves, epochs, sort=["id", "epoch"])
    store.put(results, store.RUNS, [row])
    return True


def _row(found: runs.Run) -> dict[str, Any]:
    config, choice, end = found.config, found.config.choice, found.result
    hyperparameters = config.hyperparameters
    if end:  # a run that goes on plans more epochs
        hyperparameters = hyperparameters.replace(epochs=end["epochs"])
    environment: dict[str, Any] = end.get("environment", {})
    return {
        "preset": config.preset,
        "recipe": config.recipe,
        "overrides": flags.overrides(hyperparameters, config.preset, config.recipe),
        "other_flags": flags.others(config, environment),
        **{name: getattr(choice, name) for name in ("framework", "model", "precision", "seed")},
        "data": found.data,
        "epochs": hyperparameters.epochs,
        "epochs_done": len(found.epochs),
        "best_epoch": found.best["epoch"],
        "valid": found.best["valid_perplexity"],
        "test": end.get("test_perplexity"),
        "last_test": end.get("final_test_perplexity"),
        "words_per_second": found.words_per_second,
        "seconds": end.get("seconds"),
        "command_seconds": end.get("command_seconds"),
        "parameters": end.get("parameters"),
        "machine": found.machine,
        "adapted": None,
        **_provenance(environment),
        "engine": end.get("engine"),
        "sessions": 1 + len(end.get("earlier_environments", [])) if end else None,
        "command": end.get("command"),
        "hyperparameters": json.dumps(dataclasses.asdict(hyperparameters)),
    }


def _provenance(environment: Mapping[str, Any]) -> dict[str, Any]:
    names = ("started", "commit", "cores", "platform", "torch", "tensorflow")
    return {name: environment.get(name) for name in names}


def _machine(environment: Mapping[str, Any], more: str = "") -> str:
    """Return an environment's GPU, or its processor and what else is told of a processor."""
    if benchmarks.is_on_cpu(environment):
        return f"{environment['processor']}{more}"
    return str(environment["device"])


def adaptation(results: Path, file: Path, name: str, of: str) -> None:
    """Keep the test of a run that adapts to the text: a row of runs.csv, its details, and all trials.

    Args:
        results: The folder of results.
        file: The JSON that python -m ptb_lm.evaluate --out wrote.
        name: The id there.
        of: The run's id.

    Raises:
        UserError: The file is none of that command's.
    """
    try:
        found: dict[str, Any] = json_files.read(file, remedy="make it again")
        settings = [str(make(**found[kind])) for kind, make in _KINDS.items() if found[kind] is not None]
        choice, environment = found["run"], found["environment"]
        row = {
            "id": name,
            "preset": choice["config"],
            **{key: choice[key] for key in ("recipe", "framework", "model", "seed", "data")},
            "precision": "fp32",
            "valid": found["adapted_perplexity_there"] if found["tuned_on"] == "valid" else None,
            "test": found["adapted_perplexity"],
            "seconds": found["seconds"],
            "machine": _machine(environment, f", threads: {environment['threads']}"),
            "adapted": f"{found['adapted_by']}: {'; '.join(settings)}",
            **_provenance(environment),
            "command": found["command"],
        }
        detail = {
            "id": name,
            "of": of,
            "run_commit": found["run_commit"],
            "tuned_on": found["tuned_on"],
            "trials": len(found["trials"]),
            "tuned_unadapted": next(
                (each["perplexity"] for each in found["trials"] if each["settings"] is None), None
            ),
            "tuned": found["adapted_perplexity_there"],
            "test_without_cache": found["adapted_perplexity_without_cache"],
            "test_unadapted": found["unadapted_perplexity"],
        }
        trials = [
            {"id": name, **(each["settings"] or {"kind": "none"}), "perplexity": each["perplexity"]}
            for each in found["trials"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{file} is not what python -m ptb_lm.evaluate --out writes") from None
    if trials:
        store.put(results, store.TRIALS, trials)
    store.put(results, store.ADAPTATION, [detail], sort=["id"])
    store.put(results, store.RUNS, [row])


_KINDS: dict[str, Any] = {"dynamic": DynamicEvaluation, "cache": NeuralCache}


def benchmark(results: Path, folder: Path, name: str) -> None:
    """Keep the rows of a benchmark, without the place in the command that they were written to.

    Raises:
        UserError: The folder holds none, or nothing was measured.
    """
    read, _ = rows.read(folder)
    if not any(row.is_measured for row in read):
        raise UserError(f"{folder}: nothing was measured")
    found = [msgspec.structs.replace(row, command=OUT.sub("", row.command)) for row in read]
    path = results / store.BENCH / (name + rows.ARCHIVE_SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.atomic_write(path, gzip.compress(rows.to_lines(found), mtime=0))


def study(results: Path, path: Path, kind: str, name: str, *, command: str = "") -> None:
    """Keep what a study wrote: rows of studies/KIND.csv, and a row of studies.csv about it.

    Args:
        results: The folder of results.
        path: The study's folder, or the file of its output.
        kind: A key of `STUDIES`.
        name: The id there.
        command: The command that made it, for a kind that does not say it itself.

    Raises:
        UserError: It is none of that kind.
    """
    try:
        facts, *found = STUDIES[kind](path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is not what the study {kind} writes") from None
    store.put(results, f"studies/{kind}.csv", [{"id": name, **row} for row in found], sort=["id"])
    about = {"id": name, "study": kind, **facts, "command": facts["command"] or command}
    store.put(results, store.STUDIES, [about], sort=["id"])


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    facts, *found = map(json.loads, (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    engine = facts.get("engine")
    yield {"command": facts["command"], "machine": _machine(facts), "engine": engine, **_provenance(facts)}
    yield from found


def _gate(file: Path) -> Iterator[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8").splitlines()
    facts = dict(line[2:].split(": ", 1) for line in lines if line.startswith("- "))
    command = re.search(r"`(python .*?)`; seed", "\n".join(lines))
    yield {"command": command[1] if command else "", "machine": _machine(facts), **_provenance(facts)}
    titles, _, *table = (
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")
    )
    yield from (dict(zip(titles, cells, strict=True)) for cells in table)


def _template(file: Path) -> Iterator[dict[str, Any]]:
    text = file.read_text(encoding="utf-8")
    engine = re.search(r"^computed by (.*)$", text, re.M)
    yield {"command": "", "engine": engine[1] if engine else ""}
    for epoch, values in EPOCH.findall(text):
        yield {"epoch": int(epoch), **{k: float(v) for k, v in (each.split() for each in values.split(", "))}}
    accuracy, auc, best = SCORES.search(text).groups()  # type: ignore[union-attr] # study says what is wrong
    yield {"epoch": int(best), "test/accuracy": float(accuracy), "test/auc": float(auc)}


def _read_printed(file: Path) -> Iterator[dict[str, Any]]:
    yield {"command": ""}
    yield from ({"line": line} for line in file.read_text(encoding="utf-8").splitlines())


STUDIES = {
    "scoring": _lines,
    "contention": _lines,
    "divergence": _lines,
    "profiles": _lines,
    "gate": _gate,
    "templates": _template,
    "using": _read_printed,
}
