"""How a process on a CPU keeps the memory of its large tensors."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # malloc.h
LARGEST = 2**30


def keep_freed() -> None:
    """Tell the C library to keep freed memory for the next allocation, instead of giving it back.

    A step frees some hundred megabytes, and the next one allocates them again. Given back in between, each of
    their pages is fetched again by a page fault: some ten thousand a step. On other C libraries than glibc
    nothing changes.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # Older versions take no more than 32 MiB; set to less than a tensor has, the others would do harm.
        if mallopt(M_MMAP_THRESHOLD, LARGEST) or mallopt(M_MMAP_THRESHOLD, 2**25):
            mallopt(M_TRIM_THRESHOLD, LARGEST)
        # TensorFlow's operations run on threads of its own. The heaps that such threads get hold 64 MiB, and
        # one that has become empty is given back all the same; the process's first heap is not.
        mallopt(M_ARENA_MAX, 1)
