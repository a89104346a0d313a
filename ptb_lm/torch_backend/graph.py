"""A whole training step as one CUDA graph: captured at the first step, replayed at every other.

A step launches some hundred small kernels, and on a fast GPU the launches take longer than the work. A graph
launches them all at once. What a replay reads and writes are the tensors of the capture, so that words and
state are copied into them; the learning rate is a tensor on the device, and the random stream is registered
with the graph, which draws new masks at each replay.

Shapes: N = T * B tokens, B = batch, H = hidden units.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ptb_lm.torch_backend.cells import LayerState

Step = Callable[[Tensor, Tensor, Sequence[LayerState]], tuple[Sequence[LayerState], Tensor]]

WARM_UP = 3  # steps before the capture, in which libraries choose kernels and allocate workspaces


class GraphedStep:
    """A training step that is captured at its first call.

    Args:
        step: (ids_N, targets_N, state) -> (state, loss); it may only launch work on the device. With a
            learning rate of 0 it must leave the weights as they are.
        rate: The learning rate that `step` reads, a tensor on the device.
        generator: The random stream that `step` draws from.
    """

    def __init__(self, step: Step, *, rate: Tensor, generator: torch.Generator) -> None:
        self._step = step
        self._rate = rate
        self._generator = generator
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]
    ) -> tuple[Sequence[LayerState], Tensor]:
        """Do a step; return the state and the loss.

        The state is the graph's own, which the next call overwrites.

        Raises:
            ValueError: The window has another size than the first.
        """
        if self._graph is None:
            self._graph = self._capture(ids_N, targets_N, state)
        if ids_N.shape != self._ids_N.shape or state[0][0].shape != self._state[0][0].shape:
            raise ValueError("a captured step takes windows of the first one's batch size and length only")
        self._ids_N.copy_(ids_N, non_blocking=True)
        self._targets_N.copy_(targets_N, non_blocking=True)
        _copy(self._state, state)
        self._graph.replay()
        return self._state, self._loss.clone()

    def _capture(self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]) -> torch.cuda.CUDAGraph:
        device = self._rate.device
        self._ids_N, self._targets_N = ids_N.to(device, copy=True), targets_N.to(device, copy=True)
        self._state = [tuple(part_BH.clone() for part_BH in layer) for layer in state]
        rate, stream_state = self._rate.clone(), self._generator.get_state()
        self._rate.zero_()
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self._step(self._ids_N, self._targets_N, self._state)
        finally:  # memory may have run out, and a smaller step be tried
            torch.cuda.current_stream(device).wait_stream(side)
            self._generator.set_state(stream_state)
            self._rate.copy_(rate)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph):
            after, self._loss = self._step(self._ids_N, self._targets_N, self._state)
            _copy(self._state, after)
        return graph


def _copy(into: Sequence[LayerState], state: Sequence[LayerState]) -> None:
    for kept, given in zip(into, state, strict=True):
        for old, new in zip(kept, given, strict=True):
            if old is not new:
                old.copy_(new)
