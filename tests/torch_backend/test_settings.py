"""Contexts of a computation: failed allocations, denormal numbers; and weights in one piece."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from implementations import override_implementation
from support import random_windows
from training_steps import VOCABULARY, build

from ptb_lm.common.errors import OutOfMemoryError
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.settings import convert_allocation_errors, hold_settings


def test_a_failed_allocation_is_known_by_what_it_led_to() -> None:
    @convert_allocation_errors()
    def capture() -> None:
        try:
            torch.empty(2**60)
        finally:
            torch.zeros(2).view(3)  # what ends the capture fails, too

    with pytest.raises(OutOfMemoryError):
        capture()
    with pytest.raises(OutOfMemoryError), convert_allocation_errors():
        np.empty(2**56)


def test_any_other_failure_is_left_alone() -> None:
    with pytest.raises(RuntimeError, match="size of tensor a"), convert_allocation_errors():
        torch.zeros(2) + torch.zeros(3)


@pytest.mark.parametrize("before", [False, True])  # torch's default, and a caller's choice
def test_a_step_takes_denormal_numbers_for_zero_and_other_work_does_as_before(
    before: bool, tiny_config: Config
) -> None:
    """A CPU computes many times slower with them, and gradients that fade over many steps end in them."""

    def flushes() -> bool:
        return (torch.full((), 1e-38) * 0.01).item() == 0

    built = build(tiny_config, model="block_fused")
    zeros = list[bool]()
    built.network.executed_stack.register_forward_hook(lambda *_: zeros.append(flushes()))
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    try:
        torch.set_flush_denormal(before)
        built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.1)
        built.evaluate_step(x_BT, y_BT, built.zero_state(3))
        assert flushes() == before
    finally:
        torch.set_flush_denormal(False)
    assert zeros == [True] * 2


def now(operations: Iterable[Any]) -> list[str]:
    """Return the precision of float32 that torch has for each operation."""
    return [operation.fp32_precision for operation in operations]


def test_a_caller_lets_onednn_round_nothing(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with matrix units, where it would round the factors of float32 products."""
    onednn: Any = torch.backends.mkldnn
    operations, before = (onednn.matmul, onednn.rnn), torch.get_float32_matmul_precision()

    with override_implementation(float32_library="MKL"):
        monkeypatch.setattr(cpu, "is_onednn_exact", lambda: False)
        built, within = build(tiny_config, model="cudnn"), list[list[str]]()
        built.network.executed_stack.register_forward_hook(lambda *_: within.append(now(operations)))
        ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
        torch.set_float32_matmul_precision("medium")
        onednn.rnn.fp32_precision = "bf16"
        try:
            built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.1)
            built.evaluate_step(x_BT, y_BT, built.zero_state(3))
            assert now(operations) == ["bf16", "bf16"]
            assert torch.get_float32_matmul_precision() == "medium"
        finally:
            onednn.rnn.fp32_precision = "none"
            torch.set_float32_matmul_precision(before)
    assert within == [["ieee", "ieee"]] * 2


def test_a_precision_that_was_held_follows_the_general_one_again() -> None:
    """A caller's torch.backends.fp32_precision decides what rounds then, and no value that was held."""
    backends: Any = torch.backends
    followers = [backends.mkldnn.matmul, backends.mkldnn.rnn, backends.cuda.matmul]
    operations = [*followers, backends.cudnn.rnn]
    before = now(operations)
    try:
        for each in followers:
            each.fp32_precision = "none"  # torch's default, which other tests may have changed
        backends.fp32_precision = "tf32"
        with hold_settings({(each, "fp32_precision"): "ieee" for each in operations}):
            assert now(operations) == ["ieee"] * 4
        assert now(operations) == ["tf32"] * 4
        backends.fp32_precision = "ieee"
        assert now(followers) == ["ieee"] * 3
        backends.fp32_precision = "none"
        assert now(operations) == ["none"] * 3 + [before[-1]]
    finally:
        backends.fp32_precision = "none"
        for each, value in zip(operations, before, strict=True):
            each.fp32_precision = value


@pytest.mark.gpu
@pytest.mark.parametrize("precision", FRAMEWORKS["torch"].precisions)
def test_cudnn_finds_a_layer_s_weights_in_one_piece(precision: str, tiny_config: Config) -> None:
    """Whatever is done to them: else torch would put them together at every call, and say so in a warning."""
    config = tiny_config.replace(keep_prob=0.5, recurrent_keep_prob=0.8)
    built = build(config, model="cudnn", device="cuda", precision=precision)
    state = built.zero_state(3)
    for x_BT, y_BT in random_windows(config, VOCABULARY, 3, seed=2):
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        built.update_averages(0.5)
        with built.use_averages():
            built.evaluate_step(x_BT, y_BT, built.zero_state(3))
    built.load_weights(built.export_weights())
    for layer in built.network.stack.layers:
        pieces = {parameter.untyped_storage().data_ptr() for parameter in layer.module.parameters()}
        assert len(pieces) == 1
