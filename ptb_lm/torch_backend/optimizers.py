"""The optimisers of a language model: what a step makes of clipped gradients.

They move the master parameters, refresh the copies that are computed with, and wait for nothing.

Shapes: N = tokens of the window, or of all ranks' windows, T = time steps, E = embedding width,
V = vocabulary, P = master parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam
from typing_extensions import override

from ptb_lm.model import parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.reference_updates import BETA_1, BETA_2, EPSILON
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.cells import ParameterView, export_arrays, load_arrays
from ptb_lm.torch_backend.exchange import WindowGradients
from ptb_lm.torch_backend.network import Network

# Names in a run's state: of the steps that are done, and of each parameter's moments, before its own.
STEPS, MOMENTS = "torch.adam.step", ("torch.adam.exp_avg", "torch.adam.exp_avg_sq")


class Clipping(NamedTuple):
    """The factor of a step's gradients, bound / divisor.

    It clips by the global norm, and divides by the loss scale.
    """

    bound: float  # on the global norm
    divisor: Tensor  # the norm, or the bound where that is larger, times the loss scale, []
    overflowed: Tensor | None  # whether a gradient overflowed float16, so that nothing may move, []

    def scale(self, rate: Tensor | float, dtype: torch.dtype) -> Tensor:
        """Return the rate times the factor of a gradient, [], in a type."""
        scale: Tensor = rate * self.bound / self.divisor
        return scale.to(dtype)


class Optimizer(ABC):
    """An optimiser of a network, and its state.

    Attributes:
        state: Tensors that a step changes beside the parameters.

    Args:
        network: Network whose master parameters are trained.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.state: list[Tensor] = []

    @abstractmethod
    def step(self, window: WindowGradients, clipping: Clipping, *, rate: Tensor, steps: int) -> None:
        """Move the parameters.

        Args:
            window: Gradients of the window; if weights are tied, the softmax's has the embedding's already.
            clipping: Factor of all gradients.
            rate: Learning rate, [], in float64.
            steps: T of the window.
        """

    def export(self) -> Arrays:
        """Return the state, for `load`."""
        return {}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027 (SGD has none)
        """Set a state that `export` returned.

        Raises:
            UserError: An array is of another shape.
        """


class Sgd(Optimizer):
    """Stochastic gradient descent.

    Without weight decay it moves the embeddings of the window's words only, unless the softmax uses them all.
    """

    @override
    def step(self, window: WindowGradients, clipping: Clipping, *, rate: Tensor, steps: int) -> None:
        network, softmax = self.network, self.network.softmax
        dtype, weight_decay = network.precision.master, network.config.weight_decay
        scale, d_embedded_NE, gradients = clipping.scale(-rate, dtype), window.d_embedded, window.layers
        decay = (-rate * (steps * weight_decay)).to(dtype) if weight_decay else None
        if clipping.overflowed is not None:
            softmax.gradient.masked_fill_(clipping.overflowed, 0)
            scale, d_embedded_NE, *gradients = (
                each.masked_fill(clipping.overflowed, 0) for each in (scale, d_embedded_NE, *gradients)
            )
            decay = None if decay is None else decay.masked_fill(clipping.overflowed, 0)
        if not network.config.tie_weights:
            if decay is not None:
                network.embedding_VE.addcmul_(network.embedding_VE, decay)
            network.embedding_VE.index_add_(0, window.ids, d_embedded_NE * scale)
        add_scaled(softmax.masters.pairs, [softmax.gradient], scale, decay=decay)
        add_scaled(network.masters.pairs, gradients, scale, decay=decay)


