"""The training of a language model in torch: dropout, gradients, clipping, SGD or Adam, averages.

A model makes a `TrainingStep` when it is first trained; one that only scores has none.

Shapes: B = batch, T = time steps, N = T * B tokens, E = embedding width, H = hidden units, V = vocabulary.
`raw` is the top layer's output before its dropout, `output` after it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.model import carried
from ptb_lm.model.backend import Arrays
from ptb_lm.model.ranks import Ranks
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.dropout import (
    GENERATOR,
    WindowDropout,
    derive_seed,
    mask_weights,
    restore_generator,
)
from ptb_lm.torch_backend.exchange import GradientExchange, WindowGradients
from ptb_lm.torch_backend.graph import CudaRecorder, GraphedStep, WindowStep
from ptb_lm.torch_backend.loss import (
    Loss,
    add_by_word,
    global_norm,
    pack_loss,
    sum_by_word,
)
from ptb_lm.torch_backend.network import Network
from ptb_lm.torch_backend.optimizers import OPTIMIZERS, Clipping
from ptb_lm.torch_backend.penalties import add_activation_gradient, add_slowness_gradient
from ptb_lm.torch_backend.precision import LossScale
from ptb_lm.torch_backend.stack import State, detach_state, embed


class TrainingStep:
    """A step of SGD or Adam with dropout and clipping, and its state.

    Attributes:
        dropout: Random stream of the masks.
        exchange: Exchange of gradients with the other ranks; None for one rank.
        optimizer: Optimiser that moves the parameters.
        loss_scale: Scale of float16's loss; None in other precisions.
        rate: Learning rate of the next step, [], on the device.
        execute_step: Function that a call runs once the rate is set: `step`, or its CUDA graphs.

    Args:
        network: Network to train.
        execution: Form of a step, as --execution names it.
        ranks: Processes that train the network together.
        seed: Seed of dropout, of all ranks.
    """

    def __init__(self, network: Network, *, execution: str, ranks: Ranks, seed: int) -> None:
        self.network, self.ranks = network, ranks
        self.state_names = network.config.cell_declaration.state_names
        self.parameters = network.stack.trained_parameters()
        vocabulary_size = len(network.embedding_VE)
        self.dropout = WindowDropout(
            network.config,
            vocabulary_size,
            device=network.device,
            dtype=network.dtype,
            seed=derive_seed(seed, ranks),
        )
        self.exchange: GradientExchange | None = None
        if self.ranks.size > 1:
            self.exchange = GradientExchange(
                self.ranks,  # type: ignore[arg-type]
                network.softmax.gradient,
                network.precision,
            )
        scale = network.precision.loss_scale
        self.loss_scale = None if scale == 1 else LossScale(scale, device=network.device)
        self.optimizer = OPTIMIZERS[network.config.optimizer](network)
        self.rate = torch.zeros((), device=network.device, dtype=torch.float64)
        self._rate_on_device = 0.0
        self._averaged: list[tuple[Tensor, Tensor]] = []  # each parameter, or its view, and its average
        self.execute_step: WindowStep = self.step
        if execution == "graph":
            self.execute_step = self.capture(CudaRecorder(network.device, self.dropout.generator))

    def capture(self, recorder: CudaRecorder) -> GraphedStep:
        """Return `step` as graphs, each captured at the first window of a length."""
        others = [*self.optimizer.state, *([self.loss_scale.state] if self.loss_scale else [])]
        return GraphedStep(
            self.step,
            rate=self.rate,
            others=others,
            generator=self.dropout.generator,
            recorder=recorder,
        )

    def __call__(
        self, ids_N: Tensor, targets_N: Tensor, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do a step; return the state after the window, and its loss."""
        if learning_rate != self._rate_on_device:
            self.rate.fill_(learning_rate)
            self._rate_on_device = learning_rate
        return self.execute_step(ids_N, targets_N, state)

    def step(self, ids_N: Tensor, targets_N: Tensor, state: State) -> tuple[State, Loss]:
        """Do a step at the learning rate in `rate`; nothing here waits for the device."""
        network, batch = self.network, len(state[0][0])
        steps = len(ids_N) // batch
        stack, masks = network.choose_stack(batch, steps), self.dropout.draw(batch, steps)
        weight_masks = network.stack.masks_by_parameter(masks.weights)
        embedded_TBE = embed(network.embedding_VE, ids_N, batch, network.dtype).requires_grad_()
        x_TBE = embedded_TBE
        if "embedding" in masks.weights:
            x_TBE = x_TBE * masks.weights["embedding"][ids_N].view(-1, batch, 1)
        with mask_weights(weight_masks):
            raw_TBH, state = stack(x_TBE, state, masks=masks.units[:-1])
            nll_N, d_raw_TBH = self.compute_loss_and_gradient(
                raw_TBH.detach(), targets_N, mask=masks.units[-1] if masks.units else None
            )
            if self.exchange:
                self.exchange.start_reduce(len(ids_N))
            loss = _InjectedGradient.apply(raw_TBH, d_raw_TBH)  # type: ignore[no-untyped-call]
            d_embedded_TBE, *gradients = torch.autograd.grad(loss, [embedded_TBE, *self.parameters])
        gradients = [
            gradient * weight_masks[parameter] if parameter in weight_masks else gradient
            for parameter, gradient in zip(self.parameters, gradients, strict=True)
        ]
        window = WindowGradients(nll_N, ids_N, d_embedded_TBE.flatten(0, 1), gradients)
        if self.exchange:
            window = self.exchange.wait_and_merge(window)
        norm = self.update(window, steps=steps)
        new_scale = self.loss_scale.adjust(norm.isfinite()) if self.loss_scale else norm.new_zeros(())
        return detach_state(state), pack_loss(window.nll, norm, new_scale)

    def compute_loss_and_gradient(
        self, raw_TBH: Tensor, targets_N: Tensor, *, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the negative log likelihoods [N], and the gradient with respect to the top layer's output.

        The gradient is that of the loss and its penalties, multiplied by the loss scale. Also sets
        `softmax.gradient`.

        Args:
            raw_TBH: Output of the top layer.
            targets_N: The words that follow.
            mask: Dropout's mask of the output; None: nothing is dropped.
        """
        config, batch = self.network.config, raw_TBH.shape[1] * self.ranks.size
        output_TBH = raw_TBH if mask is None else raw_TBH * mask
        scale = self.network.precision.loss_scale / batch
        fraction = self.loss_scale.fraction if self.loss_scale else None
        nll_N, d_output_NH = self.network.softmax.loss_and_gradients(
            output_TBH.flatten(0, 1), targets_N, scale, fraction=fraction
        )
        d_output_TBH = d_output_NH.view_as(output_TBH)
        if config.activation_penalty:
            add_activation_gradient(
                d_output_TBH, output_TBH, config.activation_penalty * scale, fraction=fraction
            )
        d_raw_TBH = d_output_TBH if mask is None else d_output_TBH * mask
        if config.slowness_penalty:
            add_slowness_gradient(d_raw_TBH, raw_TBH, config.slowness_penalty * scale, fraction=fraction)
        return nll_N, d_raw_TBH

    def update(self, window: WindowGradients, *, steps: int) -> Tensor:
        """Clip by the global norm, move the parameters, and return the norm before clipping, [].

        In float16 nothing moves if the norm is not finite.

        Args:
            window: Gradients of the window.
            steps: T of the window.
        """
        network, softmax = self.network, self.network.softmax
        word_gradients: list[Tensor] = []
        if network.config.tie_weights:
            kernel_gradient_HV = softmax.gradient[: softmax.hidden_size]
            add_by_word(kernel_gradient_HV.T, window.ids, window.d_embedded)
        else:
            window = window._replace(d_embedded=window.d_embedded.to(network.embedding_VE.dtype))
            word_gradients = [sum_by_word(window.d_embedded, window.ids)]
        norm = global_norm([*word_gradients, softmax.gradient, *window.layers]) / self.current_loss_scale()
        if self.exchange:
            norm = self.exchange.broadcast_norm(norm)
        self.optimizer.step(window, self.make_clipping(norm, steps=steps), rate=self.rate, steps=steps)
        return norm

    def make_clipping(self, norm: Tensor, *, steps: int) -> Clipping:
        """Return the factor that clips the gradients and divides them by the loss scale.

        Args:
            norm: Global norm of the gradients, [].
            steps: T of the window.
        """
        config = self.network.config
        bound = config.max_grad_norm * config.relative_length(steps)
        # Tensors, not numbers: the device's step is not waited for.
        return Clipping(
            bound,
            norm.clamp(min=bound) * self.current_loss_scale(),
            ~norm.isfinite() if self.loss_scale else None,
        )

    def current_loss_scale(self) -> Tensor | float:
        """Return the factor of this step's loss, and so of its gradients; [] in float16."""
        return self.loss_scale.scale if self.loss_scale else self.network.precision.loss_scale

    def update_averages(self, weight: float) -> None:
        """Move the averages of the parameters towards them; see ptb_lm.model.backend.Backend."""
        if not self._averaged:
            views = self.network.canonical_views().values()
            self._averaged = [(view.value, view.value.clone()) for view in views]
            return
        for parameter, average in self._averaged:
            average.lerp_(parameter, weight)

    def swap_averages(self) -> None:
        """Exchange the parameters and their averages; a second call undoes it, to the bit.

        By exclusive or, which allocates nothing: if memory ran out in an exchange, a mixture would be saved.
        """
        for parameter, average in self._averaged:
            bits = torch.int64 if parameter.dtype == torch.float64 else torch.int32
            x, y = parameter.view(bits), average.view(bits)
            x ^= y
            y ^= x
            x ^= y
        self.network.refresh()

    def export_state(self, state: State) -> Arrays:
        """Return the carried state, and the states of the dropout stream, float16's loss scale, and Adam."""
        master = self.network.precision.master
        parts = [[part_BH.to("cpu", master).numpy() for part_BH in layer] for layer in state]
        own = {**carried.pack(parts, self.state_names), GENERATOR: self.dropout.generator.get_state().numpy()}
        on_cpu = self.network.device.type == "cpu"
        return {
            **carried.gather(own, self.ranks, stream=GENERATOR),
            # A run continues with its own way to compute, even if this machine would choose another.
            **({"torch.cpu": cpu.export_implementation(self.ranks)} if on_cpu else {}),
            **(self.loss_scale.export() if self.loss_scale else {}),
            **self.optimizer.export(),
        }

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set a state that `export_state` returned, and return the carried state."""
        restore_generator(self.dropout.generator, arrays[GENERATOR], self.ranks)
        if self.network.device.type == "cpu" and "torch.cpu" in arrays:
            cpu.restore_implementation(arrays["torch.cpu"], self.ranks)
        if self.loss_scale:
            self.loss_scale.load(arrays)
        self.optimizer.load(arrays)
        layers = carried.unpack(arrays, self.state_names, self.network.config.hidden_sizes, self.ranks)
        state = self.network.stack.zero_state(len(layers[0][0]))
        for layer, saved_layer in zip(state, layers, strict=True):
            for part_BH, saved_BH in zip(layer, saved_layer, strict=True):
                part_BH.copy_(torch.from_numpy(saved_BH.copy()))
        return state


class _InjectedGradient(torch.autograd.Function):
    """(output, gradient) -> a dummy loss, [], whose gradient with respect to `output` is `gradient`.

    torch.autograd.grad takes grad_outputs, too, but its first such call imports SymPy to compare shapes: 0.5
    to 0.6 s beside the 1.6 s of torch itself, at every start (python -X importtime, torch 2.13).
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.gradient = gradient
        return output.new_empty(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        return ctx.gradient, None
