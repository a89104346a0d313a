"""The training step: dropout, gradients, and SGD with clipping; and the averages of the parameters.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, V = vocabulary.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.tf_backend.device import apply_execution, enough_memory
from ptb_lm.tf_backend.distribution import Distribution
from ptb_lm.tf_backend.dropout import WindowDropout, apply_in_order, device_seed
from ptb_lm.tf_backend.loss import sum_by_word
from ptb_lm.tf_backend.network import Loss, Network, State, time_major, window_loss


class TrainingStep:
    """A step of SGD with dropout and clipping, on each device of this process; made when something trains.

    Attributes:
        function: The step as it is executed, of (x_BT, y_BT, state, learning rate); traced once for each
            shape of window.
        generators: The random stream of dropout on each device.

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
        self.config, self.distribution = config, distribution
        self._networks = networks
        self._dropouts = []
        for index, name in enumerate(distribution.names, start=distribution.ranks.rank):
            with tf.device(name):
                self._dropouts.append(
                    WindowDropout(
                        config,
                        self.network.embedding_VE.shape[0],
                        dtype=self.network.dtype,
                        seed=device_seed(choice.seed, index),
                    )
                )
        self.generators = [dropout.generator for dropout in self._dropouts]
        self._averages: list[tf.Variable] = []
        self._averages_in_place = False
        # XLA makes other masks of the same stream.
        self._mask_execution = "xla" if choice.execution == "xla" else "eager"
        self.function = apply_execution(self._run, choice.execution)
        self.load_copies(self.network.canonical())

    def load_copies(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters of the other devices; averages in place are those of the first device alone."""
        if not self._averages_in_place:
            for network in self._copies:
                network.load(weights)

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that dropout will keep in the next window of the first device."""
        dropout = self._dropouts[0]

        def draw() -> tuple[Mapping[str, tf.Tensor], Sequence[tf.Tensor]]:
            masks = dropout.draw(batch, steps)
            return masks.weights, masks.units

        state = tf.identity(dropout.generator.state)
        weights, units = apply_execution(draw, self._mask_execution)()
        dropout.generator.reset(state)
        kept = {name: mask.numpy() != 0 for name, mask in weights.items()}
        return Masks(kept, [mask.numpy() != 0 for mask in units])

    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them."""
        if not self._averages:
            self._averages = [tf.Variable(variable) for variable in self.network.variables]
            return
        for average, variable in zip(self._averages, self.network.variables, strict=True):
            average.assign_add(weight * (variable - average))

    @contextlib.contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context in which the averages are the parameters of the first device."""
        self._swap_averages()
        self._averages_in_place = True
        try:
            yield
        finally:
            self._averages_in_place = False
            self._swap_averages()

    @enough_memory()
    def _swap_averages(self) -> None:
        with tf.device(self.distribution.device.name):
            for average, variable in zip(self._averages, self.network.variables, strict=True):
                parameter = tf.identity(variable)
                variable.assign(average)
                average.assign(parameter)

    def _run(self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor) -> tuple[State, Loss]:
        return self.distribution.run(self._run_on_device, x_BT, y_BT, state, rate)

    def _run_on_device(
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
        ids_N, targets_N = time_major(x_BT), time_major(y_BT)
        masks = self._dropouts[device].draw(batch, steps)
        dropout = apply_in_order(masks.units)
        factors = network.stack.recurrent_factors(masks.weights)
        embedded_NE = tf.gather(network.embedding_VE, ids_N)
        with _multiply_weights(network.stack.variables, factors):
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
        nll_N, ids_N, d_embedded_NE, all_gradients = self.distribution.exchange(
            nll_N, ids_N, d_embedded_NE, [*d_softmax, *gradients]
        )
        norm = self._update(network, ids_N, d_embedded_NE, all_gradients, rate)
        return state, window_loss(nll_N, norm)

    def _update(
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
            norm = self.distribution.first_norm(tf.linalg.global_norm(gradients))
            _descend(network.variables, gradients, self._scale(rate, norm))
            return norm
        # The embedding's gradient has rows only for the words of the window; the other rows are not touched.
        d_embedding_NE = sum_by_word(d_embedded_NE, ids_N, network.embedding_VE.shape[0])
        norm = self.distribution.first_norm(tf.linalg.global_norm([d_embedding_NE, *gradients]))
        scale = self._scale(rate, norm)
        network.embedding_VE.scatter_sub(tf.IndexedSlices(scale * d_embedding_NE, ids_N))
        _descend(network.variables[1:], gradients, scale)
        return norm

    def _scale(self, rate: tf.Tensor, norm: tf.Tensor) -> tf.Tensor:
        """Return the factor of a gradient, to be subtracted from its parameter, []."""
        bound = self.config.max_grad_norm
        # The quotient first, which is 1 at most: the product may be beyond a float.
        return rate * (bound / tf.maximum(norm, bound))


@contextlib.contextmanager
def _multiply_weights(
    variables: Sequence[tf.Variable], factors: Sequence[tf.Tensor | None]
) -> Iterator[None]:
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
