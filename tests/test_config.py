"""Hyper-parameters: the tutorial's numbers, and values that are refused."""

import dataclasses
import math
import re
from typing import Any

import pytest

from ptb_lm.config import PRESETS, SMALL, Config, flag_name
from ptb_lm.errors import UserError

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
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Config)])
def test_the_presets_are_the_tutorials(name: str) -> None:
    presets = [PRESETS[size] for size in ("test", "small", "medium", "large")]
    assert tuple(getattr(preset, name) for preset in presets) == TUTORIAL[name]


COUNTS = ("num_layers", "hidden_size", "num_steps", "batch_size", "epochs")
POSITIVE = ("lr_decay", "learning_rate", "max_grad_norm", "keep_prob")


@pytest.mark.parametrize("value", [0, -3])
@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_at_least_one(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be at least 1, not {value}$"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("value", [0.0, -0.5])
@pytest.mark.parametrize("name", POSITIVE)
def test_a_rate_is_greater_than_zero(name: str, value: float) -> None:
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be greater than 0, not {value}$"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize("name", ["decay_after", "init_scale"])
def test_zero_may_mean_none(name: str) -> None:
    assert getattr(SMALL.replace(**{name: 0}), name) == 0
    with pytest.raises(UserError, match=f"^{flag_name(name)} must be at least 0, not -1$"):
        SMALL.replace(**{name: -1})


@pytest.mark.parametrize("value", [1.0001, 1.5])
def test_keep_prob_is_at_most_one(value: float) -> None:
    with pytest.raises(UserError, match=f"--keep-prob must be greater than 0 and at most 1, not {value}"):
        SMALL.replace(keep_prob=value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [*POSITIVE, "init_scale"])
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
