"""The machine: its device, its own rates, measured beside each row, and what other processes take of it.

Its limit in matrix multiplication is looked for among large square matrices and the products of a training
step. A product is of an [m, k] and a [k, n] matrix.

Threads that share a step wait for each other hundreds of times in it. So a process that takes part of a core
now and then can hold up a block many times over. While other programs worked, a block of 1.5 s was seen to
take 58 s. Such a block is measured again. What decides is what the others took, never how long the block was.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ptb_lm.bench.run.process import Process, WorkerError
from ptb_lm.bench.workloads import LanguageTask, Task
from ptb_lm.common import host
from ptb_lm.common.errors import UserError

# The variables that libraries read how many threads to use from.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

WIDTH = {"cpu": 2048, "cuda": 8192}  # of the square matrices that are multiplied beside a workload's own

DISTURBANCE_LIMIT = 0.1  # of a core that others took, from which on a block is measured again
TRIES = 3  # at most; what counts is the block beside which others took the least
# Columns of /proc/stat: user, nice, system, interrupts and those put off, and what the host gave to others.
_BUSY = (1, 2, 3, 6, 7, 8)


class Product(NamedTuple):
    """A matrix product, [m, k] by [k, n]."""

    what: str  # what it computes, for people; "" for nothing that a model does
    m: int
    k: int
    n: int
    transposed: str = ""  # the factor that lies transposed in memory: "first", "second" or "" for none

    @property
    def shape(self) -> str:
        """The sizes, for people."""
        return f"{self.m} × {self.k} × {self.n}{f' ({self.what})' if self.what else ''}"


class Machine:
    """Measures the machine, in a process of its own.

    Attributes:
        device: "cpu" or "cuda".
        gpu: The name of the CUDA device; None on a CPU.
        cpu: Kernels and library of float32 products by which torch's models compute on a CPU; empty on a GPU.
        environment: Variables that make every library compute with as many threads as torch does by itself;
            those that the user has set stay.

    Args:
        device: "cpu", "cuda", or "auto", which is cuda if there is one.

    Raises:
        UserError: There is no such device.
    """

    def __init__(self, device: str) -> None:
        self._process = Process("ptb_lm.torch_backend.machine_speed", device)
        facts = self._ask(what="device")
        if "trouble" in facts:
            self.close()
            raise UserError(f"--device {device}: {facts['trouble']}")
        self.device: str = facts["device"]
        self.gpu: str | None = facts["gpu"]
        self.cpu: Mapping[str, str] = facts["cpu"]
        threads = str(facts["threads"])
        self.environment = {name: os.environ.get(name, threads) for name in THREADS}

    def gemm(self, precision: str, products: Sequence[Product]) -> dict[str, Any]:
        """Return the rate of multiplication as a row has it, measured now for a quarter of a second.

        The first time, the fastest of all libraries and products is looked for. It is what the later times
        measure.

        Args:
            precision: Precision of the multiplication, a name in ptb_lm.model.frameworks.PRECISIONS.
            products: Products to multiply, beside large square matrices.

        Raises:
            UserError: It could not be measured.
        """
        width = WIDTH[self.device]
        every = [Product("", width, width, width), *products]
        shapes = [product[1:] for product in every]
        measured = self._ask(what="gemm", precision=precision, products=shapes)
        return {
            "gemm_gflops": measured["gflops"],
            "gemm_library": measured["library"],
            "gemm_shape": every[measured["product"]].shape,
            "gemm_threads": measured["threads"],  # None where that is not known, and on a GPU
        }

    def copy_gbytes(self) -> float:
        """Return the rate of a copy in the device's memory, read and written, in GB/s, measured now.

        Raises:
            UserError: It could not be measured.
        """
        return self._ask(what="copy")["gbytes"]

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            return self._process.ask(**request)
        except WorkerError as error:
            self.close()
            raise UserError(f"cannot measure the machine's rates: {error}") from None

    def close(self) -> None:
        """End the process."""
        self._process.close()


@functools.singledispatch
def products(task: Task) -> list[Product]:
    """Return the distinct products of a task's training step, forward and for both gradients."""
    raise NotImplementedError(type(task))


@products.register(LanguageTask)
def _language_products(task: LanguageTask) -> list[Product]:
    inputs = task.batch_size * task.config.num_steps
    # The bias is a row of the kernel (ptb_lm.torch_backend.loss).
    width, words = task.config.hidden_sizes[-1] + 1, task.vocabulary_size
    softmax = Product("softmax", inputs, width, words)
    return with_gradients({"softmax.kernel": softmax, **layer_products(task, inputs=inputs)})


def layer_products(task: Task, *, inputs: int) -> dict[str, Product]:
    """Return the forward products of a task's layers, by the kernel's canonical name.

    Args:
        task: Any task.
        inputs: Number of input vectors of a batch.
    """
    found = {}
    for name, shape in task.shapes.items():
        if name.endswith(".recurrent_kernel"):
            found[name] = Product("recurrence", task.batch_size, shape[0], shape[1])
        elif name.endswith(".kernel") and not name.startswith(("softmax.", "dense.")):
            found[name] = Product("input projection", inputs, shape[0], shape[1])
    return found


def with_gradients(forward: Mapping[str, Product], *, frozen_inputs: Sequence[str] = ()) -> list[Product]:
    """Return distinct products and those of their gradients, with the factors as autograd finds them.

    Args:
        forward: Forward products by the kernel's name.
        frozen_inputs: Kernels whose inputs need no gradient.
    """
    found: dict[tuple[int, int, int, str], Product] = {}
    for kernel, product in forward.items():
        what, m, k, n, _ = product
        by_inputs = Product(f"{what}, gradient with respect to the input", m, n, k, "second")
        by_weights = Product(f"{what}, gradient with respect to the weights", k, m, n, "first")
        for each in (product, *([] if kernel in frozen_inputs else [by_inputs]), by_weights):
            found.setdefault(each[1:], each)
    return list(found.values())


def least_disturbed(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Measure a block, and again while others take too much; return the one beside which they took the least.

    Args:
        measure: A function that returns a block, with the cores that others took as "others".
    """
    blocks: list[dict[str, Any]] = []
    while len(blocks) < TRIES:
        blocks.append(measure())
        others = blocks[-1]["others"]
        if others is None or others <= DISTURBANCE_LIMIT:
            return blocks[-1]
    return min(blocks, key=lambda block: float(block["others"]))


def seconds_of_others() -> float | None:
    """Return the seconds of this process's cores that were not its session's; None if unknown.

    A worker has a session of its own, with what it starts.
    """
    busy = host.seconds_of_cores(_BUSY)
    if busy is None:
        return None
    # With the ticks of the children that a process has waited for.
    ours = sum(sum(map(int, fields[11:15])) for _, fields in session_processes())
    return busy - ours / host.HERTZ


def session_processes() -> Iterator[tuple[Path, list[str]]]:
    """Yield the folder in /proc of each process of this session, and what its stat says behind the name."""
    session = os.getsid(0)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[3]) == session:
                yield path.parent, fields
