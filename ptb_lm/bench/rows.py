"""The benchmark's raw rows: rows.jsonl, a line for each block that was timed, or that could not be.

`Row` declares every key of a line, once: its type, and what stands for null. `read` alone reads
lines, and `to_line` alone writes one. Unknown keys are left alone: a later version may record more.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.bench import roofline, row_archive
from ptb_lm.common import json_fields, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.common.json_fields import Check

FILE = "rows.jsonl"
MEASURED = "measured"
WRONG = "wrong"
STATUSES = (MEASURED, "unavailable", "failed", WRONG)
PASSES = ("forward", "train")
# How a row's check["dropout"] begins if the gradients that were compared are those of a second model.
SECOND_MODEL = "in a second model without it"
REMEDY = "restore it, or remove the line and measure it again"


def _required(check: Check, **metadata: Any) -> Any:
    """Declare a key that every row has, and that is not null."""
    return dataclasses.field(metadata={"check": check, **metadata})


def _nullable(check: Check, default: Any, **metadata: Any) -> Any:
    """Declare a key that is null where there is nothing to say; `default` stands for it then."""
    return dataclasses.field(default=default, metadata={"check": check, **metadata})


def _facts(check: Check) -> Any:
    """Declare a key that holds an object, empty where nothing was measured."""
    return dataclasses.field(default_factory=dict, metadata={"check": check})


def _of_block(check: Check, missing: Any) -> Any:
    """Declare a key that a measured row has, and that another row lacks."""
    return _nullable(check, missing, of_block=True)


def _finite_numbers(value: Any) -> dict[str, float]:
    return {
        key: json_fields.finite(each) for key, each in json_fields.mapping(value).items() if each is not None
    }


def _traffic(value: Any) -> roofline.Traffic:
    required = dict.fromkeys(roofline.Traffic._fields, json_fields.whole(0))
    return roofline.Traffic(**json_fields.fields(json_fields.mapping(value), required=required, optional={}))


def _work(value: Any) -> "Work":
    return Work(**_checked(Work, json_fields.mapping(value)))


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a step does: equal for all variants of a workload's pass.

    The device may differ, and a precision that a variant's name gives (variants.declared_precision).
    """

    parameters: int = _required(json_fields.whole(0))
    flops_per_step: float = _required(json_fields.quantity)
    items_per_step: float = _required(json_fields.quantity)
    unit: str = _required(json_fields.text)  # of the items, in the plural: words, sequences
    precision: str = _required(json_fields.text)
    device: str = _required(json_fields.text)
    description: str = _nullable(json_fields.text, "")
    clock: str = _nullable(json_fields.text, "")  # what is inside the timed part
    # None where no roofline is declared.
    bytes_per_step: roofline.Traffic | None = _nullable(_traffic, None)  # noqa: RUF009 - it is a field


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of rows.jsonl: a timed block of steps, or why there is none."""

    suite: str = _required(json_fields.text)
    workload: str = _required(json_fields.text)
    pass_name: str = _required(json_fields.one_of(PASSES), key="pass")
    session: str = _required(json_fields.text)  # when the run began: only rounds of one session are paired
    variant: str = _required(json_fields.text)
    label: str = _required(json_fields.text)  # how a table calls the variant
    baseline: str = _required(json_fields.text)  # the variant that ratios are to
    status: str = _required(json_fields.one_of(STATUSES))
    reason: str = _nullable(json_fields.text, "")  # why it is not measured
    planned_rounds: int = _required(json_fields.whole(1))
    cut: str = _nullable(json_fields.text, "")  # how the workload is smaller or larger than declared
    work: Work = _required(_work)  # noqa: RUF009 - it is a field
    round: int = _of_block(json_fields.whole(0), 0)
    process: int = _of_block(
        json_fields.whole(0), 0
    )  # rows with the same number were measured by one process
    steps: int = _of_block(json_fields.whole(1), 1)
    seconds: float = _of_block(json_fields.quantity, math.nan)  # wall time of all the steps
    others: float | None = _nullable(json_fields.least(0), None)  # cores that others took meanwhile
    note: str = _nullable(json_fields.text, "")
    loss: float | None = _nullable(json_fields.finite, None)  # the first that was compared with the reference
    parity: Mapping[str, float] = _facts(_finite_numbers)  # errors beside the NumPy reference, and bounds
    check: Mapping[str, Any] = _facts(json_fields.mapping)  # what was compared, in words
    startup: Mapping[str, float] = _facts(_finite_numbers)  # seconds before the first block
    peak_memory: Mapping[str, float] = _facts(_finite_numbers)  # bytes
    # Of the machine, measured beside the block.
    gemm_gflops: float | None = _nullable(json_fields.quantity, None)
    gemm_library: str = _nullable(json_fields.text, "")
    gemm_shape: str = _nullable(json_fields.text, "")
    gemm_threads: int | None = _nullable(json_fields.whole(1), None)
    copy_gbytes: float | None = _nullable(json_fields.quantity, None)
    engine: str = _nullable(json_fields.text, "")
    environment: Mapping[str, Any] = _facts(json_fields.mapping)
    command: str = _nullable(json_fields.text, "")
    time: str = _nullable(json_fields.text, "")

    @property
    def is_measured(self) -> bool:
        """Whether it has a block's round, process, steps and seconds."""
        return self.status == MEASURED

    @property
    def seconds_per_step(self) -> float:
        """Wall time of a step."""
        return self.seconds / self.steps

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.work.items_per_step / self.seconds_per_step

    @property
    def gemm_fraction(self) -> float | None:
        """The declared FLOPs a second, as a fraction of the machine's matrix multiplication.

        Above 1 that was measured too low to be a limit.
        """
        if self.gemm_gflops is None:
            return None
        return self.work.flops_per_step / self.seconds_per_step / (self.gemm_gflops * 1e9)

    @property
    def roofline_fraction(self) -> float | None:
        """The time of a step at its roofline (roofline.py), as a fraction of that it took."""
        if self.work.bytes_per_step is None or self.gemm_gflops is None or self.copy_gbytes is None:
            return None
        least = roofline.seconds(
            self.work.flops_per_step,
            self.work.bytes_per_step,
            gemm_gflops=self.gemm_gflops,
            copy_gbytes=self.copy_gbytes,
        )
        return least / self.seconds_per_step


