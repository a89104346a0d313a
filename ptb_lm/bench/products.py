"""The matrix products of a training step: the shapes at which the machine's limit is looked for.

A product is of an [m, k] and a [k, n] matrix.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ptb_lm.bench.workloads import LanguageTask, Task


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


def square(width: int) -> Product:
    """Return the product of two square matrices."""
    return Product("", width, width, width)


def of_step(task: Task) -> list[Product]:
    """Return the distinct products of a task's training step: forward, by the input and by the weights."""
    products: dict[tuple[int, int, int, str], Product] = {}
    for forward in _forward(task):
        for product in _with_gradients(forward):
            products.setdefault(product[1:], product)
    return list(products.values())


def _forward(task: Task) -> Iterator[Product]:
    """Yield the products of a forward pass."""
    if isinstance(task, LanguageTask):
        inputs = task.batch_size * task.config.num_steps
        # The bias is a row of the kernel (ptb_lm.torch_backend.loss).
        yield Product("softmax", inputs, task.config.layer_sizes[-1] + 1, task.vocabulary_size)
    else:
        inputs = task.batch_size * task.steps
        outputs = inputs if task.config.loss == "ctc" else task.batch_size
        width, classes = task.shapes["dense.kernel"]
        yield Product("dense layer", outputs, width, classes)
    for name, shape in task.shapes.items():
        if name.startswith("lstm.") and name.endswith(".recurrent_kernel"):
            yield Product("recurrence", task.batch_size, shape[0], shape[1])
        elif name.startswith("lstm.") and name.endswith(".kernel"):
            yield Product("input projection", inputs, shape[0], shape[1])


def _with_gradients(forward: Product) -> Iterator[Product]:
    """Yield the product and those of its two gradients, with the factors as autograd finds them."""
    what, m, k, n, _ = forward
    yield forward
    yield Product(f"{what}, gradient by the input", m, n, k, "second")
    yield Product(f"{what}, gradient by the weights", k, m, n, "first")
