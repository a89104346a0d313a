"""Penalties, weight decay, Adam, windows of many lengths: against NumPy and a plain loop at every step."""

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
import training_steps
from implementations import override_implementation
from rank_program import stopped_at_question
from support import assert_arrays, random_weights, trace_alone
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from training_steps import (
    ADAM,
    AWD,
    CASES,
    DECAY,
    LENGTHS_VARY,
    PENALTIES,
    SIZES,
    VOCABULARY,
    assert_steps_equal_the_reference,
    cut_random_windows,
    next_masks,
    rate_of,
    record_executed_windows,
)

from ptb_lm import train
from ptb_lm.common.errors import UserError
from ptb_lm.model.cells import CELLS, LSTM
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.optimizers import add_scaled
from ptb_lm.torch_backend.precision import PRECISIONS, Masters
from ptb_lm.training import trainer

CLIPPED_AT = 1.5  # which clips some steps of each case and not others
MODELS = list(FRAMEWORKS["torch"].models)
LENGTHS = [5, 3, 7, 1, 5, 2, 8, 5, 4, 6, 5, 1, 9, 3, 5, 7, 2, 6, 4, 5]  # of 20 windows

Numbers = dict[str, np.ndarray]

EVERY_CASE: dict[str, dict[str, Any]] = {
    **CASES,
    "weight decay, tied": {**DECAY, "tie_weights": True},
    "lengths, masks of steps": {**LENGTHS_VARY, "keep_prob": 0.6},
    "sizes": SIZES,
    "sizes, own embedding": {**SIZES, "embedding_size": 4},
    "adam, lengths": {**ADAM, **LENGTHS_VARY},
    # Beyond the LSTM: what a model computes of them, and how many numbers they carry, differs.
    **{f"awd, {cell}": {**AWD, "cell": cell} for cell in CELLS if cell != LSTM},
    "awd, gru": {**AWD, "cell": "gru", "max_grad_norm": 3.0},
}


build = partial(training_steps.build, model="block_fused", precision="fp64")
windows_of = partial(cut_random_windows, lengths=LENGTHS)


def every_case() -> Iterator[Any]:
    """Each case by one model in double precision; all of them at once in every model and precision."""
    for case, changes in EVERY_CASE.items():
        for model in CELLS[changes["cell"]].layers["torch"] if "cell" in changes else ["block_fused"]:
            yield pytest.param(case, model, "fp64")
    for model in MODELS:
        for case in ("awd", "awd by adam"):
            if model != "block_fused":
                yield pytest.param(case, model, "fp64")
    for precision in ("fp32", "bf16", "fp16"):
        for case in ("awd", "awd by adam", "all but ties, by adam"):
            yield pytest.param(case, "block_fused", precision)


# In half precision Adam turns the rounding of a small gradient into a whole step: norms and weights are known
# less well. A step that is wrong by a factor of T or B is off by more.
BOUNDS = {"fp64": 1e-10, "fp32": 2e-5, "fp16": 1e-3, "bf16": 1e-2}


@pytest.mark.slow
@pytest.mark.parametrize(("case", "model", "precision"), list(every_case()))
def test_twenty_steps_equal_the_reference(case: str, model: str, precision: str, tiny_config: Config) -> None:
    config = tiny_config.replace(**{"max_grad_norm": CLIPPED_AT, **EVERY_CASE[case]})
    built = build(config, model=model, precision=precision)
    assert_steps_equal_the_reference(built, windows_of(config), bound=BOUNDS[precision])


