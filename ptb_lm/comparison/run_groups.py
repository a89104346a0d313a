"""Runs that differ in nothing but the seed, together: their settings, and means of what they reached."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ptb_lm.common import streams
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs
from ptb_lm.comparison.runs import Run
from ptb_lm.training.run_directory import NoEpochError

SEEDS = "seed-*"  # the runs in a folder that --seeds made
# What only a result says, and how it stands in settings until there is one.
UNKNOWN = {"device": "auto", "machine": None, "parameters": None}


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; there is one at least."""

    runs: Sequence[Run]

    @property
    def folder(self) -> Path:
        """That of --seeds, if all are of one; or the first run's."""
        folders = [run.folder for run in self.runs]
        of_seeds = {each.parent for each in folders if each.resolve().match(SEEDS)}
        return of_seeds.pop() if len(folders) > 1 and len(of_seeds) == 1 else folders[0]

    @property
    def settings(self) -> dict[str, Any]:
        """What was chosen, by name, but for the seed; and the machine and the number of parameters."""
        values = self.runs[0].config.to_json()
        values |= values.pop("hyperparameters")
        values |= values.pop("preparation", {})
        values |= {"init_from": values["init_from"]["run"]} if "init_from" in values else {}
        for name in ("seed", "source"):
            values.pop(name, None)
        values["data"] = self.runs[0].data
        ended = [run for run in self.runs if run.result]
        if not ended:
            return {**values, **UNKNOWN, "device": _device(self.runs[0])}
        machines = " and ".join(dict.fromkeys(run.device for run in ended))
        facts = {"machine": machines, "parameters": ended[0].result["parameters"]}
        return {**values, **facts, "device": _device(ended[0])}

    def mean_of(self, figure: Callable[[Run], float | None]) -> tuple[float, float] | None:
        """Return the mean of a figure and its standard deviation, 0 of one run; None unless all have it."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        if len(values) < len(self.runs):
            return None
        return fmean(values), stdev(values) if len(values) > 1 else 0.0


def read(folders: Sequence[Path]) -> list[Group]:
    """Read runs, and folders of runs that --seeds made; group them.

    A run without an epoch, young or diverged in its first, is named on stderr and left out.

    Raises:
        UserError: A run is missing, broken, or named twice; or none has an epoch.
    """
    alike: dict[str, list[Run]] = {}
    without: list[NoEpochError] = []
    seen: set[Path] = set()
    for folder in (each for given in folders for each in _runs_in(given)):
        if folder.resolve() in seen:
            raise UserError(f"the run {folder} is named twice")
        seen.add(folder.resolve())
        try:
            run = runs.read(folder)
        except NoEpochError as error:
            without.append(error)
            continue
        settings = {**Group([run]).settings, **UNKNOWN}
        alike.setdefault(repr(sorted(settings.items())), []).append(run)
    if without and not alike:
        raise without[0]
    for each in without:
        streams.tell(f"{each}; the run is left out")
    of_devices = (of_device for each in alike.values() for of_device in _by_device(each))
    groups = (group for of_device in of_devices for group in _by_seed(of_device))
    return [Group(sorted(each, key=lambda run: run.config.choice.seed)) for each in groups]


def _by_device(found: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the runs of each device. Runs of an unknown one go with the others if these are of one device."""
    of_device: dict[str, list[Run]] = {}
    for run in found:
        of_device.setdefault(_device(run), []).append(run)
    if len(of_device.keys() - {UNKNOWN["device"]}) <= 1:
        yield [*found]
    else:
        yield from of_device.values()


def _by_seed(found: Sequence[Run]) -> Iterator[list[Run]]:
    """Yield the runs, no two of one seed together: another run of a seed is no other seed.

    Where a seed is there twice, runs of one command of --seeds stay together.
    """
    seeds = {run.config.choice.seed for run in found}
    groups: dict[tuple[Path | None, int], list[Run]] = {}
    before = Counter[tuple[Path | None, int]]()
    for run in found:
        folder = run.folder.resolve()
        family = folder.parent if folder.match(SEEDS) and len(seeds) < len(found) else None
        seed = family, run.config.choice.seed
        groups.setdefault((family, before[seed]), []).append(run)
        before[seed] += 1
    yield from groups.values()


def _device(run: Run) -> str:
    """Return what a run was computed on, "cpu" or "cuda"; until its end, what was asked for."""
    environment = run.result.get("environment")
    if environment is None:
        return run.config.choice.device
    return "cuda" if "cuda" in environment else "cpu"


def _runs_in(folder: Path) -> list[Path]:
    of_seeds = sorted(folder.glob(f"{SEEDS}/config.json"))
    return [path.parent for path in of_seeds] if of_seeds else [folder]


def names(groups: Sequence[Group]) -> list[str]:
    """Return what each group is called: its folder's name, after as many parents' as tell groups apart."""
    paths = [group.folder.resolve() for group in groups]
    return [_name(path, [other for other in paths if other != path]) for path in paths]


def _name(path: Path, others: Sequence[Path]) -> str:
    ends = (path.parts[-length:] for length in range(1, len(path.parts)))
    apart = (end for end in ends if not any(other.parts[-len(end) :] == end for other in others))
    return "/".join(next(apart, path.parts))


def differing(groups: Sequence[Group]) -> list[str]:
    """Return the names of the settings that are not the same in all groups."""
    settings = [group.settings for group in groups]
    every = dict.fromkeys(name for of_group in settings for name in of_group)
    values = {name: {repr(of_group.get(name)) for of_group in settings} for name in every}
    for name, unknown in UNKNOWN.items():
        values[name].discard(repr(unknown))
    return [name for name in every if len(values[name]) > 1]
