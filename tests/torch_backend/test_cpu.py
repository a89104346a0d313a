"""The choice of kernels and of the library of float32 products on a CPU."""

import contextlib
import functools
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typing_extensions import override

torch = pytest.importorskip("torch")

import runs  # noqa: E402
import training_steps  # noqa: E402
from forked import python  # noqa: E402
from implementations import override_implementation  # noqa: E402
from support import random_weights, random_windows  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from training_steps import assert_steps_equal_the_reference  # noqa: E402

from ptb_lm import train  # noqa: E402
from ptb_lm.common import host  # noqa: E402
from ptb_lm.common.errors import UserError  # noqa: E402
from ptb_lm.model import reference, rules  # noqa: E402
from ptb_lm.model.config import Config  # noqa: E402
from ptb_lm.model.ranks import Ranks  # noqa: E402
from ptb_lm.torch_backend import cpu, native, runtime  # noqa: E402
from ptb_lm.torch_backend.native import library  # noqa: E402

VOCABULARY = 31
IMPLEMENTATIONS = [
    pytest.param(cpu.Implementation(kernels, library), id=f"{kernels}-{library}")
    for kernels in cpu.KERNELS
    for library in cpu.FLOAT32_LIBRARIES
]


HAS_AVX512 = "AVX512" in torch.backends.cpu.get_cpu_capability()


@pytest.fixture(autouse=True)
def implementation_is_restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nor is it the user's: a run then keeps its own."""
    monkeypatch.delenv(cpu.KERNELS_VARIABLE, raising=False)
    with override_implementation():
        yield


build = functools.partial(training_steps.build, vocabulary=VOCABULARY)


def choose(choice: cpu.Implementation) -> None:
    cpu.set_implementation(choice)
    if cpu.get_implementation() != choice:
        pytest.skip(f"this machine cannot compute with {choice}")


@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("model", "tied"),
    [("basic", False), ("block", False), ("block_fused", False), ("block_fused", True), ("cudnn", False)],
)
def test_every_implementation_equals_the_reference(
    choice: cpu.Implementation, model: str, tied: bool, tiny_config: Config
) -> None:
    choose(choice)
    built = build(tiny_config.replace(tie_weights=tied, max_grad_norm=1.2), model=model)
    windows = random_windows(built.config, VOCABULARY, 20, seed=2)
    assert_steps_equal_the_reference(built, windows, bound=1e-5, rate=0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
def test_products_equal_those_in_float64(choice: cpu.Implementation, dtype: torch.dtype) -> None:
    choose(choice)
    stream = torch.Generator().manual_seed(0)
    bound = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float64: 1e-14}[dtype]
    a, b, c = (torch.randn(shape, generator=stream).to(dtype) for shape in ((33, 70), (70, 41), (41, 70)))
    for found, expected in (
        (cpu.multiply(a, b), a.double() @ b.double()),
        (cpu.multiply_transposed(a.T, b), a.double() @ b.double()),
        (cpu.multiply(a, c.T), a.double() @ c.double().T),
        (cpu.multiply(a, b, out=torch.empty(33, 41, dtype=dtype)), a.double() @ b.double()),
    ):
        assert ((found.double() - expected).norm() / expected.norm()).item() < bound


@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
def test_a_product_that_autograd_records_has_its_gradient(choice: cpu.Implementation) -> None:
    choose(choice)
    stream = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=stream) for shape in ((3, 5), (5, 4)))
    a.requires_grad_()
    (found,) = torch.autograd.grad(cpu.multiply(a, b).sum(), a)
    torch.testing.assert_close(found, b.sum(1).expand(3, 5))


@pytest.mark.parametrize("choice", IMPLEMENTATIONS)
def test_torch_s_own_setting_is_restored(choice: cpu.Implementation) -> None:
    choose(choice)
    settings = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    with pytest.raises(ZeroDivisionError), cpu.use_float32_library(torch.ones(1)):
        1 / 0  # noqa: B018
    assert settings.fp32_precision == before


