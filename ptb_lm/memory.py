"""How much memory there is, and how much was asked for when there was too little."""

import math
import os
import re

# What NumPy, torch and CUDA say: "Unable to allocate 7.28 TiB for an array", "you tried to allocate 64
# bytes", "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.00 GiB is free".
_ASKED = re.compile(r"allocate (\d+(?:\.\d*)?) ?(bytes|[KMGTPE]iB)")
_OF_A_GPU = re.compile(r"total capacity of (\d+(?:\.\d*)? ?[KMGT]iB)")
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def total() -> float:
    """Return the bytes of the machine's memory; infinity if unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return math.inf


def needed(size: float, what: str) -> str:
    """Return a clause: what needs so many bytes, and how many the machine has."""
    return f"{what} {shown(size)}, and this machine has {shown(total())}"


def asked(error: BaseException) -> str:
    """Return a clause about the allocation that an error says has failed; "" if it does not say its size."""
    found, gpu = _ASKED.search(str(error)), _OF_A_GPU.search(str(error))
    if not found:
        return ""
    size = float(found[1]) * 1024 ** _UNITS.index(found[2])
    if gpu:
        return f"the last allocation was {shown(size)}, and the GPU has {gpu[1]}"
    return needed(size, "the last allocation was")


def shown(size: float) -> str:
    """Return a number of bytes in the unit that people read best."""
    if not math.isfinite(size):
        return "an unknown amount"
    power = min(max(int(size).bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{size / 1024**power:,.{1 if power else 0}f} {_UNITS[power]}"
