"""The device, precision and execution of a model in torch: what they are, and how layers run by them.

Shapes: T = time steps, B = batch, I = input width, H = hidden units.
"""

import os
import platform
import shutil
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch

from ptb_lm.common import signals
from ptb_lm.common.errors import UserError
from ptb_lm.model import cells, rules
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import cpu, gpu, native
from ptb_lm.torch_backend.cells import Layer
from ptb_lm.torch_backend.precision import PRECISIONS, gpu_settings
from ptb_lm.torch_backend.settings import convert_allocation_errors, flush_denormals, hold_settings

BFLOAT16_LSTM = 91300  # the first version of cuDNN that takes one, from compute capability 8.0 on


class Runtime:
    """The device, precision and execution of a model.

    Attributes:
        device: Device that computes.
        precision: Types of weights and computation.
        dtype: Type of the computation.
        execution: A value of --execution, but for "auto".

    Args:
        choice: Choice of framework, model, execution, device and precision.
        cell: Name of the layers' cell in ptb_lm.model.cells.CELLS.
        gpu_execution: Meaning of the execution "auto" on a GPU. On a CPU it is "eager".

    Raises:
        UserError: There is no such device, or it cannot compute so.
    """

    def __init__(self, choice: Choice, *, cell: str = cells.LSTM, gpu_execution: str = "eager") -> None:
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
        on_gpu = self.device.type == "cuda"
        self.execution = execution if execution != "auto" else gpu_execution if on_gpu else "eager"
        self.model, self.cell = choice.model, cell
        if on_gpu:
            gpu.allocate_workspace(self.device)
            # torch.nn.LSTM lays its weights out in one piece, as cuDNN wants them, if they are of one of
            # these types. bfloat16 is missing: such weights would be put together again at every call.
            if self.dtype == torch.bfloat16 and uses_cudnn(self.dtype):
                torch.backends.cudnn.CUDNN_TENSOR_DTYPES.add(torch.bfloat16)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Return a context with torch's settings for the model, and without the caller's modes.

        Neither torch.autocast nor torch.set_float32_matmul_precision rounds, and gradients are computed where
        nothing in the context turns them off, also within a caller's torch.no_grad or torch.inference_mode.

        Raises:
            OutOfMemoryError: An allocation failed, on either device.
        """
        on_gpu = self.device.type == "cuda"
        settings = hold_settings(gpu_settings(self.precision)) if on_gpu else _hold_cpu_settings()
        modes = torch.autocast(self.device.type, enabled=False), torch.inference_mode(False)
        with convert_allocation_errors(), modes[0], modes[1], settings:
            yield

    @property
    def engine(self) -> str:
        """The library that computes the layers, for people."""
        is_lstm, on_gpu, how = self.cell == cells.LSTM, self.device.type == "cuda", self.execution
        if self.model == "cudnn":
            library = self._name_library()
            how = library if how == "eager" else f"{library}, {how}"
        elif self.model == "persistent" and not (on_gpu and self.dtype == torch.float16):
            how = f"{how}; its kernel needs CUDA and fp16"
        elif (self.model, how) == ("block_fused", "eager") and self._has_recurrence_kernels():
            how = "native kernels"
        name = "torch.nn.LSTM" if is_lstm and self.model == "cudnn" else f"torch {self.model}"
        return f"{name if is_lstm else f'{name} {self.cell}'} on {self.device.type} ({how})"

    def _name_library(self) -> str:
        """Return the library that computes torch's own layers."""
        if self.device.type == "cuda":
            return "cuDNN" if uses_cudnn(self.dtype) else "ATen"
        # oneDNN takes a layer of float16 only if no gradient is needed.
        by_onednn = self.cell == cells.LSTM and self.dtype != torch.float16 and cpu.has_onednn(self.dtype)
        return "oneDNN" if by_onednn else "ATen"

    def _has_recurrence_kernels(self) -> bool:
        return cpu.find_recurrence_kernels(torch.empty(0, dtype=self.dtype, device=self.device)) is not None

    @property
    def hints(self) -> list[str]:
        """Sentences for the user: why this precision or model is slow here, or that kernels are missing."""
        hints = list[str]()
        if self.device.type == "cuda":
            if self.model == "persistent" and self.dtype != torch.float16:
                hints.append("--model persistent is for --precision fp16: in others it is slower than cudnn")
            is_old = torch.cuda.get_device_capability(self.device) < (8, 0)
            if is_old and (self.precision.tf32 or self.dtype == torch.bfloat16):
                hints.append("tf32 and bf16 gain nothing on this GPU: its compute capability is below 8.0")
            return hints
        if self.dtype == torch.float16:
            hints.append("fp16 is slow on a CPU")
        if self.dtype == torch.bfloat16 and not cpu.is_bfloat16_fast():
            hints.append("bf16 is slow on this CPU, which multiplies faster in float32")
        if self.model == "persistent":
            hints.append("--model persistent is for a GPU in fp16, and slow here")
        if self.dtype in native.TYPE_NAMES and (reason := cpu.facts().get("no_kernels")):
            hints.append(f"training is slower than it could be, without compiled kernels: {reason}")
        return hints

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory(self) -> int | None:
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


@contextmanager
def _hold_cpu_settings() -> Iterator[None]:
    """Return a context with torch's settings for a model on a CPU."""
    onednn: Any = torch.backends.mkldnn
    with ExitStack() as contexts:
        contexts.enter_context(flush_denormals())
        # Where oneDNN would round nothing, a caller may let it, and `cpu.use_onednn` does so itself.
        if onednn.is_available() and not cpu.is_onednn_exact():
            operations = onednn.matmul, onednn.rnn
            settings = {(operation, "fp32_precision"): "ieee" for operation in operations}
            contexts.enter_context(hold_settings(settings))
        yield