class PlainModel(nn.Module):
    """What people write: torch's own modules, one layer after the other, in time-major order."""

    def __init__(self, config: Config, weights: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self.tied = config.tie_weights
        self.embedding = nn.Parameter(torch.from_numpy(weights["embedding"].copy()))
        self.softmax_bias = nn.Parameter(torch.from_numpy(weights["softmax.bias"].copy()))
        if not self.tied:
            self.softmax_kernel = nn.Parameter(torch.from_numpy(weights["softmax.kernel"].copy()))
        widths = [config.embedding_width, *config.hidden_sizes]
        self.layers = nn.ModuleList(
            nn.LSTM(width, hidden, bias=True, dtype=torch.float64)
            for width, hidden in itertools.pairwise(widths)
        )
        for layer in self.layers:
            nn.init.zeros_(layer.bias_hh_l0.requires_grad_(False))  # type: ignore[operator, union-attr]
        for name, array in self.by_name().items():  # which shares the parameters' memory
            array[...] = weights[name]

    def forward(self, x_TB: Tensor, state: list[Any], masks: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, the output with dropout, and that without; the state is replaced in place."""
        x = self.embedding[x_TB] * masks[0]
        for index, layer in enumerate(self.layers):
            raw, after = layer(x, state[index])
            state[index] = tuple(part.detach() for part in after)
            x = raw * masks[index + 1]
        kernel = self.embedding.T if self.tied else self.softmax_kernel
        return x @ kernel + self.softmax_bias, x, raw

    def by_name(self) -> Numbers:
        """Return views of the parameters."""
        found = {"embedding": self.embedding, "softmax.bias": self.softmax_bias}
        if not self.tied:
            found["softmax.kernel"] = self.softmax_kernel
        for index, layer in enumerate(self.layers):
            found[f"lstm.{index}.kernel"] = layer.weight_ih_l0.T  # type: ignore[assignment, union-attr]
            found[f"lstm.{index}.recurrent_kernel"] = layer.weight_hh_l0.T  # type: ignore[assignment, union-attr]
            found[f"lstm.{index}.bias"] = layer.bias_ih_l0  # type: ignore[assignment]
        return {name: tensor.detach().numpy() for name, tensor in found.items()}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_twenty_steps_equal_a_loop_as_awd_lstm_s(optimizer: str, tied: bool, tiny_config: Config) -> None:
    """By autograd and torch.optim, in the terms of salesforce/awd-lstm-lm: its loss is a mean over the steps.

    Its bound on the norm, and the rate at the usual length, are those of this package divided and multiplied
    by that length. Adam knows the size of the loss by its epsilon alone: it has the mean, times that length.
    """
    dropped = {"input_keep_prob": 0.8, "between_keep_prob": 0.7, "output_keep_prob": 0.6}
    config = tiny_config.replace(
        **{**SIZES, **PENALTIES, **DECAY, **LENGTHS_VARY, **dropped},
        max_grad_norm=CLIPPED_AT,
        tie_weights=tied,
        optimizer=optimizer,
    )
    built, usual = build(config), config.num_steps
    plain = PlainModel(config, random_weights(config, VOCABULARY, seed=1))
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    theirs: torch.optim.Optimizer = torch.optim.SGD(trained, lr=1.0)
    if optimizer == "adam":
        theirs = torch.optim.Adam(trained, lr=1.0)
    state, batch, rate = built.zero_state(config.batch_size), config.batch_size, rate_of(config)
    plain_state: list[Any] = [None] * config.num_layers
    clipped = []
    for x_BT, y_BT in windows_of(config):
        steps = x_BT.shape[1]
        masks = [torch.from_numpy(mask) for mask in next_masks(built, steps)["masks"]]
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=rate)
        x_TB, y_TB = (torch.from_numpy(words_BT.T.astype(np.int64)) for words_BT in (x_BT, y_BT))
        logits, output, raw = plain(x_TB, plain_state, masks)
        mean = functional.cross_entropy(logits.flatten(0, 1), y_TB.flatten())
        penalised = mean + config.activation_penalty * output.pow(2).mean()
        if steps > 1:
            penalised = penalised + config.slowness_penalty * (raw[1:] - raw[:-1]).pow(2).mean()
        scale = usual if optimizer == "adam" else 1
        theirs.zero_grad()
        (penalised * scale).backward()
        bound = CLIPPED_AT / usual * scale
        norm = nn.utils.get_total_norm(
            [parameter.grad for parameter in trained if parameter.grad is not None]
        )
        for parameter in trained:  # clip_grad_norm_ adds 1e-6 to the norm
            assert parameter.grad is not None
            parameter.grad *= min(1.0, bound / norm.item())
        for group in theirs.param_groups:
            group["lr"] = rate * steps / usual * (1 if optimizer == "adam" else usual)
            group["weight_decay"] = config.weight_decay * scale
        theirs.step()
        clipped.append(bool(norm > bound))
        (measured,) = built.read([loss])
        assert measured.nll / (batch * steps) == pytest.approx(mean.item(), rel=1e-11)
        assert measured.gradient_norm == pytest.approx(norm.item() * steps / scale, rel=1e-8)
        found = built.export_weights()
        assert_arrays(found, plain.by_name(), atol=1e-9)
    assert any(clipped)
    assert not all(clipped)


def train_on(built: Any, state: Any, windows: list[Any], *, first: int = 0) -> Any:
    """Train on windows, with an average of the weights after every second step."""
    for step, (x_BT, y_BT) in enumerate(windows, start=first):
        rate = rate_of(built.config) * (1 + step % 3)
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=rate)
        if step % 2:
            built.update_averages(1 / (1 + step))
    return state


def export_all(built: Any, state: Any) -> Numbers:
    with built.use_averages():
        averages = {f"average {name}": array for name, array in built.export_weights().items()}
    return {**built.export_weights(), **built.export_training_state(state), **averages}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_weights_and_averages_are_exchanged_without_memory(precision: str, tiny_config: Config) -> None:
    """Where memory ran out between two of them, a mixture would be saved."""
    config = tiny_config.replace(**EVERY_CASE["awd"])
    built = build(config, precision=precision)
    train_on(built, built.zero_state(config.batch_size), windows_of(config)[:4])
    weights = built.export_weights()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiled:
        built.swap_averages()
    averages = built.export_weights()
    assert all((weights[name] != averages[name]).any() for name in weights)
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profiled.key_averages()) == 0
    built.swap_averages()
    assert_arrays(built.export_weights(), weights)


@pytest.mark.parametrize("stop", [2, 9])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("case", ["awd", "awd by adam", "all but ties, by adam"])
def test_stopped_and_resumed_is_bit_identical(
    case: str, precision: str, stop: int, tiny_config: Config
) -> None:
    """As the trainer resumes: weights, their averages, and the training state."""
    config = tiny_config.replace(**EVERY_CASE[case])
    windows = windows_of(config)[:12]
    first = build(config, precision=precision)
    state = train_on(first, first.zero_state(config.batch_size), windows[:stop])
    weights, saved = first.export_weights(), first.export_training_state(state)
    with first.use_averages():
        averages = first.export_weights()
    expected = export_all(first, train_on(first, state, windows[stop:], first=stop))

    resumed = build(config, precision=precision, seed=9)
    resumed.load_weights(weights)
    resumed.update_averages(1.0)
    with resumed.use_averages():
        resumed.load_weights(averages)
    state = resumed.load_training_state(saved)
    found = export_all(resumed, train_on(resumed, state, windows[stop:], first=stop))
    assert_arrays(found, expected)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_adam_s_state_has_the_name_and_shape_of_each_parameter(
    model: str, tied: bool, tiny_config: Config
) -> None:
    """So that any model goes on from it."""
    config = tiny_config.replace(**ADAM, **SIZES, tie_weights=tied)
    windows = windows_of(config)[:6]
    first, second = build(config, model=model), build(config, model="basic", seed=9)
    state = train_on(first, first.zero_state(3), windows[:3])
    weights, saved = first.export_weights(), first.export_training_state(state)
    shapes = {name: array.shape for name, array in weights.items()}
    for moment in ("exp_avg", "exp_avg_sq"):
        prefix = f"torch.adam.{moment}."
        found = {name.removeprefix(prefix): a for name, a in saved.items() if name.startswith(prefix)}
        assert {name: array.shape for name, array in found.items()} == shapes
        assert all(array.any() for array in found.values())
    assert saved["torch.adam.step"] == 3
    train_on(first, state, windows[3:], first=3)
    second.load_weights(weights)
    train_on(second, second.load_training_state(saved), windows[3:], first=3)
    assert_arrays(second.export_weights(), first.export_weights(), atol=1e-10)


def test_a_state_of_sgd_or_of_other_sizes_is_no_state_of_adam(tiny_config: Config) -> None:
    config = tiny_config.replace(**ADAM)
    built = build(config)
    saved = built.export_training_state(built.zero_state(3))
    name = "torch.adam.exp_avg.softmax.bias"
    with pytest.raises(UserError, match=name):
        built.load_training_state({**saved, name: saved[name][:1]})
    del saved[name]
    with pytest.raises(KeyError, match=name):
        built.load_training_state(saved)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_step_that_overflows_float16_moves_and_decays_nothing(
    optimizer: str, tied: bool, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = PRECISIONS["fp16"]._replace(loss_scale=2.0**17)
    monkeypatch.setitem(PRECISIONS, "fp16", huge)
    config = tiny_config.replace(**{**PENALTIES, **DECAY}, optimizer=optimizer, tie_weights=tied)
    built, plain = build(config, precision="fp16"), build(config, precision="fp64")
    state, plain_state = built.zero_state(3), plain.zero_state(3)
    skipped = []
    for x_BT, y_BT in windows_of(config):
        before, moments = built.export_weights(), built.export_training_state(state)
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.01)
        skipped.append(built.read([loss])[0].new_loss_scale > 0)
        if skipped[-1]:
            moments_after = built.export_training_state(state)
            assert_arrays(built.export_weights(), before)
            for name in moments:
                if "adam" in name:
                    np.testing.assert_array_equal(moments_after[name], moments[name], err_msg=name)
            # The carried state goes on.
            plain_state, _ = plain.train_step(x_BT, y_BT, plain_state, learning_rate=0.0)
            if optimizer == "adam":
                plain.training.optimizer.load(moments)
        else:
            plain_state, _ = plain.train_step(x_BT, y_BT, plain_state, learning_rate=0.01)
    assert skipped[0]
    assert not any(skipped[-5:])
    assert_arrays(built.export_weights(), plain.export_weights(), atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["jit", "compile"])
def test_windows_of_other_lengths_are_not_compiled(
    execution: str, short_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit as eager layers compute them; with many lengths each would be compiled."""
    trace_alone(monkeypatch)
    config = short_config.replace(**LENGTHS_VARY, activation_penalty=1.0)
    built, eager = (build(config, model="basic", execution=each) for each in (execution, "eager"))
    shapes = record_executed_windows(built)
    state, other = built.zero_state(4), eager.zero_state(4)
    usual = config.num_steps
    for x_BT, y_BT in windows_of(config):
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.3)
        other, expected = eager.train_step(x_BT, y_BT, other, learning_rate=0.3)
        assert built.read([loss])[0] == pytest.approx(eager.read([expected])[0], rel=1e-11)
    assert shapes == [(usual, 4)] * LENGTHS.count(usual)
    assert f"--execution {execution}" in built.hints[-1]
    assert "eager" in built.hints[-1]
    assert not any("--vary-num-steps" in hint for hint in eager.hints)


def test_windows_of_many_lengths_leave_few_buffers(tiny_config: Config) -> None:
    """Each is larger than the last by a part of it, even if each window is a little longer than the last."""
    built = build(tiny_config.replace(**LENGTHS_VARY))
    state, rng = built.zero_state(3), np.random.default_rng(2)
    for steps in range(5, 30):
        x_BT, y_BT = rng.integers(VOCABULARY, size=(2, 3, steps), dtype=np.int32)
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.1)
    rows = list(built.network.softmax._buffers)
    assert rows[0] == 15
    assert rows[-1] >= 3 * 29
    assert all(5 * before // 4 <= after for before, after in itertools.pairwise(rows))


def test_float32_keeps_a_decay_and_bfloat16_s_copies_follow(tiny_config: Config) -> None:
    """Without a gradient a weight is multiplied by 1 - rate * T * decay, by the kernels and by torch."""
    for kernels in cpu.KERNELS:
        for precision in ("fp32", "bf16"):
            with override_implementation(kernels=kernels):
                weights = torch.randn(31, 5, generator=torch.Generator().manual_seed(1))
                compute = weights if precision == "fp32" else weights.bfloat16()
                masters = Masters([compute], torch.float32)
                master = masters[compute]
                expected = master.double() * (1 - 0.25) - 0.5
                gradient = torch.ones_like(compute)
                add_scaled(masters.pairs, [gradient], torch.tensor(-0.5), decay=torch.tensor(-0.25))
                torch.testing.assert_close(master.double(), expected, rtol=1e-6, atol=1e-7)
                assert torch.equal(compute, master.to(compute.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_was_stopped_equals_one_that_never_was(
    precision: str, optimizer: str, small_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command: its windows, rates, averages and all that training may do otherwise."""
    flags = (
        *("--data", str(small_corpus), "--config", "test", "--epochs", "2", "--device", "cpu"),
        *("--num-layers", "3", "--layer-sizes", "6", "5", "4", "--tie-weights", "--variational"),
        *("--input-keep-prob", "0.8", "--between-keep-prob", "0.7", "--output-keep-prob", "0.6"),
        *("--activation-penalty", "2", "--slowness-penalty", "1", "--weight-decay", "1e-4"),
        *("--vary-num-steps", "--num-steps", "10", "--batch-size", "4", "--average-epochs", "1"),
        *("--optimizer", optimizer, "--learning-rate", "0.02", "--precision", precision),
    )
    monkeypatch.setattr(trainer, "READ_SECONDS", math.inf)  # or a slow machine asks more often
    expected, run = tmp_path / "expected", tmp_path / "run"
    assert train.main([*flags, "--run-dir", str(expected)]) == 0
    with stopped_at_question(13):
        assert train.main([*flags, "--run-dir", str(run)]) == 143
    assert train.main(["--resume", str(run)]) == 0
    runs.assert_equal_runs(run, expected)
    names = [name for name in runs.final_state(run) if "adam" in name]
    assert len(names) == (1 + 2 * 11 if optimizer == "adam" else 0)
