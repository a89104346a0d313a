"""Two logical devices of TensorFlow train what one trains."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import together

from ptb_lm import train

pytestmark = pytest.mark.slow

BOUNDS = {"fp64": 1e-10, "fp32": 1e-5}


def case(model: str, precision: str, **config: Any) -> dict[str, Any]:
    choice = {"framework": "tensorflow", "model": model, "precision": precision}
    return {"choice": choice, "config": config}


CASES = {
    "basic": case("basic", "fp64"),
    "block": case("block", "fp32"),
    "block_fused": case("block_fused", "fp32"),
    "cudnn": case("cudnn", "fp64"),
    "tied": case("basic", "fp64", tie_weights=True),
}


DROPPED = ("--keep-prob", "0.7", "--embedding-keep-prob", "0.8", "--recurrent-keep-prob", "0.8")


def arguments(folder: Path, run: str, *more: str) -> list[str]:
    fixed = (
        "--framework",
        "tensorflow",
        "--model",
        "basic",
        "--precision",
        "fp64",
        "--average-epochs",
        "0.5",
    )
    return runs.arguments(folder / "text", folder / run, *fixed, *more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replicas")
    runs.write_corpus(folder / "text")
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """What two devices measured of each case, in a process that begins with two."""
    cases = {
        **CASES,
        "plain": {"arguments": arguments(folder, "plain")},
        "whole": {"arguments": arguments(folder, "whole", *DROPPED)},
        "stopped": {"arguments": arguments(folder, "stopped", *DROPPED), "stop": (0, 70)},
        "resumed": {"arguments": ["--resume", str(folder / "stopped")]},
        "to one": {"arguments": arguments(folder, "to one"), "stop": (0, 70)},
        "indivisible": {"arguments": arguments(folder, "no", "--batch-size", "5")},
    }
    (of_cases,) = together.done_together(1, "replicated", list(cases.values()))
    return dict(zip(cases, of_cases, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_two_devices_compute_what_one_does(name: str, found: dict[str, Any]) -> None:
    alone, two = together.computed(CASES[name]), found[name]
    bound = BOUNDS[CASES[name]["choice"]["precision"]]
    for quantity in ("nll", "gradient_norm", "evaluated"):
        np.testing.assert_allclose(two[quantity], alone[quantity], rtol=bound, err_msg=quantity)
    np.testing.assert_allclose(two["carried"], alone["carried"], atol=bound)
    for weight, array in alone["weights"].items():
        np.testing.assert_allclose(two["weights"][weight], array, atol=bound, err_msg=weight)


def test_a_run_is_that_of_one_device(folder: Path, found: dict[str, Any]) -> None:
    """And one that two devices began ends on one with the same numbers."""
    assert [found[name]["status"] for name in ("plain", "to one")] == [0, 143]
    assert train.main(arguments(folder, "one")) == 0
    assert train.main(["--resume", str(folder / "to one")]) == 0
    for run in ("plain", "to one"):
        for key in ("test_perplexity", "valid_perplexity", "final_test_perplexity"):
            assert runs.result(folder / run)[key] == pytest.approx(
                runs.result(folder / "one")[key], rel=1e-10
            )
    assert runs.result(folder / "plain")["environment"]["devices"] == 2


def test_a_stopped_run_goes_on_exactly(folder: Path, found: dict[str, Any]) -> None:
    """With dropout, whose masks differ between the devices."""
    assert [found[name]["status"] for name in ("whole", "stopped", "resumed")] == [0, 143, 0]
    runs.assert_equal_runs(folder / "stopped", folder / "whole")
    first, second = runs.final_state(folder / "whole")["training.tensorflow.generator"]
    assert (first != second).any()


def test_an_indivisible_batch_is_refused(found: dict[str, Any]) -> None:
    assert "(5 = 2 x 2 + 1); use 4 or 6" in found["indivisible"]["error"]
    assert "2 devices" in found["indivisible"]["error"]
