"""Large logits, and the embedding's gradient where the softmax has the same weights."""

import pytest
import torch

from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.loss import SoftmaxLayer, add_by_word
from ptb_lm.torch_backend.precision import PRECISIONS

ROUNDING = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-18, torch.float64: 1e-15}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_what_a_word_s_occurrences_add_is_rounded_once(
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


@pytest.mark.parametrize("kernels", cpu.KERNELS)
def test_large_logits_round_no_log_probability_away(kernels: str) -> None:
    """They are about 1,000, where float32's spacing is 6e-5, and exact: multiples of a power of two."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-8, 9, (5, 300), generator=generator) / 8
    weight[-1] += 1000  # the bias
    hidden_NH = torch.randint(-16, 17, (50, 4), generator=generator) / 16
    targets_N = torch.randint(300, (50,), generator=generator)
    with cpu.using(kernels=kernels) as chosen:
        if chosen.kernels != kernels:
            pytest.skip(f"this machine has no {kernels} kernels")
        layer = SoftmaxLayer(4, 300, device=torch.device("cpu"), precision=PRECISIONS["fp32"])
        layer.weight.copy_(weight)
        found = [score(hidden_NH, targets_N) for score in (layer.losses, layer.losses_of_any_number)]
    logits_NV = torch.nn.functional.pad(hidden_NH, (0, 1), value=1).double() @ weight.double()
    expected_N = torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
    for found_N in found:
        torch.testing.assert_close(found_N.double(), expected_N, rtol=0, atol=4e-6)


@pytest.mark.parametrize("kernels", cpu.KERNELS)
def test_many_unlikely_words_are_not_lost_beside_a_sure_one(kernels: str) -> None:
    """What a sum in float32 rounds away has one sign, so that the mean shows it."""
    generator, words, tokens = torch.Generator().manual_seed(0), 10_000, 60
    weight = torch.randn(5, words, generator=generator)
    weight[-1, 2] = 17  # the bias: this word has a probability of 0.99 or more
    hidden_NH = torch.randn(tokens, 4, generator=generator) / 2
    targets_N = torch.randint(words, (tokens,), generator=generator)
    with cpu.using(kernels=kernels) as chosen:
        if chosen.kernels != kernels:
            pytest.skip(f"this machine has no {kernels} kernels")
        layer = SoftmaxLayer(4, words, device=torch.device("cpu"), precision=PRECISIONS["fp32"])
        layer.weight.copy_(weight)
        found = [score(hidden_NH, targets_N) for score in (layer.losses, layer.losses_of_any_number)]
    logits_NV = torch.nn.functional.pad(hidden_NH, (0, 1), value=1).double() @ weight.double()
    expected_N = torch.nn.functional.cross_entropy(logits_NV, targets_N, reduction="none")
    for found_N in found:
        assert abs((found_N - expected_N).mean().item()) < 1e-6


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kernels", cpu.KERNELS)
def test_the_gradient_of_a_sure_word_is_not_rounded_away(kernels: str, precision: str) -> None:
    """Its probability is 0.997, next to 1 in bfloat16; what is left of it after 1 is subtracted counts."""
    bias_V = torch.tensor([6.5, 0.0, 0.0])
    with cpu.using(kernels=kernels) as chosen:
        if chosen.kernels != kernels:
            pytest.skip(f"this machine has no {kernels} kernels")
        layer = SoftmaxLayer(1, 3, device=torch.device("cpu"), precision=PRECISIONS[precision])
        layer.weight.zero_()
        layer.weight[-1] = bias_V
        layer.refresh()
        hidden_NH = torch.zeros(1, 1, dtype=PRECISIONS[precision].compute)
        layer.loss_and_gradients(hidden_NH, torch.tensor([0]), 1.0)
    expected_V = torch.softmax(bias_V.double(), 0) - torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(layer.gradient[-1].double(), expected_V, rtol=2.0**-8, atol=0)


def test_a_shorter_window_is_computed_where_a_longer_one_was() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = SoftmaxLayer(4, 30, device=torch.device("cpu"), precision=PRECISIONS["fp32"])
    layer.weight.copy_(torch.randn(5, 30, generator=generator))
    hidden_NH, targets_N = torch.randn(50, 4, generator=generator), torch.arange(50) % 30
    layer.loss_and_gradients(hidden_NH, targets_N, 1.0)
    found_N = layer.losses(hidden_NH[:20], targets_N[:20])
    assert [*layer._buffers] == [50], "logits are the largest tensors"
    logits_NV = torch.nn.functional.pad(hidden_NH[:20], (0, 1), value=1) @ layer.weight
    expected_N = torch.nn.functional.cross_entropy(logits_NV, targets_N[:20], reduction="none")
    torch.testing.assert_close(found_N, expected_N)