@pytest.mark.slow
def test_implementations_of_a_processor_without_matrix_units() -> None:
    """The tests above that such a processor alone can run, on one that oneDNN is told to take for it."""
    if cpu.is_onednn_exact():
        pytest.skip("they have just been run")
    if not HAS_AVX512:
        pytest.skip("without AVX-512 torch never gives float32 products to oneDNN")
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-k", "oneDNN"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["DEFAULT", "AVX512_CORE_BF16", "AVX2"])
def test_onednn_is_exact_only_where_it_computes_in_float32(isa: str) -> None:
    """On a processor like this one, and on ones without matrix units, which oneDNN can be told to assume.

    oneDNN itself says which products it computes.
    """
    code = """
import dataclasses
import torch
from ptb_lm.torch_backend import cpu
a, b = (torch.randn(200, 200, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
cpu.set_implementation(dataclasses.replace(cpu.get_implementation(), float32_library="oneDNN"))
print(cpu.is_onednn_exact(), "products", flush=True)
with cpu.use_float32_library(a):
    found = a @ b
expected = a.double() @ b.double()
print(float((found - expected).norm() / expected.norm()) < 1e-6)
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    before, _, after = done.stdout.partition(" products\n")
    exact, right = before.split()[-1], after.split()[-1]
    assert right == "True"
    assert (exact == "True") == ("exec,cpu,matmul" in after)
    if isa != "DEFAULT":
        assert (exact == "True") == (HAS_AVX512 and isa != "AVX2")


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cpu._is_avx512_bf16_supported() or cpu.kernels_unavailable_reason() is not None,
    reason="needs AVX512_BF16 and kernels",
)
@pytest.mark.parametrize("isa", ["DEFAULT", "AVX2"])
def test_kernels_run_in_the_types_that_onednn_may_multiply(isa: str) -> None:
    """And a run takes bfloat16 where they run in it, and fast."""
    program = """
from ptb_lm.model import fastest
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.torch_backend import runtime
safe = Choice.create(device="cpu", model="cudnn", precision="fp32")
chosen = fastest.choose(safe, Config(hidden_size=200), fixed=()).choice
in_bf16 = runtime.Runtime(Choice.create(device="cpu", model="block_fused", precision="bf16"))
print(chosen.model, chosen.precision, "native" in runtime.Runtime(chosen).engine, bool(in_bf16.hints))
print("native" in in_bf16.engine)
"""
    done = python(program, ONEDNN_MAX_CPU_ISA=isa)
    is_fast = isa == "DEFAULT" and cpu.is_bfloat16_fast()
    precision = "bf16" if is_fast else "fp32"
    *found, runs_in_bf16 = done.stdout.split()
    assert found == ["block_fused", precision, "True", str(not is_fast)], done.stderr
    assert runs_in_bf16 == str(isa == "DEFAULT")


@contextlib.contextmanager
def record_shapes() -> Iterator[set[tuple[int, ...]]]:
    """Return a context that adds the shapes [M, K, N] of torch's products in it to a set."""
    shapes = set[tuple[int, ...]]()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
                shapes.add((*args[-2].shape, args[-1].shape[1]))
            return function(*args, **(kwargs or {}))

    with Recorder():
        yield shapes


by_onednn = pytest.mark.parametrize(
    "choice",
    [
        pytest.param((kernels, library, precision), id=f"{kernels}-{library}-{precision}")
        for kernels in cpu.KERNELS
        for library, precision in (("oneDNN", "fp32"), ("MKL", "bf16"))  # bf16's is oneDNN in either case
    ],
)


def build_by_onednn(config: Config, choice: tuple[str, str, str]) -> Any:
    *implementation, precision = choice
    choose(cpu.Implementation(*implementation))
    if precision == "bf16" and not cpu.has_onednn(torch.bfloat16):
        pytest.skip("oneDNN does not multiply in bfloat16")
    return build(config, model="block_fused", precision=precision)


