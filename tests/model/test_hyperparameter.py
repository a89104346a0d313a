"""The line of a hyper-parameter, its flag and its bounds."""

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from runs import refusal

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.model.hyperparameter import Hyperparameter, format_value, hyperparameter, hyperparameters
from ptb_lm.model.presets import SMALL


@dataclass(frozen=True, kw_only=True)
class Toy:
    colour: str = hyperparameter("red", "of the toy", choices=("red", "blue"))
    label: str = hyperparameter("", "on its side")
    share: float = hyperparameter(0.5, "of the sand", minimum=0, maximum=1, resumable=True)
    sides: tuple[int, ...] = hyperparameter((), "of each part", minimum=3)


COLOUR, LABEL, SHARE, SIDES = hyperparameters(Toy)


def test_a_line_tells_everything() -> None:
    assert Hyperparameter(name="colour", kind=str, help="of the toy", choices=("red", "blue")) == COLOUR
    assert (SHARE.flag, SHARE.resumable) == ("--share", True)
    with pytest.raises(TypeError, match="colour"):
        hyperparameters(
            dataclasses.make_dataclass("Wrong", [("a", int, hyperparameter(1, "", colour="red"))])
        )


@pytest.mark.parametrize(
    ("which", "value", "problem"),
    [
        (COLOUR, "green", "--colour .*'green'"),
        (COLOUR, 3, "--colour .*red, blue"),
        (LABEL, None, "--label .*text"),
        (SHARE, 1.5, "--share .*most 1"),
        (SHARE, 1e39, "--share .*most 1$"),  # and beyond 32 bits
        (SHARE, -1, "--share .*least 0"),
        (SIDES, 4, "--sides .*list"),
        (SIDES, [4, 4], "--sides .*list"),
        (SIDES, (4, 2), "--sides .*least 3"),
        (SIDES, (4, "4"), "--sides .*whole number"),
    ],
)
def test_a_value_that_the_line_excludes_is_refused(which: Hyperparameter, value: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        which.check(value)


def test_a_value_that_the_line_allows_is_accepted() -> None:
    for which, values in (
        (COLOUR, ("red", "blue")),
        (LABEL, ("", "x")),
        (SHARE, (0, 1, 0.25)),
        (SIDES, ((), (3, 9))),
    ):
        for value in values:
            which.check(value)


def test_several_values_are_a_tuple() -> None:
    """By the flag, from JSON, and as they are shown."""
    parser = argparse.ArgumentParser()
    parser.add_argument(SIDES.flag, **SIDES.argument)
    assert parser.parse_args(["--sides", "3", "7"]).sides == (3, 7)
    assert parser.parse_args([]).sides is None
    assert SIDES.from_json([3, 7]) == (3, 7)
    assert format_value((3, 7)) == "3 7"


@pytest.mark.parametrize("which", [SHARE, SIDES])
def test_a_flag_is_a_number_as_a_person_writes_it(which: Hyperparameter) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"number, not '0_4'"):
        which.parse("0_4")


def outside(each: Hyperparameter) -> list[Any]:
    """Values that a hyper-parameter's bounds exclude."""
    if each.kind in (bool, str):
        return []
    low = each.minimum - 1 if each.minimum is not None else each.above
    return [low, *([] if each.maximum is None else [each.maximum + 1])]


def as_json(each: Hyperparameter, value: Any) -> Any:
    return [value] if each.is_sequence else value


@pytest.mark.parametrize("each", HYPERPARAMETERS, ids=lambda each: each.name)
def test_config_json_refuses_what_the_flag_refuses(
    each: Hyperparameter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ptb_lm.training.run_config import RunConfig

    for value in outside(each):
        by_flag = refusal(capsys, train, f"{each.flag}={value}", "--data", "nowhere")
        by_flag = by_flag.removeprefix("argument ").replace(":", "", 1).removesuffix(" (see --help)")
        config = {
            **train_config(),
            "hyperparameters": {**dataclasses.asdict(SMALL), each.name: as_json(each, value)},
        }
        with pytest.raises(UserError) as caught:
            RunConfig.from_json(json.loads(json.dumps(config)), tmp_path / "config.json")
        # A flag reads whole numbers as numbers.
        assert str(caught.value).removeprefix(f"{tmp_path / 'config.json'}: ").removesuffix(f"{value}") == (
            by_flag.removesuffix(".0").removesuffix(f"{value}")
        )


def train_config() -> dict[str, Any]:
    from ptb_lm.training import run_flags

    return run_flags.new_config({"device": "cpu"}).to_json()


def test_a_run_may_lack_an_optional_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run from before the hyper-parameter was added has its default."""
    from ptb_lm.training import run_config

    values = train_config()
    del values["hyperparameters"]["init_scale"]
    with pytest.raises(UserError, match="init_scale"):
        run_config.RunConfig.from_json(values, tmp_path)
    known = [dataclasses.replace(each, optional=each.name == "init_scale") for each in HYPERPARAMETERS]
    monkeypatch.setattr(run_config, "HYPERPARAMETERS", known)
    values = train_config()
    del values["hyperparameters"]["init_scale"]
    assert run_config.RunConfig.from_json(values, tmp_path).hyperparameters == SMALL.replace(
        average_epochs=1.0
    )
