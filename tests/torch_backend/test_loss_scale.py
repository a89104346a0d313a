"""float16's gradients that overflow: the step is skipped, the scale halved and given back; all is resumed."""

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
import training_steps
from support import assert_arrays, random_weights, random_windows
from training_steps import VOCABULARY, export_all

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.model import reference, reference_updates
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import precision
from ptb_lm.torch_backend.precision import LOSS_SCALE_NAME, LossScale
from ptb_lm.training.run_directory import RunDirectory

MODELS = list(FRAMEWORKS["torch"].models)
HUGE = 2.0**17  # with which the sums of the first steps overflow


def start_at(monkeypatch: pytest.MonkeyPatch, scale: float) -> None:
    changed = precision.PRECISIONS["fp16"]._replace(loss_scale=scale)
    monkeypatch.setitem(precision.PRECISIONS, "fp16", changed)


build = partial(training_steps.build, model="cudnn", precision="fp16")


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_steps_that_overflow_move_nothing_and_the_others_equal_the_reference(
    model: str, tied: bool, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The carried state goes on through a skipped step: its forward pass is as good as any."""
    start_at(monkeypatch, HUGE)
    config = tiny_config.replace(max_grad_norm=1.8, tie_weights=tied)
    built = build(config, model=model)
    weights = random_weights(config, VOCABULARY, seed=1)
    state, expected_state = built.zero_state(3), reference.zero_state(weights, 3)
    skipped = []
    for x_BT, y_BT in random_windows(config, VOCABULARY, 14, seed=2):
        before = built.export_weights()
        scale = built.training.loss_scale.scale.item()
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        (measured,) = built.read([loss])
        after = built.export_weights()
        expected, gradients, expected_state = reference.loss_and_gradients(
            weights, x_BT, y_BT, expected_state
        )
        assert measured.nll / 3 == pytest.approx(expected, rel=1e-3)
        skipped.append(measured.new_loss_scale > 0)
        if skipped[-1]:
            assert not math.isfinite(measured.gradient_norm)
            assert measured.new_loss_scale == scale / 2 == built.training.loss_scale.scale.item()
            assert all((after[name] == before[name]).all() for name in before)
            continue
        weights, norm = reference_updates.sgd_update(weights, gradients, learning_rate=0.7, max_grad_norm=1.8)
        assert measured.gradient_norm == pytest.approx(norm, rel=5e-3)
        assert_arrays(after, weights, atol=5e-3)
    assert 2 <= sum(skipped) <= 10
    assert skipped[0]
    assert not any(skipped[-3:])


def test_where_nothing_overflows_the_scale_stays(tiny_config: Config) -> None:
    built = build(tiny_config)
    state = built.zero_state(3)
    for x_BT, y_BT in random_windows(tiny_config, VOCABULARY, 3, seed=2):
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        assert built.read([loss])[0].new_loss_scale == 0
    assert built.training.loss_scale.scale.item() == precision.PRECISIONS["fp16"].loss_scale == 16
    assert built.training.loss_scale.state.tolist() == [1, 3]


def test_the_scale_is_halved_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.amp's GradScaler does, but for its upper end."""
    monkeypatch.setattr(precision, "GROWTH_STEPS", 3)
    ours = LossScale(16.0, device=torch.device("cpu"))
    theirs, steps = torch.tensor(16.0), torch.tensor(0, dtype=torch.int32)
    finite = [True] * 7 + [False, False, True, True, False] + [True] * 6 + [False] + [True] * 4
    for each in finite:
        returned = ours.adjust(torch.tensor(each))
        torch._amp_update_scale_(theirs, steps, torch.tensor(float(not each)), 2.0, 0.5, 3)
        theirs.clamp_(max=16.0)
        assert ours.scale == theirs
        assert ours.state[1] == steps
        assert returned == (0 if each else theirs)


def test_the_least_scale_is_not_halved() -> None:
    """An overflow even there is no matter of the scale: the norm tells the trainer that it diverged."""
    scale = LossScale(16.0, device=torch.device("cpu"))
    returned = [scale.adjust(torch.tensor(False)).item() for _ in range(12)]
    assert returned == [2.0**power for power in range(3, -7, -1)] + [0, 0]
    assert scale.scale == 16 * precision.SMALLEST_FRACTION


@pytest.mark.parametrize("stop", [0, 2, 7, 11])
def test_a_resumed_run_goes_on_with_the_scale(
    stop: int, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, whether it stops between skipped steps, before the scale is given back, or after."""
    start_at(monkeypatch, HUGE)
    monkeypatch.setattr(precision, "GROWTH_STEPS", 3)
    config = tiny_config.replace(keep_prob=0.6)
    windows = random_windows(config, VOCABULARY, 14, seed=2)

    def train_on(built: Any, state: Any, windows: list[Any]) -> tuple[Any, list[float]]:
        scales = []
        for x_BT, y_BT in windows:
            state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
            scales.append(built.read([loss])[0].new_loss_scale)
        return state, scales

    first, resumed = build(config), build(config, seed=4)
    state, before = train_on(first, first.zero_state(3), windows[:stop])
    resumed.load_weights(first.export_weights())
    begin = resumed.load_training_state(first.export_training_state(state))
    state, after = train_on(first, state, windows[stop:])
    assert any(before + after)
    assert not all(before + after)
    end, again = train_on(resumed, begin, windows[stop:])
    assert again == after
    assert_arrays(export_all(resumed, end), export_all(first, state))


def test_only_float16_has_a_scale_in_its_state(tiny_config: Config) -> None:
    for precision_name in ("fp32", "bf16"):
        other = build(tiny_config, precision=precision_name)
        assert LOSS_SCALE_NAME not in other.export_training_state(other.zero_state(3))


@pytest.mark.parametrize(
    "wrong",
    [
        [2.0, 0.0],
        [0.0, 0.0],
        [0.3, 0.0],
        [math.nan, 0.0],
        [1.0, -1.0],
        [1.0, math.inf],
        [1.0],
        [1.0, 0.0, 0.0],
    ],
)
def test_a_scale_that_is_none_is_refused(wrong: list[float], tiny_config: Config) -> None:
    built = build(tiny_config)
    arrays = built.export_training_state(built.zero_state(3))
    with pytest.raises(UserError, match=f"the tensor '{LOSS_SCALE_NAME}' holds"):
        built.load_training_state({**arrays, LOSS_SCALE_NAME: np.array(wrong)})


@pytest.mark.slow
def test_a_run_says_that_steps_are_skipped_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start_at(monkeypatch, HUGE)
    data, run = runs.write_corpus(tmp_path / "data"), tmp_path / "run"
    arguments = runs.arguments(data, run, "--framework", "torch", "--precision", "fp16")
    assert train.main(arguments) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "overflowed" in line]
    assert re.match("in epoch 1, step 1 .* 65536 ", said[0])
    assert 2 <= len(said) <= 10
    directory = RunDirectory(run)
    assert directory.read_state().training[LOSS_SCALE_NAME][0] == 0.5 ** len(said)
    assert math.isfinite(directory.read_result()["test_perplexity"])
