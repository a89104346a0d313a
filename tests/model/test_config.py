"""Hyper-parameters: the tutorial's numbers, and values that are refused."""

import dataclasses
import math
from typing import Any

import pytest

from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import flag_name
from ptb_lm.model import parameters
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.model.hyperparameter import Hyperparameter
from ptb_lm.model.presets import PRESETS, RECIPES, SMALL

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
    "layer_sizes": ((),) * 4,
    "vary_num_steps": (False,) * 4,
    "schedule": ("exponential",) * 4,
    "optimizer": ("sgd",) * 4,
    "input_keep_prob": (0.0,) * 4,  # as keep_prob
    "between_keep_prob": (0.0,) * 4,
    "output_keep_prob": (0.0,) * 4,
    "layer_init_scale": (0.0,) * 4,  # as init_scale
    "average_after_stall": (0,) * 4,
    "activation_penalty": (0.0,) * 4,
    "slowness_penalty": (0.0,) * 4,
    "weight_decay": (0.0,) * 4,
    "mogrifier_rounds": (5,) * 4,  # of another cell
    "mogrifier_rank": (0,) * 4,
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Config)])
def test_the_presets_are_the_tutorials(name: str) -> None:
    assert name in TUTORIAL, f"TUTORIAL lacks {name}: the tutorial's values, or four times the default"
    presets = [PRESETS[size] for size in ("test", "small", "medium", "large")]
    assert tuple(getattr(preset, name) for preset in presets) == TUTORIAL[name]


def differences(config: Config, other: Config) -> dict[str, Any]:
    """The values of one configuration that differ from another's."""
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
    found = {name: differences(default[name], PRESETS[name]) for name in PRESETS}
    assert {name: each for name, each in found.items() if each} == {
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
            "epochs": 40,
            "decay_after": 11,
            "max_grad_norm": 5.0,
            "average_epochs": 1.0,
        },
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
    assert PRESETS[preset].learning_rate_at(epoch) == pytest.approx(expected, rel=1e-12)


COUNTS = ("num_layers", "hidden_size", "num_steps", "batch_size", "epochs")
PROBABILITIES = ("keep_prob", "embedding_keep_prob", "recurrent_keep_prob")
POSITIVE = ("lr_decay", "learning_rate", "max_grad_norm", *PROBABILITIES)
PROBABILITIES_OR_NONE = ("input_keep_prob", "between_keep_prob", "output_keep_prob")
NOT_NEGATIVE = (
    *("decay_after", "init_scale", "average_epochs", "layer_init_scale", "average_after_stall"),
    *("activation_penalty", "slowness_penalty", "weight_decay", "mogrifier_rounds", "mogrifier_rank"),
    *PROBABILITIES_OR_NONE,
)
SWITCHES = ("tie_weights", "variational", "vary_num_steps")
BEYOND_32_BITS = (
    ("hidden_size", 2**31),
    ("epochs", 10**400),
    ("max_grad_norm", 1e39),
    ("init_scale", 1e39),
    ("learning_rate", 10**400),
)


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        *((name, value, "least 1") for name in COUNTS for value in (0, -3)),
        *((name, value, "greater than 0") for name in POSITIVE for value in (0.0, -0.5)),
        *((name, -1, "least 0") for name in NOT_NEGATIVE),
        *(
            (name, value, "most 1")
            for name in (*PROBABILITIES, *PROBABILITIES_OR_NONE)
            for value in (1.0001, 1.5)
        ),
        *((name, value, "true") for name in SWITCHES for value in (0, 1, 1.0, "yes", None)),
        *(("cell", value, "lstm.*gru") for value in ("rnn", "", None, 1)),
        *(
            (name, value, "finite")
            for name in (*POSITIVE, "init_scale", "average_epochs", "weight_decay", *PROBABILITIES_OR_NONE)
            for value in (math.nan, math.inf, -math.inf)
        ),
        *((name, value, "most") for name, value in BEYOND_32_BITS),
        *(("schedule", value, "exponential, one-cycle, cosine") for value in ("linear", "", None)),
        *(("optimizer", value, "sgd, adam") for value in ("asgd", "Adam", None)),
        *(("layer_sizes", value, "list") for value in (3, [3, 3], "33", None)),
        *(("layer_sizes", value, "least 1") for value in ((0, 3), (3, -1))),
        ("layer_sizes", (3, 2.0), "whole number"),
        *(("num_layers", value, "whole number") for value in (2.0, "2", None, True, [2])),
        *(("keep_prob", value, "finite number") for value in ("0.5", None, True, [0.5])),
    ],
)
def test_an_impossible_value_is_refused(name: str, value: Any, bound: str) -> None:
    with pytest.raises(UserError, match=f"^{flag_name(name)} .*{bound}"):
        SMALL.replace(**{name: value})


@pytest.mark.parametrize(("name", "value"), [*((name, 0) for name in NOT_NEGATIVE), ("max_grad_norm", 3)])
def test_zero_may_mean_none_and_a_whole_number_do_for_a_rate(name: str, value: int) -> None:
    assert getattr(SMALL.replace(**{name: value}), name) == value


