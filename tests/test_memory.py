"""What a process on Linux keeps of the memory it has freed."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Each allocation on a thread of its own, as TensorFlow's are; the first ones may grow the heap.
FAULTS = """
import ctypes, resource, threading
from ptb_lm import memory
{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def use(size=2**25):
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    ctypes.memset(block, 1, size)
    libc.free(block)
def step():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS.format(first)], capture_output=True, text=True)
    assert done.stderr == ""
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
def test_freed_memory_is_not_faulted_in_again() -> None:
    given_back = faults("")
    if given_back < 1000:
        pytest.skip("this C library keeps its memory by itself, or its pages are huge")
    assert faults("memory.keep_freed()") < given_back / 20
