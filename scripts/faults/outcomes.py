"""How each fault of the table is done, by name."""

import signal
from collections.abc import Mapping

from faults import damaged, given, killed, measured, mirrors, stopped
from faults.damaged import OBJECTS, TENSORS, TEXTS
from faults.fault import Outcomes

INT, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

OUTCOMES: Mapping[str, Outcomes] = {
    "kill -9": killed.random_kills,
    "kill at files": killed.kills_at_operations,
    "error at files": killed.errors_at_operations,
    "full disk": killed.full_disks,
    "SIGINT": stopped.signals(INT),
    "SIGTERM": stopped.signals(TERM),
    "SIGHUP": stopped.signals(HUP),
    "INT, TERM": stopped.signals(INT, TERM),
    "INT twice": stopped.signals(INT, INT),
    "deaf streams": stopped.deaf_streams,
    "signal at start": stopped.signals_at_start,
    "one folder": stopped.two_in_one_folder,
    "default folders": stopped.two_in_default_folders,
    "bits of tensors": damaged.damaged(*TENSORS, by=damaged.flipped_in_tensors),
    "bits of headers": damaged.damaged(*TENSORS, by=damaged.flipped_in_header),
    "bits of text": damaged.damaged(*TEXTS, by=damaged.flipped),
    "digits": damaged.damaged(*OBJECTS, by=damaged.with_another_digit),
    "cut files": damaged.damaged(*TENSORS, *TEXTS, by=damaged.cut),
    "other shapes": damaged.damaged(*OBJECTS, by=damaged.reshaped),
    "flags": given.flag_sets,
    "texts": given.texts,
    "extremes": given.extremes,
    "mirrors": mirrors.answers,
    "benchmarks": measured.folders,
}
