"""The NVIDIA GPUs of this machine, as the driver names them, and the build of torch that can use them.

Run as a script, before anything is installed, it tells scripts/setup.sh which build to take.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from ptb_lm.common import streams

Version = tuple[int, ...]

DRIVER_TIMEOUT = 20  # seconds that a driver may take to answer

PAGE = "docs/gpu.md"
INDEX = "PTB_LM_TORCH_INDEX"  # names PyTorch's package index, which has a folder a build


class Gpu(NamedTuple):
    """A GPU.

    Attributes:
        name: The name that NVIDIA gives it.
        driver: The version of the driver; empty if it does not say.
        capability: The compute capability; empty if a driver is too old to say.
    """

    name: str
    driver: Version
    capability: Version


class TorchBuild(NamedTuple):
    """A build of torch.

    Attributes:
        name: The folder in PyTorch's index; "" is the build that pip installs by default.
        torch: The requirement for pip.
        driver: The oldest driver that can run it; empty without CUDA.
        capabilities: The first compute capability that it supports, and the first above those; both empty
            without CUDA.
    """

    name: str
    torch: str
    driver: Version
    capabilities: tuple[Version, Version]


# The builds of torch 2.11 to 2.13 for Linux, the best first: the matrix in PyTorch's RELEASE.md, and
# PYTORCH_RELEASES_CODE_CC in torch/cuda. Drivers: CUDA's release notes; one of CUDA 12 runs all of 12.
BUILDS = (
    TorchBuild("", "torch>=2.11,<=2.13.0", (580,), ((7, 5), (99,))),  # CUDA 13.0
    TorchBuild("cu126", "torch>=2.11,<=2.13.0", (525, 60), ((5, 0), (10, 0))),
    # The only build for Blackwell with a driver for CUDA 12; only torch 2.11 has it.
    TorchBuild("cu128", "torch>=2.11,<2.12", (570,), ((7, 5), (13, 0))),
)
WITHOUT_CUDA = TorchBuild("cpu", BUILDS[0].torch, (), ((), ()))  # gigabytes smaller


def gpus() -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists; none if there is no driver, or if the user hides them."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not re.match(r"\s*[\w.]", hidden):  # "", or -1
        return []
    if (command := shutil.which("nvidia-smi")) is None:
        return []
    for fields in ("driver_version,name,compute_cap", "driver_version,name"):  # old ones know no compute_cap
        try:
            query = [command, f"--query-gpu={fields}", "--format=csv,noheader"]
            done = subprocess.run(query, capture_output=True, text=True, timeout=DRIVER_TIMEOUT, check=False)
        except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
            return []
        if done.returncode == 0:
            # Where there is no GPU, it may say so.
            return [_parse_gpu(line) for line in done.stdout.splitlines() if line[:1].isdigit()]
    return []


def build_for(found: list[Gpu]) -> TorchBuild | None:
    """Return the build of torch that can use all the given GPUs, or None."""
    usable = (build for build in BUILDS if all(not _obstacle(gpu, build) for gpu in found))
    return next(usable, None)


def unusable_reason(found: list[Gpu]) -> str:
    """Return why pip's default build of torch cannot use some of these GPUs; "" if it can."""
    return next((each for gpu in found if (each := _obstacle(gpu, BUILDS[0]))), "")


@functools.cache
def warn(reason: str) -> None:
    """Say on stderr, once per process, why the CPU is used although there is a GPU."""
    streams.print_to_stderr(f"warning: computing on the CPU: {reason}")


def _obstacle(gpu: Gpu, build: TorchBuild) -> str:
    """Return why a build cannot use a GPU, as far as the two are known; "" if it can."""
    first, beyond = build.capabilities
    if gpu.driver and gpu.driver < build.driver:
        return f"its driver {_format_version(gpu.driver)} is older than {_format_version(build.driver)}"
    if gpu.capability and not first <= gpu.capability < beyond:
        capability = _format_version(gpu.capability)
        return f"its compute capability {capability} is one that this build has no kernels for"
    return ""


def _format_version(version: Version) -> str:
    return ".".join(map(str, version))


def _parse_gpu(line: str) -> Gpu:
    driver, name, capability = (*(part.strip() for part in line.split(",")), "")[:3]
    return Gpu(name, _parse_version(driver), _parse_version(capability))


def _parse_version(text: str) -> Version:
    return tuple(map(int, re.findall(r"\d+", text)))


def main() -> None:
    """Print pip's arguments for the build of torch that fits, one per line; nothing if pip's default fits.

    If no build fits, a line on stderr says so, and pip's default is used.
    """
    found, index = gpus(), os.environ.get(INDEX, "").rstrip("/")
    build = build_for(found) if found else WITHOUT_CUDA
    if build and build.name and index:
        print("--index-url", f"{index}/{build.name}", build.torch, sep="\n")
    elif problem := unusable_reason(found):
        remedy = f"no build of torch 2.11 to 2.13 can use it, and training runs on the CPU; see {PAGE}"
        if build:
            remedy = (
                f"torch's build {build.name} can use it: set {INDEX} to the address of PyTorch's package "
                f"index, as {PAGE} says, or update the driver; until then training runs on the CPU"
            )
        print(f"warning: the GPU {found[0].name} is not used: {problem}; {remedy}", file=sys.stderr)


if __name__ == "__main__":
    main()
