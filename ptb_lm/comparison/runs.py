"""Trained runs, finished or not; and groups of those that differ in nothing but the seed.

A group has the settings of its runs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import resolve_links
from ptb_lm.data.corpus import PENN_TREEBANK_SHA256
from ptb_lm.data.preparation import PTB, effective_settings
from ptb_lm.training import metrics, run_data, run_folders
from ptb_lm.training.run_config import RunConfig, describe_digest
from ptb_lm.training.run_directory import NoEpochError

SEED_FOLDERS = "seed-*"  # the runs in a folder that --seeds made
# Settings that only a result tells, and their values until there is one.
UNKNOWN = {"device": "auto", "machine": None, "parameters": None}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, finished or not.

    Attributes:
        folder: The run directory.
        config: The content of config.json; its hyper-parameters are those of the result, if there is one.
        epochs: The rows of metrics.jsonl; at least one.
        result: The content of result.json; empty if the run has not ended, or has done more epochs since.
    """

    folder: Path
    config: RunConfig
    epochs: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def best(self) -> dict[str, Any]:
        """The epoch whose weights are kept, and its validation perplexity: the first that is lowest.

        The result knows better than the rows: after a crash an epoch may have been trained again.
        """
        if self.result:
            return {"epoch": self.result["best_epoch"], "valid_perplexity": self.result["valid_perplexity"]}
        return min(self.epochs, key=lambda row: float(row["valid_perplexity"]))

    @property
    def words_per_second(self) -> float:
        """The words per second over all its epochs so far, as result.json has it."""
        return metrics.words_per_second(self.epochs)

    @property
    def device(self) -> str:
        """The device that computed it, "cpu" or "cuda"; until its end, the one that --device names."""
        environment = self.result.get("environment")
        if environment is None:
            return self.config.choice.device
        return "cuda" if "cuda" in environment else "cpu"

    @property
    def machine(self) -> str:
        """The GPU, or processor and threads, and how many there were, as far as its files tell.

        A number that changed between sessions is given for each of them: `threads: 2, then 1`.
        """
        environment: dict[str, Any] = self.result.get("environment", {})
        sessions = [*self.result.get("earlier_environments", []), environment]
        parts, usual = (
            [environment.get("device", self.config.choice.device)],
            {"processes": "1", "devices": "1"},
        )
        if parts[0].startswith("cpu") and "processor" in environment:
            parts, usual = [environment["processor"]], {"threads": "unknown", **usual}
        for what, alone in usual.items():
            numbers = [number for number, _ in groupby(str(session.get(what, alone)) for session in sessions)]
            if numbers != [alone]:
                parts.append(f"{what}: {', then '.join(numbers)}")
        return ", ".join(parts)

    @property
    def data(self) -> str:
        """The name of its text: "ptb" for Penn Treebank, wherever it lay; else a name and the known digest.

        Several texts may have the name. Penn Treebank and synthetic have no digest.
        """
        name, source = run_data.short_name(self.config), self.config.source
        if source is None:
            return name
        return PTB if source.sha256 == PENN_TREEBANK_SHA256 else f"{name} ({describe_digest(source.sha256)})"


def read_run(folder: Path) -> Run:
    """Read a run.

    Raises:
        UserError: A file is missing or broken, or no epoch has ended.
    """
    if folder.is_file():  # the shell's checkpoints/* names a page, too
        raise NoEpochError(f"{folder} is not a run directory")
    files = run_folders.find(folder)
    config = files.read_config()
    if config.imported:
        raise NoEpochError(f"{folder} was imported and has no epochs (evaluate reports its perplexity)")
    epochs = files.read_metrics()
    result = files.read_end(len(epochs))
    return Run(folder=folder, config=config.as_trained(result, len(epochs)), epochs=epochs, result=result)


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in nothing but the seed; there is one at least."""

    runs: Sequence[Run]

    @property
    def folder(self) -> Path:
        """The folder of --seeds, if all runs are of one, else the first run's; an absolute path."""
        folders = [run.folder.resolve() for run in self.runs]
        above = {each.parent if each.match(SEED_FOLDERS) else each for each in folders}
        return above.pop() if len(folders) > 1 and len(above) == 1 else folders[0]

    @property
    def settings(self) -> dict[str, Any]:
        """The chosen settings by name, without the seed; and the machine and the number of parameters."""
        config = self.runs[0].config
        written = config.to_json()
        values = {
            **written,
            **written["hyperparameters"],
            "changes": "; ".join(config.changes) or None,
            **(effective_settings(config.preparation) if config.preparation else {}),
            "data": self.runs[0].data,
        }
        if config.init_from:
            values["init_from"] = config.init_from.run
            values["init_from_weights"] = describe_digest(config.init_from.weights_sha256)
            values["new_words"] = config.init_from.new_words
        for name in ("seed", "source", "hyperparameters", "preparation", "earlier"):
            values.pop(name, None)
        complete = [run for run in self.runs if run.result]
        if not complete:
            return {**values, **UNKNOWN, "device": self.runs[0].device}
        machines = " and ".join(dict.fromkeys(run.machine for run in complete))
        facts = {"machine": machines, "parameters": complete[0].result["parameters"]}
        return {**values, **facts, "device": complete[0].device}


