"""The machine: which device it has, and its own rates, measured beside each row."""

from typing import Any, NamedTuple

from ptb_lm.bench.process import Process, WorkerError
from ptb_lm.errors import UserError


class Rates(NamedTuple):
    """What the machine did just now."""

    gemm_gflops: float  # of a large matrix multiplication, in GFLOP/s
    copy_gbytes: float  # of a copy in the device's memory, read and written, in GB/s


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
        facts = self._measured("fp32")  # a precision that every device has
        if "trouble" in facts:
            self.close()
            raise UserError(f"--device {device}: {facts['trouble']}")
        self.device: str = facts["device"]
        self.gpu: str | None = facts["gpu"]

    def rates(self, precision: str) -> Rates:
        """Return the rates measured just now.

        Args:
            precision: Of the multiplication, a name in ptb_lm.backend.PRECISIONS.

        Raises:
            UserError: They could not be measured.
        """
        measured = self._measured(precision)
        return Rates(measured["gflops"], measured["copy_gbytes"])

    def _measured(self, precision: str) -> dict[str, Any]:
        try:
            return self._process.ask(precision)
        except WorkerError as error:
            self.close()
            raise UserError(f"cannot measure the machine's rates: {error}") from None

    def close(self) -> None:
        """End the process."""
        self._process.close()
