"""What a language model and a classifier in torch share: device, precision, memory, weights in and out."""

import contextlib
import functools
import platform
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ptb_lm.common import memory
from ptb_lm.common.errors import OutOfMemoryError, UserError
from ptb_lm.model import cells
from ptb_lm.model.backend import Arrays, Model
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import cpu, gpu
from ptb_lm.torch_backend.cells import Canonical
from ptb_lm.torch_backend.precision import PRECISIONS, settings_of
from ptb_lm.torch_backend.settings import flushed_denormals, held

BFLOAT16_LSTM = 91300  # the first version of cuDNN that takes one
# The units of --config small, the narrowest that were measured on a CPU (results/bench/precisions-xeon-cpu).
BFLOAT16_UNITS = 200
# What messages of torch say when an allocation failed: its allocator's on a CPU, CUDA's, and its libraries'.
NO_MEMORY = ("DefaultCPUAllocator", "out of memory", "_STATUS_ALLOC_FAILED")

_Model = TypeVar("_Model", bound="TorchModel")
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class TorchModel(Model):
    """A model in torch on one device.

    Args:
        choice: What was chosen. The execution "auto" is what `preferred` says.
        cell: What its layers' cells are, a name in ptb_lm.model.cells.CELLS.

    Raises:
        UserError: There is no such device, or it cannot do what is asked for.
    """

    # The execution that "auto" means on each type of device.
    preferred: ClassVar[Mapping[str, str]] = {"cpu": "eager", "cuda": "eager"}

    def __init__(self, choice: Choice, *, cell: str = cells.LSTM) -> None:
        execution, precision = choice.execution, choice.precision
        assert choice.unroll == "static", "a Python loop over time"
        self.device = gpu.select_device(choice.device)
        if self.device.type == "cpu":
            FRAMEWORKS["torch"].check_on_cpu(execution=execution, precision=precision)
        if (execution, precision) == ("compile", "tf32"):
            raise UserError(
                "--execution compile cannot be combined with --precision tf32; choose from auto, eager, graph"
            )
        self.precision = PRECISIONS[precision]
        self.dtype = self.precision.compute
        self.execution = self.preferred[self.device.type] if execution == "auto" else execution
        self.model_name, self.cell = choice.model, cell
        if self.device.type == "cuda":
            gpu.allocate_workspace(self.device)
            # torch.nn.LSTM lays its weights out in one piece, as cuDNN wants them, if they are of one of
            # these types. bfloat16 is missing: such weights would be put together again at every call.
            if (torch.backends.cudnn.version() or 0) >= BFLOAT16_LSTM:
                torch.backends.cudnn.CUDNN_TENSOR_DTYPES.add(torch.bfloat16)

    def settings(self) -> AbstractContextManager[None]:
        """Return a context with the settings of torch that this model computes with; see `computation`."""
        return held(settings_of(self.precision)) if self.device.type == "cuda" else flushed_denormals()

    @property
    def engine(self) -> str:
        """What computes the layers, for people."""
        return _engine(self.model_name, self.cell, self.execution, self.device, self.dtype)

    @property
    def hints(self) -> list[str]:
        """What a user should know of this choice on this machine, a sentence each."""
        if self.device.type == "cuda":
            return self._hints_of_a_gpu()
        hints = []
        best = auto_precision("cpu")
        if self.dtype == torch.float16:
            hints.append(f"training in fp16 is slow on a CPU: --precision {best} is faster")
        if self.dtype == torch.bfloat16 and best != "bf16":
            hints.append("this CPU does not multiply in bfloat16 itself: --precision fp32 is faster")
        if self.dtype == torch.float32 and best == "bf16" and self._is_wide():
            hints.append("this CPU multiplies in bfloat16: --precision bf16 is faster")
        if self.model_name == "persistent":
            hints.append("--model persistent is for a GPU in fp16: here --model block_fused is faster")
        elif self.cell == cells.LSTM and self._is_slower_than_block_fused():
            hints.append(f"on this CPU --model block_fused is faster than {self.model_name}")
        if trouble := cpu.facts().get("no_kernels"):
            hints.append(f"training is slower than it could be, without compiled kernels: {trouble}")
        return hints

    def _is_wide(self) -> bool:
        """Return whether the layers are as wide as those that bfloat16 was measured with on a CPU."""
        recurrent = [kept for name, kept in self.canonical().items() if name.endswith(".recurrent_kernel")]
        return max((kept.value.shape[0] for kept in recurrent), default=0) >= BFLOAT16_UNITS

    def _is_slower_than_block_fused(self) -> bool:
        """Return whether block_fused was measured to be faster on such a processor, in this precision.

        In float32 it and cudnn are as fast as each other (docs/performance.md).
        """
        as_fast = ("block_fused", "cudnn") if self.dtype == torch.float32 else ("block_fused",)
        if self.model_name in as_fast or "AVX512" not in torch.backends.cpu.get_cpu_capability():
            return False
        return cpu.find_recurrence_kernels(torch.empty(0, dtype=self.dtype, device=self.device)) is not None

    def _hints_of_a_gpu(self) -> list[str]:
        hints = []
        ampere = torch.cuda.get_device_capability(self.device) >= (8, 0)
        if self.dtype == torch.float32 and ampere:
            best = "--model persistent --precision fp16" if self.cell == cells.LSTM else "--precision bf16"
            hints.append(f"this GPU multiplies in half precision: {best} is faster")
        if self.model_name == "persistent" and self.dtype != torch.float16:
            hints.append("--model persistent is for --precision fp16: here --model cudnn is faster")
        return hints

    @abstractmethod
    def canonical(self) -> Mapping[str, Canonical]:
        """Return the parameters by canonical name (ptb_lm.model.parameters)."""

    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name, in the precision of the model."""
        return {name: kept.value.cpu().numpy().copy() for name, kept in self.canonical().items()}

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays of the right names and shapes."""
        for name, kept in self.canonical().items():
            kept.value.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def device_memory(self) -> int | None:
        """Return the peak of bytes allocated on the device since the last call; None on a CPU."""
        return None if self.device.type == "cpu" else gpu.peak_memory(self.device)

    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads."""
        facts: dict[str, Any] = {"torch": torch.__version__, "threads": torch.get_num_threads()}
        if self.device.type == "cuda":
            facts["device"] = torch.cuda.get_device_name(self.device)
            facts["cuda"] = torch.version.cuda
            facts["cudnn"] = torch.backends.cudnn.version()
        else:
            facts["device"] = f"cpu ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})"
            facts |= cpu.facts()
        return facts


@contextlib.contextmanager
def enough_memory() -> Iterator[None]:
    """Return a context, or a decorator, that turns a failed allocation into one sentence for the user.

    Raises:
        OutOfMemoryError: An allocation failed, on either device.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        failed = failed_allocation(error)
        if failed is None:
            raise
        raise OutOfMemoryError(memory.describe_failure(failed)) from None


