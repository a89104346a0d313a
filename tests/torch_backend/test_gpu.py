"""A GPU that cannot be used: one warning with --device auto, an error with --device cuda.

There is no GPU here: the tests replace torch's answers by texts of torch.
"""

import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_steps import build

from ptb_lm.common import nvidia
from ptb_lm.common.errors import UserError
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.parameters import DEFAULT_CELL
from ptb_lm.model.presets import SMALL
from ptb_lm.torch_backend import cpu, gpu
from ptb_lm.torch_backend.backend import TorchBackend
from ptb_lm.torch_backend.lstm import BasicLayer
from ptb_lm.torch_backend.runtime import Runtime, apply_execution, examine

DRIVER = (
    "CUDA initialization: The NVIDIA driver on your system is too old (found version 12020). Please update "
    "your GPU driver by downloading and installing a new version. (Triggered at CUDAFunctions.cpp:119.)"
)
T4 = nvidia.Gpu("Tesla T4", (535, 183, 1), (7, 5))
V100 = nvidia.Gpu("Tesla V100", (580, 65, 6), (7, 0))
H100 = nvidia.Gpu("NVIDIA H100", (580, 65, 6), (9, 0))
CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"]


@pytest.fixture
def replace_answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replaces the answers of torch and nvidia-smi; a function is called, a value returned."""

    def answer(value: Any) -> Callable[..., Any]:
        return value if callable(value) else lambda *_: value

    def replace(available: Any, listed: list[nvidia.Gpu], **more: Any) -> None:
        gpu._examine_gpu.cache_clear()
        nvidia.warn.cache_clear()
        monkeypatch.setattr(nvidia, "gpus", lambda: listed)
        monkeypatch.setattr(torch.version, "cuda", more.pop("cuda", "13.0"))
        monkeypatch.setattr(torch.cuda, "is_available", answer(available))
        monkeypatch.setattr(torch.backends.cudnn.m, "version", answer(more.pop("cudnn", 92000)))
        for name, value in more.items():
            monkeypatch.setattr(torch.cuda, name, answer(value))

    yield replace
    gpu._examine_gpu.cache_clear()
    nvidia.warn.cache_clear()


def raises(message: str) -> Callable[..., Any]:
    def raise_it(*_: Any) -> None:
        raise RuntimeError(message)

    return raise_it


def old_driver() -> bool:
    warnings.warn(DRIVER, stacklevel=2)
    return False


VOLTA = {"get_device_capability": (7, 0), "get_device_name": "Tesla V100", "get_arch_list": CUDA_13}
HOPPER = {"get_device_capability": (9, 0), "get_device_name": "NVIDIA H100", "get_arch_list": CUDA_13}
TROUBLES = {
    "an old driver": (
        old_driver,
        [T4],
        {},
        ("Tesla T4", "535.183.1", "580", "docs/gpu.md"),
    ),
    "a driver of which torch alone knows": (
        old_driver,
        [H100],
        {},
        ("NVIDIA H100", "too old (found version 12020);", "docs/gpu.md"),
    ),
    "no CUDA in the build": (
        False,
        [H100],
        {"cuda": None},
        ("NVIDIA H100", f"torch {torch.__version__}", "without CUDA", "docs/gpu.md"),
    ),
    "capability 7.0": (
        True,
        [V100],
        VOLTA,
        ("Tesla V100", "7.0", f"torch {torch.__version__}", ", ".join(CUDA_13), "docs/gpu.md"),
    ),
    "a cuDNN that raises": (
        True,
        [V100],
        {
            **VOLTA,
            "get_arch_list": ["sm_70", "sm_80"],
            "cudnn": raises(
                "cuDNN version 91900 is not compatible with devices with SM < 7.5. Please install a version "
                "of PyTorch with a compatible cuDNN version."
            ),
        },
        ("cuDNN version 91900 is not compatible with devices with SM < 7.5",),
    ),
    "a device that raises": (
        True,
        [H100],
        {
            **HOPPER,
            "get_device_capability": raises("CUDA error: busy or unavailable\nCUDA kernel errors might"),
        },
        ("CUDA error: busy or unavailable",),
    ),
    "a check that raises": (
        raises("CUDA driver initialization failed, you might not have a CUDA gpu."),
        [H100],
        {},
        ("CUDA driver initialization failed, you might not have a CUDA gpu",),
    ),
}


@pytest.mark.parametrize("case", TROUBLES)
def test_an_unusable_gpu_is_an_error_with_cuda_and_a_warning_with_auto(
    case: str, replace_answers: Callable[..., None], capsys: pytest.CaptureFixture[str], tiny_config: Config
) -> None:
    available, listed, more, parts = TROUBLES[case]
    replace_answers(available, listed, **more)
    with pytest.raises(UserError) as caught:
        build(tiny_config, device="cuda")
    problem = str(caught.value).removeprefix("--device cuda: ")
    for part in parts:
        assert part in problem
    assert "\n" not in problem
    assert "CUDA kernel errors" not in problem, "a message's first line is enough"
    assert "Please" not in problem, "and its first sentence"
    assert build(tiny_config, device="cpu").device.type == "cpu"
    assert capsys.readouterr().err == ""
    for _ in range(2):  # said once
        assert build(tiny_config, device="auto").device.type == "cpu"
    assert examine("auto") == examine("cpu")
    warning = capsys.readouterr().err
    assert warning.startswith("warning: ")
    assert warning.endswith(f": {problem}\n")


def test_without_a_gpu_there_is_no_warning(
    replace_answers: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_answers(False, [])
    assert gpu.select_device("auto").type == "cpu"
    with pytest.raises(UserError, match=r"^--device cuda: torch \S+ "):
        gpu.select_device("cuda")
    assert capsys.readouterr() == ("", "")


def test_a_usable_gpu_is_selected(
    replace_answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = []
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device: devices.append(device) or ones(*size))
    replace_answers(True, [H100], **HOPPER)
    assert gpu.is_usable()
    assert [gpu.select_device(name).type for name in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert devices == ["cuda"]  # one small computation, once a process


@pytest.mark.parametrize(
    ("available", "seen"),
    [
        (True, True),
        (False, False),
        (old_driver, False),
        (raises("CUDA driver initialization failed, you might not have a CUDA gpu."), False),
    ],
    ids=["yes", "no", "an old driver", "a check that raises"],
)
def test_is_seen_warns_of_nothing_and_computes_nothing(
    available: Any, seen: bool, replace_answers: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_answers(available, [H100])
    monkeypatch.setattr(torch, "ones", raises("it is used"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.is_seen() is seen


@pytest.mark.parametrize(
    ("capability", "builds", "expected"),
    [
        ((7, 0), CUDA_13, False),
        ((7, 5), CUDA_13, True),
        ((8, 9), CUDA_13, True),  # by sm_80 and sm_86
        ((12, 1), CUDA_13, True),
        ((11, 0), CUDA_13, False),
        ((11, 0), [*CUDA_13, "compute_90"], True),
        ((8, 0), ["sm_90", "compute_90"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 0), ["sm_90a"], False),
        ((10, 3), ["sm_100a"], False),
        ((10, 3), ["sm_100f"], True),
        ((12, 0), ["compute_100f"], False),
        ((7, 0), ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"], True),
        ((6, 1), ["sm_50", "sm_60", "sm_70"], True),
        ((3, 7), ["sm_50"], False),
        ((3, 7), [], True),
        ((9, 4), ["gfx942"], True),
    ],
)
def test_has_kernels_compares_capability_and_builds(
    capability: tuple[int, int], builds: list[str], expected: bool
) -> None:
    assert gpu.has_kernels(capability, builds) is expected


def test_peak_memory_leaves_out_the_workspaces_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one for each stream, allocated by its first product; it is counted once."""
    held = {"bytes": 100}
    products = iter([32, 0, 8])  # megabytes that each product makes cuBLAS allocate

    class Matrix:
        def mm(self, other: object) -> None:
            held["bytes"] += next(products)

    monkeypatch.setattr(gpu, "_workspace_bytes", 0)
    monkeypatch.setattr(torch, "eye", lambda *_, device: Matrix())
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: held["bytes"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: held["bytes"] + 7)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    for _ in range(3):
        gpu.allocate_workspace(torch.device("cuda"))
        assert gpu.peak_memory(torch.device("cuda")) == 107


