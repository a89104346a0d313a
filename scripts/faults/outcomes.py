"""The functions that do the faults of the table, by name."""

import signal
from collections.abc import Mapping

from faults import damaged, given, killed, mirrors, stopped
from faults.damaged import OBJECTS, TENSORS, TEXTS
from faults.subject import Outcomes

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
    "bits of tensors": damaged.damage_files(*TENSORS, by=damaged.flip_bit_in_tensors),
    "bits of headers": damaged.damage_files(*TENSORS, by=damaged.flip_bit_in_header),
    "bits of text": damaged.damage_files(*TEXTS, by=damaged.flip_bit),
    "digits": damaged.damage_files(*OBJECTS, by=damaged.change_digit),
    "cut files": damaged.damage_files(*TENSORS, *TEXTS, by=damaged.truncate),
    "other shapes": damaged.damage_files(*OBJECTS, by=damaged.replace_value),
    "flags": given.flag_sets,
    "texts": given.texts,
    "extremes": given.extremes,
    "mirrors": mirrors.answers,
    "benchmarks": damaged.damage_benchmark,
}
