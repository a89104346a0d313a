"""Large logits, and the embedding's gradient where the softmax has the same weights."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
from implementations import override_implementation
from torch import Tensor

from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.loss import SoftmaxLayer, add_by_word
from ptb_lm.torch_backend.precision import PRECISIONS

ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-18, torch.float64: 1e-15}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_the_sum_of_a_word_s_occurrences_is_rounded_once(
    dtype: torch.dtype, transposed: bool, device: str
) -> None:
    """A thousand occurrences, each below the rounding of the sum: in half precision a GPU would lose them."""
    generator = torch.Generator().manual_seed(0)
    ids_N = torch.cat([torch.full((1000,), 3), torch.tensor([5, 0, 5])])
    gradient_NE = torch.rand(len(ids_N), 4, generator=generator).to(dtype) * 0.003
    sums_VE = torch.randn(7, 4, generator=generator).to(dtype).sign_()
    if transposed:
        sums_VE = sums_VE.T.contiguous().T
    ids_N, gradient_NE, sums_VE = (each.to(device) for each in (ids_N, gradient_NE, sums_VE))
    expected_VE = sums_VE.double().index_add_(0, ids_N, gradient_NE.double())
    before_VE = sums_VE.clone()
    add_by_word(sums_VE, ids_N, gradient_NE)
    torch.testing.assert_close(sums_VE.double(), expected_VE, rtol=ROUNDING[dtype], atol=ROUNDING[dtype])
    for word in (1, 2, 4, 6):
        assert torch.equal(sums_VE[word], before_VE[word])
    assert (sums_VE[3] - before_VE[3]).abs().min() > 1


def loss_errors(kernels: str, weight: Tensor, hidden_NH: Tensor, targets_N: Tensor) -> list[Tensor]:
    """Return how far each way to score is off what is computed in float64."""
    with override(kernels):
        layer = build_layer(weight)
        found = [score(hidden_NH, targets_N) for score in (layer.losses, layer.losses_in_any_thread)]
    logits_NV = torch.nn.functional.pad(hidden_NH, (0, 1), value=1).double() @ weight.double()
    expected_N = torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
    return [found_N - expected_N for found_N in found]


@contextlib.contextmanager
def override(kernels: str) -> Iterator[None]:
    with override_implementation(kernels=kernels) as chosen:
        if chosen.kernels != kernels:
            pytest.skip(f"this machine has no {kernels} kernels")
        yield


def build_layer(weight: Tensor, precision: str = "fp32") -> SoftmaxLayer:
    width, words = len(weight) - 1, weight.shape[1]
    layer = SoftmaxLayer(width, words, device=torch.device("cpu"), precision=PRECISIONS[precision])
    layer.weight.copy_(weight)
    layer.masters.refresh()
    return layer


@pytest.mark.parametrize("kernels", cpu.KERNELS)
def test_large_logits_round_no_log_probability_away(kernels: str) -> None:
    """They are about 1,000, where float32's spacing is 6e-5, and exact: multiples of a power of two."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-8, 9, (5, 300), generator=generator) / 8
    weight[-1] += 1000  # the bias
    hidden_NH = torch.randint(-16, 17, (50, 4), generator=generator) / 16
    targets_N = torch.randint(300, (50,), generator=generator)
    assert max(each_N.abs().max() for each_N in loss_errors(kernels, weight, hidden_NH, targets_N)) < 4e-6


@pytest.mark.parametrize("kernels", cpu.KERNELS)
def test_many_unlikely_words_are_not_lost_beside_a_sure_one(kernels: str) -> None:
    """The rounding of a sum in float32 has one sign, so that the mean shows it."""
    generator, words, tokens = torch.Generator().manual_seed(0), 10_000, 60
    weight = torch.randn(5, words, generator=generator)
    weight[-1, 2] = 17  # the bias: this word has a probability of 0.99 or more
    hidden_NH = torch.randn(tokens, 4, generator=generator) / 2
    targets_N = torch.randint(words, (tokens,), generator=generator)
    assert max(each_N.mean().abs() for each_N in loss_errors(kernels, weight, hidden_NH, targets_N)) < 1e-6


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
# torch's log-softmax itself rounds a smaller loss away.
@pytest.mark.parametrize(("kernels", "sure"), [("native", 6.5), ("native", 20.0), ("torch", 6.5)])
def test_the_gradient_of_a_sure_word_is_not_rounded_away(kernels: str, sure: float, precision: str) -> None:
    """Its probability is next to 1 in the precision, and what is left after 1 is subtracted counts."""
    bias_V = torch.tensor([sure, 0.0, 0.0])
    with override(kernels):
        layer = build_layer(torch.stack([torch.zeros(3), bias_V]), precision)
        hidden_NH = torch.zeros(1, 1, dtype=PRECISIONS[precision].compute)
        layer.loss_and_gradients(hidden_NH, torch.tensor([0]), 1.0)
    expected_V = torch.softmax(bias_V.double(), 0)
    expected_V[0] = -expected_V[1:].sum()
    rounded, smallest = (2.0**-8, 0.0) if precision != "fp16" else (2.0**-8, 2.0**-25)
    torch.testing.assert_close(layer.gradient[-1].double(), expected_V, rtol=rounded, atol=smallest)


def test_windows_of_other_lengths_share_buffers_and_none_is_given_up() -> None:
    """A CUDA graph goes on with the buffers that it was captured with."""
    generator = torch.Generator().manual_seed(0)
    layer = build_layer(torch.randn(5, 30, generator=generator))
    hidden_NH, targets_N = torch.randn(50, 4, generator=generator), torch.arange(50) % 30
    logits_NV = torch.nn.functional.pad(hidden_NH, (0, 1), value=1) @ layer.weight
    expected_N = torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
    places = []
    for tokens in (20, 50, 10, 20, 30):
        found_N = layer.losses(hidden_NH[:tokens], targets_N[:tokens])
        torch.testing.assert_close(found_N, expected_N[:tokens])
        places.append({rows: logits_NV.data_ptr() for rows, (_, logits_NV) in layer._buffers.items()})
    assert places[0].keys() == {20}
    assert places[1].keys() == {20, 50}
    assert places[0].items() <= places[1].items()
    assert places[1] == places[-1]
