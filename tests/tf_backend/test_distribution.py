"""Two of TensorFlow's devices train like one, and so do a chief and another process of TF_CONFIG."""

import functools
from pathlib import Path
from typing import Any

import pytest
import rank_program
import runs
import together

from ptb_lm import train

pytestmark = pytest.mark.slow

BOUNDS = {"fp64": 1e-10, "fp32": 1e-5}


def case(model: str, precision: str, **config: Any) -> dict[str, Any]:
    choice = {"framework": "tensorflow", "model": model, "precision": precision}
    return {"choice": choice, "config": config}


PENALISED = {"activation_penalty": 2.0, "slowness_penalty": 1.0, "weight_decay": 0.03}
CASES = {
    "block": case("block", "fp32"),
    "block_fused": case("block_fused", "fp32"),
    "cudnn": case("cudnn", "fp64"),
    "awd": case("basic", "fp64", tie_weights=True, layer_sizes=(9, 6), **PENALISED),
    "adam": case("basic", "fp64", optimizer="adam", **PENALISED),
    # The second one finds that its norms are not finite; the first one's count for both.
    "other norms": {**case("basic", "fp64"), "other_norms": True},
}
# Devices share the variables, which a model's layers make. Processes have their own and exchange gradients,
# a list whatever the model: two models are enough for them.
DEVICE_CASES = ("block", "cudnn")


DROPPED = (
    *("--input-keep-prob", "0.7", "--output-keep-prob", "0.8"),
    *("--embedding-keep-prob", "0.8", "--recurrent-keep-prob", "0.8"),
)


SCHEDULED = ("--optimizer", "adam", "--learning-rate", "0.02", "--schedule", "one-cycle")


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
        "--num-layers",
        "1",
    )
    return runs.arguments(folder / "text", folder / run, *fixed, *more)


@pytest.fixture(scope="module", params=["devices", "processes"])
def way(request: pytest.FixtureRequest) -> str:
    """The kind of several: devices or processes."""
    return str(request.param)


@pytest.fixture(scope="module")
def folder(way: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(way)
    runs.write_corpus(folder / "text")
    return folder


@functools.cache
def computed_by_one(name: str) -> dict[str, Any]:
    return rank_program.compute(CASES[name])


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one device."""
    folder = tmp_path_factory.mktemp("one")
    runs.write_corpus(folder / "text")
    assert train.main(arguments(folder, "one")) == 0
    return folder / "one"


@pytest.fixture(scope="module")
def each_process(way: str, folder: Path) -> list[dict[str, Any]]:
    """The measurements of each case: of two devices of one process, or of each of two processes."""
    cases = {
        **{name: each for name, each in CASES.items() if way == "devices" or name not in DEVICE_CASES},
        "plain": {"arguments": arguments(folder, "plain")},
        "whole": {"arguments": arguments(folder, "whole", *DROPPED, *SCHEDULED)},
        "stopped": {"arguments": arguments(folder, "stopped", *DROPPED, *SCHEDULED), "stop": (0, 70)},
        "resumed": {"arguments": ["--resume", str(folder / "stopped")]},
        "to one": {"arguments": arguments(folder, "to one"), "stop": (0, 70)},
        "indivisible": {"arguments": arguments(folder, "no", "--batch-size", "5")},
    }
    if way == "devices":
        processes = together.done_together(1, "devices", list(cases.values()))
    else:
        rates = [arguments(folder, "no", "--learning-rate", rate) for rate in ("1.0", "0.5")]
        # The last: one of both ends with it.
        cases |= {"other rate": {"arguments": rates}, "abandoned": {"abandoned": True}}
        processes = together.done_together(2, "tensorflow", list(cases.values()))
    return [dict(zip(cases, each, strict=True)) for each in processes]


@pytest.fixture(scope="module")
def found(each_process: list[dict[str, Any]]) -> dict[str, Any]:
    """The measurements of the first process."""
    return each_process[0]


# A mark of `way` alone keeps the fixture's scope: together with names, it would be set up for each of them.
@pytest.mark.parametrize("way", ["devices"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_two_devices_compute_what_one_does(name: str, each_process: list[dict[str, Any]]) -> None:
    assert_computed_by_one(name, each_process)


@pytest.mark.parametrize("way", ["processes"], indirect=True)
@pytest.mark.parametrize("name", [name for name in CASES if name not in DEVICE_CASES])
def test_two_processes_compute_what_one_does(name: str, each_process: list[dict[str, Any]]) -> None:
    assert_computed_by_one(name, each_process)


def assert_computed_by_one(name: str, each_process: list[dict[str, Any]]) -> None:
    several, bound = [each[name] for each in each_process], BOUNDS[CASES[name]["choice"]["precision"]]
    together.assert_computed_by_one(several, computed_by_one(name), bound=bound)
    assert all(each["own_graphs"] == 1 for each in several)  # of windows of a share of the rows, too


def test_a_run_is_that_of_one(way: str, folder: Path, found: dict[str, Any], one: Path) -> None:
    """And one that two began ends on one device with the same numbers."""
    assert [found[name]["status"] for name in ("plain", "to one")] == [0, 143]
    assert train.main(["--resume", str(folder / "to one")]) == 0
    for run in ("plain", "to one"):
        for key in ("test_perplexity", "valid_perplexity", "final_test_perplexity"):
            assert runs.result(folder / run)[key] == pytest.approx(runs.result(one)[key], rel=1e-10)
    assert runs.result(folder / "plain")["environment"][way] == 2
    assert f"2 {way}, 2 rows of the batch each\n" in found["plain"]["out"]


def test_a_stopped_run_goes_on_exactly(folder: Path, found: dict[str, Any]) -> None:
    """With dropout, whose masks differ between the devices, the state of Adam, and a rate for each step."""
    assert [found[name]["status"] for name in ("whole", "stopped", "resumed")] == [0, 143, 0]
    runs.assert_equal_runs(folder / "stopped", folder / "whole")
    first, second = runs.final_state(folder / "whole")["training.tensorflow.generator"]
    assert first[-1] != second[-1]  # the keys


def test_an_indivisible_batch_is_refused(way: str, found: dict[str, Any]) -> None:
    assert "(5 = 2 x 2 + 1); use 1 or 5" in found["indivisible"]["error"]
    assert f"2 {way}" in found["indivisible"]["error"]


@pytest.mark.parametrize("way", ["processes"], indirect=True)
def test_processes_with_other_settings_are_refused_on_all(each_process: list[dict[str, Any]]) -> None:
    first, second = (each["other rate"] for each in each_process)
    assert [first["status"], second["status"]] == [2, 2]
    assert "has another learning_rate than rank 0" in first["error"]
    assert first["error"] == second["error"]


@pytest.mark.parametrize("way", ["processes"], indirect=True)
def test_an_ended_rank_is_named(found: dict[str, Any]) -> None:
    assert found["abandoned"].startswith("rank 1 of 2 ")
