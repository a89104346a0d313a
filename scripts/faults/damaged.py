"""The files of a run are damaged, and read: evaluated, put into tables, gone on with."""

import contextlib
import json
import random
import shutil
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure  # noqa: F401 - what draws curves: here, and not again in each process

from faults import killed
from faults.fault import Outcomes, flaw
from faults.subject import Subject, fingerprint
from faults.table import AS_PROMISED
from ptb_lm import compare, evaluate, train
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

Damage = Callable[[bytes, random.Random], bytes]


class Whole(NamedTuple):
    """A run before it is damaged."""

    run: Path
    evaluated: str  # what evaluate says
    shown: results.Run | None  # in tables; None if there is no epoch yet


def damaged(*names: str, by: Damage) -> Outcomes:
    """Return what damages one of some files, of a finished run and of one that was stopped half-way."""

    def outcomes(subject: Subject, rng: random.Random) -> Iterator[str]:
        runs = subject.copy(), killed.stopped_half_way(subject)
        wholes = [Whole(run, _evaluated(subject, run)[0], _shown(run)) for run in runs]
        while True:
            whole = rng.choice(wholes)
            there = [path for name in names if (path := whole.run / name).exists() and path.stat().st_size]
            path = rng.choice(there)
            content = path.read_bytes()
            path.write_bytes(by(content, rng))
            yield _read(subject, whole)
            path.write_bytes(content)

    return outcomes


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit anywhere."""
    return _flipped(content, rng, 0, len(content))


def with_another_digit(content: bytes, rng: random.Random) -> bytes:
    """Put another digit in the place of one."""
    at = rng.choice([at for at, byte in enumerate(content) if chr(byte) in string.digits])
    other = rng.choice([digit for digit in string.digits.encode() if digit != content[at]])
    return content[:at] + bytes([other]) + content[at + 1 :]


def flipped_in_header(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit in the header of a file of safetensors."""
    return _flipped(content, rng, 0, _header_end(content))


def flipped_in_tensors(content: bytes, rng: random.Random) -> bytes:
    """Flip a bit after the header."""
    return _flipped(content, rng, _header_end(content), len(content))


def _flipped(content: bytes, rng: random.Random, start: int, stop: int) -> bytes:
    changed = bytearray(content)
    changed[rng.randrange(start, stop)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _header_end(content: bytes) -> int:
    return 8 + int.from_bytes(content[:8], "little")


def cut(content: bytes, rng: random.Random) -> bytes:
    """Cut a file off."""
    return content[: rng.randrange(len(content))]


def reshaped(content: bytes, rng: random.Random) -> bytes:
    """Put another value into JSON, anywhere, or in its place."""
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
        table[key] = rng.choice(_of_its_kind(table.get(key)) if rng.random() < 0.5 else VALUES)
    lines[at] = json.dumps(values).encode()
    return b"\n".join(lines)


def _of_its_kind(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return VALUES
    return WORDS if isinstance(value, str) else NUMBERS


def _is_lines(content: bytes) -> bool:
    try:
        json.loads(content)
    except ValueError:
        return True
    return False


def _evaluated(subject: Subject, run: Path) -> tuple[str, str | None]:
    ended = subject.process(lambda: evaluate.main([str(run)]))
    # Beside the number it may say that the text is not the one of a damaged record.
    numbers = [line for line in ended.said.splitlines() if line.startswith("test perplexity")]
    if ended.status == 0 and not numbers:
        return "", "evaluate says no number"
    return numbers[0].partition(" (")[0] if ended.status == 0 else "", flaw(ended, 0, 1, 2)


def _read(subject: Subject, whole: Whole) -> str:
    """Return what comes of reading a damaged run in every way."""
    number, found = _evaluated(subject, whole.run)
    if found:
        return found
    if number and number != whole.evaluated:
        return "evaluate says another number"

    def tables() -> int:
        statuses = [cli.run("tables", lambda: len(results.read(whole.run).epochs) * 0)]
        for form in ("markdown", "page"):
            statuses.append(compare.main([str(whole.run), str(subject.expected), "--format", form]))
        return max(statuses)

    found = flaw(subject.process(tables), 0, 1, 2)
    if not found and _shows_otherwise(whole):
        found = "a table shows other numbers"
    return found or _gone_on(subject, whole)


def _shown(run: Path) -> results.Run | None:
    """Return what tables show; None if they refuse the run."""
    with contextlib.suppress(UserError):
        return results.read(run)
    return None


def _shows_otherwise(whole: Whole) -> bool:
    """Return whether a damaged run is read, and with other values; a name that nothing knows is no value."""
    was, now = whole.shown, _shown(whole.run)
    if was is None or now is None:
        return False
    # A file that was cut off between two lines may be that of an earlier moment.
    rows = zip(was.epochs, now.epochs, strict=False)
    same = [before.items() <= after.items() for before, after in (*rows, (was.result, now.result))]
    return not all(same) or now.config != was.config


def _gone_on(subject: Subject, whole: Whole) -> str:
    resumed = Path(shutil.copytree(whole.run, subject.new()))
    ended = subject.process(lambda: train.main(["--resume", str(resumed)]))
    found = flaw(ended, 0, 1, 2)
    if not found and ended.status == 0:
        found = _computed(resumed) != _computed(subject.expected) and "goes on to other weights"
    shutil.rmtree(resumed)
    return found or AS_PROMISED


def _computed(run: Path) -> str | None:
    with contextlib.suppress(UserError):  # what was refused as the run ended: its weights
        return fingerprint(run, tensors_only=True)
    return None
