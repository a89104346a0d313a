"""Hyper-parameters: the tutorial's numbers, and values that are refused."""

import dataclasses
import math
import re
from typing import Any

import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.model.cells import CELLS
from ptb_lm.model.config import PRESETS, RECIPES, SMALL, Config
from ptb_lm.model.hyperparameter import flag_name

# tensorflow/models, tutorials/rnn/ptb/ptb_word_lm.py.
TUTORIAL = {
    "init_scale": (0.1, 0.1, 0.05, 0.04),
    "learning_rate": (1.0, 1.0, 1.0, 1.0),
    "max_grad_norm": (1, 5, 5, 10),
    "num_layers": (1, 2, 2, 2),
    "num_steps": (2, 20, 35, 35),
    "hidden_size": (2, 200, 650, 1500),
    "embedding_size": (0, 0, 0, 0),  # as the layers
    "decay_after": (1, 4, 6, 14),
    "epochs": (1, 13, 39, 55),
    "keep_prob": (1.0, 1.0, 0.5, 0.35),
    "lr_decay": (0.5, 0.5, 0.8, 1 / 1.15),
    "batch_size": (20, 20, 20, 20),
    # What it does not have.
    "cell": ("lstm",) * 4,
    "tie_weights": (False,) * 4,
    "variational": (False,) * 4,
    "embedding_keep_prob": (1.0,) * 4,
    "recurrent_keep_prob": (1.0,) * 4,
    "average_epochs": (0.0,) * 4,
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Config)])
def test_the_presets_are_the_tutorials(name: str) -> None:
    presets = [PRESETS[size] for size in ("test", "small", "medium", "large")]
    assert tuple(getattr(preset, name) for preset in presets) == TUTORIAL[name]


def differences(config: Config, other: Config) -> dict[str, Any]:
    """What one configuration has otherwise than another."""
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(Config)
        if getattr(config, field.name) != getattr(other, field.name)
    }


def test_the_tutorial_s_recipe_is_its_presets() -> None:
    assert RECIPES["tutorial"] == PRESETS


def test_the_default_recipe_trains_otherwise() -> None:
    """The same architectures; each number is of the publication or the ablation that config.py names."""
    default = RECIPES["default"]
    assert {name: differences(default[name], PRESETS[name]) for name in PRESETS} == {
        "test": {},
        "small": {"average_epochs": 1.0},
        "medium": {
            "variational": True,
            "keep_prob": 0.6,
            "embedding_keep_prob": 0.8,
            "recurrent_keep_prob": 0.7,
            "decay_after": 24,
            "lr_decay": 0.78,
            "average_epochs": 1.0,
        },
        "large": {
            "variational": True,
            "keep_prob": 0.5,
            "embedding_keep_prob": 0.7,
            "recurrent_keep_prob": 0.7,
            "decay_after": 11,
            "average_epochs": 1.0,
        },
        "demo": {},
        "race": {},
    }


def test_the_race_is_medium_with_less_dropout_in_fewer_epochs() -> None:
    race, medium = RECIPES["default"]["race"], RECIPES["default"]["medium"]
    assert differences(race, medium) == {
        "keep_prob": 0.65,
        "recurrent_keep_prob": 0.8,
        "epochs": 20,
        "decay_after": 14,
    }


@pytest.mark.parametrize(
    ("preset", "epoch", "expected"),
    [
        ("small", 0, 1.0),
        ("small", 3, 1.0),
        ("small", 4, 0.5),
        ("small", 12, 0.5**9),
        ("medium", 5, 1.0),
        ("medium", 6, 0.8),
        ("medium", 38, 0.8**33),
        ("large", 13, 1.0),
        ("large", 54, 1.15**-41),
    ],
)
def test_the_tutorials_schedule(preset: str, epoch: int, expected: float) -> None:
    assert PRESETS[preset].learning_rate_in(epoch) == pytest.approx(expected, rel=1e-12)


COUNTS = ("num_layers", "hidden_size", "num_steps", "batch_size", "epochs")
PROBABILITIES = ("keep_prob", "embedding_keep_prob", "recurrent_keep_prob")
POSITIVE = ("lr_decay", "learning_rate", "max_grad_norm", *PROBABILITIES)


@pytest.mark.parametrize("value", [0, -3])
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_at_least_one(name: str, value: int) -> None:
    with pytest.raises(
        UserError, match=f"^{flag_name(name)} must be at least 1( and at most 1000)?, not {value}$"
    ):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("value", [0.0, -0.5])
@pytest.mark.parametrize("name", POSITIVE)
def test_a_rate_is_greater_than_zero(name: str, value: float) -> None:
    at_most = " and at most 1" if name in PROBABILITIES else ""
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be greater than 0{at_most}, not {value}$"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("name", ["decay_after", "init_scale", "average_epochs"])
def test_zero_may_mean_none(name: str) -> None:
    assert getattr(SMALL.replace(**{name: 0}), name) == 0
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be at least 0, not -1$"):
        SMALL.replace(**{name: -1})


@pytest.mark.parametrize("value", [1.0001, 1.5])
@pytest.mark.parametrize("name", PROBABILITIES)
def test_a_probability_is_at_most_one(name: str, value: float) -> None:
    problem = f"^{flag_name(name)} must be greater than 0 and at most 1, not {value}$"
    with pytest.raises(UserError, match=problem):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("value", [0, 1, 1.0, "yes", None])
@pytest.mark.parametrize("name", ["tie_weights", "variational"])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    problem = re.escape(f"{flag_name(name)} must be true or false, not {value!r}")
    with pytest.raises(UserError, match=f"^{problem}$"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("value", ["rnn", "", None, 1])
def test_a_cell_is_one_of_the_table(value: Any) -> None:
    problem = re.escape(f"--cell must be one of {', '.join(CELLS)}, not {value!r}")
    with pytest.raises(UserError, match=f"^{problem}$"):
        SMALL.replace(cell=value)


def test_tied_weights_need_an_embedding_as_wide_as_the_layers() -> None:
    assert SMALL.replace(tie_weights=True, embedding_size=200).tie_weights
    problem = "^--tie-weights needs an embedding as wide as the top layer: 100 is not 200$"
    with pytest.raises(UserError, match=problem):
        SMALL.replace(tie_weights=True, embedding_size=100)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [*POSITIVE, "init_scale", "average_epochs"])
def test_a_number_is_finite(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be a finite number, not {value}$"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", 2**31), ("epochs", 10**400), ("max_grad_norm", 1e39), ("learning_rate", 10**400)],
)
def test_a_number_fits_into_32_bits(name: str, value: float) -> None:
    with pytest.raises(UserError, match=re.escape(f"{flag_name(name)} must be at most ")):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("value", [2.0, "2", None, True, [2]])
def test_a_count_is_a_whole_number(value: Any) -> None:
    with pytest.raises(UserError, match=re.escape(f"--num-layers must be a whole number, not {value!r}")):
        SMALL.replace(num_layers=value)


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_a_rate_is_a_number(value: Any) -> None:
    with pytest.raises(UserError, match=re.escape(f"--keep-prob must be a finite number, not {value!r}")):
        SMALL.replace(keep_prob=value)


def test_a_whole_number_will_do_for_a_rate() -> None:
    assert SMALL.replace(max_grad_norm=3).max_grad_norm == 3


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.hidden_size = 3  # type: ignore[misc]


def test_replace_changes_a_copy_only() -> None:
    assert SMALL.replace(hidden_size=3) == dataclasses.replace(SMALL, hidden_size=3)
    assert Config() == SMALL