@by_onednn
def test_scores_of_any_number_of_words_take_few_products(
    choice: tuple[str, str, str], tiny_config: Config
) -> None:
    """oneDNN keeps code for each number of rows."""
    built, bound = (
        build_by_onednn(tiny_config, choice),
        {"rtol": 0, "atol": 5e-3 if "bf16" in choice else 1e-5},
    )
    weights, rng = built.export_weights(), np.random.default_rng(0)
    with record_shapes() as shapes:
        for words in range(65, 129, 4):
            for lengths in ([words], [words // 2, words // 3, words - words // 2 - words // 3]):
                batch, steps = len(lengths), lengths[0]
                x_BT, y_BT = rng.integers(VOCABULARY, size=(2, batch, steps), dtype=np.int32)
                zero = built.zero_state(batch)
                lengths_B = np.array(lengths) if batch > 1 else None
                _, found_BT = built.log_probabilities(x_BT, y_BT, zero, lengths_B=lengths_B)
                _, next_BV = built.next_word_log_probabilities(x_BT, zero)
                _, all_BTV = reference.log_probabilities(weights, x_BT, reference.zero_state(weights, batch))
                expected_BT = np.take_along_axis(all_BTV, y_BT[..., None], axis=-1)[..., 0]
                valid_BT = np.arange(steps) < np.array(lengths)[:, None]
                np.testing.assert_allclose(found_BT[valid_BT], expected_BT[valid_BT], **bound)
                np.testing.assert_allclose(next_BV, all_BTV[:, -1], **bound)
    rows = {shape[0] for shape in shapes if 65 <= shape[0] <= 128}
    assert 1 <= len(rows) <= 8, rows


def test_rows_are_rounded_up_by_an_eighth_and_by_64_at_most() -> None:
    like = torch.empty(0, dtype=torch.float32)
    choose(cpu.Implementation("native", "oneDNN"))
    rounded = {rows: cpu.round_rows(rows, like) for rows in range(1, 4000)}
    assert all(0 <= more - rows <= min(63, rows / 8) for rows, more in rounded.items())
    assert len({*rounded.values()}) < 120
    choose(cpu.Implementation("native", "MKL"))
    assert cpu.round_rows(3301, like) == 3301


@by_onednn
def test_training_and_its_evaluation_multiply_no_row_more(
    choice: tuple[str, str, str], tiny_config: Config
) -> None:
    """Every run that was trained computed so."""
    built = build_by_onednn(tiny_config.replace(num_steps=43), choice)
    ((x_BT, y_BT),) = random_windows(built.config, VOCABULARY, 1, seed=2)
    with record_shapes() as shapes:
        state, _ = built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.1)
        built.log_probabilities(x_BT[:2], y_BT[:2], built.zero_state(2))  # which pads, itself alone
        built.evaluate_step(x_BT, y_BT, state)
    sizes = {size for shape in shapes for size in shape}
    assert 3 * 43 in sizes
    assert not sizes & {*range(3 * 43 + 1, 200)}


def test_a_resumed_run_keeps_its_implementation(tiny_config: Config) -> None:
    built = build(tiny_config, model="block_fused")
    for kernels in cpu.KERNELS:
        cpu.set_implementation(cpu.Implementation(kernels, "MKL"))
        saved, computed = built.export_training_state(built.zero_state(3)), cpu.get_implementation()
        cpu.set_implementation(cpu.Implementation("native", "MKL"))
        built.load_training_state(saved)
        assert cpu.get_implementation() == computed
        assert built.environment()["kernels"] == computed.kernels
        assert f"{computed.kernels} kernels" in built.engine
    del saved["torch.cpu"]  # of a run that was on a GPU
    built.load_training_state(saved)
    for wrong in ([9, 0], [-1, 0], [0, -1], [0], []):
        saved["torch.cpu"] = np.array(wrong, np.int8)
        with pytest.raises(UserError, match=r"torch\.cpu"):
            built.load_training_state(saved)


@pytest.mark.slow
def test_the_result_of_a_resumed_run_names_the_implementation_that_it_kept(
    data: Path, tmp_path: Path
) -> None:
    with override_implementation(kernels="torch"):
        run = runs.train_run(data, tmp_path / "run", "--epochs", "1")
    cpu.set_implementation(cpu.Implementation("native", "MKL"))
    assert train.main(["--resume", str(run), "--epochs", "2"]) == 0
    assert runs.result(run)["environment"]["kernels"] == "torch"


def test_the_implementation_of_a_resumed_run_is_not_that_of_the_next_one(tiny_config: Config) -> None:
    """The seeds of a command are trained in one process; some of them may be resumed."""
    before, built = cpu.get_implementation(), build(tiny_config, model="block_fused")
    saved = built.export_training_state(built.zero_state(3))
    other = "torch" if before.kernels == "native" else "native"
    saved["torch.cpu"] = np.array([cpu.KERNELS.index(other), 0], np.uint8)
    built.load_training_state(saved)
    if cpu.get_implementation().kernels != other:
        pytest.skip("this machine has one implementation alone")
    following = build(tiny_config, model="block_fused")
    assert cpu.get_implementation() == before
    assert following.environment()["kernels"] == before.kernels


class Second(Ranks):
    """The second of two processes, of which the first computes by torch's kernels."""

    rank, size = 1, 2

    @override
    def gather(self, value: Any) -> list[Any]:
        return [np.array([cpu.KERNELS.index("torch"), 0], np.uint8), value]


def test_each_of_several_processes_keeps_its_implementation() -> None:
    own = cpu.get_implementation()
    saved = cpu.export_implementation(Second())
    cpu.restore_implementation(saved, Second())
    assert cpu.get_implementation() == own
    cpu.restore_implementation(saved)  # of another number of processes: as the first
    assert cpu.get_implementation() == cpu.Implementation("torch", "MKL")


def test_the_variable_has_priority_over_a_resumed_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu.KERNELS_VARIABLE, "torch")
    cpu.restore_implementation(np.array([cpu.KERNELS.index("native"), 0], np.uint8))
    assert cpu.get_implementation().kernels == "torch"
    monkeypatch.setenv(cpu.KERNELS_VARIABLE, "native")
    cpu.restore_implementation(np.array([cpu.KERNELS.index("torch"), 0], np.uint8))
    assert cpu.get_implementation().kernels == ("torch" if native.unavailable_reason() else "native")
    monkeypatch.setenv(cpu.KERNELS_VARIABLE, "bogus")
    with pytest.raises(UserError, match="PTB_LM_KERNELS=bogus"):
        cpu.set_implementation(cpu.get_implementation())


