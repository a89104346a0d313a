"""All layers in one graph: TorchScript's and torch.compile's compute what the reference does."""

from typing import Any

import pytest
import torch
from support import Build, checked_twice, trace_alone

from ptb_lm.bench.variants import REGISTRY, Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.config import Config

TASK = LanguageTask(
    config=Config(num_layers=2, hidden_size=9, embedding_size=5, num_steps=2, batch_size=9),
    vocabulary_size=60,
)

COMPILE = [pytest.mark.slow, pytest.mark.skipif(torch.__version__ < "2.13", reason="needs torch 2.13")]


def builder(name: str) -> Build:
    variant = Variant(f"outer-torch/{name}")
    return variant.builder(REGISTRY, device="cpu", precision="fp32", seed=1)


def built(name: str, config: Config = TASK.config) -> Any:
    return builder(name)(config, parameters.draw_initial(config, TASK.vocabulary_size, seed=1))


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("basic/jit", ("forward", "train")),
        ("block/jit", ("forward", "train")),
        pytest.param("basic/compile", ("train",), marks=COMPILE),
        pytest.param("cudnn/compile", ("forward", "train"), marks=COMPILE),
    ],
)
def test_a_stack_in_one_graph_computes_what_the_reference_does(
    name: str, passes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiled step fails where torch.compile would leave a part of it out of the graph."""
    if name == "cudnn/compile":
        trace_alone(monkeypatch)
    checked_twice(TASK, builder(name), passes=passes)


def test_a_whole_step_in_one_graph_needs_a_newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.12.1"))
    with pytest.raises(UserError, match=r"needs torch 2\.13"):
        built("basic/compile")


def test_all_layers_are_one_module_of_torchscript() -> None:
    model = built("basic")
    run = model.network.executed_stack.run
    assert isinstance(run, torch.jit.ScriptModule)
    assert len(list(run.parameters())) == 2 * 3
    assert "TorchScript" in model.engine


@pytest.mark.parametrize("name", ["keep_prob", "embedding_keep_prob", "recurrent_keep_prob"])
def test_dropout_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="without dropout"):
        built("basic", TASK.config.replace(**{name: 0.5}))


def test_torchscript_is_refused_for_a_layer_that_it_leaves_as_it_is() -> None:
    with pytest.raises(UserError, match=r"TorchScript .*nn\.LSTM"):
        builder("cudnn/jit")
