"""Where and when the benchmark's folders in results/ were measured: a line of one, and a table of all."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.bench import rows
from ptb_lm.bench.findings import Summary, distinct
from ptb_lm.bench.intervals import Ratio
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.summary import summarise
from ptb_lm.errors import UserError
from ptb_lm.results.markdown import table

PART = "benchmarks"
TITLES = (
    *("folder", "commit", "processor or GPU", "day", "processes of a variant:"),
    *("A/A intervals that contain 1:", "resolution:"),
)


def markdown(results: Path) -> str:
    """Return the table, one row for each folder with measured rows, the newest first; and all A/A tests.

    Raises:
        UserError: Rows cannot be read.
    """
    folders = sorted(path.parent for path in results.glob(f"bench-*/{rows.FILE}"))
    tests = {folder: _tests(summarise(folder)) for folder in folders}
    found = [each for folder in folders if (each := _row(folder, tests[folder]))]
    every = [ratio for of_folder in tests.values() for ratio in of_folder]
    held = f"\nOf all A/A tests, {_held(every)} intervals contain 1.\n" if every else ""
    return table(TITLES, sorted(found, key=lambda row: row[3], reverse=True)) + held


def _tests(summary: Summary) -> list[Ratio]:
    """Return the A/A tests whose interval is of processes."""
    found = (ratio for group in summary.groups for _, ratio in group.repetitions)
    return [ratio for ratio in found if ratio.interval and ratio.unit == "process"]


def _held(tests: Sequence[Ratio]) -> str:
    held = sum(low <= 1 <= high for low, high in (ratio.interval for ratio in tests if ratio.interval))
    return f"{held} of {len(tests)}"


def _resolution(tests: Sequence[Ratio]) -> str:
    """Return by how much two variants must differ to show, from the least to the most."""
    halves = sorted(ratio.half_width for ratio in tests if ratio.half_width is not None)
    return " to ".join(dict.fromkeys(formats.percent(half) for half in (halves[0], halves[-1])))


def where(summary: Summary, folder: Path, framework: str = "torch") -> str:
    """Return the machine, the version of a framework if it is known, and the commit of a benchmark's rows.

    Raises:
        UserError: Nothing was measured.
    """
    if not any(result.blocks for group in summary.groups for result in group.results):
        raise UserError(f"{folder}: nothing was measured")
    facts = {name: "/".join(values) for name, values in summary.environment.items()}
    cores = [f"{facts['cores']} cores"] if _on_cpu(facts) and "cores" in facts else []
    version = [f"{framework} {facts[framework]}"] if framework in facts else []
    commits = distinct(commit.partition(" ")[0][:7] for commit in summary.environment.get("commit", ()))
    return ", ".join([_machine(facts), *cores, *version, f"commit {' and '.join(commits) or 'unknown'}"])


def of_study(facts: Mapping[str, Any]) -> str:
    """Return the machine, torch's version if it is known, and the commit of what a study says of itself.

    Raises:
        KeyError: It does not say one of them.
    """
    torch = [f"torch {facts['torch']}"] if "torch" in facts else []
    commit = (facts["commit"] or "unknown")[:7]
    return ", ".join([facts["processor"], f"{facts['cores']} cores", *torch, f"commit {commit}"])


def _row(folder: Path, tests: Sequence[Ratio]) -> list[str] | None:
    measured = [row for row in rows.read(folder)[0] if row.status == rows.MEASURED]
    if not measured:
        return None
    commits = dict.fromkeys((row.environment.get("commit") or "").partition(" ")[0][:7] for row in measured)
    variants = {(row.workload, row.variant): set[int]() for row in measured}
    for row in measured:
        variants[row.workload, row.variant].add(row.process)
    counts = {len(processes) for processes in variants.values()}
    devices = distinct(row.environment.get("device", "cpu") for row in measured)
    return [
        f"[{folder.name}]({folder.name}/report.md)",
        ", ".join(filter(None, commits)),
        _machine({**measured[0].environment, "device": "/".join(devices)}),
        measured[0].time.partition("T")[0],
        f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}",
        _held(tests) if tests else formats.NOTHING,
        _resolution(tests) if tests else formats.NOTHING,
    ]


def _machine(facts: Mapping[str, str]) -> str:
    if not _on_cpu(facts):
        return facts["device"]
    # Earlier versions called the processor cpu.
    processor = facts.get("processor", facts.get("cpu", "a CPU"))
    instructions = distinct(re.findall(r"\bAVX\w+", facts.get("device", "")))  # torch alone tells them
    return f"{processor} with {' or '.join(instructions)}" if instructions else processor


def _on_cpu(facts: Mapping[str, str]) -> bool:
    return facts.get("device", "cpu").startswith("cpu")