def test_nothing_is_compiled_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without memory stands for one of another device."""

    def fail() -> None:
        raise AssertionError

    monkeypatch.setattr(cpu, "get_implementation", fail)
    x = torch.empty(3, 3, device="meta")
    assert cpu.find_kernels(x) is None
    assert cpu.find_recurrence_kernels(x) is None
    with cpu.use_float32_library(x):
        pass
    assert cpu.multiply_transposed(x, x).shape == (3, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernels", "library", "precision"),
    [("native", "OpenBLAS", "fp32"), ("torch", "oneDNN", "fp32"), ("native", "MKL", "bf16")],
)
def test_block_fused_is_compiled_with_every_kernel_and_library(
    kernels: str, library: str, precision: str, tiny_config: Config
) -> None:
    """MKL and torch's own kernels are compiled elsewhere: float64 knows no others."""
    choice = cpu.Implementation(kernels, library)
    choose(choice)
    config = tiny_config.replace(num_layers=1)  # each is compiled by itself
    weights = random_weights(config, VOCABULARY, 1)
    built = build(config, model="block_fused", execution="compile", precision=precision)
    assert "(compile)" in built.engine
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    _, loss = built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.1)
    expected, _, _ = reference.loss_and_gradients(weights, x_BT, y_BT, reference.zero_state(weights, 3))
    bound = 1e-2 if precision == "bf16" else 1e-5
    assert built.read([loss])[0].nll / 3 == pytest.approx(expected, rel=bound)


