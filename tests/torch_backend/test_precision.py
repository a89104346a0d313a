"""The settings of a GPU's libraries by --precision."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import random_windows
from training_steps import VOCABULARY, build

from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend.precision import PRECISIONS, gpu_settings
from ptb_lm.torch_backend.settings import hold_settings

SETTINGS: dict[str, Any] = {
    "matmul": torch.backends.cuda.matmul,
    "rnn": torch.backends.cudnn.rnn,  # type: ignore[attr-defined]
    "conv": torch.backends.cudnn.conv,  # type: ignore[attr-defined]
}


def now() -> dict[str, str]:
    return {name: setting.fp32_precision for name, setting in SETTINGS.items()}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = now()
    yield
    assert now() == before


@pytest.mark.parametrize("earlier", PRECISIONS)
@pytest.mark.parametrize(
    ("precision", "products", "lstm"),
    [
        ("fp32", "ieee", "ieee"),
        ("tf32", "tf32", "tf32"),
        # "ieee" would take the tensor cores from cuDNN's LSTM in bfloat16, too.
        ("bf16", "ieee", "tf32"),
        ("fp16", "ieee", "tf32"),
        ("fp64", "ieee", "tf32"),
    ],
)
def test_float32_products_round_as_chosen(precision: str, products: str, lstm: str, earlier: str) -> None:
    """Whatever was held before; torch keeps these settings without a GPU, too."""
    assert list(PRECISIONS) == list(FRAMEWORKS["torch"].precisions)
    with hold_settings(gpu_settings(PRECISIONS[earlier])):
        pass
    with hold_settings(gpu_settings(PRECISIONS[precision])):
        assert now() == {"matmul": products, "rnn": lstm, "conv": lstm}
        assert torch.backends.cudnn.enabled


@pytest.mark.parametrize(
    "name",
    [
        "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
    ],
)
def test_half_precision_sums_in_float32_whatever_a_caller_allows(name: str) -> None:
    products: Any = torch.backends.cuda.matmul
    before = getattr(products, name)
    setattr(products, name, True)
    try:
        with hold_settings(gpu_settings(PRECISIONS["fp16"])):
            assert not getattr(products, name)
        assert getattr(products, name)
    finally:
        setattr(products, name, before)


@pytest.mark.gpu
def test_models_of_two_precisions_do_not_disturb_each_other(tiny_config: Config) -> None:
    single, half = built = [
        build(tiny_config, execution="eager", device="cuda", precision=precision)
        for precision in ("fp32", "bf16")
    ]
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    roundings = []
    for model in built:
        training, step = model.training, model.training.execute_step
        training.execute_step = lambda *given, step=step: (roundings.append(now()["rnn"]), step(*given))[1]
    for model in (single, half, single):
        model.train_step(x_BT, y_BT, model.zero_state(3), learning_rate=0.1)
    assert roundings == ["ieee", "tf32", "ieee"]
