"""The machine: which device it has, and its own rates, measured beside each row.

Its limit in matrix multiplication is looked for among large square matrices and the products of a training
step. A product is of an [m, k] and a [k, n] matrix.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ptb_lm.bench.run.process import Process, WorkerError
from ptb_lm.bench.workloads import LanguageTask, Task
from ptb_lm.common.errors import UserError

# The variables that libraries read how many threads to use from.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")

WIDTH = {"cpu": 2048, "cuda": 8192}  # of the square matrices that are multiplied beside a workload's own


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
        """Return the rate of multiplication as a row has it, measured now for half a second at least.

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
        rate: float = self._ask(what="copy")["gbytes"]
        return rate

    def _ask(self, **question: Any) -> dict[str, Any]:
        try:
            return self._process.ask(**question)
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
    width, words = task.config.layer_sizes[-1] + 1, task.vocabulary_size
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
