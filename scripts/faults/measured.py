"""The rows of a benchmark are damaged, and a report is made of them."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from faults import damaged
from faults.fault import refused_or_done
from faults.subject import Subject
from faults.table import AS_PROMISED
from ptb_lm.bench import __main__ as bench
from ptb_lm.bench import rows

# Of a real benchmark that is kept.
KEPT = Path(__file__).resolve().parents[2] / "results" / "bench" / "quick-cpu.jsonl.gz"
LINES = (b"1", b"null", b"{}", b"NaN", b"[" * 100_000, b'{"suite": 1}', b"\xff", b"", b"\0", b'"\\ud800"')


def folders(subject: Subject, rng: random.Random) -> Iterator[str]:
    """Damage rows.jsonl in some way, and ask for a report and a comparison."""
    whole = subject.new()
    whole.mkdir()
    content = b"".join(rows.to_line(row) + b"\n" for row in rows.read(KEPT)[0])
    (whole / rows.FILE).write_bytes(content)
    while True:
        folder = subject.new()
        folder.mkdir()
        damage = rng.choice([damaged.reshaped, damaged.reshaped, damaged.flipped, damaged.cut, _other_lines])
        (folder / rows.FILE).write_bytes(damage(content, rng))
        for command in (["report", str(folder)], ["compare", str(folder), str(whole)]):
            outcome = refused_or_done(subject.process(lambda command=command: bench.main(command)))  # type: ignore[misc]
            if outcome != AS_PROMISED:
                break
        if any("\x1b" in page.read_text() for page in folder.glob("report.md")):
            outcome = "what steers a terminal is in the report"
        yield outcome
        shutil.rmtree(folder)


def _other_lines(content: bytes, rng: random.Random) -> bytes:
    """Put a line in, twice, elsewhere, or take it out."""
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    line = lines.pop(at)
    how = rng.randrange(4)
    lines[at:at] = ([line, line], [], [rng.choice(LINES), line], [rng.choice(LINES)])[how]
    if how == 1:
        lines.insert(rng.randrange(len(lines)), line)
    return b"\n".join(lines)
