"""The benchmark's raw record, rows.jsonl: a line for each block that was timed, or that could not be.

Unknown keys are left alone: a later version may record more.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptb_lm.bench import checks, roofline
from ptb_lm.errors import UserError

FILE = "rows.jsonl"
MEASURED = "measured"
STATUSES = (MEASURED, "unavailable", "failed", "wrong")
PASSES = ("forward", "train")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step does: equal for all variants of a workload's pass.

    But for the device, and for a precision that a variant's name gives (variants.declared_precision).
    """

    parameters: int
    flops_per_step: float
    items_per_step: float
    unit: str  # of the items, in the plural: words, sequences
    precision: str
    device: str
    description: str = ""
    clock: str = ""  # what is inside the timed part
    bytes_per_step: roofline.Traffic | None = None  # None where no roofline is declared


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of rows.jsonl: a timed block of steps, or why there is none.

    Only a measured row is sure to have a round, process, steps, seconds and work.
    """

    suite: str
    workload: str
    pass_name: str  # "forward" or "train"
    variant: str
    label: str  # how a table calls the variant
    baseline: str  # the variant that ratios are to
    status: str  # one of STATUSES
    reason: str = ""  # why it is not measured
    session: str = ""  # when the run began that measured it: only rounds of one session are paired
    round: int = 0
    process: int = 0  # rows with the same number were measured by one process
    planned_rounds: int = 0
    steps: int = 1
    seconds: float = math.nan  # wall time of all the steps
    work: Work | None = None
    note: str = ""
    cut: str = ""  # how the workload is smaller than declared
    loss: float | None = None  # of the initial weights, without dropout
    parity: Mapping[str, Any] = field(default_factory=dict)
    startup: Mapping[str, Any] = field(default_factory=dict)
    peak_memory: Mapping[str, Any] = field(default_factory=dict)
    gemm_gflops: float | None = None  # of the machine, measured beside the block, as is copy_gbytes
    gemm_library: str = ""  # what multiplied, the machine's best; "" in rows of earlier versions
    gemm_shape: str = ""  # at which shape
    gemm_threads: int | None = None
    copy_gbytes: float | None = None
    engine: str = ""
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    time: str = ""

    @property
    def seconds_per_step(self) -> float:
        """Wall time of a step."""
        return self.seconds / self.steps

    @property
    def rate(self) -> float | None:
        """Items a second."""
        return self.work.items_per_step / self.seconds_per_step if self.work else None

    @property
    def gemm_fraction(self) -> float | None:
        """The declared FLOPs a second, as a fraction of the machine's matrix multiplication.

        Above 1 that was measured too low to be a limit.
        """
        if self.work is None or self.gemm_gflops is None:
            return None
        return self.work.flops_per_step / self.seconds_per_step / (self.gemm_gflops * 1e9)

    @property
    def roofline_fraction(self) -> float | None:
        """The time of a step at its roofline (roofline.py), as a fraction of that it took."""
        if self.work is None or self.work.bytes_per_step is None:
            return None
        if self.gemm_gflops is None or self.copy_gbytes is None:
            return None
        least = roofline.seconds(
            self.work.flops_per_step,
            self.work.bytes_per_step,
            gemm_gflops=self.gemm_gflops,
            copy_gbytes=self.copy_gbytes,
        )
        return least / self.seconds_per_step


def read(folder: Path) -> tuple[list[Row], list[str]]:
    """Read the rows of a benchmark's folder.

    Returns:
        (rows, remarks): in the file's order; a remark says that a last line was cut off and left out.

    Raises:
        UserError: It is no folder of a benchmark, a line is broken, a round is there twice, or there are no
            rows.
    """
    path = folder / FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"the folder {folder} does not exist") from None
        raise UserError(f"{folder} holds no benchmark: {FILE} is missing") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a folder") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None

    *lines, last = content.split(b"\n")  # every line ends in a newline: what follows the last was cut off
    remarks = []
    if last and _is_json(last):
        lines.append(last)
    elif last:
        remarks.append(f"The last line of {FILE} was cut off and is left out: the benchmark was interrupted.")
    rows = [_row(line, f"{path}, line {number}:") for number, line in enumerate(lines, start=1)]
    if not rows:
        raise UserError(f"{path} holds no rows: nothing was measured")
    _check_rounds(rows, path)
    return rows, remarks


def _check_rounds(rows: list[Row], path: Path) -> None:
    seen = set()
    for row in rows:
        key = (row.suite, row.workload, row.pass_name, row.variant, row.session, row.round)
        if row.status == MEASURED and key in seen:
            what = f"{row.variant} ({row.workload}, {row.pass_name})"
            raise UserError(f"{path} holds round {row.round} of {what} twice")
        if row.status == MEASURED:
            seen.add(key)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _row(line: bytes, source: str) -> Row:
    if not _is_json(line):
        raise UserError(f"{source} not valid JSON")
    values = json.loads(line)
    try:
        fields = checks.fields(values, required=_NAMES, optional=_OPTIONAL)
        if fields["status"] == MEASURED:
            fields |= checks.fields(values, required=_BLOCK, optional={})
        elif "reason" not in fields:
            raise ValueError(f"{fields['status']}, but no reason is given")
    except ValueError as error:
        raise UserError(f"{source} {error}") from None
    fields["pass_name"] = fields.pop("pass")
    return Row(**{"label": fields["variant"], **fields})


def _work(value: Any) -> Work:
    optional = {"description": checks.text, "clock": checks.text, "bytes_per_step": _traffic}
    return Work(**checks.fields(checks.mapping(value), required=_WORK, optional=optional))


def _traffic(value: Any) -> roofline.Traffic:
    required = dict.fromkeys(roofline.Traffic._fields, checks.whole(0))
    return roofline.Traffic(**checks.fields(checks.mapping(value), required=required, optional={}))


_WORK: dict[str, checks.Check] = {
    "parameters": checks.whole(0),
    "flops_per_step": checks.positive,
    "items_per_step": checks.positive,
    "unit": checks.text,
    "precision": checks.text,
    "device": checks.text,
}
_NAMES: dict[str, checks.Check] = {
    "suite": checks.text,
    "workload": checks.text,
    "pass": checks.one_of(PASSES),
    "variant": checks.text,
    "baseline": checks.text,
    "status": checks.one_of(STATUSES),
}
_BLOCK: dict[str, checks.Check] = {
    "round": checks.whole(0),
    "process": checks.whole(0),
    "steps": checks.whole(1),
    "seconds": checks.positive,
    "work": _work,
}
_OPTIONAL: dict[str, checks.Check] = {
    "label": checks.text,
    "reason": checks.text,
    "planned_rounds": checks.whole(0),
    "note": checks.text,
    "cut": checks.text,
    "session": checks.text,
    "loss": checks.number,
    "parity": checks.numbers,
    "startup": checks.numbers,
    "peak_memory": checks.numbers,
    "gemm_gflops": checks.positive,
    "gemm_library": checks.text,
    "gemm_shape": checks.text,
    "gemm_threads": checks.whole(1),
    "copy_gbytes": checks.positive,
    "engine": checks.text,
    "environment": checks.mapping,
    "command": checks.text,
    "time": checks.text,
}