def test_tied_weights_need_an_embedding_as_wide_as_the_layers() -> None:
    assert SMALL.replace(tie_weights=True, embedding_size=200).tie_weights
    with pytest.raises(UserError, match=r"--tie-weights .* 200, not 100$"):
        SMALL.replace(tie_weights=True, embedding_size=100)


def test_layers_of_different_widths() -> None:
    config = SMALL.replace(num_layers=3, layer_sizes=(5, 4, 3))
    assert (config.hidden_sizes, config.embedding_width) == ((5, 4, 3), 3)
    assert config.replace(embedding_size=7).embedding_width == 7
    assert config.replace(tie_weights=True).tie_weights
    with pytest.raises(UserError, match=r"--num-layers 2 .*--layer-sizes, .* 3"):
        config.replace(num_layers=2)
    with pytest.raises(UserError, match=r"--tie-weights .* 3, not 5$"):
        config.replace(tie_weights=True, embedding_size=5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (1.0,) * 4),
        ({"keep_prob": 0.5}, (0.5,) * 4),
        ({"input_keep_prob": 0.6}, (0.6, 1, 1, 1)),
        ({"between_keep_prob": 0.7}, (1, 0.7, 0.7, 1)),
        ({"output_keep_prob": 0.8}, (1, 1, 1, 0.8)),
        ({"keep_prob": 0.5, "output_keep_prob": 1.0}, (0.5, 0.5, 0.5, 1)),
    ],
    ids=str,
)
def test_dropout_by_place_is_as_keep_prob_where_none_is_given(
    changes: dict[str, float], expected: tuple[float, ...]
) -> None:
    config = SMALL.replace(num_layers=3, **changes)
    assert config.unit_keep_probs == expected
    assert config.has_dropout == (min(expected) < 1)
    assert config.replace(embedding_keep_prob=0.9).has_dropout
    assert config.replace(recurrent_keep_prob=0.9).has_dropout


def test_a_run_has_one_average() -> None:
    assert SMALL.replace(average_after_stall=5).has_average
    assert SMALL.replace(average_epochs=1.0).has_average
    assert not SMALL.has_average
    with pytest.raises(UserError, match="--average-epochs or --average-after-stall, not both"):
        SMALL.replace(average_epochs=1.0, average_after_stall=5)


# salesforce/awd-lstm-lm, README: the command for Penn Treebank with an LSTM, and main.py's defaults.
AWD = {
    "num_layers": 3,
    "hidden_sizes": (1150, 1150, 400),
    "embedding_width": 400,
    "tie_weights": True,
    "batch_size": 20,
    "num_steps": 70,
    "epochs": 500,
    "unit_keep_probs": (1 - 0.4, 1 - 0.25, 1 - 0.25, 1 - 0.4),
    "embedding_keep_prob": 1 - 0.1,
    "recurrent_keep_prob": 1 - 0.5,
    "init_scale": 0.1,
    "activation_penalty": 2.0,
    "slowness_penalty": 1.0,
    "weight_decay": 1.2e-6,
    "average_after_stall": 5,
}


def test_awd_is_as_published() -> None:
    """Rate and bound belong to the mean loss of a step: ours is 70 times as large."""
    awd = PRESETS["awd"]
    for name, value in AWD.items():
        assert getattr(awd, name) == pytest.approx(value, rel=1e-12), name
    assert (70 * awd.learning_rate, awd.max_grad_norm / 70) == pytest.approx((30, 0.25))
    assert awd.vary_num_steps
    assert awd.variational
    longer = awd.replace(epochs=750)  # as its README has it for WikiText-2
    assert {longer.learning_rate_at(epoch) for epoch in range(longer.epochs)} == {awd.learning_rate}
    decayed = awd.replace(lr_decay=0.9)
    assert decayed.learning_rate_at(9) < decayed.learning_rate_at(1) < awd.learning_rate


def test_what_changes_the_shapes_of_weights_is_structural() -> None:
    """So --init-from refuses it. An option of a cell is structural whether it changes shapes or not."""
    cell_of_option = {field: name for name, row in CELLS.items() for field in row.options.values()}
    for each in HYPERPARAMETERS:
        base = SMALL.replace(cell=cell_of_option.get(each.name, LSTM))
        other = base.replace(**{each.name: another_value(each, getattr(base, each.name))})
        changes_shapes = parameters.shapes(other, 9) != parameters.shapes(base, 9)
        assert each.structural == (changes_shapes or each.name in cell_of_option), each.name


def another_value(of: Hyperparameter, value: Any) -> Any:
    if of.is_sequence:
        return (5, 6)
    if of.kind is str:
        return next(name for name in of.choices if name != value)
    if of.kind is bool:
        return not value
    return value + 1 if of.kind is int else value / 2 or 0.5


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.hidden_size = 3  # type: ignore[misc]


def test_replace_changes_a_copy_only() -> None:
    assert SMALL.replace(hidden_size=3) == dataclasses.replace(SMALL, hidden_size=3)
    assert Config() == SMALL
