"""A small linear image of a large tensor, by which the norm of a difference is found.

The gradients of a large model fill a gigabyte, which is too much to keep for every workload. Kept is a count
sketch (Charikar, Chen and Farach-Colton, "Finding Frequent Items in Data Streams", 2002): each element is
added to, or subtracted from, one of WIDTH sums. It is linear, so that the image of a difference is the
difference of the images; and the squares of an image sum up to those of its tensor, but for a per cent or so,
whatever is different where.
"""

import numpy as np
from numpy.typing import NDArray

# Prime, so that no row or column of a matrix falls into a few sums.
WIDTH = 16_381


def fingerprint(tensor: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return a tensor's image in float64, at most [WIDTH]; a tensor that is no larger is its own."""
    flat = np.ravel(tensor)
    if flat.size <= WIDTH:
        return flat.astype(np.float64)
    # The same signs for all tensors of a size.
    bits = np.unpackbits(np.frombuffer(np.random.default_rng(flat.size).bytes(-(-flat.size // 8)), np.uint8))
    sums = np.zeros(WIDTH)
    for begin in range(0, flat.size, WIDTH):
        part = flat[begin : begin + WIDTH]
        sign = 1.0 - 2.0 * bits[begin : begin + part.size]
        sums[: part.size] += sign * part
    return sums
