"""The compiled kernels against torch in float64, and what happens where there are none."""

import itertools
import math
import mmap
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import runs  # noqa: E402
from forked import python as run  # noqa: E402
from implementations import override_implementation  # noqa: E402

from ptb_lm.model import cells  # noqa: E402
from ptb_lm.model.dropout_places import MaskSpec  # noqa: E402
from ptb_lm.torch_backend import cpu, dropout, mogrifier_fused, native  # noqa: E402
from ptb_lm.torch_backend.loss import SoftmaxLayer, global_norm  # noqa: E402
from ptb_lm.torch_backend.lstm_fused import FusedSequence  # noqa: E402
from ptb_lm.torch_backend.native import library  # noqa: E402
from ptb_lm.torch_backend.optimizers import add_scaled  # noqa: E402
from ptb_lm.torch_backend.precision import PRECISIONS, Masters  # noqa: E402

needs_kernels = pytest.mark.skipif(
    native.unavailable_reason() is not None, reason=f"no kernels: {native.unavailable_reason()}"
)
TYPES = [torch.float32, torch.bfloat16]
# Relative to the norm of what is computed; bfloat16 rounds each number that is kept to 2^-9.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
WIDE_LAYER = 1501  # units: its backward pass multiplies a stretch of the gates at a time


@pytest.fixture(autouse=True)
def implementation_is_restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    with override_implementation():
        yield
    torch.set_num_threads(threads)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected).norm() / expected.norm())


