"""What a worker makes of its order, and what it tells of the device's memory: each pass's own peak."""

import pytest

from ptb_lm.bench import worker
from ptb_lm.bench.worker import DevicePeaks, Order
from ptb_lm.errors import UserError


def order(variant: str) -> Order:
    return Order(
        suite="quick",
        workload="small",
        variant=variant,
        batch_size=2,
        device="cpu",
        precision="fp32",
        seed=1,
        added=(),
    )


def test_a_variant_is_built_and_checked_in_the_precision_of_its_name() -> None:
    _, single = worker._ready(order("torch/cudnn"))
    _, half = worker._ready(order("torch/cudnn@bf16"))
    assert (single["parity"]["bound"], half["parity"]["bound"]) == (1e-4, 2**-4)
    assert single["parity"]["gradient_error"] < 1e-4 < half["parity"]["gradient_error"] < 2**-4
    assert single["parity"]["whole_loss_error"] < 1e-4
    assert half["parity"]["whole_loss_error"] < 1e-3
    assert single["parity"]["whole_rows"] == 2
    assert half["loss"] == pytest.approx(single["loss"], rel=1e-3)


def test_a_precision_that_a_cpu_lacks_is_told() -> None:
    with pytest.raises(UserError, match="--precision tf32 needs a CUDA device"):
        worker._ready(order("plain-torch/cudnn@tf32"))


def test_each_pass_has_its_own_peak_from_its_first_step_on() -> None:
    peaks = DevicePeaks()
    assert peaks.after("train", 900) == 900  # the warm-up, in which libraries allocate
    assert peaks.after("forward", 300) == 300
    assert peaks.after("train", 700) == 900
    assert peaks.after("forward", 400) == 400


def test_a_cpu_has_none() -> None:
    peaks = DevicePeaks()
    assert peaks.after("train", None) is None