def add_scaled(
    pairs: Iterable[tuple[Tensor, Tensor]],
    gradients: Sequence[Tensor],
    scale: Tensor,
    *,
    decay: Tensor | None = None,
) -> None:
    """Add scale * gradient to each master parameter, and refresh the copies that are computed with.

    Args:
        pairs: (master, compute) tensor of each parameter (ptb_lm.torch_backend.precision.Masters).
        gradients: Gradient with respect to each of them.
        scale: [].
        decay: Factor of the parameter that is added as well, []; None: nothing is.
    """
    kernels = cpu.find_kernels(*gradients)
    for (master, compute), gradient in zip(pairs, gradients, strict=True):
        if kernels is not None and master.dtype == torch.float32:
            if gradient.stride() != master.stride():  # the kernel takes numbers in the same order in memory
                gradient = torch.empty_like(master, dtype=gradient.dtype).copy_(gradient)
            factors = scale.item(), 0.0 if decay is None else decay.item()
            kernels.update(master, gradient, compute.detach(), *factors)
            continue
        if decay is not None:
            master.addcmul_(master, decay)
        master.addcmul_(gradient, scale)
        if compute.dtype != master.dtype:
            compute.detach().copy_(master)


class Adam(Optimizer):
    """Adam with the constants of Kingma and Ba, 2015, by torch's own kernels (torch.optim.adam).

    It moves the rows of all words' embeddings, by their moments.
    """

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._parameters = network.master_parameters()
        self._moments = [[torch.zeros_like(parameter) for parameter in self._parameters] for _ in MOMENTS]
        dtype, self._on_gpu = network.precision.master, network.device.type != "cpu"
        # torch's fastest kernel: on a CPU it takes a tenth of the time of the next one. On a GPU it takes
        # rate and steps done in float32 only, which is not precise enough for float64.
        self._is_fused = not self._on_gpu or dtype == torch.float32
        self._rate_dtype = torch.float32 if self._on_gpu and self._is_fused else torch.float64
        count_dtype = torch.float32 if self._is_fused else torch.float64
        steps_done_P = torch.zeros(len(self._parameters), device=network.device, dtype=count_dtype)
        self._steps_done = list(steps_done_P.unbind())
        self.state = [steps_done_P, *(moment for moments in self._moments for moment in moments)]

    @override
    def step(self, window: WindowGradients, clipping: Clipping, *, rate: Tensor, steps: int) -> None:
        network, config = self.network, self.network.config
        gradients = [network.softmax.gradient, *window.layers]
        if not config.tie_weights:
            d_embedding_VE = torch.zeros_like(network.embedding_VE)
            gradients.append(d_embedding_VE.index_add_(0, window.ids, window.d_embedded))
        # The mean over the steps, times the usual number of them: a long window has no more weight in the
        # moments than a short one, as in AWD-LSTM.
        length = config.relative_length(steps)
        scale, clipped = clipping.scale(1 / length, network.precision.master), list[Tensor]()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            # The kernel takes numbers of one type in the same order in memory.
            if (gradient.dtype, gradient.stride()) != (parameter.dtype, parameter.stride()):
                gradient = torch.empty_like(parameter).copy_(gradient)
            clipped.append(gradient.mul_(scale))
        first, second = self._moments
        adam(
            self._parameters,
            clipped,
            first,
            second,
            [],
            self._steps_done,
            fused=self._is_fused,
            foreach=not self._is_fused,
            capturable=self._on_gpu,
            found_inf=None if clipping.overflowed is None else clipping.overflowed.float(),
            amsgrad=False,
            beta1=BETA_1,
            beta2=BETA_2,
            lr=(rate * length).to(self._rate_dtype),
            weight_decay=steps * config.weight_decay / length,
            eps=EPSILON,
            maximize=False,
        )
        network.refresh()

    @override
    def export(self) -> Arrays:
        steps_done = self._steps_done[0].cpu().numpy().astype(np.float64)
        return {STEPS: steps_done, **export_arrays(self._moment_views())}

    @override
    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        views = self._moment_views()
        moments = {name: tuple(view.value.shape) for name, view in views.items()}
        shapes: parameters.Shapes = {STEPS: (), **moments}
        parameters.check({name: arrays[name] for name in shapes}, shapes)
        load_arrays(views, arrays)
        for count in self._steps_done:
            count.fill_(arrays[STEPS].item())

    def _moment_views(self) -> dict[str, ParameterView]:
        """Return the moments by their names in a run's state."""
        return {
            f"{kind}.{name}": view._replace(parameter=moment_of[view.parameter])
            for kind, moments in zip(MOMENTS, self._moments, strict=True)
            for moment_of in [dict(zip(self._parameters, moments, strict=True))]
            for name, view in self.network.canonical_views().items()
        }


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam}