class Lines(NamedTuple):
    """What rows.jsonl holds: rows with the text of their lines, and whether a last line was cut off."""

    rows: list[Row]
    texts: list[bytes]
    cut_off: bool


def read(folder: Path) -> tuple[list[Row], list[str]]:
    """Read the rows of a benchmark's folder, or of one file that holds a benchmark (row_archive.py).

    Returns:
        (rows, remarks): in the file's order; a remark says that a last line was cut off and left out.

    Raises:
        UserError: It is no folder of a benchmark, a line is broken, a round is there twice, or there are no
            rows.
    """
    if folder.name.endswith(row_archive.SUFFIX):
        numbered = enumerate(row_archive.read(folder), start=1)
        archived = [_row(values, f"{folder}, row {number}") for number, values in numbered]
        _check_rounds(archived, folder)
        return archived, []
    path = folder / FILE
    try:
        found = read_lines(path)
    except FileNotFoundError:
        if not folder.is_dir():
            raise UserError(f"the folder {folder} does not exist") from None
        raise UserError(f"{folder} holds no benchmark: {FILE} is missing") from None
    except NotADirectoryError:
        raise UserError(f"{folder} is not a folder") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if not found.rows:
        raise UserError(f"{path} holds no rows: nothing was measured")
    cut = f"The last line of {FILE} was cut off and is left out: the benchmark was interrupted."
    return found.rows, [cut] if found.cut_off else []


def read_lines(path: Path) -> Lines:
    """Read lines; a last one that a crash cut off is left out.

    Raises:
        UserError: A line is broken, or a round is there twice.
        OSError: The file cannot be read.
    """
    *texts, last = path.read_bytes().split(b"\n")  # each line ends in a newline: the last may be cut off
    cut_off = bool(last)
    if last and _is_json(last):
        texts.append(last)
        cut_off = False
    rows = [_parsed(text, f"{path}, line {number}") for number, text in enumerate(texts, start=1)]
    _check_rounds(rows, path)
    return Lines(rows, texts, cut_off)


def to_line(row: Row) -> bytes:
    """Write a row as a line, without its newline: what is not known is null; only blocks have their keys."""
    values = to_values(row)
    text = json.dumps(json_files.with_checksum(values, json_files.LINE), ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace")  # of a path that is no UTF-8: an escape of JSON's, too


def to_values(row: Row) -> dict[str, Any]:
    """Return a row as an object of JSON."""
    return {
        _key(field): _to_json(getattr(row, field.name))
        for field in dataclasses.fields(row)
        if row.is_measured or not field.metadata.get("of_block")
    }


def _to_json(value: Any) -> Any:
    if isinstance(value, Work):
        return {_key(field): _to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, roofline.Traffic):
        return value._asdict()
    return None if value == "" else value


def _key(field: "dataclasses.Field[Any]") -> str:
    return str(field.metadata.get("key", field.name))


def _checked(of: type, values: Any) -> dict[str, Any]:
    """Return the fields of a dataclass from an object of JSON.

    Raises:
        ValueError: It is no object, a required key is missing, or a value is not what it must be.
    """
    required: dict[str, Check] = {}
    optional: dict[str, Check] = {}
    for field in dataclasses.fields(of):
        is_required = field.default is field.default_factory is dataclasses.MISSING
        (required if is_required else optional)[_key(field)] = field.metadata["check"]
    found = json_fields.fields(values, required=required, optional=optional)
    return {field.name: found[_key(field)] for field in dataclasses.fields(of) if _key(field) in found}


def _parsed(text: bytes, source: str) -> Row:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{source}: not valid JSON") from None
    return _row(json_files.verify_checksum(values, json_files.LINE, source, remedy=REMEDY), source)


def _row(values: Any, source: str) -> Row:
    try:
        found = _checked(Row, values)
        if found["status"] == MEASURED:
            blocks = (f.name for f in dataclasses.fields(Row) if f.metadata.get("of_block"))
            if missing := [name for name in blocks if name not in found]:
                raise ValueError(f"the key {missing[0]!r} is missing")
        elif "reason" not in found:
            raise ValueError(f"{found['status']}, but no reason is given")
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None
    return Row(**found)


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_rounds(rows: list[Row], path: Path) -> None:
    seen = set()
    for row in rows:
        key = (row.suite, row.workload, row.pass_name, row.variant, row.session, row.round)
        if row.is_measured and key in seen:
            what = f"{row.variant} ({row.workload}, {row.pass_name})"
            raise UserError(f"{path} holds round {row.round} of {what} twice")
        if row.is_measured:
            seen.add(key)
