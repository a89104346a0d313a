"""The parameters of a language model in torch, and the modules that compute with them.

Shapes: B = batch, T = time steps, E = embedding width, V = vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from ptb_lm.model.config import Config
from ptb_lm.torch_backend.cells import Canonical, load_arrays
from ptb_lm.torch_backend.loss import SoftmaxLayer
from ptb_lm.torch_backend.precision import Masters
from ptb_lm.torch_backend.runtime import Runtime, apply_execution
from ptb_lm.torch_backend.stack import RecurrentStack


class Network:
    """Embedding, recurrent layers, softmax.

    Attributes:
        stack: Layers for windows of any shape.
        executed_stack: The same layers as --execution runs them, for windows of training's shape.
        masters: Stored parameters of the layers.
        softmax: Projection onto the vocabulary.
        embedding_VE: Stored embedding.

    Args:
        config: Hyper-parameters.
        runtime: Device, precision and execution.
        model: Implementation of the layers.
        vocabulary_size: V.
        window: Shape of training's windows, (B, T).
    """

    def __init__(
        self, config: Config, runtime: Runtime, *, model: str, vocabulary_size: int, window: tuple[int, int]
    ) -> None:
        self.config, self.device = config, runtime.device
        self.precision, self.dtype = runtime.precision, runtime.dtype
        self.stack = RecurrentStack.build(
            model, config.embedding_width, config.hidden_sizes, cell=config.cell
        )
        self.stack.to(self.device, self.precision.compute)
        self.executed_stack = self.stack.with_execution(
            partial(apply_execution, execution=runtime.execution, window=window)
        )
        self.masters = Masters(self.stack.trained_parameters(), self.precision.master)
        self.softmax = SoftmaxLayer(
            config.hidden_sizes[-1],
            vocabulary_size,
            device=self.device,
            precision=self.precision,
            by_word=config.tie_weights,
        )
        if config.tie_weights:
            self.embedding_VE = self.softmax.kernel.T
        else:
            place: dict[str, Any] = {"device": self.device, "dtype": self.precision.master}
            self.embedding_VE = torch.zeros(vocabulary_size, config.embedding_width, **place)

    def canonical(self) -> dict[str, Canonical]:
        """Return the stored parameters by canonical name (ptb_lm.model.parameters)."""
        layers = self.stack.canonical().items()
        table = {
            "embedding": Canonical(self.embedding_VE),
            **{name: place._replace(parameter=self.masters[place.parameter]) for name, place in layers},
            "softmax.kernel": Canonical(self.softmax.kernel),
            "softmax.bias": Canonical(self.softmax.bias),
        }
        if self.config.tie_weights:
            del table["softmax.kernel"]
        return table

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        load_arrays(self.canonical(), weights)
        self.refresh()

    def refresh(self) -> None:
        """Copy the stored parameters, after they were set, to the copies that are computed with."""
        self.masters.refresh()
        self.softmax.masters.refresh()
