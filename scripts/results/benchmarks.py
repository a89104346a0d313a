"""The tables of benchmarks, as tables.toml specifies them; and the table of all benchmarks.

A cell shows a figure of a variant. Keys of the table, of its row and of its column say which: bench,
workload, pass, variant, and for a ratio `to`, the variant that it is to. A column's key replaces a row's, and
a row's the table's.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.studies import coverage
from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.reporting.doubts import shorten_commit
from ptb_lm.bench.results import Result, ResultGroup, Summary, distinct, speed_ratio
from ptb_lm.bench.rows import ARCHIVE_SUFFIX
from ptb_lm.bench.summary import summarise
from ptb_lm.common import files
from ptb_lm.common.markdown_tables import write_markdown
from ptb_lm.pages.document import NOTHING
from results import store
from results.expand import expand_entries
from results.markdown import format_range

TO = " to "  # between the ends of an interval
ALL_TITLES = (
    *("benchmark", "commit", "processor or GPU", "day", "processes of a variant:"),
    *("A/A intervals that contain 1:", "resolution:"),
)


def relative_path(name: str) -> str:
    """Return where a benchmark is, from the checkout's root."""
    return f"results/{store.BENCH}/{name}{ARCHIVE_SUFFIX}"


def read(results: Path, name: str) -> Summary:
    """Read a benchmark, once until it is measured again.

    Raises:
        UserError: It is missing or broken.
    """
    path = results.parent / relative_path(name)
    return _read(path, files.identity(path))


@lru_cache
def _read(path: Path, identity: object) -> Summary:
    return summarise(path)


def newest(results: Path, names: str | Sequence[str]) -> str:
    """Return the benchmark that was measured last, of one or several names; the first if none exists.

    Raises:
        UserError: One of them is broken.
    """
    known = [names] if isinstance(names, str) else names
    found = [name for name in known if (results.parent / relative_path(name)).exists()]
    return max(found, key=lambda name: read(results, name).times[-1]) if found else known[0]


def find(
    results: Path, keys: Mapping[str, str], variant: str = "variant"
) -> tuple[ResultGroup | None, Result | None]:
    """Return the group and the result that keys name; None where there is none."""
    for group in read(results, keys["bench"]).groups:
        if group.workload == keys["workload"] and group.pass_name == keys.get("pass", "train"):
            return group, group.result(keys[variant])
    return None, None


