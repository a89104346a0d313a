"""The command `check`: compares variants with the reference (check/), prints the errors and times nothing."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ptb_lm.bench.check.bounds import Bound
from ptb_lm.bench.rows import WRONG
from ptb_lm.bench.run import pool
from ptb_lm.bench.run.machine import Machine
from ptb_lm.bench.run.process import WorkerError
from ptb_lm.bench.selection import Options
from ptb_lm.bench.summary import collect_facts
from ptb_lm.bench.variants import Variant, original
from ptb_lm.bench.workloads import Workload
from ptb_lm.common import cli, files, host, streams
from ptb_lm.common.markdown_tables import Column, Table, to_markdown
from ptb_lm.pages.document import NOTHING

AGREES = "agrees"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a variant's check.

    Attributes:
        workload: Name of the workload.
        variant: Name of the variant.
        precision: Precision of the run for the variant.
        status: AGREES, or the status of a WorkerError.
        reason: Reason of the refusal.
        errors: Errors and bounds, as in a row's `parity`; empty if the variant does not agree.
        environment: Versions, device and threads from the variant's process.
        log: The process's stderr, if it failed.
    """

    workload: str
    variant: str
    precision: str
    status: str = AGREES
    reason: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""

    @property
    def line(self) -> str:
        """The verdict, for people."""
        found = ", ".join(f"{kind} {known}" for kind, known in self.kinds.items())
        why = self.reason or f"the largest errors and their bounds: {found}"
        return f"{self.workload} {self.variant} ({self.precision}): {self.status}; {why}"

    @property
    def kinds(self) -> dict[str, str]:
        """The largest error of each kind with its bound, for people."""
        return {
            kind: f"{self.errors[f'{kind}_error']:.0e} of {self.errors[f'{kind}_bound']:.0e}"
            for kind in Bound._fields
            if f"{kind}_error" in self.errors
        }


def run(
    options: Options, workloads: Sequence[Workload], machine: Machine, *, command: str, out: Path | None
) -> int:
    """Print the verdict on each variant as it is known, and write all of them to a file.

    Args:
        options: Options of the run.
        workloads: Workloads with the variants to check.
        machine: Machine with the device.
        command: Command line, for the document.
        out: File for the verdicts in Markdown, if any. Its folder is made if it does not exist.

    Returns:
        The exit status: 0 if some agree, and none is wrong or failed.

    Raises:
        OSError: The file cannot be written, or its folder cannot be made.
    """
    verdicts: list[Verdict] = []

    def write() -> None:
        if out is not None:
            files.atomic_write(out, document(options, verdicts, command=command))

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    write()  # a name that cannot be written is refused before the work
    for verdict in _verdicts(options, workloads, machine):
        verdicts.append(verdict)
        for line in verdict.log.splitlines():
            streams.print_to_stderr(line)
        cli.print_line(verdict.line)
        write()
    statuses = {verdict.status for verdict in verdicts}
    return 0 if AGREES in statuses and not statuses & {WRONG, "failed"} else cli.EXIT_FAILED


def document(options: Options, verdicts: Sequence[Verdict], *, command: str) -> str:
    """Return the verdicts as Markdown, with the facts of the machine."""
    facts = collect_facts([host.environment(), *(verdict.environment for verdict in verdicts)])
    kinds = [kind for kind in Bound._fields if any(kind in verdict.kinds for verdict in verdicts)]
    titles = ("workload", "variant", "precision", "result", *kinds)
    columns = [Column(title, numeric=False) for title in titles]
    rows = [
        [
            *(verdict.workload, verdict.variant, verdict.precision),
            ": ".join(filter(None, (verdict.status, verdict.reason))),
            *(verdict.kinds.get(kind, NOTHING) for kind in kinds),
        ]
        for verdict in verdicts
    ]
    lines = [
        f"# The check of the suite {options.suite}",
        "",
        f"`{command}`; seed {options.seed}. Nothing was timed. The table gives the largest error of each",
        "kind, and its bound.",
        "",
        *(f"- {name}: {'; '.join(values)}" for name, values in facts.items() if name != "started"),
        "",
        to_markdown(Table(columns, rows)),
    ]
    return "\n".join(lines)


def _verdicts(options: Options, workloads: Sequence[Workload], machine: Machine) -> Iterator[Verdict]:
    """Check one variant after the other, each in a process of its own."""
    for workload in workloads:
        names = {variant.name for variant in workload.variants}
        for variant in workload.variants:
            if original(variant.name) not in names - {variant.name}:  # else it is the same program again
                yield _verdict(options, workload, variant, machine)


def _verdict(options: Options, workload: Workload, variant: Variant, machine: Machine) -> Verdict:
    verdict = Verdict(
        workload=workload.name, variant=variant.name, precision=variant.precision or options.precision
    )
    try:
        with contextlib.closing(pool.Worker(options, workload.name, variant.name, machine)) as worker:
            worker.warm_up(workload.passes, steps=workload.warm_up_steps, limit=0.0)
    except WorkerError as error:
        return replace(verdict, status=error.status, reason=str(error), log=error.log)
    facts = worker.facts
    return replace(verdict, errors=facts["parity"], environment=facts["environment"])
