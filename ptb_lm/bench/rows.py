"""The benchmark's raw rows: rows.jsonl, a line for each block that was timed, or that could not be.

An archive, NAME.jsonl.gz, is a benchmark in one small file: its rows.jsonl, compressed by gzip.

`Row` declares every key of a line, once: its type, its bounds, and its value where the line has null.
`read_lines` reads lines, and `to_line` makes one. Unknown keys are ignored: a later version may record more.
"""

import contextlib
import gzip
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ptb_lm.bench import roofline
from ptb_lm.common import json_fields, json_files
from ptb_lm.common.errors import UserError
from ptb_lm.common.json_fields import Count, Finite, PositiveCount, Quantity

FILE = "rows.jsonl"
ARCHIVE_SUFFIX = ".jsonl.gz"
MEASURED = "measured"
WRONG = "wrong"
STATUSES = (MEASURED, "unavailable", "failed", WRONG)
PASSES = ("forward", "train")
# Keys that a measured row has, and that another row lacks.
BLOCK_KEYS = ("round", "process", "steps", "seconds")
# check["dropout"] begins so if a second model, without dropout, was compared in place of the timed one.
SECOND_MODEL = "in a second model without it"
REMEDY = "restore it, or remove the line and measure it again"

_NUMBERS = ("parity", "startup", "peak_memory")  # keys that hold an object of numbers


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a step: equal for all variants of a workload's pass.

    The device may differ, and a precision that a variant's name gives (Variant.precision).
    """

    parameters: Count
    flops_per_step: Quantity
    items_per_step: Quantity
    unit: str  # of the items, in the plural: words, sequences
    precision: str
    device: str
    description: str = ""
    clock: str = ""  # the parts of a step that are timed
    bytes_per_step: roofline.Traffic | None = None  # None where no roofline is declared


class _Environment(msgspec.Struct):
    """The keys of an environment that a report reads; it may have any others."""

    cpu_quota: Quantity | None = None
    processes: PositiveCount = 1


class _Check(msgspec.Struct):
    """The keys of a check that a report reads; it may have any others."""

    dropout: str = ""


def check_facts(environment: Mapping[str, Any], check: Mapping[str, Any]) -> None:
    """Check the facts with free keys that a report reads.

    Raises:
        ValueError: One is not of its type; the message is for people.
    """
    json_fields.convert(environment, _Environment)
    json_fields.convert(check, _Check)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of rows.jsonl: a timed block of steps, or why there is none."""

    suite: str
    workload: str
    pass_name: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(PASSES)})$")] = msgspec.field(name="pass")
    session: str  # when the run began: only rounds of one session are paired
    variant: str
    label: str  # the variant's name in tables
    baseline: str  # the variant that ratios are to
    status: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(STATUSES)})$")]
    reason: str = ""  # why it is not measured
    planned_rounds: PositiveCount
    cut: str = ""  # how the workload is smaller or larger than declared
    work: Work
    round: Count = 0
    process: Count = 0  # rows with the same number were measured by one process
    steps: PositiveCount = 1
    seconds: Quantity = math.nan  # wall time of all the steps
    others: Annotated[float, msgspec.Meta(ge=0, le=1e30)] | None = None  # cores that others took meanwhile
    note: str = ""
    loss: Finite | None = None  # the first that was compared with the reference
    # Errors beside the NumPy reference, bounds, and the rows of the batch (check.CheckResult.errors).
    parity: Mapping[str, Finite] = {}
    check: Mapping[str, Any] = {}  # description of the comparison
    startup: Mapping[str, Finite] = {}  # seconds before the first block
    peak_memory: Mapping[str, Finite] = {}  # bytes
    # Rates of the machine, measured beside the block.
    gemm_gflops: Quantity | None = None
    gemm_library: str = ""
    gemm_shape: str = ""
    gemm_threads: PositiveCount | None = None
    copy_gbytes: Quantity | None = None
    engine: str = ""
    environment: Mapping[str, Any] = {}
    command: str = ""
    time: str = ""

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


