"""A CUDA graph for a CPU: it records the operations of a step and replays them into the same storages.

A replay cannot know more than a CUDA graph's: no number that Python computed with, no tensor that
is not one of the capture's. As there, a capture does nothing: what it wrote is undone, what it made is
rubbish until it is replayed, and what would wait for the device or copy from the host ends it.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ptb_lm.torch_backend.graph import pause_garbage_collection

# Tags of an operation whose result Python reads, or whose size depends on numbers.
WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
FROM_HOST = {torch.ops.aten.lift_fresh.default, torch.ops.aten._pin_memory.default}


class FakeRecorder:
    """A substitute for a ptb_lm.torch_backend.graph.CudaRecorder.

    Its graphs share the memory of all that they make: a replay leaves rubbish in that of the others.

    Args:
        generator: The random stream that the recorded work draws from.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.graphs: list[FakeGraph] = []
        self.is_on_own_stream = False

    @contextlib.contextmanager
    def on_own_stream(self) -> Iterator[None]:
        self.is_on_own_stream = True
        try:
            yield
        finally:
            self.is_on_own_stream = False

    @contextlib.contextmanager
    def record(self) -> Iterator["FakeGraph"]:
        assert self.is_on_own_stream, "recorded elsewhere than the steps before it ran"
        graph, stream_state = FakeGraph(self), self.generator.get_state()
        with pause_garbage_collection(), graph:
            assert not gc.isenabled()
            yield graph
        self.generator.set_state(stream_state)
        for storage, before in graph.before.values():
            storage.copy_(before)
        graph.spoil()
        self.graphs.append(graph)


class FakeGraph(TorchDispatchMode):
    """The operations of a step, recorded while this is entered."""

    def __init__(self, recorder: FakeRecorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.tape: list[Callable[[], None]] = []
        self.made: list[Tensor] = []
        self.made_storages: set[int] = set()
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    @torch.no_grad()
    def replay(self) -> None:
        for other in self.recorder.graphs:
            if other is not self:
                other.spoil()
        for operation in self.tape:
            operation()

    @torch.no_grad()
    def spoil(self) -> None:
        """Overwrite the numbers that were computed on the way, and the results that lie beside them."""
        for tensor in self.made:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Rows that are taken by their numbers are as many as these; by a mask, nobody knows how many.
        by_numbers = func is torch.ops.aten.index.Tensor and all(
            index is None or index.dtype == torch.int64 for index in args[1]
        )
        if func in FROM_HOST or (WAITS & set(func.tags) and not by_numbers):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        given = {**kwargs, **{each.name: value for each, value in zip(func._schema.arguments, args)}}  # noqa: B905
        written = _tensors(
            given.get(each.name)
            for each in func._schema.arguments
            if each.alias_info is not None and each.alias_info.is_write
        )
        for storage in (tensor.untyped_storage() for tensor in written):
            if storage.data_ptr() not in self.made_storages:
                self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        result = func(*args, **kwargs)
        if not written and any(each.alias_info for each in func._schema.returns):
            return result  # a view stays what it is
        outputs, with_gradient = _fresh(func, result), torch.is_grad_enabled()
        self.made += outputs
        self.made_storages |= {tensor.untyped_storage().data_ptr() for tensor in outputs}

        def repeat() -> None:
            # An operation may compute more where a gradient is wanted.
            with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(with_gradient):
                again = func(*args, **kwargs)
            for old, new in zip(outputs, _fresh(func, again), strict=True):
                old.copy_(new)

        self.tape.append(repeat)
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [tensor for tensor in tree_iter(list(values)) if isinstance(tensor, Tensor)]


def _fresh(func: Any, result: Any) -> list[Tensor]:
    """Return the tensors that an operation returned, but for those that it was given."""
    returns = func._schema.returns
    results = [result] if len(returns) == 1 else list(result or [])
    return _tensors(value for value, each in zip(results, returns, strict=True) if each.alias_info is None)
