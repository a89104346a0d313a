"""Adam on the stored parameters, by torch's own kernels (torch.optim.adam), and its state.

Shapes: P = parameters.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.torch_backend.cells import Canonical, export_arrays, load_arrays
from ptb_lm.torch_backend.network import Network

# Names in a run's state: of the steps that are done, and of each parameter's moments, before its own.
STEPS, MOMENTS = "torch.adam.step", ("torch.adam.exp_avg", "torch.adam.exp_avg_sq")


class Adam:
    """Adam with the constants of Kingma and Ba, 2015, and its state.

    Attributes:
        state: Tensors that a step changes beside the parameters.

    Args:
        network: Network whose stored parameters are trained.
    """

    def __init__(self, network: Network) -> None:
        self._network, self._parameters = network, network.stored_parameters()
        like = self._parameters[0]
        self._moments = [[torch.zeros_like(parameter) for parameter in self._parameters] for _ in MOMENTS]
        # On a GPU the fused kernel takes rate and steps in float32 alone.
        self._is_fused = like.device.type == "cpu" or like.dtype == torch.float32
        self._scalar = torch.float32 if self._is_fused and like.device.type != "cpu" else torch.float64
        steps_P = torch.zeros(len(self._parameters), device=like.device, dtype=self._scalar)
        self._steps = list(steps_P.unbind())
        self.state = [steps_P, *(moment for moments in self._moments for moment in moments)]

    def step(
        self,
        gradients: Sequence[Tensor],
        factor: Tensor,
        *,
        rate: Tensor,
        weight_decay: float,
        overflowed: Tensor | None = None,
    ) -> None:
        """Move the parameters, and refresh the copies that are computed with.

        Args:
            gradients: Gradient with respect to each of `Network.stored_parameters`; they may be overwritten.
            factor: Factor of all gradients, by which they are clipped, [].
            rate: Learning rate, [].
            weight_decay: Factor of the parameters, which are added to the gradients.
            overflowed: True if the step is to be skipped, []; None: it is not.
        """
        scaled = []
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            # The kernel takes numbers of one type in the same order in memory.
            if (gradient.dtype, gradient.stride()) != (parameter.dtype, parameter.stride()):
                gradient = torch.empty_like(parameter).copy_(gradient)
            scaled.append(gradient.mul_(factor.to(parameter.dtype)))
        first, second = self._moments
        on_gpu = rate.device.type != "cpu"
        adam(
            self._parameters,
            scaled,
            first,
            second,
            [],
            self._steps,
            fused=self._is_fused,
            foreach=not self._is_fused,
            capturable=on_gpu,
            found_inf=None if overflowed is None else overflowed.float(),
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=rate.to(self._scalar),
            weight_decay=weight_decay,
            eps=1e-8,
            maximize=False,
        )
        self._network.refresh()

    def _canonical(self, moments: Sequence[Tensor]) -> dict[str, Canonical]:
        return self._network.canonical(dict(zip(self._parameters, moments, strict=True)))

    def export(self) -> Arrays:
        """Return the state, for `load`; a parameter's moments are of its canonical shape."""
        arrays: Arrays = {STEPS: self._steps[0].cpu().numpy().astype(np.float64)}
        for kind, moments in zip(MOMENTS, self._moments, strict=True):
            exported = export_arrays(self._canonical(moments))
            arrays |= {f"{kind}.{name}": array for name, array in exported.items()}
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set a state that `export` returned.

        Raises:
            UserError: An array is of another shape.
        """
        for kind, moments in zip(MOMENTS, self._moments, strict=True):
            canonical = self._canonical(moments)
            found = {name: arrays[f"{kind}.{name}"] for name in canonical}
            for name, array in found.items():
                if array.shape != canonical[name].value.shape:
                    raise UserError(f"the tensor {kind}.{name} has the shape {array.shape}")
            load_arrays(canonical, found)
        for steps in self._steps:
            steps.fill_(arrays[STEPS].item())
