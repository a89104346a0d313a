"""The training of a language model in TensorFlow: dropout, gradients, clipping, update, averages.

A model makes a `TrainingStep` when it is first trained; one that only scores has none.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, V = vocabulary.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import TokenArray
from ptb_lm.model import carried
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend.adam import Adam
from ptb_lm.tf_backend.distribution import Distribution
from ptb_lm.tf_backend.dropout import (
    STREAMS,
    WindowDropout,
    device_seed,
    export_streams,
    load_streams,
)
from ptb_lm.tf_backend.loss import Loss, pack_loss, sum_by_word
from ptb_lm.tf_backend.network import Network, State, to_time_major
from ptb_lm.tf_backend.runtime import apply_execution


class TrainingStep:
    """A step of the optimiser with dropout and clipping on each device of this process, and its state.

    Attributes:
        dropouts: Random stream of the masks on each device.
        adams: Optimiser of each device; empty: it is SGD.
        execute_step: The step of (x_BT, y_BT, state, rate), as --execution runs it; traced once for each
            shape of window.

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
        self.state_names = config.cell_declaration.state_names
        self.dropouts, self.adams = list[WindowDropout](), list[Adam]()
        devices = zip(networks, distribution.names, strict=True)
        for index, (network, name) in enumerate(devices, start=distribution.ranks.rank):
            with tf.device(name):
                self.dropouts.append(
                    WindowDropout(
                        config,
                        network.embedding_VE.shape[0],
                        dtype=network.dtype,
                        seed=device_seed(choice.seed, index),
                        execution=choice.execution,
                    )
                )
                if config.optimizer == "adam":
                    self.adams.append(Adam(network.variables))
        self._averages: list[tf.Variable] = []
        self._averages_in_place = False
        self.execute_step = apply_execution(self._step_on_devices, choice.execution)
        if self._copies:
            self.load_copies(self.network.canonical())

    def __call__(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do a step; return the state after the window, and its loss."""
        # A tensor, because the function would be traced again for every new number.
        rate = tf.constant(learning_rate, self.network.dtype)
        return self.execute_step(tf.convert_to_tensor(x_BT), tf.convert_to_tensor(y_BT), state, rate)

    def _step_on_devices(
        self, x_BT: tf.Tensor, y_BT: tf.Tensor, state: State, rate: tf.Tensor
    ) -> tuple[State, Loss]:
        return self.distribution.run(self.step, x_BT, y_BT, state, rate)

    def step(
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
        factors = network.stack.recurrent_factors(masks.weights)
        embedded_NE = tf.gather(network.embedding_VE, ids_N)
        with _mask_weights(network.stack.variables, factors):
            with tf.GradientTape() as tape:
                tape.watch(embedded_NE)
                x_NE = embedded_NE
                if "embedding" in masks.weights:
                    x_NE *= tf.gather(masks.weights["embedding"], ids_N)
                x_TBE = tf.reshape(x_NE, [steps, batch, -1])
                raw_TBH, state = network.stack(x_TBE, state, masks=masks.units[:-1])
                output_TBH = raw_TBH * masks.units[-1] if masks.units else raw_TBH
                output_NH = tf.reshape(output_TBH, [steps * batch, -1])
            nll_N, d_output_NH, d_softmax = network.softmax.loss_and_gradients(
                output_NH, targets_N, 1 / batch
            )
            outputs, d_outputs = [output_NH], [d_output_NH]
            if activation := self.config.activation_penalty:
                d_outputs[0] += (2 * activation / (batch * output_NH.shape[1])) * output_NH
            if slowness := self.config.slowness_penalty:
                outputs.append(raw_TBH)
                d_outputs.append(slowness * _mean_square_change_gradient(raw_TBH))
            inputs = [embedded_NE, *network.stack.variables]
            d_embedded_NE, *gradients = tape.gradient(outputs, inputs, d_outputs)
        gradients = [
            gradient if factor is None else gradient * factor
            for gradient, factor in zip(gradients, factors, strict=True)
        ]
        nll_N, ids_N, d_embedded_NE, all_gradients = self.distribution.merge(
            nll_N, ids_N, d_embedded_NE, [*d_softmax, *gradients]
        )
        norm = self.update(device, ids_N, d_embedded_NE, all_gradients, rate, steps=steps)
        return state, pack_loss(nll_N, norm)

    def update(
        self,
        device: int,
        ids_N: tf.Tensor,
        d_embedded_NE: tf.Tensor,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        *,
        steps: int,
    ) -> tf.Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        Args:
            device: The index of the device in this process.
            ids_N: The window's words.
            d_embedded_NE: The gradient with respect to the embedding of each word, as the bottom layer's
                input.
            gradients: The gradients with respect to the variables of the softmax and the stack.
            rate: The learning rate, [].
            steps: T.
        """
        network = self._networks[device]
        config, ids_N1 = self.config, ids_N[:, None]
        if config.tie_weights:
            d_softmax_VE, *gradients = gradients
            d_embedding = tf.tensor_scatter_nd_add(d_softmax_VE, ids_N1, d_embedded_NE)
        elif self.adams:
            zeros_VE = tf.zeros_like(network.embedding_VE)
            d_embedding = tf.tensor_scatter_nd_add(zeros_VE, ids_N1, d_embedded_NE)
        else:
            # It has rows only for the words of the window; the other rows are not touched.
            d_embedding = sum_by_word(d_embedded_NE, ids_N, network.embedding_VE.shape[0])
        gradients = [d_embedding, *gradients]
        norm = self.distribution.broadcast_norm(tf.linalg.global_norm(gradients))
        length = config.relative_length(steps)
        # Beyond the largest number it would be infinity, and the quotient below not a number.
        bound = min(length * config.max_grad_norm, float(network.dtype.max))
        decay = steps * config.weight_decay
        # The quotient first, which is 1 at most: the product with the rate may be beyond a float.
        clipping = bound / tf.maximum(norm, bound)
        if self.adams:
            # The mean over the steps, times the usual number of them, as in torch.
            means = [
                (clipping * gradient + decay * variable) / length
                for gradient, variable in zip(gradients, network.variables, strict=True)
            ]
            self.adams[device].step(means, length * rate)
            return norm
        scale = rate * clipping
        if decay:
            for variable in network.variables:
                # Not times 1 - decay * rate, which float32 rounds to a multiple of 6e-8 for all weights.
                variable.assign_sub(decay * rate * variable)
        if config.tie_weights:
            _descend(network.variables, gradients, scale)
        else:
            network.embedding_VE.scatter_sub(tf.IndexedSlices(scale * d_embedding, ids_N))
            _descend(network.variables[1:], gradients[1:], scale)
        return norm

    def load_copies(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters of the other devices; averages in place are those of the first device alone."""
        if not self._averages_in_place:
            for network in self._copies:
                network.load(weights)

    def update_averages(self, weight: float) -> None:
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
        """Return the carried state, and the state of the dropout streams and of Adam."""
        parts = [[part_BH.numpy() for part_BH in layer] for layer in state]
        streams = export_streams([dropout.generator for dropout in self.dropouts])
        own = {**carried.pack(parts, self.state_names), STREAMS: streams}
        adam = self.adams[0].export_state(self.network) if self.adams else {}  # the same on all devices
        return {**carried.gather(own, self.distribution.ranks, stream=STREAMS), **adam}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set a state that `export_state` returned, and return the carried state.

        Raises:
            UserError: The random streams are not TensorFlow's, or a moment is of another shape.
        """
        if self.adams:
            for network, adam in zip(self._networks, self.adams, strict=True):
                adam.load_state(network, arrays)
        try:
            streams = [dropout.generator for dropout in self.dropouts]
            load_streams(streams, arrays[STREAMS], self.distribution.ranks)
        except ValueError as error:
            raise UserError(f"the random stream of dropout was not saved by TensorFlow ({error})") from None
        sizes = self.config.hidden_sizes
        layers = carried.unpack(arrays, self.state_names, sizes, self.distribution.ranks)
        return [tuple(tf.constant(part_BH, self.network.dtype) for part_BH in layer) for layer in layers]


@contextlib.contextmanager
def _mask_weights(variables: Sequence[tf.Variable], factors: Sequence[tf.Tensor | None]) -> Iterator[None]:
    """Multiply variables by factors while this is entered; None leaves one alone.

    In place, so that every layer reads its weights as it always does, cuDNN's and Keras's too.
    """
    pairs = [pair for pair in zip(variables, factors, strict=True) if pair[1] is not None]
    values = [tf.identity(variable) for variable, _ in pairs]
    for (variable, factor), value in zip(pairs, values, strict=True):
        variable.assign(value * factor)
    try:
        yield
    finally:
        for (variable, _), value in zip(pairs, values, strict=True):
            variable.assign(value)


def _mean_square_change_gradient(output_TBH: tf.Tensor) -> tf.Tensor:
    """Return the gradient of T times the mean square of an output's change from step to step."""
    steps = output_TBH.shape[0]
    if steps == 1:
        return tf.zeros_like(output_TBH)
    change_TBH = output_TBH[1:] - output_TBH[:-1]
    factor = 2 * steps / tf.cast(tf.size(change_TBH), change_TBH.dtype)
    return factor * (
        tf.pad(change_TBH, [[1, 0], [0, 0], [0, 0]]) - tf.pad(change_TBH, [[0, 1], [0, 0], [0, 0]])
    )


def _descend(variables: Sequence[tf.Variable], gradients: Sequence[tf.Tensor], scale: tf.Tensor) -> None:
    """Subtract scale * gradient from each variable."""
    for variable, gradient in zip(variables, gradients, strict=True):
        # In one pass, where assign_sub(scale * gradient) takes two.
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=scale, delta=gradient)
