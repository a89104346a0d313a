"""Whether torch can use a GPU, and if not, why; the memory that it allocates there.

torch reports a problem in several ways: `is_available` is false and warns (a driver that is too old), or is
true and the first kernel fails (a GPU without kernels in this build), or asking for cuDNN's version raises (a
cuDNN that the GPU is too old for, or another one in LD_LIBRARY_PATH).
"""

import functools
import re
import warnings

import torch

from ptb_lm.common import nvidia
from ptb_lm.common.errors import UserError

Capability = tuple[int, int]

_workspace_bytes = 0  # of cuBLAS, in all streams so far

WHICH_BUILD = f"{nvidia.PAGE} says which build of torch can"


def is_seen() -> bool:
    """Return whether torch finds a CUDA device, be it one that it can use or not.

    Unlike the functions below, it computes nothing there. A computation would hold memory of the GPU until
    the process ends: needlessly in a launcher, and in a rank on a GPU that is another rank's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `select_device` says what is wrong
        try:
            return torch.cuda.is_available()
        except (RuntimeError, AssertionError):
            return False


def is_usable() -> bool:
    """Return whether there is a CUDA device that torch can use."""
    _, problem = _examine_gpu()
    return not problem


def select_device(name: str) -> torch.device:
    """Return the device. Warn once per process if "auto" cannot use a GPU that is there.

    Args:
        name: "cpu", "cuda", or "auto", which is cuda if it can be used.

    Raises:
        UserError: The name is "cuda", but torch cannot use it.
    """
    if name == "cpu":
        return torch.device("cpu")
    is_present, problem = _examine_gpu()
    if problem and name == "cuda":
        raise UserError(f"--device cuda: {problem}")
    if problem and is_present:
        nvidia.warn(problem)
    return torch.device("cpu" if problem else "cuda")


@functools.cache
def _examine_gpu() -> tuple[bool, str]:
    """Return whether there is a GPU, and why torch cannot use one; "" if it can."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = torch.cuda.is_available()
            problem = _try_computation() if found else ""
        except (RuntimeError, AssertionError) as error:
            found, problem = True, _first_sentence(error)
    if found:
        return True, f"the GPU cannot be used: {problem}" if problem else ""
    if not (there := nvidia.gpus()):
        return False, f"torch {torch.__version__} finds no CUDA device here"
    # Why pip's default build of torch does not fit the driver or the GPU; otherwise torch's own reason.
    reasons = [nvidia.unusable_reason(there), *(_first_sentence(each.message) for each in caught)]
    if torch.version.cuda is None:
        reasons = [f"torch {torch.__version__} is a build without CUDA"]
    reason = next(filter(None, reasons), f"torch {torch.__version__} does not find it")
    return True, f"the GPU {there[0].name} cannot be used: {reason}; {WHICH_BUILD}"


def allocate_workspace(device: torch.device) -> None:
    """Let cuBLAS allocate its workspace for the current stream now, to be left out of the memory of a model.

    It takes some megabytes per stream, which depend on the GPU and not on the model, until the process ends.
    """
    global _workspace_bytes
    before = torch.cuda.memory_allocated(device)
    torch.eye(8, device=device).mm(torch.eye(8, device=device))
    _workspace_bytes += torch.cuda.memory_allocated(device) - before


def peak_memory(device: torch.device) -> int:
    """Return the peak of allocated bytes since the last call, without cuBLAS's workspaces."""
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak - _workspace_bytes


def _try_computation() -> str:
    """Compute a little on the GPU; return the obstacle, or "".

    Raises:
        RuntimeError: The GPU, or one of its libraries, does not work.
    """
    capability = torch.cuda.get_device_capability()
    builds = torch.cuda.get_arch_list()
    if torch.version.cuda is not None and not has_kernels(capability, builds):
        major, minor = capability
        return (
            f"{torch.cuda.get_device_name()} has compute capability {major}.{minor}, and torch "
            f"{torch.__version__} is built for {', '.join(builds)}; {WHICH_BUILD}"
        )
    torch.backends.cudnn.version()
    torch.ones(1, device="cuda").add_(1).item()
    return ""


def has_kernels(capability: Capability, builds: list[str]) -> bool:
    """Return whether torch was built for a GPU.

    Args:
        capability: The GPU's compute capability.
        builds: Architectures as torch.cuda.get_arch_list names them: sm_75 runs on 7.5 and what follows it in
            7, compute_120 on all from 12.0 on. A letter at the end narrows that down. Empty: torch does not
            know them.
    """
    return not builds or any(map(functools.partial(_can_run, capability), builds))


def _can_run(capability: Capability, build: str) -> bool:
    parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", build)
    if parts is None:
        return True  # a kind that is not known here: torch may know more
    kind, major, minor, letter = parts.groups()
    code = (int(major), int(minor))
    if letter == "a":
        return capability == code
    if kind == "compute" and not letter:
        return capability >= code
    return capability[0] == code[0] and capability >= code


def _first_sentence(error: object) -> str:
    """Return the first sentence of a message's first line."""
    line = str(error).strip().partition("\n")[0].removeprefix("CUDA initialization: ")
    return " ".join(re.split(r"\.\s+(?=[A-Z])", line)[0].split()).rstrip(".")
