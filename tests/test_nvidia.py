"""Which build of torch a GPU wants: of drivers and GPUs that a script in nvidia-smi's place tells of."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from ptb_lm.common import nvidia

INDEX = "file:///index/of/torch"

pytestmark = pytest.mark.slow  # each starts what stands in nvidia-smi's place


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script in nvidia-smi's place; it prints nothing until it is written."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(nvidia.INDEX, raising=False)
    says(folder / "nvidia-smi")
    return folder / "nvidia-smi"


def says(smi: Path, *lines: str, status: int = 0, instead: str = "") -> None:
    """Let nvidia-smi answer with some lines, or do something else."""
    printed = "".join(f"echo '{line}'\n" for line in lines)
    smi.write_text(f"#!/bin/sh\n{instead}\n{printed}exit {status}\n")
    smi.chmod(0o755)


OLD = "535.183.01, Tesla T4, 7.5"
NEW = "580.65.06, NVIDIA H100 80GB HBM3, 9.0"
VOLTA = "580.65.06, Tesla V100-SXM2-16GB, 7.0"


@pytest.mark.parametrize(
    ("lines", "build"),
    [
        ([NEW], ""),
        (["580.65.06, NVIDIA GeForce RTX 5090, 12.0"], ""),
        (["580.65.06, Tesla T4, 7.5"], ""),
        ([OLD], "cu126"),
        ([VOLTA], "cu126"),
        (["535.54.03, NVIDIA GeForce GTX 1080, 6.1"], "cu126"),
        (["525.60.13, NVIDIA A100-SXM4-40GB, 8.0"], "cu126"),
        (["570.86.10, NVIDIA B200, 10.0"], "cu128"),
        (["470.256.02, Tesla T4, 7.5"], None),
        (["525.60.12, Tesla T4, 7.5"], "cu126"),
        (["580.65.06, Tesla K80, 3.7"], None),
        (["570.86.10, Tesla V100, 7.0", "570.86.10, NVIDIA B200, 10.0"], None),
        ([NEW, VOLTA], "cu126"),
        # A driver that does not say is taken to be good enough.
        (["[N/A], NVIDIA H100, [N/A]"], ""),
    ],
)
def test_the_build_that_fits(lines: list[str], build: str | None, smi: Path) -> None:
    says(smi, *lines)
    found = nvidia.build_for(nvidia.gpus())
    assert (found and found.name) == build
    assert bool(nvidia.unusable_reason(nvidia.gpus())) is (build != "")


def test_a_driver_that_knows_no_capability_is_asked_without(smi: Path) -> None:
    says(smi, "470.57.02, Tesla T4", instead='case "$*" in *compute_cap*) exit 2;; esac')
    assert nvidia.gpus() == [nvidia.Gpu("Tesla T4", (470, 57, 2), ())]


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_a_gpu_that_is_hidden_is_none(hidden: str, smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says(smi, OLD)
    assert len(nvidia.gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert len(nvidia.gpus()) == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert nvidia.gpus() == []


def test_a_driver_that_names_no_gpu_or_does_not_answer_is_none(
    smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(smi, "NVIDIA-SMI has failed", status=9)
    assert nvidia.gpus() == []
    says(smi, "No devices were found")
    assert nvidia.gpus() == []
    monkeypatch.setattr(nvidia, "DRIVER_TIMEOUT", 0.05)
    says(smi, OLD, instead="exec sleep 5")
    assert nvidia.gpus() == []
    smi.write_bytes(b"\x7fELF, but no program")
    assert nvidia.gpus() == []


@pytest.mark.parametrize(
    ("lines", "index", "asked", "warning"),
    [
        ([], "", [], ""),
        ([], INDEX, ["--index-url", f"{INDEX}/cpu", "torch>=2.11,<=2.13.0"], ""),
        ([NEW], INDEX, [], ""),
        ([OLD], INDEX, ["--index-url", f"{INDEX}/cu126", "torch>=2.11,<=2.13.0"], ""),
        ([OLD], f"{INDEX}/", ["--index-url", f"{INDEX}/cu126", "torch>=2.11,<=2.13.0"], ""),
        (["570.1, B200, 10.0"], INDEX, ["--index-url", f"{INDEX}/cu128", "torch>=2.11,<2.12"], ""),
        (
            [OLD],
            "",
            [],
            "warning: the GPU Tesla T4 is not used: its driver 535.183.1 is older than 580; torch's build "
            "cu126 can use it: set PTB_LM_TORCH_INDEX to the address of PyTorch's package index, as "
            "docs/gpu.md says, or update the driver; until then training runs on the CPU",
        ),
        (
            ["580.1, Tesla K80, 3.7"],
            INDEX,
            [],
            "warning: the GPU Tesla K80 is not used: its compute capability 3.7 is one that this build has "
            "no kernels for; no build of torch 2.11 to 2.13 can use it, and training runs on the CPU; see "
            "docs/gpu.md",
        ),
    ],
)
def test_setup_asks_pip_for_it(
    lines: list[str], index: str, asked: list[str], warning: str, smi: Path
) -> None:
    """scripts/setup.sh itself, with a python that writes down what pip is asked for."""
    says(smi, *lines)
    folder = smi.parent.parent
    (folder / "scripts").mkdir()
    (folder / "scripts" / "setup.sh").write_text((ROOT / "scripts" / "setup.sh").read_text())
    for name in ("pyproject.toml", "setup.py", "constraints.txt"):
        (folder / name).write_text("")
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\nif [ "$2" = pip ]; then echo "$@" >> pip; exit; fi\n'
        f'PYTHONPATH={ROOT} {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", ". scripts/setup.sh; setup; setup"],
        cwd=folder,
        env={**os.environ, nvidia.INDEX: index, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    pip = "-m pip install --quiet --disable-pip-version-check --no-compile"
    expected = [f"{pip} --upgrade {' '.join(asked)}"] if asked else []
    assert (folder / "pip").read_text().splitlines() == [
        *expected,
        f"{pip} --constraint constraints.txt --editable .",
    ]
    said = [line for line in done.stderr.splitlines() if not line.startswith("Setting up")]
    assert said == ([warning] if warning else [])


def test_the_builds_are_of_the_torch_that_the_package_wants() -> None:
    (oldest,) = re.findall(r'"torch(>=[^"]*)"', (ROOT / "pyproject.toml").read_text())
    (newest,) = re.findall(r"^torch(<=.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert [build.torch for build in nvidia.BUILDS if build.name != "cu128"] == [
        f"torch{oldest},{newest}"
    ] * 2