def in_threads(*counts: int) -> Iterator[int]:
    for threads in counts:
        torch.set_num_threads(threads)
        yield threads


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hidden", [1, 5, 16, 37, 70, WIDE_LAYER])
@pytest.mark.parametrize("batch_sizes", [(1,), (3, 3, 3, 3), (4, 3, 3, 1, 1), (21, 20), (260, 129)])
def test_the_recurrence_and_its_gradients(
    dtype: torch.dtype, hidden: int, batch_sizes: tuple[int, ...]
) -> None:
    """Against the same operation in float64, whose gradient is checked by finite differences elsewhere."""
    if dtype not in native.load().recurrent:
        pytest.skip(f"this CPU has no product of {dtype}")
    stream, width, batch, steps = torch.Generator().manual_seed(hidden), 11, batch_sizes[0], sum(batch_sizes)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=stream) * 0.7).to(dtype)

    inputs = [
        draw(steps, width),
        draw(batch, hidden),
        draw(batch, hidden).float(),
        draw(width, 4 * hidden),
        draw(hidden, 4 * hidden) * min(1, 70 / hidden),  # larger ones make rounding errors grow over time
        draw(4 * hidden),
    ]
    d_outputs = [draw(steps, hidden), draw(batch, hidden).float()]

    def compute(inputs: list[torch.Tensor], d_outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [value.clone().requires_grad_() for value in inputs]
        outputs = FusedSequence.apply(*leaves, batch_sizes)  # type: ignore[no-untyped-call]
        return [*(output.detach() for output in outputs), *torch.autograd.grad(outputs, leaves, d_outputs)]

    expected = compute([value.double() for value in inputs], [value.double() for value in d_outputs])
    for library_name in cpu.FLOAT32_LIBRARIES:
        with override_implementation(float32_library=library_name) as choice:
            if choice.float32_library != library_name:
                continue
            by_threads = []
            for _ in in_threads(1, 2):
                assert cpu.find_recurrence_kernels(inputs[0]) is not None
                found = compute(inputs, d_outputs)
                by_threads.append([*found[:2], *found[3:5]])  # the kernels', without the products around them
                for index, (one, other) in enumerate(zip(found, expected, strict=True)):
                    assert error(one, other) < ROUNDING[dtype], (library_name, index)
        if library_name != "OpenBLAS":  # whose bits depend on how many threads there are; the kernels' do not
            assert all(torch.equal(one, other) for one, other in zip(*by_threads, strict=True))


@needs_kernels
def test_nearly_closed_gates_keep_their_digits() -> None:
    """Each number by itself: in the norm of all, those of the open gates would hide them."""
    stream, hidden, steps = torch.Generator().manual_seed(1), 70, 3

    def between(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(hidden, generator=stream)

    bias = torch.cat([between(-30, 2), between(-30, 2), between(0.1, 1), between(-30, 2)])
    zeros = torch.zeros(hidden, 4 * hidden)
    start = [torch.zeros(1, hidden), between(0.1, 1)[None]]
    inputs = [torch.zeros(steps, 1), *start, torch.zeros(1, 4 * hidden), zeros, bias]
    found, expected = ([value.to(dtype) for value in inputs] for dtype in (torch.float32, torch.float64))
    results = []
    for leaves in (found, expected):
        for leaf in leaves:
            leaf.requires_grad_()
        outputs = FusedSequence.apply(*leaves, (1,) * steps)  # type: ignore[no-untyped-call]
        ones = [torch.ones_like(output) for output in outputs]
        results.append([*outputs, torch.autograd.grad(outputs, leaves[-1:], ones)[0]])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=0)


@needs_kernels
def test_a_cell_whose_gates_are_open_or_closed_forgets_nothing() -> None:
    hidden, steps = 20, 1000
    bias = torch.tensor([-30.0, 30.0, 30.0, 30.0]).repeat_interleave(hidden)
    c_1H = torch.rand(1, hidden, generator=torch.Generator().manual_seed(1))
    zeros = [torch.zeros(steps, 1), torch.zeros(1, hidden), c_1H, torch.zeros(1, 4 * hidden)]
    with torch.no_grad():
        outputs = FusedSequence.apply(*zeros, torch.zeros(hidden, 4 * hidden), bias, (1,) * steps)  # type: ignore[no-untyped-call]
    assert torch.equal(outputs[1], c_1H)


@needs_kernels
def test_tanh_reaches_one() -> None:
    """Whatever the processor: it is the quotient of two sums, which round in other ways with FMA."""
    hidden = 20
    bias = torch.tensor([30.0, -30.0, 30.0, 30.0]).repeat_interleave(hidden)
    ends = torch.tensor([-1.0, 1.0]).repeat(hidden // 2)
    bias[2 * hidden : 3 * hidden] = ends * torch.arange(10, 10 + hidden)
    zeros = [torch.zeros(shape) for shape in ((1, 1), (1, hidden), (1, hidden), (1, 80), (hidden, 80))]
    with torch.no_grad():
        _, c_1H = FusedSequence.apply(*zeros, bias, (1,))  # type: ignore[no-untyped-call]
    assert torch.equal(c_1H[0], ends)


@needs_kernels
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
@pytest.mark.parametrize("dtype", TYPES)
def test_a_recurrence_over_any_number_of_samples_keeps_little_memory(dtype: torch.dtype) -> None:
    """Scoring runs it with almost any number, and torch keeps oneDNN's code for each that is asked for."""
    kernels, hidden = native.load(), 64
    if dtype not in kernels.recurrent:
        pytest.skip(f"this CPU has no product of {dtype}")

    def run(samples: int) -> int:
        """Return the bytes of memory that the process has after it, in use or not."""
        gates, weights = torch.zeros(samples, 4 * hidden), torch.zeros(hidden + 1, 4 * hidden)
        h, c = (torch.zeros(2 * samples, hidden) for _ in range(2))  # in bfloat16 too as wide as they must be
        narrow = [each.to(dtype) for each in (gates, weights[0], weights[1:], h)]
        kernels.lstm_forward(*narrow, c, (samples,))
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    before = run(1200)
    assert max(run(samples) for samples in range(600, 1200, 2)) - before < 90e6


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rounds", "rank"), [(0, 0), (1, 3), (2, 0), (5, 0), (5, 37)])
@pytest.mark.parametrize(
    ("inputs", "hidden", "batch_sizes"),
    [(1, 5, (1,)), (37, 70, (4, 3, 3, 1, 1)), (70, 33, (21, 20)), (37, WIDE_LAYER, (3, 2))],
)
def test_a_mogrifier_s_recurrence_and_its_gradients(
    inputs: int, hidden: int, batch_sizes: tuple[int, ...], rounds: int, rank: int, dtype: torch.dtype
) -> None:
    """Likewise; the same bits in any number of threads."""
    if dtype not in native.load().recurrent:
        pytest.skip(f"this CPU has no product of {dtype}")
    stream, batch, steps = torch.Generator().manual_seed(hidden), batch_sizes[0], sum(batch_sizes)
    shapes = cells.get("mogrifier_lstm", rounds=rounds, rank=rank).shapes(inputs, hidden)

    def draw(*shape: int) -> torch.Tensor:
        # Larger ones make rounding errors grow over time.
        scale = min(0.7, shape[-2] ** -0.5 if len(shape) > 1 else 1)
        return (torch.randn(shape, generator=stream) * scale).to(dtype)

    state = [draw(batch, hidden), draw(batch, hidden).float()]
    given = [draw(steps, inputs), *state, *(draw(*shape) for shape in shapes.values())]
    d_outputs = [draw(steps, hidden), draw(batch, hidden).float()]

    def compute(given: list[torch.Tensor], d_outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        leaves = [value.clone().requires_grad_() for value in given]
        outputs = mogrifier_fused.FusedSequence.apply(batch_sizes, tuple(shapes), *leaves)  # type: ignore[no-untyped-call]
        return [*(output.detach() for output in outputs), *torch.autograd.grad(outputs, leaves, d_outputs)]

    expected = compute([value.double() for value in given], [value.double() for value in d_outputs])
    by_threads = []
    for _ in in_threads(1, 2, 5):
        assert cpu.find_recurrence_kernels(given[0]) is not None
        found = compute(given, d_outputs)
        by_threads.append(found[:5])
        for name, one, other in zip(("output", "c", "x", "h", "c", *shapes), found, expected, strict=True):
            assert error(one, other) < 2 * ROUNDING[dtype], name
    for others in by_threads[1:]:
        assert all(torch.equal(one, other) for one, other in zip(by_threads[0], others, strict=True))


@needs_kernels
@pytest.mark.skipif(not native.can_multiply(), reason="needs the package scipy-openblas32")
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (1, 3, 5), (5, 3, 1), (2, 3, 200), (200, 3, 2), (33, 17, 49), (70, 301, 129)]
)
def test_products_by_openblas(shape: tuple[int, int, int]) -> None:
    """Matrices lie plain, transposed, or as a part of a wider one; the threads are more or fewer."""
    stream, (m, k, n) = torch.Generator().manual_seed(0), shape

    def layouts(rows: int, columns: int) -> list[torch.Tensor]:
        wide = torch.randn(rows + 2, columns + 3, generator=stream)
        return [
            torch.randn(rows, columns, generator=stream),
            torch.randn(columns, rows, generator=stream).T,
            wide[1:-1, 1:-2],
            wide.T.contiguous().T[1:-1, 1:-2],
        ]

    kernels = native.load()
    for _ in in_threads(1, 2, 3, 8):
        for a, b in itertools.product(layouts(m, k), layouts(k, n)):
            assert native.can_multiply(a, b)
            expected = a.double() @ b.double()
            assert error(kernels.multiply(a, b), expected) < 1e-6
            for out in layouts(m, n):
                around = out.clone() if out._base is None else out._base.clone()
                out.fill_(math.nan)  # what was there does not count
                assert kernels.multiply(a, b, out) is out
                assert error(out, expected) < 1e-6
                if out._base is not None and out._base.numel() > m * n:  # nothing beside it was written
                    outside = torch.ones_like(around, dtype=torch.bool)
                    torch.as_strided(outside, out.shape, out.stride(), out.storage_offset()).fill_(False)
                    assert torch.equal(out._base[outside], around[outside])


@needs_kernels
@pytest.mark.skipif(not native.can_multiply(), reason="needs the package scipy-openblas32")
def test_other_matrices_are_not_multiplied_by_openblas() -> None:
    a = torch.zeros(4, 6)
    far_apart = torch.zeros(3).as_strided((1, 3), (2**32, 1))
    refused = [a.double(), a.bfloat16(), a.to("meta"), a[:, ::2], a[::2, ::3], a[:1].expand(4, 6)]
    refused += [a[0], a[:0], far_apart, torch._neg_view(a)]
    with override_implementation(float32_library="OpenBLAS"):
        for other in refused:
            assert not native.can_multiply(a, other)
            assert cpu.find_openblas_kernels(a, other) is None
        assert cpu.find_openblas_kernels(a, a.T) is not None
        torch.testing.assert_close(cpu.multiply(a[:, ::2] + 1, a[:3] + 1), torch.full((4, 6), 3.0))
    for b, out in ((a, None), (a.T, torch.zeros(6, 6)), (a.T, torch.zeros(4, 3))):
        with pytest.raises(ValueError, match="product"):
            native.load().multiply(a, b, out)


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("words", [2, 16, 1003])
def test_the_cross_entropy_and_its_gradient(dtype: torch.dtype, words: int) -> None:
    stream = torch.Generator().manual_seed(words)
    for scale in (0.1, 3.0, 100.0):
        logits = (scale * torch.randn(33, words, generator=stream)).to(dtype)
        targets = torch.randint(words, (33,), generator=stream)
        leaf = logits.double().requires_grad_()
        expected = torch.nn.functional.cross_entropy(leaf, targets, reduction="none")
        (gradient,) = torch.autograd.grad(expected.sum(), leaf)
        for _ in in_threads(1, 2):
            used = logits.clone()
            found = native.load().cross_entropy(used, targets, gradient=False)
            torch.testing.assert_close(found.double(), expected.detach(), rtol=1e-6, atol=1e-5)
            assert torch.equal(used, logits)
            assert torch.equal(native.load().cross_entropy(used, targets, gradient=True), found)
            assert error(used, gradient) < ROUNDING[dtype]


@needs_kernels
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("dtype", TYPES)
def test_nan_and_infinity_stay_visible(bad: float, dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 40, dtype=dtype)
    logits[1, 7] = bad
    losses = native.load().cross_entropy(logits, torch.tensor([0, 0]), gradient=False)
    assert losses[0].item() == pytest.approx(math.log(40))
    assert not losses[1].isfinite()
    assert not math.isfinite(global_norm([logits.new_full((3,), bad)]).item())
    hidden, steps = 5, (2,)
    inputs = [
        torch.zeros(shape, dtype=dtype)
        for shape in ((2, 3), (2, hidden), (2, hidden), (3, 20), (5, 20), (20,))
    ]
    inputs[2] = inputs[2].float()
    inputs[0][0, 0] = math.nan
    inputs[3][:] = 1
    output, cell = FusedSequence.apply(*inputs, steps)  # type: ignore[no-untyped-call]
    assert output[0].isnan().all()
    assert cell[0].isnan().all()
    assert output[1].isfinite().all()


@needs_kernels
def test_nothing_is_read_or_written_beyond_a_tensor() -> None:
    """A tensor that does not fit is refused before a kernel sees it."""
    kernels, logits = native.load(), torch.zeros(3, 7)
    for target in (-1, 7, 10**7):
        with pytest.raises(IndexError, match="target"):
            kernels.cross_entropy(logits, torch.tensor([0, target, 0]), gradient=True)
    for targets in (torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(ValueError, match="needed"):
            kernels.cross_entropy(logits, targets, gradient=True)
    with pytest.raises(ValueError, match="needed"):
        kernels.cross_entropy(torch.zeros(7, 3).T, torch.zeros(3, dtype=torch.int64), gradient=True)
    with pytest.raises(ValueError, match="gradient"):
        kernels.update(torch.zeros(3, 7), torch.zeros(7, 3).T, torch.zeros(3, 7), 1.0)
    inputs = [torch.zeros(shape) for shape in ((2, 3), (2, 5), (2, 5), (3, 20), (5, 20), (20,))]
    inputs[2] = inputs[2].bfloat16()  # c, which must be in float32
    with pytest.raises(ValueError, match="needed"):
        FusedSequence.apply(*inputs, (2,))  # type: ignore[no-untyped-call]
    weights = {"kernel": torch.zeros(3, 20), "recurrent_kernel": torch.zeros(5, 20), "bias": torch.zeros(20)}
    with pytest.raises(ValueError, match="needed"):
        mogrifier_fused.FusedSequence.apply((2,), tuple(weights), *inputs[:3], *weights.values())  # type: ignore[no-untyped-call]
    weights["x_gates"], weights["x_gates_bias"] = torch.zeros(1, 3, 5), torch.zeros(1, 3)  # not [1, 5, 3]
    with pytest.raises(ValueError, match="needed"):
        mogrifier_fused.FusedSequence.apply(  # type: ignore[no-untyped-call]
            (2,), tuple(weights), *inputs[:2], torch.zeros(2, 5), *weights.values()
        )
    apart = torch.arange(12.0).view(3, 4)[:, ::2]
    assert global_norm([apart]).item() == pytest.approx(apart.norm().item())


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
def test_without_onednn_torch_runs_the_recurrence(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AVX-512 its products are oneDNN's, and those of bfloat16 would end the process."""
    stream, hidden, batch_sizes = torch.Generator().manual_seed(0), 5, (3, 3, 2)
    shapes = ((8, 4), (3, hidden), (3, hidden), (4, 20), (hidden, 20), (20,))
    inputs = [torch.randn(shape, generator=stream).to(dtype) for shape in shapes]
    inputs[2] = inputs[2].float()
    expected, _ = FusedSequence.apply(*(value.double() for value in inputs), batch_sizes)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert cpu.find_recurrence_kernels(inputs[0]) is None
    assert cpu.find_kernels(inputs[0]) is not None
    found, _ = FusedSequence.apply(*inputs, batch_sizes)  # type: ignore[no-untyped-call]
    assert error(found, expected) < ROUNDING[dtype]


@needs_kernels
def test_the_user_s_default_type_and_device_change_nothing() -> None:
    stream = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(33, 50, generator=stream), torch.randint(50, (33,), generator=stream)

    def compute() -> list[torch.Tensor]:
        mask = dropout.draw_mask(MaskSpec((7, 5), 0.5), torch.Generator("cpu").manual_seed(3), torch.float32)
        return [native.load().cross_entropy(logits, targets, gradient=False), mask, global_norm([logits])]

    def assert_as_before(found: list[torch.Tensor]) -> None:
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)

    expected = compute()
    try:
        torch.set_default_dtype(torch.float64)
        in_double = compute()
    finally:
        torch.set_default_dtype(torch.float32)
    assert_as_before(in_double)
    with torch.device("meta"):  # a tensor without memory stands for one of a GPU
        elsewhere = compute()
    assert_as_before(elsewhere)


@needs_kernels
def test_every_nan_stays_one_in_bfloat16() -> None:
    bits = torch.tensor([0x7FC00000, 0x7FFFFFFF, 0x7F800001, -1, -0x00400000], dtype=torch.int32)
    master, weight = bits.view(torch.float32).clone(), torch.zeros(5, dtype=torch.bfloat16)
    native.load().update(master, torch.zeros(5, dtype=torch.bfloat16), weight, 1.0)
    assert weight.isnan().all()


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1,), (31, 5), (3, 4099)])
def test_the_norm_and_the_update(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stream = torch.Generator().manual_seed(0)
    # A matrix that lies transposed, too, as a tied softmax's does.
    for transposed in (False, True) if len(shape) == 2 else (False,):
        weight = torch.randn(shape, generator=stream).to(dtype)
        weight = weight.T.contiguous().T if transposed else weight
        gradient = torch.randn(shape, generator=stream).to(dtype)
        masters = Masters([weight], torch.float32)
        master = masters[weight]
        for _ in in_threads(1, 2):
            assert global_norm([gradient]).item() == pytest.approx(gradient.double().norm().item(), rel=1e-6)
        for decay in (None, torch.tensor(-0.125)):
            expected = (1.0 if decay is None else 0.875) * master.double() - 0.25 * gradient.double()
            add_scaled(masters.pairs, [gradient], torch.tensor(-0.25), decay=decay)
            torch.testing.assert_close(master.double(), expected, rtol=1e-6, atol=1e-6)
            assert torch.equal(weight, master.to(dtype))


@needs_kernels
@pytest.mark.parametrize("dtype", TYPES)
def test_masks_are_those_of_torch_to_the_bit(dtype: torch.dtype) -> None:
    specs = [MaskSpec((77, 33), keep_prob) for keep_prob in (1e-9, *np.linspace(0.01, 1, 100), 1 - 1e-9)]
    drawn = []
    for kernels in cpu.KERNELS:
        with override_implementation(kernels=kernels):
            stream = torch.Generator().manual_seed(3)
            drawn.append([dropout.draw_mask(spec, stream, dtype) for spec in specs])
            assert cpu.get_implementation().kernels == kernels
    for spec, *masks in zip(specs, *drawn, strict=True):
        assert torch.equal(*masks), spec.keep_prob


@needs_kernels
def test_a_softmax_layer_is_the_same_with_kernels_and_without() -> None:
    stream = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(8, 1003, generator=stream), torch.randn(9, 7, generator=stream)
    targets = torch.randint(1003, (9,), generator=stream)
    for precision, words_contiguous in (("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True)):
        found = []
        for kernels in cpu.KERNELS:
            with override_implementation(kernels=kernels):
                layer = SoftmaxLayer(
                    7,
                    1003,
                    device=torch.device("cpu"),
                    precision=PRECISIONS[precision],
                    words_contiguous=words_contiguous,
                )
                layer.weight.copy_(weight)
                layer.masters.refresh()
                dtype = PRECISIONS[precision].compute
                nll_N, d_hidden_NH = layer.loss_and_gradients(hidden.to(dtype), targets, 0.3)
                add_scaled(layer.masters.pairs, [layer.gradient], torch.tensor(-0.5))
                found.append((nll_N, d_hidden_NH.float(), layer.weight.clone()))
        bound = 1e-5 if precision == "fp32" else 2e-2
        for one, other in zip(*found, strict=True):
            assert error(one, other.double()) < bound


@pytest.mark.slow
@needs_kernels
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names processors of x86-64")
@pytest.mark.parametrize(("march", "lanes"), [("x86-64", 4), ("x86-64-v3", 8)])
def test_on_processors_with_narrower_vectors(march: str, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above, of kernels that are compiled for an older processor than this one may be."""
    if march == "x86-64-v3" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this processor has no AVX2")
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, f"-march={march}"))
    older = native.Kernels(library.load_kernels())
    monkeypatch.setattr(native, "load", lambda: older)
    assert older.lanes == lanes
    older.recurrent &= {torch.float32}  # such a processor has no product of bfloat16
    for hidden, batch_sizes in itertools.product((1, 5, 16, 37, 150), ((1,), (4, 3, 3, 1, 1), (21, 20))):
        test_the_recurrence_and_its_gradients(torch.float32, hidden, batch_sizes)
    for rounds, rank in ((1, 3), (5, 0), (5, 37)):
        test_a_mogrifier_s_recurrence_and_its_gradients(70, 33, (4, 3, 1), rounds, rank, torch.float32)
    for dtype in TYPES:
        for words in (2, 16, 1003):
            test_the_cross_entropy_and_its_gradient(dtype, words)
        for bad in (math.nan, math.inf):
            test_nan_and_infinity_stay_visible(bad, dtype)
        for shape in ((1,), (31, 5), (3, 4099)):
            test_the_norm_and_the_update(dtype, shape)
        test_masks_are_those_of_torch_to_the_bit(dtype)
    test_tanh_reaches_one()
    test_every_nan_stays_one_in_bfloat16()


PRINT_REASON = (
    "from ptb_lm.torch_backend import cpu, native; "
    "print(native.unavailable_reason(), cpu.get_implementation().kernels)"
)
USES_KERNELS = "None native\n"


# A compiler's arguments name its output.
FAKE_COMPILER = '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = -o ] && {}; shift; done\n'


def write_compiler(path: Path, script: str) -> str:
    path.write_text(script)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def quick_compiler(tmp_path: Path) -> str:
    """A compiler that takes what the real one has made: that one takes seconds, and is run above."""
    copy = f'cp "{native.load()._library._name}" "$2"'
    return write_compiler(tmp_path / "quick c++", FAKE_COMPILER.format(copy))


def test_a_killed_compilation_leaves_nothing_in_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nothing is there while the compiler is at work, and then the whole library."""

    def compile_it(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert not list(tmp_path.iterdir())
        Path(command[command.index("-o") + 1]).write_text("a library")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", compile_it)
    library._compile([], [], tmp_path / "kernels.so")
    (compiled,) = tmp_path.iterdir()
    assert compiled.name == "kernels.so"
    assert compiled.read_bytes() == library._seal(b"a library")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernels are for Linux")
class TestWithoutKernels:
    @pytest.mark.parametrize(
        ("compiler", "noun"),
        [
            ("", "compiler"),
            ("/nonexistent", "/nonexistent"),
            ("/bin/true", "/bin/true"),
            ("/bin/false", "/bin/false ended with status 1 torch\n"),
            ("#!/bin/sh\necho 'kernels.cpp:1: error: no such thing' >&2\nexit 1\n", "no such thing torch\n"),
            ("#!/bin/sh\nprintf '\\351: error: no such thing\\n' >&2\nexit 1\n", "no such thing torch\n"),
            (
                "#!/bin/sh\necho 'ld: cannot find -lgomp' >&2\necho 'error: ld' >&2\nexit 1\n",
                "-lgomp torch\n",
            ),
            # It leaves something that is no library, as a torch without the exported products would not load.
            (FAKE_COMPILER.format('echo nothing > "$2"'), "loaded"),
        ],
        ids=[
            "missing",
            "not there",
            "makes nothing",
            "fails without a word",
            "fails",
            "fails in another encoding",
            "fails to link",
            "makes no library",
        ],
    )
    def test_a_compiler_that_makes_none_is_reported(self, compiler: str, noun: str, tmp_path: Path) -> None:
        if compiler.startswith("#!"):
            compiler = write_compiler(tmp_path / "c++", compiler)
        done = run(PRINT_REASON, PATH=str(tmp_path), CXX=compiler, XDG_CACHE_HOME=str(tmp_path))
        assert noun in done.stdout
        assert done.stdout.endswith(" torch\n")
        assert noun == "loaded" or not [*tmp_path.glob("ptb_lm/*")]

    def test_a_compiler_leaves_no_temporary_file(self, tmp_path: Path) -> None:
        killed = 'case "$*" in *" -o "*) echo > "$TMPDIR/left"; kill -9 $$;; esac\n'
        compiler = write_compiler(tmp_path / "c++", f"#!/bin/sh\n{killed}")
        done = run(PRINT_REASON, CXX=compiler, XDG_CACHE_HOME=str(tmp_path), TMPDIR=str(tmp_path))
        assert done.stdout.endswith(" torch\n")
        assert not [*tmp_path.rglob("left")]

    def test_a_record_says_why_there_are_none(self, tmp_path: Path) -> None:
        """This package's models record it; the plain loop, which uses no kernels, does not."""
        program = (
            "from ptb_lm.bench.variants import REGISTRY\n"
            "from ptb_lm.bench.variants import Variant\n"
            "from ptb_lm.model import parameters\n"
            "from ptb_lm.model.config import Config\n"
            "config = Config(hidden_size=2, batch_size=2, num_steps=2)\n"
            "for name in ('torch/cudnn', 'plain-torch/cudnn'):\n"
            "    build = Variant(name).builder(REGISTRY, device='cpu', precision='fp32', seed=1)\n"
            "    facts = build(config, parameters.draw_initial(config, 5, seed=1)).environment()\n"
            "    print(facts.get('kernels'), '|', facts.get('no_kernels'))\n"
        )
        done = run(program, PATH=str(tmp_path), CXX="", XDG_CACHE_HOME=str(tmp_path))
        ours, plain = done.stdout.splitlines()
        assert ours.startswith("torch | ")
        assert "compiler" in ours
        assert plain == "None | None"
        done = run(program, PTB_LM_KERNELS="torch")
        assert done.stdout == "torch | None\nNone | None\n", "as the user wants it"

    @needs_kernels
    @pytest.mark.parametrize("cache", ["a file", "open to others"])
    def test_a_cache_that_cannot_be_used_is_no_obstacle(
        self, cache: str, quick_compiler: str, tmp_path: Path
    ) -> None:
        """It cannot be written, or holds code of others, which is not loaded."""
        folder = tmp_path / "cache" / "ptb_lm"
        folder.parent.write_text("") if cache == "a file" else folder.mkdir(0o777, parents=True)
        if cache != "a file":
            folder.chmod(0o777)
        done = run(PRINT_REASON, XDG_CACHE_HOME=str(folder.parent), CXX=quick_compiler)
        assert done.stdout == USES_KERNELS
        assert not [*folder.parent.rglob("kernels-*")]

    @needs_kernels
    def test_a_user_without_a_home_has_them_for_the_process(
        self, quick_compiler: str, tmp_path: Path
    ) -> None:
        no_home = "def none(): raise RuntimeError('no home')"
        code = f"import pathlib\n{no_home}\npathlib.Path.home = none\n{PRINT_REASON}"
        (tmp_path / "temporary").mkdir()
        temporary = str(tmp_path / "temporary")
        done = run(code, XDG_CACHE_HOME="", TMPDIR=temporary, CXX=quick_compiler)
        assert done.stdout == USES_KERNELS
        assert not list((tmp_path / "temporary").iterdir())

    @needs_kernels
    def test_the_compiled_library_is_kept_unless_it_is_damaged(
        self, quick_compiler: str, tmp_path: Path
    ) -> None:
        environment = {"XDG_CACHE_HOME": str(tmp_path), "CXX": quick_compiler}
        assert run(PRINT_REASON, **environment).stdout == USES_KERNELS
        (compiled,) = (tmp_path / "ptb_lm").iterdir()
        whole, first_time = compiled.read_bytes(), compiled.stat().st_mtime_ns
        assert run(PRINT_REASON, **environment).stdout == USES_KERNELS
        assert compiled.stat().st_mtime_ns == first_time
        without_compilers = {**environment, "CXX": "", "PATH": str(tmp_path)}
        assert run(PRINT_REASON, **without_compilers).stdout == USES_KERNELS
        middle = len(whole) // 2 // mmap.PAGESIZE * mmap.PAGESIZE
        zeros = whole[:middle] + bytes(len(whole) - middle)
        for damaged in (whole[:100], whole[:middle], zeros):  # a library that is cut at a page can be opened
            compiled.write_bytes(damaged)
            assert "no C++ compiler" in run(PRINT_REASON, **without_compilers).stdout
            assert run(PRINT_REASON, **environment).stdout == USES_KERNELS
            assert compiled.read_bytes() == whole

    @needs_kernels
    def test_a_compiler_may_have_arguments(self, quick_compiler: str, tmp_path: Path) -> None:
        without_a_space = Path(quick_compiler).rename(tmp_path / "quick-c++")
        done = run(PRINT_REASON, XDG_CACHE_HOME=str(tmp_path), CXX=f"env {without_a_space}")
        assert done.stdout == USES_KERNELS

    def test_the_kernels_can_be_switched_off(self, small_corpus: Path, tmp_path: Path) -> None:
        """Then nothing is compiled, nor missed, by a new run or by one that goes on."""
        folder = tmp_path / "run"
        new = runs.arguments(small_corpus, folder, "--model", "block_fused", "--epochs", "1")
        code = "import sys; from ptb_lm import train; sys.exit(train.main({}) or train.main({}))"
        environment = {cpu.KERNELS_VARIABLE: "torch", "XDG_CACHE_HOME": str(tmp_path)}
        done = run(code.format(new, ["--resume", str(folder), "--epochs", "2"]), **environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert runs.result(folder)["environment"]["kernels"] == "torch"
        assert "slower" not in done.stdout
        assert not list(tmp_path.rglob("kernels-*"))


@pytest.mark.slow
@needs_kernels
def test_where_the_cache_is_mounted_noexec_a_copy_is_loaded(tmp_path: Path) -> None:
    """The compiled file stays as it is. If the temporary folder is mounted so too, the reason names both."""
    script = """
mount -t tmpfs -o noexec,mode=700 tmpfs "$XDG_CACHE_HOME" && echo mounted || exit
mkdir -m 700 "$XDG_CACHE_HOME/ptb_lm" && cp "$1" "$XDG_CACHE_HOME/ptb_lm"
stat -c '%i %Y' "$XDG_CACHE_HOME"/ptb_lm/*
"$2" -c "$3"
TMPDIR="$XDG_CACHE_HOME" "$2" -c "$3"
stat -c '%i %Y' "$XDG_CACHE_HOME"/ptb_lm/*
"""
    private = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    compiled = native.load()._library._name
    done = subprocess.run(
        [*private, "sh", "-c", script, "sh", compiled, sys.executable, PRINT_REASON],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    if not done.stdout.startswith("mounted\n"):
        pytest.skip(f"this user cannot mount a file system here: {done.stderr}")
    _, before, copied, reason, after = done.stdout.splitlines()
    assert copied == "None native"
    assert "noexec" in reason
    assert f"{tmp_path / 'ptb_lm'} and {tmp_path} " in reason
    assert reason.endswith(" torch")
    assert after == before
