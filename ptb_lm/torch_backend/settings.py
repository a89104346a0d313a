"""Settings of torch for as long as something is computed, by any number of threads, and no longer."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ptb_lm.torch_backend import native

Setting = tuple[Any, str]  # an object of torch's, and the name of an attribute of the whole process


@dataclass(slots=True)
class _Hold:
    value: object
    before: object
    count: int = 0  # of those who are computing with it


_holds: dict[Setting, _Hold] = {}
_changed = threading.Condition()
_turn = threading.Lock()  # of who waits; whoever comes later waits behind it
_own = threading.local()  # its `count`: holds of this thread, which may hold more before it is done


@contextlib.contextmanager
def held(values: Mapping[Setting, object]) -> Iterator[None]:
    """Return a context in which settings of the process have some values.

    Those who want the same values compute at the same time: the first sets them, and the last restores what
    was there before. Whoever wants others waits for that, and nobody who comes later goes first.
    """
    nested = getattr(_own, "count", 0)
    with contextlib.nullcontext() if nested else _turn, _changed:
        while any(of in _holds and _holds[of].value != value for of, value in values.items()):
            _changed.wait()
        for of, value in values.items():
            if of not in _holds:
                _holds[of] = _Hold(value, before=getattr(*of))
                setattr(*of, value)
            _holds[of].count += 1
        _own.count = nested + 1
    try:
        yield
    finally:
        with _changed:
            _own.count -= 1
            for of in values:
                hold = _holds[of]
                hold.count -= 1
                if not hold.count:
                    setattr(*of, _holds.pop(of).before)
            _changed.notify_all()


@contextlib.contextmanager
def flushed_denormals() -> Iterator[None]:
    """Return a context in which this thread, and those that share its work, take denormal numbers for zero.

    As TensorFlow's threads do. A gradient that fades over a thousand steps ends in such numbers, with which a
    CPU computes many times slower.
    """
    before = sys.float_info.min / 2 == 0  # torch does not tell
    _flush_denormals(True)
    try:
        yield
    finally:
        _flush_denormals(before)


def _flush_denormals(flushed: bool) -> None:
    torch.set_flush_denormal(flushed)
    # It is a thread's. Those of OpenMP, of which each thread has its own, begin with their parent's and keep
    # it. Without our own kernels they cannot be told of another.
    if native.load.cache_info().currsize and torch.get_num_threads() > 1:
        native.load().share_float_environment()
