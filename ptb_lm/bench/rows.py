"""The benchmark's raw record, rows.jsonl: a line for each block that was timed, or that could not be.

Unknown keys are left alone: a later version may record more.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptb_lm.errors import UserError

FILE = "rows.jsonl"
MEASURED = "measured"
STATUSES = (MEASURED, "unavailable", "failed", "wrong")
PASSES = ("forward", "train")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step does: equal for all variants of a workload's pass, but for the device."""

    parameters: int
    flops_per_step: float
    items_per_step: float
    unit: str  # of the items, in the plural: words, sequences
    precision: str
    device: str
    description: str = ""
    clock: str = ""  # what is inside the timed part


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
    gemm_gflops: float | None = None  # of the machine, measured in the same round
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
        """The declared FLOPs a second, as a fraction of the machine's matrix multiplication."""
        if self.work is None or self.gemm_gflops is None:
            return None
        return self.work.flops_per_step / self.seconds_per_step / (self.gemm_gflops * 1e9)


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
        fields = _fields(values, required=_NAMES, optional=_OPTIONAL)
        if fields["status"] == MEASURED:
            fields |= _fields(values, required=_BLOCK, optional={})
        elif "reason" not in fields:
            raise ValueError(f"{fields['status']}, but no reason is given")
    except ValueError as error:
        raise UserError(f"{source} {error}") from None
    fields["pass_name"] = fields.pop("pass")
    return Row(**{"label": fields["variant"], **fields})


_Check = Callable[[Any], Any]  # returns the value; raises ValueError with what it should be


def _fields(values: Any, *, required: Mapping[str, _Check], optional: Mapping[str, _Check]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    fields = {}
    for key, check in {**required, **optional}.items():
        if values.get(key) is None:
            if key in required:
                raise ValueError(f"the key {key!r} is missing")
            continue
        try:
            fields[key] = check(values[key])
        except _UnfitError as error:
            raise ValueError(f"{key} cannot be {values[key]!r}: it must be {error}") from None
    return fields


class _UnfitError(Exception):
    """A value is not what it must be; the message says what that is."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _UnfitError("a text")
    return value


def _one_of(names: tuple[str, ...]) -> _Check:
    def check(value: Any) -> str:
        if value not in names:
            raise _UnfitError(f"one of {', '.join(names)}")
        return str(value)

    return check


def _whole(least: int) -> _Check:
    def check(value: Any) -> int:
        if type(value) is not int or value < least:
            raise _UnfitError(f"a whole number of at least {least}")
        return value

    return check


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _UnfitError("a number")
    return float(value)


def _positive(value: Any) -> float:
    number = _number(value)
    if not (math.isfinite(number) and number > 0):
        raise _UnfitError("a number above 0")
    return number


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _UnfitError("a JSON object")
    return value


def _numbers(value: Any) -> dict[str, float]:
    return {key: _number(each) for key, each in _object(value).items() if each is not None}


def _work(value: Any) -> Work:
    return Work(**_fields(_object(value), required=_WORK, optional={"description": _text, "clock": _text}))


_WORK: dict[str, _Check] = {
    "parameters": _whole(0),
    "flops_per_step": _positive,
    "items_per_step": _positive,
    "unit": _text,
    "precision": _text,
    "device": _text,
}
_NAMES: dict[str, _Check] = {
    "suite": _text,
    "workload": _text,
    "pass": _one_of(PASSES),
    "variant": _text,
    "baseline": _text,
    "status": _one_of(STATUSES),
}
_BLOCK: dict[str, _Check] = {
    "round": _whole(0),
    "process": _whole(0),
    "steps": _whole(1),
    "seconds": _positive,
    "work": _work,
}
_OPTIONAL: dict[str, _Check] = {
    "label": _text,
    "reason": _text,
    "planned_rounds": _whole(0),
    "note": _text,
    "cut": _text,
    "session": _text,
    "loss": _number,
    "parity": _numbers,
    "startup": _numbers,
    "peak_memory": _numbers,
    "gemm_gflops": _positive,
    "engine": _text,
    "environment": _object,
    "command": _text,
    "time": _text,
}