def test_compiling_in_fp32_on_an_ampere_gives_no_warning_of_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own function would warn, which is noise for users who chose fp32."""
    from torch._inductor import compile_fx

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile_fx._warn_tf32_disabled.cache_clear()
        with pytest.raises(UserWarning, match="TensorFloat32"):
            compile_fx._warn_tf32_disabled()
        apply_execution(BasicLayer(3, 3, DEFAULT_CELL), "compile")
        compile_fx._warn_tf32_disabled()
    compile_fx._warn_tf32_disabled.cache_clear()


@pytest.fixture
def place_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runtime]:
    """Makes the runtime of a model on a GPU of some kind; nothing is computed there."""

    def place(
        capability: gpu.Capability, *, processors: int = 132, cudnn: int = 92000, **choice: str
    ) -> Runtime:
        properties = SimpleNamespace(
            multi_processor_count=processors, major=capability[0], minor=capability[1]
        )
        monkeypatch.setattr(gpu, "select_device", torch.device)
        monkeypatch.setattr(gpu, "allocate_workspace", lambda _: None)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
        monkeypatch.setattr(torch.backends.cudnn.m, "version", lambda: cudnn)
        monkeypatch.setattr(torch.backends.cudnn.m, "CUDNN_TENSOR_DTYPES", set[torch.dtype]())
        return Runtime(Choice.create(device="cuda", **choice), gpu_execution="graph")

    return place


@pytest.mark.parametrize(
    ("capability", "cudnn", "precision", "library"),
    [
        ((8, 0), 91300, "bf16", "cuDNN"),
        ((8, 0), 91200, "bf16", "ATen"),
        ((7, 5), 91300, "bf16", "ATen"),
        ((7, 5), 91200, "fp16", "cuDNN"),
    ],
)
def test_the_engine_names_the_library_that_torch_takes(
    capability: gpu.Capability,
    cudnn: int,
    precision: str,
    library: str,
    place_on_gpu: Callable[..., Runtime],
) -> None:
    """Which lays out weights as cuDNN wants them only where that computes; other models change no setting."""
    runtime = place_on_gpu(capability, cudnn=cudnn, model="cudnn", precision=precision)
    assert runtime.engine == f"torch.nn.LSTM on cuda ({library}, graph)"
    laid_out = {torch.bfloat16} if (library, precision) == ("cuDNN", "bf16") else set()
    assert laid_out == torch.backends.cudnn.CUDNN_TENSOR_DTYPES


@pytest.mark.parametrize(("precision", "library"), [("fp32", "oneDNN"), ("fp16", "ATen")])
def test_the_engine_names_the_library_that_trains_on_a_cpu(
    precision: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where oneDNN could compute float16, which torch gives it only without a gradient."""
    monkeypatch.setattr(cpu, "has_onednn", lambda _: True)
    runtime = Runtime(Choice.create(device="cpu", model="cudnn", precision=precision))
    assert runtime.engine == f"torch.nn.LSTM on cpu ({library})"


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_gpu_says_what_it_has_no_instructions_for(
    precision: str, place_on_gpu: Callable[..., Runtime]
) -> None:
    assert place_on_gpu((8, 0), model="cudnn", precision=precision).hints == []
    (hint,) = place_on_gpu((7, 5), model="cudnn", precision=precision).hints
    assert precision in hint
    assert "below 8.0" in hint


@pytest.mark.parametrize(
    ("capability", "processors", "hidden", "batch", "runs"),
    [
        ((9, 0), 132, 1024, 128, True),
        ((9, 0), 132, 1025, 128, False),
        ((9, 0), 132, 1024, 129, False),
        ((8, 6), 72, 650, 20, False),
        ((7, 0), 80, 650, 20, True),  # by rules of its own
    ],
)
def test_the_persistent_model_hints_that_its_kernel_does_not_run(
    capability: gpu.Capability,
    processors: int,
    hidden: int,
    batch: int,
    runs: bool,
    place_on_gpu: Callable[..., Runtime],
) -> None:
    built = TorchBackend.__new__(TorchBackend)  # without tensors
    built.runtime = place_on_gpu(capability, processors=processors, model="persistent", precision="fp16")
    built.device, built.dtype = built.runtime.device, built.runtime.dtype
    built.config = SMALL.replace(hidden_size=hidden)
    built.network = SimpleNamespace(window=(batch, 35))  # type: ignore[assignment]
    assert [hint for hint in built.hints if "does not run" in hint] == built.hints
    assert (built.hints == []) is runs
