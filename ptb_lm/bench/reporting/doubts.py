"""Reasons to doubt a benchmark: what is not the same for all rows, and what may have disturbed them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ptb_lm.bench.intervals import spread
from ptb_lm.bench.reporting import formats
from ptb_lm.bench.results import ResultGroup, Summary, distinct, group_by_key
from ptb_lm.bench.rows import Row
from ptb_lm.bench.run.machine import DISTURBANCE_LIMIT
from ptb_lm.bench.run.record import PACKAGES

_VERSIONS = ("ptb_lm", "python", "cuda", "cudnn", *PACKAGES)
_UNSTEADY = 0.9  # the lower quartile of the GEMM rates, as a fraction of the upper one
_COARSE = 0.1  # half the width of an A/A test's interval, as a fraction: above, a run resolves little
_ONE_A_CORE = "one a core"  # the first words of some libraries about their threads


def warnings(summary: Summary) -> list[str]:
    """Return sentences about what makes the figures doubtful."""
    return formats.write_items(
        "warnings.md",
        summary=summary,
        mixed=list(list_mixtures(summary)),
        doubts=[(group, find_doubts(group)) for group in summary.groups],
        disturbance_limit=DISTURBANCE_LIMIT,
        coarse=_COARSE,
    )


def shorten_commit(commit: str) -> str:
    """Return a commit's short hash, and whether there were uncommitted changes."""
    digest, _, changes = commit.partition(" ")
    return f"{digest[:7]} {changes}".rstrip()


def list_mixtures(summary: Summary) -> Iterator[str]:
    """Yield what is not the same for all rows: commits, versions, processors, sessions."""
    facts = {
        "commits": [shorten_commit(commit) for commit in summary.environment.get("commit", ())],
        **{f"versions of {name}": summary.environment.get(name, ()) for name in _VERSIONS},
        "processors": summary.environment.get("processor", ()),
        "sessions": [session[:16].replace("T", " ") for session in summary.sessions],
    }
    for what, values in facts.items():
        if len(values) > 1:
            yield f"{what} ({', '.join(values)})"


def find_doubts(group: ResultGroup) -> dict[str, Any]:
    """Return reasons for doubt: too few cores, disturbed blocks, an unsteady machine, no A/A test."""
    blocks = [row for result in group.results for row in result.blocks]
    quotas = {
        quota: max(count_threads(row) or 0 for row in blocks if row.environment.get("cpu_quota") == quota)
        for quota in distinct(row.environment.get("cpu_quota") for row in blocks)
        if quota is not None
    }
    rates = {on: spread(found) for on, found in gemm_rates(group).items()}
    return {
        "blocks": len(blocks),
        "quotas": [(quota, threads) for quota, threads in quotas.items() if quota < threads],
        "disturbed": sum(row.others is not None and row.others > DISTURBANCE_LIMIT for row in blocks),
        "unsteady": [(on, found) for on, found in rates.items() if found.low < _UNSTEADY * found.high],
        "has_interval": any(ratio.interval for _, ratio in group.repetitions),
    }


def count_threads(row: Row) -> int | None:
    """Return the number of threads of all processes of a row; None if it is not known."""
    threads_text = str(row.environment.get("threads"))
    found = re.match(r"\d+", threads_text.replace(_ONE_A_CORE, str(row.environment.get("cores"))))
    return int(found[0]) * int(row.environment.get("processes") or 1) if found else None


def gemm_rates(group: ResultGroup) -> Mapping[str, Sequence[float]]:
    """Return the GEMM rates beside the blocks, in GFLOP/s, by what they were measured on.

    Rows of earlier versions do not tell on what, and are left out.
    """
    return group_by_key(
        (_describe_product(row), row.gemm_gflops)
        for result in group.results
        for row in result.blocks
        if row.gemm_library and row.gemm_gflops
    )


def _describe_product(row: Row) -> str:
    threads = f", threads: {row.gemm_threads}" if row.gemm_threads else ""
    return f"{row.work.precision}, {row.gemm_library}, {row.gemm_shape}{threads}"
