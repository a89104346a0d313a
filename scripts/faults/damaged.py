"""The files of a run, or of a benchmark, are damaged and read: evaluated, put into tables, resumed."""

import contextlib
import json
import random
import shutil
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure  # noqa: F401 - it draws curves: imported here, and not again in each process

from faults import killed
from faults.subject import Outcomes, Subject, fingerprint, flaw, refused_or_done
from faults.table import AS_PROMISED
from ptb_lm import compare, evaluate, train
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import rows
from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.comparison import runs as results

TENSORS = ("weights.safetensors", "state/training.safetensors")
OBJECTS = ("config.json", "metrics.jsonl", "result.json")
TEXTS = (*OBJECTS, "vocabulary.txt")
SHAPES = ("", "{}", "[]", "null", "1", "NaN", '"text"', "\0", '{"epoch": {}}', "[" * 100_000, "\ud800")
NUMBERS = (-1, 0, 0.5, 1, 3, 2**70, 1e308, 1e-320, float("nan"), 1e999, 10**400)
WORDS = ("", "x", "\x1b[2J", "\ud800", "../" * 9, "bf16", "gru", "basic", "tensorflow", "cuda", "x" * 10**5)
VALUES: tuple[Any, ...] = (*NUMBERS, *WORDS, None, {}, [], True, [1], [[]], {"a": None}, {"a": {}})
# A real benchmark that is kept.
KEPT_BENCHMARK = Path(__file__).resolve().parents[2] / "results" / "bench" / "quick-cpu.jsonl.gz"
LINES = (b"1", b"null", b"{}", b"NaN", b"[" * 100_000, b'{"suite": 1}', b"\xff", b"", b"\0", b'"\\ud800"')

Damage = Callable[[bytes, random.Random], bytes]


class Whole(NamedTuple):
    """A run before it is damaged."""

    run: Path
    perplexity: str  # as evaluate prints it
    table: results.Run | None  # as tables show the run; None if there is no epoch yet


def damage_files(*names: str, by: Damage) -> Outcomes:
    """Return the fault that damages one of some files of a run, which is finished or was killed half-way."""

    def outcomes(subject: Subject, rng: random.Random) -> Iterator[str]:
        runs = subject.copy(), killed.kill_half_way(subject)
        wholes = [Whole(run, _evaluate(subject, run)[0], _read_table(run)) for run in runs]
        while True:
            whole = rng.choice(wholes)
            there = [path for name in names if (path := whole.run / name).exists() and path.stat().st_size]
            path = rng.choice(there)
            content = path.read_bytes()
            path.write_bytes(by(content, rng))
            yield _read(subject, whole)
            path.write_bytes(content)

    return outcomes


