"""The machine's own rate of matrix multiplication."""

import subprocess
import sys

from ptb_lm.bench.machine import Gemm


def test_the_rate_of_matrix_multiplication_is_told_with_the_device() -> None:
    gemm = Gemm("cpu", "fp64")
    assert gemm.device == "cpu"
    assert 0.1 < gemm.gflops() < 1e5
    gemm.close()
    program = [sys.executable, "-m", "ptb_lm.torch_backend.gemm", "auto", "fp32"]
    answered = subprocess.run(program, input="\n", capture_output=True, text=True, check=True)
    assert answered.stdout.count("\n") == 1