def read(folder: Path) -> tuple[list[Row], list[str]]:
    """Read the rows of a benchmark's folder, or of its archive.

    Returns:
        (rows, remarks): in the file's order; a remark says that a last line was cut off and left out.

    Raises:
        UserError: It is no folder of a benchmark, a line is broken, a round is there twice, or there are no
            rows.
    """
    path = find_file(folder)
    try:
        found, _, is_cut_off = read_lines(path)
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror}"
        if path != folder and isinstance(error, NotADirectoryError):
            problem = f"{folder} is not a folder"
        elif path != folder and isinstance(error, FileNotFoundError):
            there = f"{folder} holds no benchmark: {FILE} is missing"
            problem = there if folder.is_dir() else f"the folder {folder} does not exist"
        raise UserError(problem) from None
    if not found:
        raise UserError(f"{path} holds no rows: nothing was measured")
    cut = f"The last line of {FILE} was cut off and is left out: the benchmark was interrupted."
    return found, [cut] if is_cut_off else []


def is_archive(path: Path) -> bool:
    """Return whether a benchmark is an archive, by its name, and not a folder."""
    return path.name.endswith(ARCHIVE_SUFFIX)


def find_file(folder: Path) -> Path:
    """Return the file that holds the rows of a benchmark's folder; an archive holds them itself."""
    return folder if is_archive(folder) else folder / FILE


def read_lines(path: Path) -> tuple[list[Row], list[bytes], bool]:
    """Read lines of rows.jsonl, or of an archive; a last one that a crash cut off is left out.

    Returns:
        (rows, texts, is_cut_off): rows, the texts of their lines, and whether a last line was cut off.

    Raises:
        UserError: A line is broken, or a round is there twice; or an archive is damaged.
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    if is_archive(path):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error):
            raise UserError(f"{path} is damaged, or is not a benchmark") from None
    *texts, last = content.split(b"\n")  # each line ends in a newline: the last may be cut off
    is_cut_off = bool(last)
    with contextlib.suppress(UserError):
        json_files.parse(last, path)
        texts.append(last)  # it lacks its newline alone
        is_cut_off = False
    rows = [_parse_line(text, f"{path}, line {number}") for number, text in enumerate(texts, start=1)]
    _check_rounds(rows, path)
    return rows, texts, is_cut_off


def to_lines(rows: Iterable[Row]) -> bytes:
    """Write rows as the content of rows.jsonl."""
    return b"".join(to_line(row) + b"\n" for row in rows)


def to_line(row: Row) -> bytes:
    """Write a row as a line, without its newline: what is not known is null; only blocks have their keys."""
    values = _with_nulls(msgspec.to_builtins(row))
    values["work"] = _with_nulls(values["work"])
    if not row.is_measured:
        values = {key: value for key, value in values.items() if key not in BLOCK_KEYS}
    text = json.dumps(
        json_files.with_checksum(values, json_files.CRC32_FIELD), ensure_ascii=False, allow_nan=False
    )
    return text.encode(errors="backslashreplace")  # of a path that is no UTF-8: an escape of JSON's, too


def _with_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: None if value == "" else value for key, value in values.items()}


def _parse_line(text: bytes, source: str) -> Row:
    values = json_files.parse(text, source, remedy=REMEDY)
    values = json_files.verify_checksum(values, json_files.CRC32_FIELD, source, remedy=REMEDY)
    if isinstance(values, dict):
        parts = {key: values[key] for key in ("work", *_NUMBERS) if isinstance(values.get(key), dict)}
        values = {**values, **{key: json_fields.without_nulls(part) for key, part in parts.items()}}
    try:
        row = json_fields.convert(values, Row)
        check_facts(row.environment, row.check)
        if row.is_measured:
            for key in BLOCK_KEYS:
                if values.get(key) is None:
                    raise ValueError(f"the key {key!r} is missing")
        elif not row.reason:
            raise ValueError(f"{row.status}, but no reason is given")
    except ValueError as error:
        raise UserError(f"{source}: {error}") from None
    return row


def _check_rounds(rows: list[Row], path: Path) -> None:
    counts = Counter(
        (row.suite, row.session, row.workload, row.pass_name, row.variant, row.round)
        for row in rows
        if row.is_measured
    )
    for (_, _, workload, pass_name, variant, number), count in counts.items():
        if count > 1:
            raise UserError(f"{path} holds round {number} of {variant} ({workload}, {pass_name}) twice")
