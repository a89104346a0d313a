"""The report of a benchmark: report.md, and report.html with plots."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ptb_lm.bench.findings import Group, Summary, distinct
from ptb_lm.bench.intervals import spread
from ptb_lm.bench.reporting import answer, formats, page, sections
from ptb_lm.bench.reporting.page import Document
from ptb_lm.bench.reporting.plots import MISSING
from ptb_lm.bench.rows import Row
from ptb_lm.bench.run.machine import DISTURBANCE_LIMIT
from ptb_lm.bench.run.record import PACKAGES
from ptb_lm.bench.summary import summarise
from ptb_lm.bench.variants import original
from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import atomic_write

MARKDOWN, PAGE = "report.md", "report.html"

_VERSIONS = ("ptb_lm", "python", "cuda", "cudnn", *PACKAGES)
_UNSTEADY = 0.9  # the lower quartile of the GEMM rates, as a fraction of the upper one
_COARSE = 0.1  # half the width of an A/A test's interval, as a fraction: above, a run resolves little


def write_report(
    out: Path, *, baseline: str | None = None, runs: Sequence[Path] = ()
) -> tuple[Summary, Path]:
    """Write OUT/report.md and OUT/report.html from OUT/rows.jsonl, and say so.

    Without matplotlib the page is left out, and a sentence says how to get it.

    Args:
        out: The benchmark's folder.
        baseline: The variant that ratios are to; None: the one that the rows name.
        runs: Run directories whose learning curves to show.

    Returns:
        (summary, page): what was measured, and the file to look at first.

    Raises:
        UserError: The rows or a run cannot be read, work was unequal, or there is no such baseline.
    """
    summary = summarise(out, baseline=baseline)
    document = build(summary, runs=runs)
    atomic_write(out / MARKDOWN, page.to_markdown(document))
    cli.say(f"wrote {out / MARKDOWN}")
    try:
        html = page.to_html(document)
    except UserError:
        cli.say(f"{PAGE} is not written: {MISSING}")
        return summary, out / MARKDOWN
    atomic_write(out / PAGE, html)
    cli.say(f"wrote {out / PAGE}")
    return summary, out / PAGE


def build(summary: Summary, *, runs: Sequence[Path] = ()) -> Document:
    """Return a report before it is Markdown or a page.

    Raises:
        UserError: A run cannot be read.
    """
    workloads: dict[tuple[str, str], list[Group]] = {}
    for group in summary.groups:
        workloads.setdefault((group.suite, group.workload), []).append(group)
    several = len(summary.suites) > 1
    parts = [sections.workload(groups, with_suite=several) for groups in workloads.values()]
    if runs:
        parts.append(sections.learning_curves(runs))
    return Document(
        title=formats.title(summary.groups),
        subtitle=_subtitle(summary),
        tables=list(answer.table(summary.groups)),
        plots=list(answer.plot(summary.groups)),
        lead=list(answer.sentences(summary.groups)),
        warnings=[
            *summary.remarks,
            *_describe_mixture(summary),
            *_describe_slowness(summary),
            *(f"{group.name}: {warning}" for group in summary.groups for warning in group.warnings),
            *(f"{group.name}: {doubt}" for group in summary.groups for doubt in _doubts(group)),
        ],
        sections=[*parts, sections.machine(summary)],
        explanation="how_to_read.md",
    )


def _doubts(group: Group) -> Iterator[str]:
    """Yield reasons for doubt: too few cores, disturbed blocks, an unsteady machine, a coarse A/A test."""
    blocks = [row for result in group.results for row in result.blocks]
    yield from _describe_quota(blocks)
    disturbances = sum(row.others is not None and row.others > DISTURBANCE_LIMIT for row in blocks)
    if disturbances:
        yield (
            f"other processes took more than {DISTURBANCE_LIMIT:g} of a core beside {disturbances} of "
            f"{len(blocks)} blocks, in all tries of these blocks. A busy process may hold up a step of "
            "several threads many times over."
        )
    for on, rates in sections.gemm_rates(group).items():
        found = spread(rates)
        if found.low < _UNSTEADY * found.high:
            yield (
                "the machine was not equally fast all the time. Its matrix products made at most "
                f"{formats.significant(found.low)} GFLOP/s beside a quarter of the blocks, and at least "
                f"{formats.significant(found.high)} beside another quarter ({on}). A ratio pairs blocks that "
                "are near in time, but times and words per second are of a machine in several states."
            )
    if len(group.candidates) > 1 and not any(ratio.interval for _, ratio in group.repetitions):
        yield "there is no A/A test with an interval, so the resolution of this run is not known."
    for result, ratio in group.repetitions:
        if ratio.differs:
            yield (
                f"{result.variant} is the same program as {original(result.variant)}, and their ratio is "
                f"{formats.ratio(ratio)}. One such interval in twenty misses 1 by chance. If it is not that, "
                "the machine was not quiet, and the other intervals are too narrow."
            )
        if ratio.half_width is not None and ratio.half_width > _COARSE:
            yield (
                f"by the A/A test the resolution of this run is {formats.percent(ratio.half_width)}. A "
                "smaller difference between two variants may not show. More processes, on a quiet machine, "
                "make it finer."
            )


def _describe_quota(blocks: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence if a container gave fewer cores than there were threads."""
    for quota in distinct(row.environment.get("cpu_quota") for row in blocks):
        threads = max(
            sections.threads(row) or 0 for row in blocks if row.environment.get("cpu_quota") == quota
        )
        if quota is not None and quota < threads:
            yield (
                f"the container has a quota of {quota:g} cores, and {threads} threads share it: the system "
                f"stops them for a part of the time. OMP_NUM_THREADS={max(1, int(quota))} is steadier."
            )


def _subtitle(summary: Summary) -> str:
    """Return suites, commit, machine and days."""
    commits = " and ".join(map(_short, summary.environment.get("commit", ()))) or "unknown"
    facts = ("processor", "device", "cpu")
    machine = distinct(value for name in facts for value in summary.environment.get(name, ()))
    days = distinct(time[:10] for time in summary.times)
    return "; ".join(
        filter(
            None,
            (
                f"Benchmark {', '.join(summary.suites)}, commit {commits}",
                ", ".join(machine),
                " to ".join(days),
            ),
        )
    )


def _short(commit: str) -> str:
    """Return a commit's short hash, and whether there were uncommitted changes."""
    digest, _, changes = commit.partition(" ")
    return f"{digest[:7]} {changes}".rstrip()


def _describe_mixture(summary: Summary) -> Iterator[str]:
    """Yield what is not the same for all rows: commits, versions, sessions."""
    differ = {"commits": [_short(commit) for commit in summary.environment.get("commit", ())]}
    for name in _VERSIONS:
        differ[f"versions of {name}"] = list(summary.environment.get(name, ()))
    differ["sessions"] = [session[:16].replace("T", " ") for session in summary.sessions]
    several = [f"{what} ({', '.join(values)})" for what, values in differ.items() if len(values) > 1]
    if several:
        yield (
            f"The rows are of several {' and several '.join(several)}. A ratio pairs rows of one session. "
            "But figures may be of different programs, or of a machine in different states."
        )


def _describe_slowness(summary: Summary) -> Iterator[str]:
    """Yield what the machine lacked."""
    for why in summary.environment.get("no_kernels", ()):
        yield f"This package's models for torch ran without its compiled kernels, and more slowly: {why}."