def test_the_default_depends_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for intel, exact, has_openblas, expected in (
            (True, True, True, "MKL"),
            (False, True, True, "oneDNN"),
            (False, False, True, "OpenBLAS"),
            (False, False, False, "MKL"),
        ):
            if expected == "OpenBLAS" and native.unavailable_reason():
                continue
            monkeypatch.setattr(cpu, "is_intel", lambda intel=intel: intel)
            monkeypatch.setattr(cpu, "is_onednn_exact", lambda exact=exact: exact)
            address = 1 if has_openblas else None  # nothing is called
            monkeypatch.setattr(library, "find_sgemm", lambda address=address: address)
            cpu.default_implementation.cache_clear()
            assert cpu.default_implementation().float32_library == expected
            if expected == "OpenBLAS":
                with override_implementation(float32_library="OpenBLAS"):
                    assert (
                        cpu.describe_implementation(torch.float32) == "products by OpenBLAS, native kernels"
                    )
                    assert cpu.facts()["float32_products"].startswith("OpenBLAS")
                monkeypatch.setenv(cpu.KERNELS_VARIABLE, "torch")
                cpu.default_implementation.cache_clear()
                assert cpu.default_implementation().float32_library == "MKL", "the kernels call OpenBLAS"
                monkeypatch.delenv(cpu.KERNELS_VARIABLE)
    finally:
        monkeypatch.undo()
        cpu.default_implementation.cache_clear()


def test_a_build_of_torch_without_mkl_or_onednn_is_not_said_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops, "mkldnn", None)  # its operators are not there
    with override_implementation(float32_library="MKL"):
        assert cpu.facts()["float32_products"] == "BLAS"
        assert cpu.describe_implementation(torch.float32).startswith("products by BLAS, ")
    assert not cpu.has_onednn(torch.bfloat16)


def test_private_names_of_torch_exist() -> None:
    """Where one of these has gone, the code that uses it must change."""
    assert isinstance(torch.cpu._is_avx512_bf16_supported(), bool)
    assert isinstance(torch.cpu._is_amx_tile_supported(), bool)
    if torch.backends.mkldnn.is_available():
        assert isinstance(torch.backends.mkldnn.matmul.fp32_precision, str)  # type: ignore[attr-defined]
    assert isinstance(torch.autograd.profiler._is_profiler_enabled, bool)
    if sys.platform == "linux":
        assert "cannot be loaded" not in (native.unavailable_reason() or "")


@pytest.mark.parametrize(
    ("products", "cpuinfo", "is_fast"),
    [
        ("AMX", "GenuineIntel avx512_bf16 avx512_fp16 amx_bf16", True),
        ("AVX512_BF16", "GenuineIntel avx512_bf16 avx512_fp16", False),
        ("AVX512_BF16", "GenuineIntel avx512_bf16", True),  # Cooper Lake
        ("AVX512_BF16", "vendor_id: AuthenticAMD avx512_bf16", True),
        ("AVX512_BF16", "vendor_id: AuthenticAMD avx512_bf16 avx512_fp16", True),
        ("", "GenuineIntel", False),
        ("", "vendor_id: AuthenticAMD", False),
    ],
)
def test_bfloat16_is_slow_where_intel_s_amx_is_hidden(
    monkeypatch: pytest.MonkeyPatch, products: str, cpuinfo: str, is_fast: bool
) -> None:
    monkeypatch.setattr(cpu, "bfloat16_products", lambda: products)
    monkeypatch.setattr(host, "read_cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(cpu, "is_intel", cpu.is_intel.__wrapped__)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    machine = runtime.examine("cpu")
    assert (rules.BFLOAT16 in machine.features) == is_fast
    assert machine.name.startswith(f"a CPU with {products}" if is_fast else "a CPU without fast products")


@pytest.mark.skipif(
    cpu.kernels_unavailable_reason() is not None, reason="without kernels there is another hint"
)
def test_hints_say_why_what_was_chosen_is_slow_here(
    monkeypatch: pytest.MonkeyPatch, tiny_config: Config
) -> None:
    def hints(model: str, precision: str) -> str:
        return "".join(build(tiny_config, model=model, precision=precision).hints)

    monkeypatch.setattr(cpu, "bfloat16_products", lambda: "AMX")
    assert hints("basic", "fp32") == hints("block_fused", "bf16") == ""
    assert "fp16" in hints("block_fused", "fp16")
    assert "persistent" in hints("persistent", "fp32")
    monkeypatch.setattr(cpu, "bfloat16_products", lambda: "")
    assert "bf16" in hints("block_fused", "bf16")
    assert hints("block_fused", "fp32") == ""
    monkeypatch.setattr(cpu, "facts", lambda: {"no_kernels": "there is no compiler"})
    assert "no compiler" in hints("block_fused", "fp32")
    assert hints("block_fused", "fp64") == "", "it has no kernels anyway"
