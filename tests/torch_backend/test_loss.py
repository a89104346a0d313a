"""The embedding's gradient where the softmax has the same weights."""

import pytest
import torch

from ptb_lm.torch_backend.loss import add_by_word

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