def uses_cudnn(dtype: torch.dtype) -> bool:
    """Return whether torch gives layers of a type to cuDNN on this GPU (ATen/native/RNN.cpp, use_cudnn)."""
    has_version = (torch.backends.cudnn.version() or 0) >= BFLOAT16_LSTM
    return dtype != torch.bfloat16 or (has_version and torch.cuda.get_device_capability() >= (8, 0))


def apply_execution(layer: Layer, execution: str, *, window: tuple[int, int] | None = None) -> Layer:
    """Return a layer that runs as --execution says, with the same parameters.

    Args:
        layer: The layer, on its device.
        execution: "eager": as it is; "compile": torch.compile; "jit": TorchScript.
        window: (B, T) of its inputs, for "jit". TorchScript's first calls, which it profiles, round
            differently from the later ones. They are done here with zeros, so that a resumed run computes
            what a run that never stopped does, to the bit. None: they are the caller's first ones.

    Raises:
        UserError: torch.compile does not run on this Python, or would find no C++ compiler.
    """
    if execution == "compile":
        prepare_compiler()
        # Layers of all sizes share a cache, of two entries a size: to train, and to score. Above its limits
        # torch would silently not compile them. There are at most 1,000 layers.
        torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 2048
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        # fp32 means exact float32, even if a GPU could be faster; --precision tf32 is the faster choice.
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores", UserWarning)
        # Compile each shape separately; otherwise a second size would make it compile for variable sizes.
        return cast(Layer, torch.compile(layer, dynamic=False))
    if execution == "jit":
        with warnings.catch_warnings():
            # TorchScript is deprecated. It is offered so that it can be measured.
            warnings.filterwarnings("ignore", r"`torch\.jit\.")
            scripted = cast(Layer, torch.jit.script(layer))
        if window is not None:
            _run_profiled_steps(scripted, layer, *window)
        return scripted
    return layer


def prepare_compiler() -> None:
    """Check that torch.compile runs here and finds its C++ compiler; let no signal reach that.

    CXX names the compiler, without arguments.

    Raises:
        UserError: It does not.
    """
    if not torch._dynamo.eval_frame.is_dynamo_supported():
        raise UserError(
            f"torch.compile of torch {torch.__version__} does not run on Python {platform.python_version()}"
        )
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        raise UserError(
            "--execution compile needs a C++ compiler; install g++ or set CXX to one, without arguments"
        )
    _keep_signals_from_compilers()


def _keep_signals_from_compilers() -> None:
    """Keep signals that ask to stop from the compiler that torch.compile starts.

    A terminal sends it Ctrl-C, too, and it would end. Then torch raises an error, and leaves an empty library
    in its cache, over which later runs fail. A process inherits what the thread that starts it blocks. Here
    another thread gets the signal meanwhile, and Python's handler runs when the compiler returns.
    """
    at_start = torch._dynamo.callback.callback_handler.start_callbacks  # which torch.compiler.reset empties
    if any(callback.__module__ == __name__ for callback in at_start):
        return
    held: list[tuple[threading.Event, set[int]]] = []

    def hold(_: object) -> None:
        is_done = threading.Event()
        threading.Thread(target=is_done.wait, daemon=True).start()
        held.append((is_done, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)

    def let_through(_: object) -> None:
        is_done, mask = held.pop()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        is_done.set()

    torch._dynamo.callback.on_compile_start(hold)
    torch._dynamo.callback.on_compile_end(let_through)


def _run_profiled_steps(scripted: Layer, layer: Layer, batch_size: int, steps: int) -> None:
    """Run the steps that TorchScript profiles. They round differently from the optimised steps after them.

    Steps with a gradient and steps without one are optimised separately.
    """
    zeros = next(layer.parameters()).new_zeros
    x_TBI = zeros(steps, batch_size, layer.input_size)
    state = layer.zero_state(batch_size)
    output_TBH, _ = scripted(x_TBI.clone().requires_grad_(), state)
    output_TBH.sum().backward()
    layer.zero_grad()
    with torch.no_grad():
        scripted(x_TBI, state)


def examine(device: str) -> rules.MachineFacts:
    """Return what the choice of a model and a precision depends on. On a CPU this compiles the kernels.

    Args:
        device: "auto", "cpu" or "cuda".
    """
    if device != "cpu" and gpu.is_usable():
        features = {
            rules.BFLOAT16: torch.cuda.get_device_capability() >= (8, 0),
            rules.HOPPER: torch.cuda.get_device_capability() == (9, 0),
        }
        return rules.MachineFacts(
            device="cuda",
            name=f"the GPU {torch.cuda.get_device_name()}",
            features=frozenset(feature for feature, there in features.items() if there),
        )
    products = cpu.bfloat16_products() if cpu.is_bfloat16_fast() else ""
    has_kernels = torch.float32 in cpu.recurrence_types()
    features = {rules.BFLOAT16: bool(products), rules.KERNELS: has_kernels}
    return rules.MachineFacts(
        device="cpu",
        name=f"a CPU with{'' if products else 'out'} {products or 'fast products in bfloat16'}"
        f"{'' if has_kernels else ', without compiled kernels'}",
        features=frozenset(feature for feature, there in features.items() if there),
        cores=torch.get_num_threads(),
    )
