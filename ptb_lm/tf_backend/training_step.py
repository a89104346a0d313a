"""The training of a language model in TensorFlow: dropout, gradients, clipping, SGD, averages of parameters.

A model makes a `TrainingStep` when it is first trained; one that only scores has none.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, V = vocabulary.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import Words
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend.distribution import Distribution
from ptb_lm.tf_backend.dropout import (
    STREAMS,
    WindowDropout,
    apply_in_order,
    device_seed,
    export_streams,
    load_streams,
)
from ptb_lm.tf_backend.loss import Loss, pack_loss, sum_by_word
from ptb_lm.tf_backend.network import Network, State, to_time_major
from ptb_lm.tf_backend.runtime import apply_execution


class TrainingStep:
    """A step of SGD with dropout and clipping on each device of this process, and its state.

    Attributes:
        dropouts: Random stream of the masks on each device.
        run: The step of (x_BT, y_BT, state, rate), as --execution runs it; traced once for each shape of
            window.

    Args:
        networks: The network of each device. The first one has the weights.
        config: The hyper-parameters.
        choice: The choices of the run.
        distribution: The devices.
    """

    def __init__(
        self, networks: Sequence[Network], config: Config, choice: Choice, distribution: Distribution
    ) -> None:
        self.network, *self._copies = networks
        self._networks, self.config, self.distribution = networks, config, distribution
        self.state_names = cells.get(config.cell).state_names
        self.dropouts = []
        for index, name in enumerate(distribution.names, start=distribution.ranks.rank):
            with tf.device(name):
                self.dropouts.append(
                    WindowDropout(
                        config,
                        self.network.embedding_VE.shape[0],
                        dtype=self.network.dtype,
                        seed=device_seed(choice.seed, index),
                    )
                )
        self._averages: list[tf.Variable] = []
        self._averages_in_place = False
        self.run = apply_execution(self._compute_on_devices, choice.execution)
        self.load_copies(self.network.canonical())

    def __call__(self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float) -> tuple[State, Loss]:
        """Do a step; return the state after the window, and its loss."""
        # A tensor, because the function would be traced again for every new number.
        rate = tf.constant(learning_rate, self.network.dtype)
        after: tuple[State, Loss] = self.run(
            tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state, rate
        )
        return after

    def load_copies(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters of the other devices; averages in place are those of the first device alone."""
        if not self._averages_in_place:
            for network in self._copies:
                network.load(weights)

    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them."""
        if not self._averages:
            self._averages = [tf.Variable(variable) for variable in self.network.variables]
            return
        for average, variable in zip(self._averages, self.network.variables, strict=True):
            average.assign_add(weight * (variable - average))

    def swap_averages(self) -> None:
        """Exchange the parameters of the first device and their averages.

        A second call undoes it, to the bit.
        """
        for average, variable in zip(self._averages, self.network.variables, strict=True):
            parameter = tf.identity(variable)
            variable.assign(average)
            average.assign(parameter)
        self._averages_in_place = not self._averages_in_place

    def export_state(self, state: State) -> Arrays:
        """Return the carried state and the state of the dropout streams."""
        width, layers = max(self.config.hidden_sizes), zip(*state, strict=True)
        arrays = {
            name: np.stack([np.pad(part_BH, ((0, 0), (0, width - part_BH.shape[1]))) for part_BH in parts])
            for name, parts in zip(self.state_names, layers, strict=True)
        }
        streams = export_streams([dropout.generator for dropout in self.dropouts])
        return self.distribution.gather_state({**arrays, STREAMS: streams})

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set a state that `export_state` returned, and return the carried state."""
        own = self.distribution.share_state({name: arrays[name] for name in (*self.state_names, STREAMS)})
        try:
            streams = [dropout.generator for dropout in self.dropouts]
            load_streams(streams, own[STREAMS], self.distribution.ranks)
        except ValueError as error:
            raise UserError(f"the random stream of dropout was not saved by TensorFlow ({error})") from None
        layers = zip(*(own[name] for name in self.state_names), strict=True)
        return [
            tuple(tf.constant(part_BH[:, :hidden], self.network.dtype) for part_BH in layer)
            for layer, hidden in zip(layers, self.config.hidden_sizes, strict=True)
        ]

    def _compute_on_devices(
        self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        return self.distribution.run(self.compute, x_BT, y_BT, state, rate)

    def compute(
        self, device: int, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        """Do the step of one device; the shape of the window is known as it is traced.

        Args:
            device: The index of the device in this process.
            x_BT: The words of its rows.
            y_BT: The words that follow.
            state: The state before the window.
            rate: The learning rate, [].
        """
        network, (batch, steps) = self._networks[device], x_BT.shape
        ids_N, targets_N = to_time_major(x_BT), to_time_major(y_BT)
        masks = self.dropouts[device].draw(batch, steps)
        dropout = apply_in_order(masks.units)
        factors = network.stack.recurrent_factors(masks.weights)
        embedded_NE = tf.gather(network.embedding_VE, ids_N)
        with _mask_weights(network.stack.variables, factors):
            with tf.GradientTape() as tape:
                tape.watch(embedded_NE)
                x_NE = embedded_NE
                if "embedding" in masks.weights:
                    x_NE *= tf.gather(masks.weights["embedding"], ids_N)
                x_TBE = tf.reshape(x_NE, [steps, batch, -1])
                output_TBH, state = network.stack(x_TBE, state, dropout=dropout)
                output_NH = tf.reshape(dropout(output_TBH), [steps * batch, -1])
            nll_N, d_output_NH, d_softmax = network.softmax.loss_and_gradients(
                output_NH, targets_N, 1 / batch
            )
            inputs = [embedded_NE, *network.stack.variables]
            d_embedded_NE, *gradients = tape.gradient(output_NH, inputs, d_output_NH)
        gradients = [
            gradient if factor is None else gradient * factor
            for gradient, factor in zip(gradients, factors, strict=True)
        ]
        nll_N, ids_N, d_embedded_NE, all_gradients = self.distribution.merge(
            nll_N, ids_N, d_embedded_NE, [*d_softmax, *gradients]
        )
        norm = self.update(network, ids_N, d_embedded_NE, all_gradients, rate)
        return state, pack_loss(nll_N, norm)

    def update(
        self,
        network: Network,
        ids_N: tf.Tensor,
        d_embedded_NE: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
    ) -> tf.Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        Args:
            network: The network of this device.
            ids_N: The window's words.
            d_embedded_NE: The gradient with respect to the embedding of each word, as the bottom layer's
                input.
            gradients: The gradients with respect to the variables of the softmax and the stack.
            rate: The learning rate, [].
        """
        if self.config.tie_weights:
            d_softmax_VE, *others = gradients
            gradients = [tf.tensor_scatter_nd_add(d_softmax_VE, ids_N[:, None], d_embedded_NE), *others]
            norm = self.distribution.broadcast_norm(tf.linalg.global_norm(gradients))
            _descend(network.variables, gradients, self.scale_of_update(rate, norm))
            return norm
        # The embedding's gradient has rows only for the words of the window; the other rows are not touched.
        d_embedding_NE = sum_by_word(d_embedded_NE, ids_N, network.embedding_VE.shape[0])
        norm = self.distribution.broadcast_norm(tf.linalg.global_norm([d_embedding_NE, *gradients]))
        scale = self.scale_of_update(rate, norm)
        network.embedding_VE.scatter_sub(tf.IndexedSlices(scale * d_embedding_NE, ids_N))
        _descend(network.variables[1:], gradients, scale)
        return norm

    def scale_of_update(self, rate: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
        """Return the factor of a gradient, to be subtracted from its parameter, []."""
        bound = self.config.max_grad_norm
        # The quotient first, which is 1 at most: the product may be beyond a float.
        return rate * (bound / tf.maximum(norm, bound))


@contextlib.contextmanager
def _mask_weights(variables: Sequence[tf.Variable], factors: Sequence[tf.Tensor | None]) -> Iterator[None]:
    """Multiply variables by factors while this is entered; None leaves one alone.

    In place, so that every layer reads its weights as it always does, cuDNN's and Keras's too.
    """
    pairs = [pair for pair in zip(variables, factors, strict=True) if pair[1] is not None]
    values = [tf.identity(variable) for variable, _ in pairs]
    for (variable, factor), value in zip(pairs, values, strict=True):
        variable.assign(value * factor)
    yield
    for (variable, _), value in zip(pairs, values, strict=True):
        variable.assign(value)


def _descend(variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor], scale: tf.Tensor) -> None:
    """Subtract scale * gradient from each variable."""
    for variable, gradient in zip(variables, gradients, strict=True):
        # In one pass, where assign_sub(scale * gradient) takes two.
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=scale, delta=gradient)
