"""The machine's own rate of matrix multiplication, measured beside each row."""

from typing import Any

from ptb_lm.bench.process import Process, WorkerError
from ptb_lm.errors import UserError


class Gemm:
    """Measures the machine's matrix multiplication.

    Attributes:
        device: "cpu" or "cuda".

    Args:
        device: "cpu", "cuda", or "auto": cuda where there is one.

    Raises:
        UserError: There is no such device.
    """

    def __init__(self, device: str) -> None:
        self._process = Process("ptb_lm.torch_backend.gemm", device)
        # Of the precision that every device has.
        self.device = str(self._measured("fp32")["device"])

    def gflops(self, precision: str) -> float:
        """Return the rate measured just now, in GFLOP/s.

        Args:
            precision: A name in ptb_lm.backend.PRECISIONS.

        Raises:
            UserError: It could not be measured.
        """
        return float(self._measured(precision)["gflops"])

    def _measured(self, precision: str) -> dict[str, Any]:
        try:
            return self._process.ask(precision)
        except WorkerError as error:
            self.close()
            raise UserError(f"cannot measure the machine's matrix multiplication: {error}") from None

    def close(self) -> None:
        """End the process."""
        self._process.close()
