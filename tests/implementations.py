"""Other ways to compute on a CPU, for a while."""

import contextlib
import dataclasses
from collections.abc import Iterator

from ptb_lm.torch_backend import cpu


@contextlib.contextmanager
def override_implementation(**changes: str) -> Iterator[cpu.Implementation]:
    """Return a context that computes in another way: `override_implementation(kernels="torch")`."""
    before = cpu._process_choice, cpu._run_choice
    cpu.set_implementation(dataclasses.replace(cpu.get_implementation(), **changes))
    try:
        yield cpu.get_implementation()
    finally:
        cpu._process_choice, cpu._run_choice = before