def computation(
    method: Callable[Concatenate[_Model, _Given], _Result],
) -> Callable[Concatenate[_Model, _Given], _Result]:
    """Return a method of a model that computes: with its settings, and a sentence if memory runs out."""

    @functools.wraps(method)
    def compute(self: _Model, *given: _Given.args, **named: _Given.kwargs) -> _Result:
        with enough_memory(), self.settings():
            return method(self, *given, **named)

    return cast("Callable[Concatenate[_Model, _Given], _Result]", compute)


def failed_allocation(error: BaseException | None) -> BaseException | None:
    """Return the error of an allocation, or of one that failed before it; None if there is none."""
    if error is None or isinstance(error, MemoryError) or any(sign in str(error) for sign in NO_MEMORY):
        return error
    # What fails because an allocation did: the end of a graph's capture, for one.
    return failed_allocation(error.__context__)


def auto_precision(device: str) -> str:
    """Return what --precision auto means: "bf16" where the device multiplies in bfloat16, else "fp32".

    Args:
        device: "auto", "cpu" or "cuda".
    """
    if device != "cpu" and gpu.is_usable():
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp32"
    return "bf16" if cpu.has_bfloat16_products() else "fp32"


def _engine(model: str, cell: str, execution: str, device: torch.device, dtype: torch.dtype) -> str:
    if cell != cells.LSTM:
        library = "cuDNN" if device.type == "cuda" else "ATen"
        how = (
            execution if model != "cudnn" else library if execution == "eager" else f"{library}, {execution}"
        )
        return f"torch {model} {cell} on {device.type} ({how})"
    if model == "persistent" and (device.type, dtype) != ("cuda", torch.float16):
        return f"torch persistent on {device.type} ({execution}; its kernel needs CUDA and fp16)"
    ours = (
        execution == "eager"
        and cpu.find_recurrence_kernels(torch.empty(0, dtype=dtype, device=device)) is not None
    )
    if model == "block_fused" and ours:
        return f"torch {model} on {device.type} (native kernels)"
    if model != "cudnn":
        return f"torch {model} on {device.type} ({execution})"
    library = "cuDNN" if device.type == "cuda" else "oneDNN" if _has_onednn(dtype) else "ATen"
    how = library if execution == "eager" else f"{library}, {execution}"
    return f"torch.nn.LSTM on {device.type} ({how})"


def _has_onednn(dtype: torch.dtype) -> bool:
    """Return whether torch computes an LSTM on this CPU with oneDNN."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32  # it has no double precision
