"""A whole training step as one CUDA graph: captured at the first step, replayed at every other.

A step launches some hundred small kernels, and on a fast GPU the launches take longer than the work. A graph
launches them all at once. What a replay reads and writes are the tensors of the capture, so that words and
state are copied into them; the learning rate is a tensor on the device, and the random stream is registered
with the graph, which draws new masks at each replay.

Shapes: N = T * B tokens, B = batch, H = hidden units.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.torch_backend import gpu
from ptb_lm.torch_backend.cells import LayerState
from ptb_lm.torch_backend.settings import find_failed_allocation

WindowStep = Callable[[Tensor, Tensor, Sequence[LayerState]], tuple[Sequence[LayerState], Tensor]]

WARM_UP = 3  # steps before the capture, in which libraries choose kernels and allocate workspaces

# Reason for which this process captures no more. After a capture that failed, neither the random stream nor
# the memory of the device is as a capture needs it.
_failure: str | None = None


class Graph(Protocol):
    """A recorder of a step's work that replays it: a `CudaGraph`, or a substitute for one without a GPU."""

    def on_own_stream(self) -> AbstractContextManager[None]:
        """Return a context in which work runs on the stream of the recording, after all work begun before."""

    def record(self) -> AbstractContextManager[None]:
        """Return a context, entered within `on_own_stream`, in which work is recorded and not done."""

    def replay(self) -> None:
        """Do the recorded work, on the same tensors."""


class CudaGraph:
    """A CUDA graph.

    Args:
        device: The CUDA device.
        generator: The random stream that the recorded work draws from.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._device = device
        self._generator = generator

    @contextlib.contextmanager
    def on_own_stream(self) -> Iterator[None]:
        """Return a context in which work runs on its own stream.

        cuBLAS has a workspace a stream: what is recorded finds the one of the steps before it.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                gpu.allocate_workspace(self._device)
                yield
        finally:
            current.wait_stream(self._stream)

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Return a context in which work is recorded."""
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self._generator)
        with pause_garbage_collection(), torch.cuda.graph(self._graph, stream=self._stream):
            yield

    def replay(self) -> None:
        """Do the recorded work."""
        self._graph.replay()


class GraphedStep:
    """A training step that is captured at its first call.

    Args:
        step: (ids_N, targets_N, state) -> (state, loss); it may only launch work on the device. With a
            learning rate of 0 it must leave the weights as they are.
        rate: The learning rate that `step` reads, a tensor on the device.
        others: Other tensors that `step` changes, at any learning rate.
        generator: The random stream that `step` draws from.
        graph: Recorder of the step.
    """

    def __init__(
        self,
        step: WindowStep,
        *,
        rate: Tensor,
        others: Sequence[Tensor],
        generator: torch.Generator,
        graph: Graph,
    ) -> None:
        self._step = step
        self._rate = rate
        self._others = others
        self._generator = generator
        self._graph = graph
        self._captured = False

    def __call__(
        self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]
    ) -> tuple[Sequence[LayerState], Tensor]:
        """Do a step; return the state and the loss.

        The state is the graph's own, which the next call overwrites.

        Raises:
            ValueError: The window has another size than the first.
            UserError: The step cannot be captured, or an earlier one could not.
        """
        if not self._captured:
            self._capture(ids_N, targets_N, state)
        if ids_N.shape != self._ids_N.shape or state[0][0].shape != self._state[0][0].shape:
            raise ValueError("a captured step takes windows of the first one's batch size and length only")
        self._ids_N.copy_(ids_N, non_blocking=True)
        self._targets_N.copy_(targets_N, non_blocking=True)
        _copy(self._state, state)
        self._graph.replay()
        return self._state, self._loss.clone()

    def _capture(self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]) -> None:
        if _failure is not None:
            raise UserError(
                f"an earlier training step could not be captured as a CUDA graph ({_failure}), and this "
                "process can capture no other; --execution eager trains without one"
            )
        device = self._rate.device
        self._ids_N, self._targets_N = ids_N.to(device, copy=True), targets_N.to(device, copy=True)
        self._state = [tuple(part_BH.clone() for part_BH in layer) for layer in state]
        rate, stream_state = self._rate.clone(), self._generator.get_state()
        others = [tensor.clone() for tensor in self._others]
        with self._graph.on_own_stream():
            try:
                self._rate.zero_()
                for _ in range(WARM_UP):
                    self._step(self._ids_N, self._targets_N, self._state)
            finally:  # memory may have run out, and a smaller step be tried
                self._generator.set_state(stream_state)
                self._rate.copy_(rate)
                for tensor, before in zip(self._others, others, strict=True):
                    tensor.copy_(before)
            with _forbid_further_captures(), self._graph.record():
                after, self._loss = self._step(self._ids_N, self._targets_N, self._state)
                _copy(self._state, after)
        self._captured = True


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Return a context in which Python collects no garbage; all garbage is collected before it.

    A tensor or graph that died in a circle and is collected during a capture ends the capture.
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _forbid_further_captures() -> Iterator[None]:
    """Return a context after whose failure this process can capture no step any more.

    Raises:
        UserError: The capture within failed, but not because there is too little memory.
    """
    global _failure
    try:
        yield
    except Exception as error:
        _failure = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        if isinstance(error, UserError) or find_failed_allocation(error):
            raise
        raise UserError(
            f"this training step cannot be captured as a CUDA graph ({_failure}); --execution eager trains "
            "without one"
        ) from error


def _copy(into: Sequence[LayerState], state: Sequence[LayerState]) -> None:
    for kept, given in zip(into, state, strict=True):
        for old, new in zip(kept, given, strict=True):
            if old is not new:
                old.copy_(new)
