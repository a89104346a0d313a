"""The classifier's layers, and the functional models over them.

Shapes: B = batch, T = time steps, I = features.
"""

import functools
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray
from sequence_classifier import ClassifierConfig, check_lengths

from ptb_lm.common.host import hold_back_stderr
from ptb_lm.model import parameters


class Network:
    """keras.layers.LSTM in a stack with dropout, and keras.layers.Dense, compiled with an optimiser.

    Args:
        config: The sizes, and how much is dropped.
        optimizer: One of Keras's.
        cudnn: True for layers that use cuDNN, False for Keras's own loop.
        jit_compile: True for steps that XLA compiles.
        seed: The seed of dropout.

    Attributes:
        variables: Keras's variables by canonical name: its gates stand in the canonical order, and its
            layers have one bias.
    """

    def __init__(
        self, config: ClassifierConfig, optimizer: Any, *, cudnn: bool, jit_compile: bool, seed: int
    ) -> None:
        self.config = config
        self.optimizer = optimizer
        self.jit_compile = jit_compile
        count = len(config.hidden_sizes)
        self.layers = [_layer(config, index, cudnn=cudnn) for index in range(count)]
        self.dense = keras.layers.Dense(config.classes)
        places = range(count + 1) if config.keep_prob < 1 else ()
        self.dropouts = [keras.layers.Dropout(1 - config.keep_prob, seed=seed + place) for place in places]
        x_BTI = keras.Input((None, config.input_size))
        self.whole = self._model(x_BTI, x_BTI, None)
        self.variables = self._variables()

    @functools.cached_property
    def model_with_mask(self) -> Any:
        """The model of [x_BTI, valid_BT]: the same layers and optimiser, another graph."""
        x_BTI, valid_BT = keras.Input((None, self.config.input_size)), keras.Input((None,), dtype="bool")
        return self._model([x_BTI, valid_BT], x_BTI, valid_BT)

    def model_and_inputs(
        self, x_BTI: NDArray[np.float32], lengths_B: NDArray[np.int32] | None
    ) -> tuple[Any, Any]:
        """Return the model for some sequences, and what it is called with."""
        if lengths_B is None:
            return self.whole, x_BTI
        check_lengths(lengths_B, *x_BTI.shape[:2])
        valid_BT = np.arange(x_BTI.shape[1]) < lengths_B[:, None]
        # Keras computes on masked steps too, and drops the result: of NaN the gradient would be NaN.
        return self.model_with_mask, [np.where(valid_BT[..., None], x_BTI, np.float32(0)), valid_BT]

    def _model(self, inputs: Any, x_BTI: Any, valid_BT: Any) -> Any:
        output = self._drop(0, x_BTI)
        for index, layer in enumerate(self.layers):
            output = self._drop(index + 1, layer(output, mask=valid_BT))
        model = keras.Model(inputs, self.dense(output))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=self.optimizer, loss=loss, jit_compile=self.jit_compile)
        return model

    def _drop(self, place: int, values: Any) -> Any:
        return self.dropouts[place](values) if self.dropouts else values

    def _variables(self) -> dict[str, Any]:
        variables = {}
        bidirectional = self.config.bidirectional
        for index, layer in enumerate(self.layers):
            layers = (layer.forward_layer, layer.backward_layer) if bidirectional else (layer,)
            prefixes = parameters.directions(index, bidirectional=bidirectional)
            for prefix, lstm in zip(prefixes, layers, strict=True):
                variables[prefix + "kernel"] = lstm.cell.kernel
                variables[prefix + "recurrent_kernel"] = lstm.cell.recurrent_kernel
                variables[prefix + "bias"] = lstm.cell.bias
        return variables | {"dense.kernel": self.dense.kernel, "dense.bias": self.dense.bias}


def _layer(config: ClassifierConfig, index: int, *, cudnn: bool) -> Any:
    """Return a layer of the stack; the output of the top one is its final state alone."""
    lstm = keras.layers.LSTM(
        config.hidden_sizes[index],
        return_sequences=index + 1 < len(config.hidden_sizes),
        use_cudnn=cudnn,  # not "auto", Keras's default, which takes the loop where cuDNN fails
    )
    if not config.bidirectional:
        return lstm
    # It saves and restores the layer, for which Keras loads TensorFlow where there is one, and its notices.
    with hold_back_stderr():
        return keras.layers.Bidirectional(lstm)
