"""All faults, by name."""

import signal
from collections.abc import Mapping

from faults import damaged, given, killed, measured, mirrors, stopped
from faults.damaged import TENSORS, TEXTS
from faults.fault import REFUSED, Fault

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
SAME = "ends with the same weights, state and numbers, to the last bit"
GOES_ON = f"after --resume (or a new start if nothing was saved) the run {SAME}"
STOPPED = f"its exit status, no traceback and all done steps saved; {GOES_ON}"
STOPPED_AT_ONCE = f"its exit status and no traceback; {GOES_ON}"
ONE_SENTENCE = "the work is done, or refused in one sentence; no traceback"
TORCH = ("torch",)  # where the framework has no part in it

FAULTS: Mapping[str, Fault] = {
    "kill -9": Fault(
        "kill -9 at a random time",
        GOES_ON,
        killed.random_kills,
        "126 tries; 80 of 80 compared were identical",
    ),
    "kill at files": Fault(
        "kill -9 at each operation on the run's files",
        GOES_ON,
        killed.kills_at_operations,
        "237 tries; 36 left a folder that neither --resume nor --overwrite took",
    ),
    "error at files": Fault(
        "an operation on the run's files fails: no space, quota, input/output",
        f"a sentence and status 1; {GOES_ON}",
        killed.errors_at_operations,
        "293 tries with the next; every one survived",
    ),
    "full disk": Fault(
        "no file may grow beyond a random size",
        f"a sentence and status 1; {GOES_ON}",
        killed.full_disks,
        "in those above",
    ),
    "SIGINT": Fault(
        "SIGINT after a random step", STOPPED, stopped.signals(INT), "204 tries of signals in all"
    ),
    "SIGTERM": Fault("SIGTERM after a random step", STOPPED, stopped.signals(TERM), "in those above"),
    "SIGHUP": Fault("SIGHUP after a random step", STOPPED, stopped.signals(HUP), "nothing was saved"),
    "INT, TERM": Fault("SIGINT, then SIGTERM", STOPPED, stopped.signals(INT, TERM), "23 tries; 8 tracebacks"),
    "INT twice": Fault("SIGINT twice", STOPPED_AT_ONCE, stopped.signals(INT, INT), "not tried"),
    "deaf streams": Fault(
        "SIGINT while stdout and stderr are a pipe without a reader, closed, or a full disk",
        f"status 130, all done steps saved; {GOES_ON}",
        stopped.deaf_streams,
        "5 tries with a pipe; 5 lost all since the last save",
    ),
    "signal at start": Fault(
        "a signal while train, evaluate, score or bench starts",
        "its exit status and no traceback",
        stopped.signals_at_start,
        "19 tries; 5 tracebacks",
        TORCH,
    ),
    "one folder": Fault(
        "two runs into one folder", f"one {SAME}, one is refused", stopped.two_in_one_folder, "not counted"
    ),
    "default folders": Fault(
        "two runs at once, in folders by default",
        f"each {SAME}",
        stopped.two_in_default_folders,
        "3 tries; 3 times one died",
        TORCH,
    ),
    "bits of tensors": Fault(
        "a flipped bit in the tensors of weights or state",
        REFUSED,
        damaged.damaged(*TENSORS, by=damaged.flipped_in_tensors),
        "400 tries; 400 believed",
    ),
    "bits of headers": Fault(
        "a flipped bit in the header of weights or state",
        REFUSED,
        damaged.damaged(*TENSORS, by=damaged.flipped_in_header),
        "400 tries; 115 believed",
    ),
    "bits of text": Fault(
        "a flipped bit in the other files of a run",
        REFUSED,
        damaged.damaged(*TEXTS, by=damaged.flipped),
        "1,479 damaged files in all",
        TORCH,
    ),
    "cut files": Fault(
        "a file of a run is cut off",
        REFUSED,
        damaged.damaged(*TENSORS, *TEXTS, by=damaged.cut),
        "in those above",
    ),
    "other shapes": Fault(
        "JSON of another shape in the files of a run",
        REFUSED,
        damaged.damaged(*(name for name in TEXTS if "json" in name), by=damaged.reshaped),
        "of 19 tries a table 10 tracebacks, a curve 5; 9 of 27 values of config.json believed",
        TORCH,
    ),
    "flags": Fault(
        "one to four flags of train with any values",
        ONE_SENTENCE,
        given.flag_sets,
        "471 tries with the next; --lr-decay 1e30 a traceback, --num-layers 3000000 no answer",
        TORCH,
    ),
    "texts": Fault(
        "a file that is not text, given to train, evaluate and score",
        ONE_SENTENCE,
        given.texts,
        "in those above",
        TORCH,
    ),
    "extremes": Fault(
        "numbers at the ends of what flags take",
        f"{ONE_SENTENCE}; no perplexity of nan or inf",
        given.extremes,
        "50 tries",
        TORCH,
    ),
    "mirrors": Fault(
        "a mirror of the download that answers wrongly",
        "all files and the right ones, or a sentence and none",
        mirrors.answers,
        "71 tries; a byte a second held it up without end",
        TORCH,
    ),
    "benchmarks": Fault(
        "damaged rows of a benchmark, to report and compare",
        ONE_SENTENCE,
        measured.folders,
        "268 tries; 1, null, {}, NaN and brackets gave tracebacks",
        TORCH,
    ),
}
