"""The machine's own rates, of matrix multiplication and of copying."""

import contextlib
import subprocess
import sys

import pytest
import torch

from ptb_lm.bench.machine import Machine
from ptb_lm.errors import UserError


def test_the_rates_are_told_with_the_device() -> None:
    machine = Machine("cpu")
    assert (machine.device, machine.gpu) == ("cpu", None)
    for precision in ("fp32", "fp64", "bf16"):
        rates = machine.rates(precision)
        assert 0.1 < rates.gemm_gflops < 1e5
        assert 0.1 < rates.copy_gbytes < 1e4
    machine.close()
    program = [sys.executable, "-m", "ptb_lm.torch_backend.rates", "auto"]
    answered = subprocess.run(program, input="fp32\nfp64\n", capture_output=True, text=True, check=True)
    assert answered.stdout.count("\n") == 2


def test_a_precision_that_is_none_is_one_sentence() -> None:
    machine = Machine("cpu")
    with pytest.raises(UserError, match=r"cannot measure the machine's rates: .*fp8"):
        machine.rates("fp8")


def test_a_gpu_that_is_not_there_is_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    with pytest.raises(UserError, match=r"^--device cuda: torch \S+ finds no CUDA device here$"):
        Machine("cuda")


@pytest.mark.gpu
def test_a_gpu_is_named_and_copies_faster_than_a_processor() -> None:
    with contextlib.closing(Machine("auto")) as machine:
        assert machine.device == "cuda"
        assert machine.gpu == torch.cuda.get_device_name()
        assert 100 < machine.rates("bf16").copy_gbytes < 1e5