def flip_bit(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit anywhere."""
    return _flip_bit_between(content, rng, 0, len(content))


def change_digit(content: bytes, rng: random.Random) -> bytes:
    """Replace a digit by another one."""
    at = rng.choice([at for at, byte in enumerate(content) if chr(byte) in string.digits])
    other = rng.choice([digit for digit in string.digits.encode() if digit != content[at]])
    return content[:at] + bytes([other]) + content[at + 1 :]


def flip_bit_in_header(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit in the header of a file of safetensors."""
    return _flip_bit_between(content, rng, 0, _header_end(content))


def flip_bit_in_tensors(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit after the header."""
    return _flip_bit_between(content, rng, _header_end(content), len(content))


def _flip_bit_between(content: bytes, rng: random.Random, start: int, stop: int) -> bytes:
    copy = bytearray(content)
    copy[rng.randrange(start, stop)] ^= 1 << rng.randrange(8)
    return bytes(copy)


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def truncate(content: bytes, rng: random.Random) -> bytes:
    """Truncate a file."""
    return content[: rng.randrange(len(content))]


def replace_value(content: bytes, rng: random.Random) -> bytes:
    """Put another value anywhere into JSON, or in the place of the whole."""
    if rng.random() < 0.2:
        return rng.choice(SHAPES).encode(errors="surrogatepass")
    lines = content.split(b"\n") if _is_lines(content) else [content]
    at = rng.randrange(max(1, len(lines) - 1))
    values = json.loads(lines[at])
    table = values
    while (inner := [each for each in table.values() if isinstance(each, dict)]) and rng.random() < 0.5:
        table = rng.choice(inner)
    key = rng.choice([*table, "unknown"])
    if rng.random() < 0.1:
        table.pop(key, None)
    else:
        table[key] = rng.choice(_similar_values(table.get(key)) if rng.random() < 0.5 else VALUES)
    lines[at] = json.dumps(values).encode()
    return b"\n".join(lines)


def _similar_values(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return VALUES
    return WORDS if isinstance(value, str) else NUMBERS


def _is_lines(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return True
    return False


def _evaluate(subject: Subject, run: Path) -> tuple[str, str | None]:
    end = subject.process(lambda: evaluate.main([str(run)]))
    # Beside the number it may say that the text is not the one of a damaged record.
    numbers = [line for line in end.output.splitlines() if line.startswith("test perplexity")]
    if end.status == 0 and not numbers:
        return "", "evaluate says no number"
    return numbers[0].partition(" (")[0] if end.status == 0 else "", flaw(end, 0, 1, 2)


def _read(subject: Subject, whole: Whole) -> str:
    """Return the outcome of reading a damaged run in every way."""
    number, found = _evaluate(subject, whole.run)
    if found:
        return found
    if number and number != whole.perplexity:
        return "evaluate says another number"

    def tables() -> int:
        pair = [str(whole.run), str(subject.expected)]
        statuses = [compare.main([*pair, "--format", form]) for form in ("markdown", "page")]
        # Last, for its sentence must end the output: it refuses a run without an epoch, which compare
        # leaves out.
        read = cli.run("python -m ptb_lm.compare", lambda: len(results.read_run(whole.run).epochs) * 0)
        return max(*statuses, read)

    found = flaw(subject.process(tables), 0, 1, 2)
    if not found and _has_other_table(whole):
        found = "a table shows other numbers"
    return found or _resume(subject, whole)


def _read_table(run: Path) -> results.Run | None:
    """Return the run as tables show it; None if they refuse it."""
    with contextlib.suppress(UserError):
        return results.read_run(run)
    return None


def _has_other_table(whole: Whole) -> bool:
    """Return whether a damaged run is read with other values; an unknown name is no value."""
    was, now = whole.table, _read_table(whole.run)
    if was is None or now is None:
        return False
    # A file that was cut off between two lines may be that of an earlier moment.
    rows = zip(was.epochs, now.epochs, strict=False)
    same = [before.items() <= after.items() for before, after in (*rows, (was.result, now.result))]
    return not all(same) or now.config != was.config


def _resume(subject: Subject, whole: Whole) -> str:
    copy = Path(shutil.copytree(whole.run, subject.new()))
    end = subject.process(lambda: train.main(["--resume", str(copy)]))
    found = flaw(end, 0, 1, 2)
    if not found and end.status == 0:
        found = _fingerprint(copy) != _fingerprint(subject.expected) and "goes on to other weights"
    shutil.rmtree(copy)
    return found or AS_PROMISED


def _fingerprint(run: Path) -> str | None:
    with contextlib.suppress(UserError):  # the weights may be refused
        return fingerprint(run, tensors_only=True)
    return None


def damage_benchmark(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Damage rows.jsonl in some way, and make a report and a comparison."""
    whole = subject.new()
    whole.mkdir()
    content = rows.to_lines(rows.read(KEPT_BENCHMARK)[0])
    (whole / rows.FILE).write_bytes(content)
    while True:
        folder = subject.new()
        folder.mkdir()
        damage = rng.choice([replace_value, replace_value, flip_bit, truncate, _change_lines])
        (folder / rows.FILE).write_bytes(damage(content, rng))
        for command in (["report", str(folder)], ["compare", str(folder), str(whole)]):
            outcome = refused_or_done(subject.process(lambda command=command: bench.main(command)))  # type: ignore[misc]
            if outcome != AS_PROMISED:
                break
        if any("\x1b" in page.read_text() for page in folder.glob("report.md")):
            outcome = "the report has control characters of a terminal"
        yield outcome
        shutil.rmtree(folder)


def _change_lines(content: bytes, rng: random.Random) -> bytes:
    """Insert, repeat, move or remove a line."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    line = lines.pop(at)
    how = rng.randrange(4)
    lines[at:at] = ([line, line], [], [rng.choice(LINES), line], [rng.choice(LINES)])[how]
    if how == 1:
        lines.insert(rng.randrange(len(lines)), line)
    return b"\n".join(lines)
