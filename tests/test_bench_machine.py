"""The machine's own rate of matrix multiplication."""

import subprocess
import sys

import pytest

from ptb_lm.bench.machine import Gemm
from ptb_lm.errors import UserError


def test_the_rate_of_matrix_multiplication_is_told_with_the_device() -> None:
    gemm = Gemm("cpu")
    assert gemm.device == "cpu"
    for precision in ("fp32", "fp64", "bf16"):
        assert 0.1 < gemm.gflops(precision) < 1e5
    gemm.close()
    program = [sys.executable, "-m", "ptb_lm.torch_backend.gemm", "auto"]
    answered = subprocess.run(program, input="fp32\nfp64\n", capture_output=True, text=True, check=True)
    assert answered.stdout.count("\n") == 2


def test_a_precision_that_is_none_is_one_sentence() -> None:
    gemm = Gemm("cpu")
    with pytest.raises(UserError, match=r"cannot measure the machine's matrix multiplication: .*fp8"):
        gemm.gflops("fp8")