def build(results: Path, spec: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """Return a table, and where it was measured.

    Args:
        results: The folder.
        spec: A table of tables.toml.
        titles: The names of variants for people, for rows without a title.

    Raises:
        UserError: A benchmark is missing or broken.
    """
    if "bench" in spec:
        spec = {**spec, "bench": newest(results, spec["bench"])}
    columns, rows = spec["columns"], []
    for row in expand_entries(spec["rows"]):
        row.setdefault("title", titles.get(row.get("variant", ""), ""))
        cells = [
            row[column["text"]] if "text" in column else _cell(results, {**spec, **row, **column})
            for column in columns
        ]
        if any(cell for cell, column in zip(cells, columns, strict=True) if "figure" in column):
            rows.append([cell or spec.get("missing", "") for cell in cells])
    framework = spec.get("framework", "torch")
    sources = {"": spec["bench"]} if "bench" in spec else spec["sources"]
    lines = {
        name: f"{where(read(results, bench), framework)} ([rows](/{relative_path(bench)}))"
        for name, bench in sources.items()
    }
    if "" in lines:
        return f"{write_markdown([column['title'] for column in columns], rows)}\nMeasured on {lines['']}.\n"
    listed = "".join(f"- {name}: {line}\n" for name, line in lines.items())
    return f"{write_markdown([column['title'] for column in columns], rows)}\nMeasured on:\n\n{listed}"


def _cell(results: Path, keys: Mapping[str, Any]) -> str:
    group, result = find(results, keys, keys.get("of", "variant"))
    if group is None or result is None or not result.blocks:
        return ""
    return FIGURES[keys["figure"]](result, _ratio(group, result, keys))


def _ratio(group: ResultGroup, result: Result, keys: Mapping[str, Any]) -> LogMean | None:
    base = group.result(keys.get("to", group.baseline))
    return speed_ratio(result, base) if base and base.blocks else None


def _rate_and_ratio(result: Result, value: LogMean | None) -> str:
    shown = "" if value is None or value.error is None else f" ({formats.times(value.estimate)})"
    return f"{result.mean_rate.estimate:,.0f}{shown}"


def _ratio_or_1(value: LogMean | None) -> str:
    if value is None:
        return ""
    if value.error is None:  # of a single round; or of the reference itself
        return formats.times(value.estimate) if value.mean else "1"
    return formats.ratio(value, between=TO)


def _share(result: Result) -> str:
    if result.gemm_fraction is None:
        return ""
    reached = result.gemm_fraction.median
    return f"{reached:.0%}" if reached <= 1 else formats.UNDERESTIMATED


FIGURES: dict[str, Callable[[Result, LogMean | None], str]] = {
    "words a second": lambda result, _: f"{result.rate.median:,.0f}",
    "mean words a second": lambda result, _: f"{result.mean_rate.estimate:,.0f}",
    "mean words a second, ratio": _rate_and_ratio,
    "ms": lambda result, _: formats.significant(result.seconds.median * 1e3),
    "share of peak": lambda result, _: _share(result),
    "precision": lambda result, _: result.blocks[0].work.precision,
    "ratio": lambda _, value: (
        "" if value is None or value.error is None else formats.ratio(value, between=TO)
    ),
    "ratio or 1": lambda _, value: _ratio_or_1(value),
    "times": lambda _, value: formats.times(value.estimate) if value else "",
    "interval": lambda _, value: formats.interval(value, between=TO) if value and value.interval else "",
}


def where(summary: Summary, framework: str = "torch") -> str:
    """Return the machine, the version of a framework if it is known, and the commit of a benchmark."""
    facts = {name: "/".join(values) for name, values in summary.environment.items()}
    cores = [f"{facts['cores']} cores"] if is_on_cpu(facts) and "cores" in facts else []
    version = [f"{framework} {facts[framework]}"] if framework in facts else []
    return ", ".join(
        [_machine(facts), *cores, *version, f"commit {' and '.join(_commits(summary)) or 'unknown'}"]
    )


def _commits(summary: Summary) -> list[str]:
    return distinct(map(shorten_commit, summary.environment.get("commit", ())))


def _machine(facts: Mapping[str, str]) -> str:
    if not is_on_cpu(facts):
        return facts["device"]
    processor = facts.get("processor", facts.get("cpu", "a CPU"))
    instructions = distinct(re.findall(r"\bAVX\w+", facts.get("device", "")))  # torch alone tells them
    return f"{processor} with {' or '.join(instructions)}" if instructions else processor


def is_on_cpu(facts: Mapping[str, str]) -> bool:
    """Return whether what ran in an environment ran on its CPU."""
    return facts.get("device", "cpu").startswith("cpu")


def all_of_them(results: Path) -> str:
    """Return the table of all benchmarks, the newest first, and how many A/A tests held.

    Raises:
        UserError: A benchmark is broken.
    """
    paths = sorted((results / store.BENCH).glob(f"*{ARCHIVE_SUFFIX}"))
    found = [
        (name, read(results, name)) for path in paths for name in [path.name.removesuffix(ARCHIVE_SUFFIX)]
    ]
    tests = {name: _tests(summary) for name, summary in found}
    rows = [_row(name, summary, tests[name]) for name, summary in found if summary.times]
    newest_first = sorted(rows, key=lambda row: row[3], reverse=True)  # by day
    every = [each for own in tests.values() for each in own]
    held = _count_held(every)
    return f"{write_markdown(ALL_TITLES, newest_first)}\nOf all A/A tests, {held} intervals contain 1.\n"


def _tests(summary: Summary) -> list[LogMean]:
    """Return the A/A tests whose interval is of processes; of the study coverage, each of its own tests."""
    found: list[LogMean] = []
    for group in summary.groups:
        for _, each in group.repetitions:
            parts = each.units // coverage.PROCESSES if group.suite == coverage.SUITE else 1
            found += coverage.repetition_ratios(group, parts) if parts > 1 else [each]
    return [each for each in found if each.interval and each.unit == "process"]


def _count_held(tests: Sequence[LogMean]) -> str:
    held = sum(low <= 1 <= high for low, high in (each.interval for each in tests if each.interval))
    return f"{held} of {len(tests)}"


def _row(name: str, summary: Summary, tests: Sequence[LogMean]) -> list[str]:
    processes: dict[tuple[str, str], set[tuple[str, int]]] = {}  # of all passes
    for group in summary.groups:
        for result in group.results:
            processes.setdefault((group.workload, result.variant), set()).update(
                (block.session, block.process) for block in result.blocks
            )
    counts = sorted(len(each) for each in processes.values() if each)
    halves = sorted(each.half_width for each in tests if each.half_width is not None)
    facts = {name: "/".join(values) for name, values in summary.environment.items()}
    return [
        f"[{name}](/{relative_path(name)})",
        ", ".join(_commits(summary)),
        _machine(facts),
        summary.times[0].partition("T")[0],
        format_range([str(count) for count in counts]),
        _count_held(tests) if tests else NOTHING,
        format_range([formats.percent(half) for half in halves]) if halves else NOTHING,
    ]
