"""A whole training step as a CUDA graph: captured at the first window of a length, and replayed.

A step launches some hundred small kernels, and on a fast GPU the launches take longer than the work. A graph
launches them all at once. What a replay reads and writes are the tensors of the capture, so that words and
state are copied into them; the learning rate is a tensor on the device, and the random stream is registered
with the graph, which draws new masks at each replay.

Shapes: N = T * B tokens, B = batch, H = hidden units.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

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


class CudaRecorder:
    """A recorder of CUDA graphs, which share the memory of what they compute on the way.

    What is made while it records, and is given up, may be overwritten by the replay of any of its graphs.
    One graph is replayed after the other, on one stream, and nothing in that memory is read after the replay
    of another graph: a step takes what it goes on with out of it.

    Args:
        device: The CUDA device.
        generator: The random stream that the recorded work draws from.
    """

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._device = device
        self._generator = generator
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextlib.contextmanager
    def on_own_stream(self) -> Iterator[None]:
        """Return a context in which work runs on its own stream, after all work begun before.

        cuBLAS has a workspace a stream: what is recorded finds the one of the steps before it. Memory that
        graphs share is of one stream, too.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                gpu.allocate_workspace(self._device)
                yield
        finally:
            current.wait_stream(self._stream)

    @contextlib.contextmanager
    def record(self) -> Iterator[torch.cuda.CUDAGraph]:
        """Return a context, entered within `on_own_stream`, in which work is recorded and not done."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        with pause_garbage_collection(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            yield graph


class CapturedStep(NamedTuple):
    """A step for windows of one length, and the tensors that its replay reads and writes."""

    graph: torch.cuda.CUDAGraph
    ids_N: Tensor
    targets_N: Tensor
    loss: Tensor  # in the memory that graphs share


class GraphedStep:
    """A training step that is captured at its first call, and at the first with windows of another length.

    Args:
        step: (ids_N, targets_N, state) -> (state, loss); it may only launch work on the device. With a
            learning rate of 0 it must leave the weights as they are.
        rate: The learning rate that `step` reads, a tensor on the device.
        others: Other tensors that `step` changes, at any learning rate.
        generator: The random stream that `step` draws from.
        recorder: Recorder of the step; tests have a substitute that needs no GPU.
    """

    def __init__(
        self,
        step: WindowStep,
        *,
        rate: Tensor,
        others: Sequence[Tensor],
        generator: torch.Generator,
        recorder: CudaRecorder,
    ) -> None:
        self._step = step
        self._rate = rate
        self._others = others
        self._generator = generator
        self._recorder = recorder
        self._captured: dict[int, CapturedStep] = {}  # by N; their batches are of one size
        self._state: Sequence[LayerState] = []  # of all of them

    def __call__(
        self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]
    ) -> tuple[Sequence[LayerState], Tensor]:
        """Do a step; return the state and the loss.

        The state is the graphs' own, which the next call overwrites.

        Raises:
            UserError: The step cannot be captured, or an earlier one could not.
        """
        assert not self._captured or state[0][0].shape == self._state[0][0].shape, "all are of one batch size"
        if len(ids_N) not in self._captured:
            self._captured[len(ids_N)] = self._capture(ids_N, targets_N, state)
        captured = self._captured[len(ids_N)]
        captured.ids_N.copy_(ids_N, non_blocking=True)
        captured.targets_N.copy_(targets_N, non_blocking=True)
        _copy(self._state, state)
        captured.graph.replay()
        return self._state, captured.loss.clone()

    def _capture(self, ids_N: Tensor, targets_N: Tensor, state: Sequence[LayerState]) -> CapturedStep:
        if _failure is not None:
            raise UserError(
                f"an earlier training step could not be captured as a CUDA graph ({_failure}), and this "
                "process can capture no other; --execution eager trains without one"
            )
        device = self._rate.device
        window = ids_N.to(device, copy=True), targets_N.to(device, copy=True)
        if not self._captured:
            self._state = [tuple(part_BH.clone() for part_BH in layer) for layer in state]
        rate, stream_state = self._rate.clone(), self._generator.get_state()
        others = [tensor.clone() for tensor in self._others]
        with self._recorder.on_own_stream():
            try:
                self._rate.zero_()
                for _ in range(WARM_UP):
                    self._step(*window, self._state)
            finally:  # memory may have run out, and a smaller step be tried
                self._generator.set_state(stream_state)
                self._rate.copy_(rate)
                for tensor, before in zip(self._others, others, strict=True):
                    tensor.copy_(before)
            with _forbid_further_captures(), self._recorder.record() as graph:
                after, loss = self._step(*window, self._state)
                _copy(self._state, after)
        return CapturedStep(graph, *window, loss)


@contextlib.contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Return a context in which Python collects no garbage; all garbage is collected before it.

    A tensor or graph of a reference cycle that is collected during a capture ends the capture.
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
