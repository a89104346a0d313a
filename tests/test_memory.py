"""What is said about memory: sizes that people can read, and those that other libraries' errors name."""

import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ptb_lm.common import control_groups, host
from ptb_lm.common.errors import OutOfMemoryError


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**70, "1,024.0 EiB"),
        (math.inf, "an unknown amount"),
    ],
)
def test_a_size_is_shown_in_a_readable_unit(size: float, text: str) -> None:
    assert host.format_size(size) == text


@pytest.mark.parametrize("limited", ["memory.max", "slurm/memory.max", "memory/memory.limit_in_bytes"])
def test_the_least_limit_of_a_control_group_counts(
    limited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 2**27 < host.memory_limit() < 2**60
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups, "MEMBERSHIP", tmp_path / "groups")
    (tmp_path / "groups").write_text("0::/slurm/job_7\n")
    unlimited = {"memory.max": "max\n", "slurm/memory.max": "max\n", "slurm/job_7/memory.max": ""}
    for name, text in unlimited.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert control_groups.memory_limit() == math.inf
    (tmp_path / limited).parent.mkdir(exist_ok=True)
    (tmp_path / limited).write_text(f"{2**26}\n")
    assert host.memory_limit() == control_groups.memory_limit() == 2**26


def test_numpy_and_torch_say_how_much_was_asked_for() -> None:
    has = host.format_size(host.memory_limit())
    for allocate in (lambda: np.empty(2**56, np.uint8), lambda: torch.empty(2**56, dtype=torch.uint8)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert re.fullmatch(f".* 64.0 PiB, .* {has}", host.describe_failed_allocation(caught.value))


def test_the_size_of_a_gpu_is_the_one_that_cuda_names() -> None:
    # As torch 2.13 words it on an H100.
    error = RuntimeError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
        "1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch"
    )
    assert re.fullmatch(".* 2.0 GiB, .* GPU .* 79.10 GiB", host.describe_failed_allocation(error))


def test_without_numbers_the_sentence_has_none() -> None:
    assert host.describe_failed_allocation(MemoryError()) == ""
    assert "(" not in str(OutOfMemoryError())
    error = OutOfMemoryError("all of it")
    assert "(all of it)" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error), "the same in another process"
