"""Several processes compute what one computes: losses at every step, norms, states, weights."""

import functools
from typing import Any

import numpy as np
import pytest
import rank_program
import scaling
import together
import torch
import torch.distributed as dist

from ptb_lm.model.presets import SMALL
from ptb_lm.torch_backend.exchange import GradientExchange, WindowGradients
from ptb_lm.torch_backend.precision import PRECISIONS
from ptb_lm.torch_backend.ranks import TorchRanks

pytestmark = pytest.mark.slow

# By precision: how far the losses may be off, relatively. One process alone is as far from itself when it
# adds in another order. In half precision the ranks' gradients are rounded before they are added.
BOUNDS = {"fp64": 1e-10, "fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-3}
MODELS = ("basic", "block", "block_fused", "cudnn", "persistent")


def case(model: str = "cudnn", precision: str = "fp64", **more: Any) -> dict[str, Any]:
    config = more.pop("config", {})
    return {"choice": {"model": model, "precision": precision}, "config": config, **more}


PENALTIES = {"activation_penalty": 2.0, "slowness_penalty": 1.5, "weight_decay": 2e-2}
CASES = {
    **{f"{model} {precision}": case(model, precision) for model in MODELS for precision in ("fp64", "fp32")},
    **{f"block_fused {precision}": case("block_fused", precision) for precision in ("bf16", "fp16")},
    "tied": case(config={"tie_weights": True}),
    "tied fp32": case("block_fused", "fp32", config={"tie_weights": True}),
    "tied bf16": case("block_fused", "bf16", config={"tie_weights": True}),
    "gru": case(config={"cell": "gru"}),
    # With so few words the embedding's gradient is less as a matrix.
    "few words": case(words=5),
    "few words, tied": case(words=5, config={"tie_weights": True}),
    # The sum of the matrix is as precise as the wire.
    **{f"few words, {precision}": case("block_fused", precision, words=5) for precision in ("bf16", "fp16")},
    "few words, tied, bf16": case("block_fused", "bf16", words=5, config={"tie_weights": True}),
    # The others' norms are not finite; the first rank's counts for all.
    "other norms": case(other_norms=True),
    "other norms, fp16": case("block_fused", "fp16", other_norms=True),
    # Gradients that are rounded before they are added, as in bf16.
    "bf16 on the wire": case(precision="fp32", reduce_precision="bf16"),
    "few words, bf16 on the wire": case(precision="fp32", reduce_precision="bf16", words=5),
    "penalties": case(config=PENALTIES),
    "adam": case(config={**PENALTIES, "optimizer": "adam"}),
    "adam fp32": case("block_fused", "fp32", config={"optimizer": "adam"}),
    "adam, tied": case(config={**PENALTIES, "optimizer": "adam", "tie_weights": True}),
    "adam, few words": case(words=5, config={**PENALTIES, "optimizer": "adam"}),
    "lengths": case(config={**PENALTIES, "vary_num_steps": True}),
    "sizes": case(config={"layer_sizes": (5, 8)}),
    "sizes, tied": case(config={"layer_sizes": (8, 5), "tie_weights": True, "vary_num_steps": True}),
    "jit": {"choice": {"model": "basic", "precision": "fp64", "execution": "jit"}, "config": {}},
}


# What the number of ranks is part of: who sends what to whom, and what each has of the rows. Models and most
# precisions are not.
SENT = ["cudnn fp64", "cudnn fp32", "few words", "bf16 on the wire"]
BY_SIZE = {
    2: list(CASES),
    4: [
        *SENT,
        "block_fused bf16",
        "tied",
        "few words, tied, bf16",
        "other norms",
        "other norms, fp16",
        "adam",
    ],
}


@functools.cache
def found(size: int) -> list[dict[str, dict[str, Any]]]:
    """Return the measurements of each case, by rank."""
    names = BY_SIZE[size]
    by_rank = together.done_together(size, "torch", [CASES[name] for name in names])
    return [dict(zip(names, each, strict=True)) for each in by_rank]


@functools.cache
def computed_by_one(name: str) -> dict[str, Any]:
    return rank_program.compute(CASES[name])


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in BY_SIZE.items() for name in names]
)
def test_several_ranks_compute_what_one_does(size: int, name: str) -> None:
    precision = CASES[name].get("reduce_precision", CASES[name]["choice"]["precision"])
    several = [each[name] for each in found(size)]
    together.assert_computed_by_one(several, computed_by_one(name), bound=BOUNDS[precision])


def test_ranks_wait_for_each_other_at_the_first_window_of_each_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As long as in the first step of all: one of them may have to compile it."""
    store, waited = dist.HashStore(), []
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        exchange = GradientExchange(TorchRanks(store, 0, 1), torch.ones(7, 5), PRECISIONS["fp32"])
        monkeypatch.setattr(TorchRanks, "barrier", lambda _: waited.append(words))
        for words in (4, 4, 6, 4, 6):
            exchange.start_reduce(words)
            ids = torch.zeros(words, dtype=torch.int64)
            exchange.wait_and_merge(WindowGradients(torch.zeros(words), ids, torch.ones(words, 3), []))
    finally:
        dist.destroy_process_group()
    assert waited == [4, 6]


def test_the_sum_of_a_frequent_word_is_rounded_once() -> None:
    """To the bit: of such numbers float32 makes an exact sum, in any order. bfloat16 rounds each of them."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        ranks = TorchRanks(store, 0, 1, reduce_precision="bf16")
        exchange = GradientExchange(ranks, torch.zeros(301, 5), PRECISIONS["fp32"])
        generator = torch.Generator().manual_seed(1)
        d_embedded = torch.randint(1024, (1000, 300), generator=generator) / 1024
        window = WindowGradients(torch.zeros(1000), torch.full((1000,), 2), d_embedded, [])
        whole_VE = exchange._sum_embedding_gradient(window).numpy()
    finally:
        dist.destroy_process_group()
    np.testing.assert_array_equal(whole_VE[2], d_embedded.double().sum(0).bfloat16().float())
    assert not np.delete(whole_VE, 2, axis=0).any()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", SENT)
def test_they_send_what_the_page_on_scaling_computes(name: str, size: int) -> None:
    """scripts/scaling.py computes its bytes; here they are counted."""
    asked = CASES[name]
    words = asked.get("words", rank_program.WORDS)
    config = SMALL.replace(hidden_size=7, num_steps=rank_program.STEPS, batch_size=rank_program.BATCH)
    number = 8 if "fp64" in asked["choice"]["precision"] else 2 if "reduce_precision" in asked else 4
    rows = words == rank_program.WORDS
    computed = scaling.count_sent(config, size, number=number, rows=rows, words=words).total
    loss_and_norm = 8 * (size - 1) + 8 * (size - 1) / size
    before_the_first = 8 * 2 * (size - 1) / size  # all wait for each other
    assert found(size)[0][name]["sent"] == pytest.approx(
        computed + loss_and_norm + before_the_first / rank_program.WINDOWS
    )
