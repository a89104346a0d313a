"""A CUDA graph for a CPU: it records the operations of a step and replays them into the same storages.

What a replay cannot know is what a CUDA graph's cannot: any number that Python computed with, any tensor that
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

# Of an operation whose result Python reads, or whose size depends on numbers.
WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
FROM_HOST = {torch.ops.aten.lift_fresh.default, torch.ops.aten._pin_memory.default}


class FakeGraph:
    """Stands for a ptb_lm.torch_backend.graph.CudaGraph.

    Args:
        generator: The random stream that the recorded work draws from.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.tape: list[Callable[[], None]] = []
        self.events: list[str] = []

    @contextlib.contextmanager
    def on_own_stream(self) -> Iterator[None]:
        self.events.append("on its own stream")
        yield
        self.events.append("together")

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        assert self.events == ["on its own stream"], "recorded elsewhere than the steps before it ran"
        recorder, stream_state = _Recorder(), self.generator.get_state()
        with pause_garbage_collection(), recorder:
            assert not gc.isenabled()
            yield
        self.generator.set_state(stream_state)
        recorder.undo()
        self.tape = recorder.tape

    @torch.no_grad()
    def replay(self) -> None:
        for operation in self.tape:
            operation()


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.tape: list[Callable[[], None]] = []
        self.before: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self.made: list[Tensor] = []
        self.made_storages: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FROM_HOST or (WAITS & set(func.tags) and not _by_numbers(func, args)):
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        schema = func._schema
        written = list(_written(schema, args, kwargs))
        for tensor in written:
            self._remember(tensor)
        made = func(*args, **kwargs)
        if written or not any(each.alias_info for each in schema.returns):  # a view stays what it is
            self._record(func, args, kwargs, _fresh(func, made))
        return made

    def _remember(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.made_storages:
            self.before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def _record(self, func: Any, args: Any, kwargs: Any, outputs: list[Tensor]) -> None:
        for tensor in outputs:
            self.made.append(tensor)
            self.made_storages.add(tensor.untyped_storage().data_ptr())
        # An operation may compute more where a gradient is wanted.
        with_gradient = torch.is_grad_enabled()

        def again() -> None:
            with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(with_gradient):
                made = func(*args, **kwargs)
            for old, new in zip(outputs, _fresh(func, made), strict=True):
                old.copy_(new)

        self.tape.append(again)

    def undo(self) -> None:
        for storage, before in self.before.values():
            storage.copy_(before)
        with torch.no_grad():
            for tensor in self.made:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)


def _fresh(func: Any, made: Any) -> list[Tensor]:
    """The tensors that an operation returned, but for those that it was given."""
    returns = func._schema.returns
    results = [made] if len(returns) == 1 else list(made or [])
    new = [result for result, each in zip(results, returns, strict=True) if each.alias_info is None]
    return [tensor for tensor in tree_iter(new) if isinstance(tensor, Tensor)]


def _by_numbers(func: Any, args: Any) -> bool:
    """Whether it takes rows by their numbers, and not by a mask, whose size nobody knows."""
    if func is not torch.ops.aten.index.Tensor:
        return False
    return all(index is None or index.dtype == torch.int64 for index in args[1])


def _written(schema: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (tensor for tensor in tree_iter(given) if isinstance(tensor, Tensor))
