"""The models without one optimisation: each computes what the model with all of them does."""

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch
from support import checked, installed

from benchmarks.rivals import without
from ptb_lm.bench import variants
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import MaskSpec

pytestmark = pytest.mark.slow

TORCH = [
    f"benchmarks.rivals.without:{what}"
    for what in ("own_softmax", "sparse_embedding", "kept_memory", "fast_masks")
]
TENSORFLOW = [
    f"benchmarks.rivals.without_tensorflow:{what}" for what in ("own_softmax", "own_gradient", "kept_memory")
]


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Registrations and replacements, which last as long as a process, end with the test."""
    monkeypatch.setattr(variants, "ADDED", {})
    return monkeypatch


@pytest.mark.parametrize(
    "what", [*TORCH, *(pytest.param(what, marks=installed("tensorflow")) for what in TENSORFLOW)]
)
def test_a_model_without_an_optimisation_equals_the_reference(what: str, undone: pytest.MonkeyPatch) -> None:
    """And trains a step with dropout."""
    module = importlib.import_module(what.partition(":")[0])
    replace, replaced = module.replace, []

    def replace_for_now(place: ModuleType, name: str, by: Any) -> None:
        undone.setattr(place, name, getattr(place, name))
        replace(place, name, by)
        replaced.append(name)

    undone.setattr(module, "replace", replace_for_now)
    task = LanguageTask(config=Config(hidden_size=7, keep_prob=0.5), vocabulary_size=50)
    build = variants.add(f"mine={what}").builder(task.registry, device="cpu", precision="fp32", seed=1)
    checked(task, build)
    model = build(task.config, parameters.draw_initial(task.config, 50, seed=1))
    x_BT, y_BT = task.window(seed=1)
    model.train_step(x_BT, y_BT, model.zero_state(20), learning_rate=0.5)
    assert replaced or what.endswith(":sparse_embedding")


@pytest.mark.parametrize("build", [without.own_softmax, without.sparse_embedding])
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "adam"},
        {"weight_decay": 1e-6},
        {"tie_weights": True},  # the two parts of its gradient would be clipped apart
    ],
)
def test_what_an_update_leaves_out_is_refused(build: Any, changes: dict[str, Any]) -> None:
    config = Config(hidden_size=7, embedding_size=7).replace(**changes)
    with pytest.raises(UserError, match="updates by SGD, without weight decay or tied weights"):
        build(config, parameters.draw_initial(config, 50, seed=1), precision="fp32")


@pytest.mark.parametrize("build", [without.own_softmax, without.sparse_embedding])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_an_update_is_refused_where_weights_are_copies_of_others(build: Any, precision: str) -> None:
    config = Config(hidden_size=7)
    with pytest.raises(UserError, match=f"not in {precision}"):
        build(config, parameters.draw_initial(config, 50, seed=1), precision=precision)


def test_masks_are_drawn_on_the_device_of_their_generator() -> None:
    generator = torch.Generator("cpu")
    with torch.device("meta"):  # stands for any other
        mask = without._draw_by_bernoulli(MaskSpec((2, 3), 0.5), generator, torch.float32)
    assert mask.device == generator.device
