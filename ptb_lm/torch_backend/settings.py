"""Contexts of a computation: settings of torch while it lasts, in any number of threads; lack of memory."""

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ptb_lm.common import host
from ptb_lm.common.errors import OutOfMemoryError
from ptb_lm.torch_backend import native

Setting = tuple[Any, str]  # an object of torch's, and the name of an attribute of the whole process

# Parts of torch's messages of a failed allocation: its allocator's on a CPU, CUDA's, and its libraries'.
NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "_STATUS_ALLOC_FAILED")


@dataclass(slots=True)
class _Hold:
    value: object
    before: object
    count: int = 0  # threads that compute with it


_holds: dict[Setting, _Hold] = {}
_changed = threading.Condition()
_queue = threading.Lock()  # held by the first thread that waits, so that no later one overtakes it
# `count`: the contexts that this thread is in. A nested one does not queue: others may wait for this thread.
_this_thread = threading.local()


@contextlib.contextmanager
def hold_settings(values: Mapping[Setting, object]) -> Iterator[None]:
    """Return a context in which settings of the process have some values.

    Threads that need the same values compute at the same time: the first sets them, and the last restores the
    values of before. A thread that needs other values waits for that, and no later one overtakes it.

    Args:
        values: Value of each setting.
    """
    nested = getattr(_this_thread, "count", 0)
    with contextlib.nullcontext() if nested else _queue, _changed:
        while any(each in _holds and _holds[each].value != value for each, value in values.items()):
            _changed.wait()
        for setting, value in values.items():
            if setting not in _holds:
                _holds[setting] = _Hold(value, before=_own_value(*setting))
                setattr(*setting, value)
            _holds[setting].count += 1
        _this_thread.count = nested + 1
    try:
        yield
    finally:
        with _changed:
            _this_thread.count -= 1
            for setting in values:
                hold = _holds[setting]
                hold.count -= 1
                if not hold.count:
                    setattr(*setting, _holds.pop(setting).before)
            _changed.notify_all()


def _own_value(owner: Any, name: str) -> Any:
    """Return the value that makes a setting later what it is now: "none" of a precision that it inherits.

    Otherwise it would not follow torch.backends.fp32_precision any more. One that equals what it would
    inherit counts as inherited, but for cuDNN's, which have their own from the start.
    """
    before, cudnn = getattr(owner, name), torch.backends.cudnn
    if name == "fp32_precision" and owner not in (cudnn.rnn, cudnn.conv):  # type: ignore[attr-defined]
        setattr(owner, name, "none")
        if getattr(owner, name) == before:
            return "none"
    return before


@contextlib.contextmanager
def flush_denormals() -> Iterator[None]:
    """Return a context in which this thread, and those that share its work, take denormal numbers for zero.

    TensorFlow's threads do so, too. A gradient that fades over a thousand steps ends in such numbers, with
    which a CPU computes many times slower.
    """
    before = sys.float_info.min / 2 == 0  # torch has no function that tells
    _set_flush(True)
    try:
        yield
    finally:
        _set_flush(before)


def _set_flush(flushed: bool) -> None:
    torch.set_flush_denormal(flushed)
    # The setting is a thread's. Each thread has OpenMP threads of its own, which begin with their parent's
    # setting and keep it. Only our own kernels can change it there.
    if native.load.cache_info().currsize and torch.get_num_threads() > 1:
        native.load().share_float_environment()


@contextlib.contextmanager
def convert_allocation_errors() -> Iterator[None]:
    """Turn a failed allocation in this context, or in the function that it decorates, into one sentence.

    Raises:
        OutOfMemoryError: An allocation failed, on either device.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        failed = find_failed_allocation(error)
        if failed is None:
            raise
        raise OutOfMemoryError(host.describe_failed_allocation(failed)) from None


def find_failed_allocation(error: BaseException | None) -> BaseException | None:
    """Return the error of an allocation: this one, or one that failed before it; None if there is none."""
    if error is None or isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY):
        return error
    # A failed allocation makes other calls fail: the end of a graph's capture, for one.
    return find_failed_allocation(error.__context__)
