"""The machine's own rates, of matrix multiplication and of copying."""

import contextlib
import json
import subprocess
import sys
import time
from typing import Any

import pytest
import torch

from ptb_lm.bench.run import machine as module
from ptb_lm.bench.run.machine import Machine, Product
from ptb_lm.common.errors import UserError
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.torch_backend import cpu, machine_speed, native

PRECISIONS = [name for name in FRAMEWORKS["torch"].precisions if name not in FRAMEWORKS["torch"].needs_cuda]
PRODUCTS = [Product("softmax", 40, 30, 50), Product("its gradient", 30, 40, 50, "first")]


@pytest.mark.slow
def test_the_rates_are_told_with_the_device_library_shape_and_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module.WIDTH, "cpu", 256)  # not 2048, which takes seconds
    machine = Machine("cpu")
    assert (machine.device, machine.gpu) == ("cpu", None)
    assert machine.cpu == cpu.facts()
    shapes = {"256 × 256 × 256", *(product.shape for product in PRODUCTS)}
    for precision in ("fp32", "fp64", "bf16"):
        measured = machine.gemm(precision, PRODUCTS)
        assert 0.1 < measured["gemm_gflops"] < 1e5
        assert measured["gemm_library"] in {
            library.name for library in machine_speed.list_libraries("cpu", precision)
        }
        assert measured["gemm_shape"] in shapes
        if measured["gemm_library"].startswith("torch"):
            assert measured["gemm_threads"] == 1, "conftest.py asks for one"
        again = machine.gemm(precision, PRODUCTS)
        assert {**again, "gemm_gflops": 0} == {**measured, "gemm_gflops": 0}, "the pair that was found stays"
    assert 0.1 < machine.copy_gbytes() < 1e4
    # A precision that is none is one sentence, and the end.
    with pytest.raises(UserError, match=r"rates.*fp8"):
        machine.gemm("fp8", PRODUCTS)


@pytest.mark.slow
def test_a_request_is_a_line_and_so_is_its_reply() -> None:
    program = [sys.executable, "-m", "ptb_lm.torch_backend.machine_speed", "auto"]
    requests: list[dict[str, Any]] = [
        {"what": "device"},
        {"what": "gemm", "precision": "fp32", "products": [[4, 5, 6, "second"]]},
        {"what": "copy"},
    ]
    asked = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(program, input=asked, capture_output=True, text=True, check=True)
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [set(reply) for reply in replies] == [
        {"device", "gpu", "threads", "cpu"},
        {"gflops", "product", "library", "threads"},
        {"gbytes"},
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_library_multiplies_and_in_the_precision(precision: str) -> None:
    """Against the product in float64: no library may be fast by rounding more than the precision does."""
    bound = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 2**-10, "bf16": 2**-7}[precision]
    for transposed in ("", "first", "second"):
        for library in machine_speed.list_libraries("cpu", precision):
            a_MK, b_KN, c_MN = machine_speed.draw_operands((60, 70, 80, transposed), "cpu", precision)
            with library.context():
                library.multiply(a_MK, b_KN, c_MN)
            exact = a_MK.double() @ b_KN.double()
            error = (c_MN.double() - exact).abs().max() / exact.abs().max()
            assert error < bound, f"{library.name}, {transposed}"
            assert a_MK.is_contiguous() is (transposed != "first")
            assert b_KN.is_contiguous() is (transposed != "second")


def test_which_libraries_there_are() -> None:
    names = {
        precision: [each.name for each in machine_speed.list_libraries("cpu", precision)]
        for precision in PRECISIONS
    }
    own = "MKL" if torch.backends.mkl.is_available() else "BLAS"
    onednn = ["torch.mm (oneDNN)"] if cpu.is_onednn_exact() else []
    openblas = ["OpenBLAS"] if native.can_multiply() and native.unavailable_reason() is None else []
    assert names["fp32"] == [f"torch.mm ({own})", *onednn, *openblas, "NumPy"]
    assert names["fp64"] == [f"torch.mm ({own})", "NumPy"]
    assert len(names["bf16"]) == len(names["fp16"]) == 1


def test_numpy_s_threads_are_known_where_somebody_can_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("threadpoolctl")
    (numpy,) = (library for library in machine_speed.list_libraries("cpu", "fp32") if library.name == "NumPy")
    threads = numpy.threads()
    assert threads >= 1
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert numpy.threads() is None


def test_the_fastest_of_all_pairs_is_measured() -> None:
    """A product of two numbers is slower by far than one of two matrices, whoever does it."""
    products = ((1, 1, 1, ""), (512, 512, 512, ""), (1, 2, 1, "second"))
    rate = machine_speed.measure_products("cpu", "fp32", products)
    assert rate["product"] == 1
    assert rate["gflops"] > machine_speed.measure_products("cpu", "fp32", products[:1])["gflops"]


def test_a_product_that_takes_too_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in bfloat16 on a processor without instructions for it; here by a library that is that slow."""
    tried: list[int] = []

    def slowly(a_MK: torch.Tensor, b_KN: torch.Tensor, c_MN: torch.Tensor) -> None:
        tried.append(len(a_MK))
        time.sleep(len(a_MK) * 1e-5)

    slow = machine_speed.Library("slow", slowly, contextlib.nullcontext, lambda: 1)
    monkeypatch.setattr(machine_speed, "list_libraries", lambda device, precision: [slow])
    monkeypatch.setattr(machine_speed, "PRODUCT_SECONDS", 0.05)
    products = tuple((rows, 8, 8, "") for rows in (100_000, 10, 1, 100))
    assert machine_speed.measure_products("cpu", "fp64", products)["product"] != 0
    assert max(tried) == 100_000 // 64, "some rows tell"
    tried.clear()
    assert machine_speed.measure_products("cpu", "fp64", ((7000, 8, 8, ""),))["product"] == 0, (
        "there is no other"
    )


@pytest.mark.slow
def test_a_gpu_that_is_not_there_is_one_sentence() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    with pytest.raises(UserError, match=r"^--device cuda: torch \S+ "):
        Machine("cuda")


@pytest.mark.gpu
@pytest.mark.slow
def test_a_gpu_is_named_and_copies_faster_than_a_processor() -> None:
    with contextlib.closing(Machine("auto")) as machine:
        assert machine.device == "cuda"
        assert machine.gpu == torch.cuda.get_device_name()
        measured = machine.gemm("bf16", PRODUCTS)
        assert measured.pop("gemm_gflops") > 1000
        square = "8192 × 8192 × 8192"
        assert measured == {"gemm_library": "torch.mm (cuBLAS)", "gemm_shape": square, "gemm_threads": None}
        assert 100 < machine.copy_gbytes() < 1e5
