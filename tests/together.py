"""Processes that train together, without a launcher: for tests. What each does is in rank_program.py."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from support import ROOT


def start(size: int, command: Sequence[str]) -> list[Any]:
    """Start a command once for each rank."""
    port, *ports = free_ports(1 + size)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            [sys.executable, *command],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
                **address,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "TF_CONFIG": tf_config(ports, rank),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody uses."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def tf_config(ports: Sequence[int], rank: int) -> str:
    """Return TensorFlow's description of a chief and workers on this machine, for one of them."""
    chief, *workers = [f"127.0.0.1:{port}" for port in ports]
    task = {"type": "worker", "index": rank - 1} if rank else {"type": "chief", "index": 0}
    return json.dumps({"cluster": {"chief": [chief], "worker": workers}, "task": task})


def assert_computed_by_one(several: Sequence[dict[str, Any]], alone: dict[str, Any], *, bound: float) -> None:
    """Assert that each of several computed in a case what one alone did, and all the same to the bit."""
    first = several[0]
    for quantity in ("nll", "gradient_norm", "evaluated"):
        np.testing.assert_allclose(first[quantity], alone[quantity], rtol=bound, err_msg=quantity)
    np.testing.assert_allclose(first["carried"], alone["carried"], atol=bound)
    for weight, array in alone["weights"].items():
        np.testing.assert_allclose(first["weights"][weight], array, atol=bound, err_msg=weight)
    assert all(other == first for other in several)


def done_together(size: int, how: str, cases: Sequence[dict[str, Any]]) -> list[list[Any]]:
    """Return what each of some processes found in each case, by a function of rank_program.py.

    Args:
        size: How many processes.
        how: They train together by which framework; or "devices": each of them on two of TensorFlow's.
        cases: What to do.
    """
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(each) for each in start(size, ["-m", "rank_program", how])]
        # At the same time: one that cannot write what it found would let the others wait for it.
        with ThreadPoolExecutor(size) as pool:
            said = pool.map(lambda process: process.communicate(json.dumps(list(cases))), processes)
            outputs = [(*each, process.wait()) for each, process in zip(said, processes, strict=True)]
    for _, stderr, status in outputs:
        assert status == 0, stderr
    return [json.loads(stdout) for stdout, _, _ in outputs]
