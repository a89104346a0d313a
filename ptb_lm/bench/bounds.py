"""How far a variant may be from the NumPy reference, by its precision, before it is timed.

| precision | unit roundoff u | losses and gradients of a cut | loss at the whole size |
|---|--:|--:|--:|
| fp64 | 2^-53 | 1e-9 | 1e-9 |
| fp32 | 2^-24 | 1e-4 | 1e-4 |
| fp16 | 2^-11 | 16 u = 0.0078 | u / 4 = 1.2e-4 |
| tf32 | 2^-11 | 16 u = 0.0078 | 2 u = 9.8e-4 |
| bf16 | 2^-8 | 16 u = 0.063 | u / 4 = 9.8e-4 |

All are relative; a gradient's is of its norm. fp32 and fp64 hold with room: sums over thousands of terms
lose some of the digits. Where factors are rounded to 8 or 11 bits, layers and time steps add up what each
product loses: a right gradient is off by two to five u on a CPU, one with swapped gates by more than half its
norm, which is above 128 u of bf16's. A loss is a mean over hundreds of words, whose errors cancel: at the
whole size a right one was off by u / 16 at most, and one with swapped gates by 0.0017 at least. Where a GPU
cuts factors off to TF32 instead of rounding them, the errors do not cancel: simulated, 3.7e-4 at the most.
"""

from typing import NamedTuple


class Bound(NamedTuple):
    """A row of BOUNDS: relative errors."""

    cut: float  # of the losses, and of each parameter's gradient, of a cut of the workload
    whole: float  # of the loss of a window of the workload's size


def _rounded(bits: int) -> Bound:
    """Return the bound of a precision that rounds factors to so many bits."""
    roundoff = 2.0**-bits
    return Bound(cut=16 * roundoff, whole=roundoff / 4)


BOUNDS = {
    "fp64": Bound(cut=1e-9, whole=1e-9),
    "fp32": Bound(cut=1e-4, whole=1e-4),
    "tf32": Bound(cut=16 * 2.0**-11, whole=2 * 2.0**-11),
    "bf16": _rounded(8),
    "fp16": _rounded(11),
}