def read_groups(folders: Sequence[Path], *, command: str) -> list[RunGroup]:
    """Read runs, and folders of runs that --seeds made; group them.

    A run without an epoch, young or diverged in its first, is named on stderr and left out. So is a file.

    Args:
        folders: The run directories, and folders of them.
        command: The command as the user types it, to open that line with.

    Raises:
        UserError: A run is missing, broken, or named twice; or none has an epoch.
    """
    by_settings: dict[str, list[Run]] = {}
    without: list[NoEpochError] = []
    seen: set[Path] = set()
    for folder in (each for given in folders for each in _runs_in(given)):
        if (place := resolve_links(folder)) in seen:
            raise UserError(f"the run {folder} is named twice")
        seen.add(place)
        try:
            run = read_run(folder)
        except NoEpochError as error:
            without.append(error)
            continue
        # The folder of the weights to begin with may have moved.
        changes = {"data": run_data.identify(run.config), "init_from": None}
        settings = {**RunGroup([run]).settings, **UNKNOWN, **changes}
        by_settings.setdefault(repr(sorted(settings.items())), []).append(run)
    if without and not by_settings:
        raise without[0]
    for each in without:
        streams.print_to_stderr(f"{command}: {each}; it is left out")
    on_one_device = (runs for each in by_settings.values() for runs in _by_device(each))
    groups = (group for runs in on_one_device for group in _by_seed(runs))
    return [RunGroup(sorted(each, key=lambda run: run.config.choice.seed)) for each in groups]


def _by_device(found: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the runs of each device. Runs of an unknown one go with the others if these are of one device."""
    devices: dict[str, list[Run]] = {}
    for run in found:
        devices.setdefault(run.device, []).append(run)
    if len(devices.keys() - {UNKNOWN["device"]}) <= 1:
        yield [*found]
    else:
        yield from devices.values()


def _by_seed(found: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the runs, no two of one seed together: another run of a seed is no other seed.

    Where a seed is there twice, runs of one command of --seeds stay together.
    """
    seeds = {run.config.choice.seed for run in found}
    groups: dict[tuple[Path | None, int], list[Run]] = {}
    before = Counter[tuple[Path | None, int]]()
    for run in found:
        folder = run.folder.resolve()
        family = folder.parent if folder.match(SEED_FOLDERS) and len(seeds) < len(found) else None
        seed = family, run.config.choice.seed
        groups.setdefault((family, before[seed]), []).append(run)
        before[seed] += 1
    yield from groups.values()


def _runs_in(folder: Path) -> list[Path]:
    configs = sorted(folder.glob(f"{SEED_FOLDERS}/config.json"))
    return [path.parent for path in configs] if configs else [folder]


def run_names(groups: Sequence[RunGroup]) -> list[str]:
    """Return each group's name: that of its folder, after as many parents' as tell groups apart."""
    folders = [group.folder for group in groups]
    paths = [
        group.runs[0].folder.resolve() if folders.count(folder) > 1 else folder
        for group, folder in zip(groups, folders, strict=True)
    ]
    return [_name(path, [other for other in paths if other != path]) for path in paths]


def _name(path: Path, others: Sequence[Path]) -> str:
    ends = (path.parts[-length:] for length in range(1, len(path.parts)))
    apart = (end for end in ends if not any(other.parts[-len(end) :] == end for other in others))
    return str(Path(*next(apart, path.parts)))


def differing_settings(groups: Sequence[RunGroup]) -> list[str]:
    """Return the names of the settings that are not the same in all groups."""
    settings = [group.settings for group in groups]
    every = dict.fromkeys(name for each in settings for name in each)
    values = {name: {repr(each.get(name)) for each in settings} for name in every}
    values["data"] = {run_data.identify(group.runs[0].config) for group in groups}  # by any name
    for name, unknown in UNKNOWN.items():
        values[name].discard(repr(unknown))
    return [name for name in every if len(values[name]) > 1]
