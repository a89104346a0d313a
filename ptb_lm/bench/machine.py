"""The machine: which device it has, and its own rates, measured beside each row."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ptb_lm.bench.process import Process, WorkerError
from ptb_lm.bench.products import Product, square
from ptb_lm.errors import UserError

WIDTH = {"cpu": 2048, "cuda": 8192}  # of the square matrices that are multiplied beside a workload's own


class Gemm(NamedTuple):
    """How fast the machine multiplied matrices just now: by the best of its libraries, at the best shape."""

    gemm_gflops: float
    gemm_library: str
    gemm_shape: str
    gemm_threads: int | None  # None where that is not known, and on a GPU


class Machine:
    """Measures the machine, in a process of its own.

    Attributes:
        device: "cpu" or "cuda".
        gpu: The name of the CUDA device; None on a CPU.

    Args:
        device: "cpu", "cuda", or "auto": cuda where there is one.

    Raises:
        UserError: There is no such device.
    """

    def __init__(self, device: str) -> None:
        self._process = Process("ptb_lm.torch_backend.rates", device)
        facts = self._ask(what="device")
        if "trouble" in facts:
            self.close()
            raise UserError(f"--device {device}: {facts['trouble']}")
        self.device: str = facts["device"]
        self.gpu: str | None = facts["gpu"]

    def gemm(self, precision: str, products: Sequence[Product]) -> Gemm:
        """Return the rate of multiplication, measured now for half a second at least.

        The first time, the fastest of all libraries and products is looked for. It is what the later times
        measure.

        Args:
            precision: Of the multiplication, a name in ptb_lm.model.backend.PRECISIONS.
            products: What to multiply, beside large square matrices.

        Raises:
            UserError: It could not be measured.
        """
        every = [square(WIDTH[self.device]), *products]
        shapes = [product[1:] for product in every]
        measured = self._ask(what="gemm", precision=precision, products=shapes)
        shape = every[measured["product"]].shape
        return Gemm(measured["gflops"], measured["library"], shape, measured["threads"])

    def copy_gbytes(self) -> float:
        """Return the rate of a copy in the device's memory, read and written, in GB/s, measured now.

        Raises:
            UserError: It could not be measured.
        """
        rate: float = self._ask(what="copy")["gbytes"]
        return rate

    def _ask(self, **question: Any) -> dict[str, Any]:
        try:
            return self._process.ask(json.dumps(question))
        except WorkerError as error:
            self.close()
            raise UserError(f"cannot measure the machine's rates: {error}") from None

    def close(self) -> None:
        """End the process."""
        self._process.close()
