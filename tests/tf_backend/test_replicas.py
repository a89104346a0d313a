"""Two logical devices of TensorFlow train what one trains."""

import functools
from typing import Any

import numpy as np
import pytest
import together

pytestmark = pytest.mark.slow

BOUNDS = {"fp64": 1e-10, "fp32": 1e-5}


def case(model: str, precision: str, **config: Any) -> dict[str, Any]:
    choice = {"framework": "tensorflow", "model": model, "precision": precision}
    return {"choice": choice, "config": config, "devices": 2}


CASES = {
    "basic": case("basic", "fp64"),
    "block": case("block", "fp32"),
    "block_fused": case("block_fused", "fp32"),
    "cudnn": case("cudnn", "fp64"),
    "tied": case("basic", "fp64", tie_weights=True),
}


@functools.cache
def found() -> dict[str, Any]:
    """What two devices measured of each case, in a process that begins with two."""
    (of_cases,) = together.done_together(1, "replicated", list(CASES.values()))
    return dict(zip(CASES, of_cases, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_two_devices_compute_what_one_does(name: str) -> None:
    alone, two = together.computed(CASES[name]), found()[name]
    bound = BOUNDS[CASES[name]["choice"]["precision"]]
    for quantity in ("nll", "gradient_norm", "evaluated"):
        np.testing.assert_allclose(two[quantity], alone[quantity], rtol=bound, err_msg=quantity)
    np.testing.assert_allclose(two["carried"], alone["carried"], atol=bound)
    for weight, array in alone["weights"].items():
        np.testing.assert_allclose(two["weights"][weight], array, atol=bound, err_msg=weight)
