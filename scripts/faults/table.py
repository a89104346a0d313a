"""All faults by name, what is promised of each, and the table of results/reliability.md.

outcomes.py does the faults: this file is read where torch is not installed. The table is written from the
counts that scripts/reliability --write keeps.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.common.markdown_tables import write_markdown

AS_PROMISED = "as promised"

ROOT = Path(__file__).resolve().parents[2]
COUNTS, PAGE = ROOT / "results" / "reliability.json", ROOT / "results" / "reliability.md"
BEGIN, END = "<!-- counts: written by scripts/reliability --write -->\n", "<!-- end of counts -->\n"
TITLES = ("fault", "what is promised", "framework", "tries", "as promised", "before")


class Fault(NamedTuple):
    """A kind of fault."""

    description: str
    promise: str  # the outcome that it should have
    before: str  # the outcomes at commit 7c1d749, before anything was fixed
    frameworks: tuple[str, ...] = ("torch", "tensorflow")  # that it is tried with


# results/reliability.md says above its table what "same end" and "exact resume" mean.
SAME = "same end"
GOES_ON = "exact resume"
STOPPED = f"its exit status, no traceback and all done steps saved; {GOES_ON}"
STOPPED_AT_ONCE = f"its exit status and no traceback; {GOES_ON}"
ONE_SENTENCE = "done, or refused in one sentence; no traceback"
REFUSED = "refused in a sentence, or without effect; no traceback"
TORCH = ("torch",)  # where the framework has no part in it

FAULTS: Mapping[str, Fault] = {
    "kill -9": Fault(
        "kill -9 at a random time",
        GOES_ON,
        "126 tries; 80 of 80 compared were identical",
    ),
    "kill at files": Fault(
        "kill -9 at each operation on the run's files",
        GOES_ON,
        "237 tries; 36 left a folder that neither --resume nor --overwrite took",
    ),
    "error at files": Fault(
        "an operation on the run's files fails: no space, quota, input/output",
        f"a sentence and status 1; {GOES_ON}",
        "293 tries with the next; every one survived",
    ),
    "full disk": Fault(
        "no file may grow beyond a random size",
        f"a sentence and status 1; {GOES_ON}",
        "in those above",
    ),
    "SIGINT": Fault(
        "SIGINT after a random step",
        STOPPED,
        "204 tries of signals in all",
    ),
    "SIGTERM": Fault(
        "SIGTERM after a random step",
        STOPPED,
        "in those above",
    ),
    "SIGHUP": Fault(
        "SIGHUP after a random step",
        STOPPED,
        "nothing was saved",
    ),
    "INT, TERM": Fault(
        "SIGINT, then SIGTERM",
        STOPPED,
        "23 tries; 8 tracebacks",
    ),
    "INT twice": Fault(
        "SIGINT twice",
        STOPPED_AT_ONCE,
        "not tried",
    ),
    "deaf streams": Fault(
        "SIGINT while stdout and stderr are a pipe without a reader, closed, or a full disk",
        f"status 130, all done steps saved; {GOES_ON}",
        "5 tries with a pipe; 5 lost all since the last save",
    ),
    "signal at start": Fault(
        "a signal while train, evaluate, score or bench starts",
        "its exit status and no traceback",
        "19 tries; 5 tracebacks",
        TORCH,
    ),
    "one folder": Fault(
        "two runs into one folder",
        f"one run has the {SAME}, the other is refused",
        "not counted",
    ),
    "default folders": Fault(
        "two runs at once, in folders by default",
        f"both runs have the {SAME}",
        "3 tries; 3 times one died",
        TORCH,
    ),
    "bits of tensors": Fault(
        "a flipped bit in the tensors of weights or state",
        REFUSED,
        "400 tries; 400 believed",
    ),
    "bits of headers": Fault(
        "a flipped bit in the header of weights or state",
        REFUSED,
        "400 tries; 115 believed",
    ),
    "bits of text": Fault(
        "a flipped bit in the other files of a run",
        REFUSED,
        "1,479 damaged files in all",
        TORCH,
    ),
    "digits": Fault(
        "a digit that became another one, in config.json, metrics.jsonl or result.json",
        REFUSED,
        "not counted",
        TORCH,
    ),
    "cut files": Fault(
        "a file of a run is cut off",
        REFUSED,
        "in those above",
    ),
    "other shapes": Fault(
        "JSON of another shape in the files of a run",
        REFUSED,
        "of 19 tries a table 10 tracebacks, a curve 5; 9 of 27 values of config.json believed",
        TORCH,
    ),
    "flags": Fault(
        "one to four flags of train with any values",
        ONE_SENTENCE,
        "471 tries with the next; --lr-decay 1e30 a traceback, --num-layers 3000000 no answer",
        TORCH,
    ),
    "texts": Fault(
        "a file that is not text, given to train, evaluate and score",
        ONE_SENTENCE,
        "in those above",
        TORCH,
    ),
    "extremes": Fault(
        "numbers at the ends of what flags take",
        f"{ONE_SENTENCE}; no perplexity of nan or inf",
        "50 tries",
        TORCH,
    ),
    "mirrors": Fault(
        "a mirror of the download that answers wrongly",
        "all files and the right ones, or a sentence and none",
        "71 tries; a byte a second held it up without end",
        TORCH,
    ),
    "benchmarks": Fault(
        "damaged rows of a benchmark, to report and compare",
        ONE_SENTENCE,
        "268 tries; 1, null, {}, NaN and brackets gave tracebacks",
        TORCH,
    ),
}


def with_table(text: str, kept: dict[str, Any]) -> str:
    """Return the page's text with the table of these counts in it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    day, where = kept["started"][:10], f"{kept['processor']}, Python {kept['python']}"
    source = f"Counted on {day} on {where}, with --seed {kept['seed']}."
    table = write_markdown(TITLES, map(_row, kept["counts"]))
    return f"{before}{BEGIN}\n{source}\n\n{table}\n{END}{after}"


def _row(counts: dict[str, Any]) -> list[str]:
    fault, outcomes = FAULTS[counts["fault"]], counts["outcomes"]
    others = "".join(f"; {n}: {outcome}" for outcome, n in outcomes.items() if outcome != AS_PROMISED)
    # What was found before was found with torch.
    before = fault.before if counts["framework"] == fault.frameworks[0] else "not tried"
    about = [fault.description, fault.promise, counts["framework"], str(counts["tries"])]
    return [*about, f"{outcomes.get(AS_PROMISED, 0)}{others}", before]
