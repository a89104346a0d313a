"""The parameters of a language model in torch, and the modules that compute with them.

Shapes: B = batch, T = time steps, E = embedding width, H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.model.config import Config
from ptb_lm.torch_backend.cells import ParameterView, load_arrays
from ptb_lm.torch_backend.loss import SoftmaxLayer
from ptb_lm.torch_backend.precision import Masters
from ptb_lm.torch_backend.runtime import Runtime, apply_execution
from ptb_lm.torch_backend.stack import RecurrentStack


class Network:
    """Embedding, recurrent layers, softmax.

    Attributes:
        stack: Layers for windows of any shape.
        executed_stack: The same layers as --execution runs them, for windows of training's usual shape.
        masters: Master parameters of the layers.
        softmax: Projection onto the vocabulary.
        embedding_VE: Master embedding.
        window: Shape of training's usual windows, (B, T).

    Args:
        config: Hyper-parameters.
        runtime: Device, precision and execution.
        vocabulary_size: V.
        window: Shape of training's usual windows, (B, T).
    """

    def __init__(
        self, config: Config, runtime: Runtime, *, vocabulary_size: int, window: tuple[int, int]
    ) -> None:
        self.config, self.device, self.window = config, runtime.device, window
        self.precision, self.dtype = runtime.precision, runtime.dtype
        self.stack = RecurrentStack.build(
            runtime.model, config.embedding_width, config.hidden_sizes, cell=config.cell_declaration
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
            words_contiguous=config.tie_weights,
        )
        if config.tie_weights:
            self.embedding_VE = self.softmax.kernel.T
        else:
            self.embedding_VE = torch.zeros(
                vocabulary_size, config.embedding_width, device=self.device, dtype=self.precision.master
            )

    def choose_stack(self, batch: int, steps: int) -> RecurrentStack:
        """Return the layers for windows of a shape: as --execution runs them, if it is training's usual one.

        A compiler would compile each of many other shapes by itself.

        Args:
            batch: B.
            steps: T.
        """
        return self.executed_stack if (batch, steps) == self.window else self.stack

    def master_parameters(self) -> list[Tensor]:
        """Return the tensors that hold the master parameters; the softmax's, and tied weights, are in one."""
        layers = [master for master, _ in self.masters.pairs]
        return [self.softmax.weight, *layers, *([] if self.config.tie_weights else [self.embedding_VE])]

    def canonical_views(self) -> dict[str, ParameterView]:
        """Return the master parameters by canonical name (ptb_lm.model.parameters).

        They are views of `master_parameters`.
        """
        weight, hidden = self.softmax.weight, self.softmax.hidden_size
        kernel = ParameterView(weight, rows=slice(hidden))
        is_tied = self.config.tie_weights
        return {
            "embedding": kernel._replace(transposed=True) if is_tied else ParameterView(self.embedding_VE),
            **{
                name: view._replace(parameter=self.masters[view.parameter])
                for name, view in self.stack.canonical_views().items()
            },
            **({} if is_tied else {"softmax.kernel": kernel}),
            "softmax.bias": ParameterView(weight, rows=hidden),
        }

    def load(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from arrays by canonical name."""
        load_arrays(self.canonical_views(), weights)
        self.refresh()

    def refresh(self) -> None:
        """Copy the master parameters, after they were set, to the copies that are computed with."""
        self.masters.refresh()
        self.softmax.masters.refresh()
