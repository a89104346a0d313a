"""torch's LSTM stack: every model, direction and length, against the NumPy reference."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import CUDNN_FP32, assert_arrays, name_state
from torch import Tensor, nn

from ptb_lm.model import cells, parameters, reference
from ptb_lm.model.cells import CELLS
from ptb_lm.model.cells.cell import Cell
from ptb_lm.model.dropout_places import MaskSpec
from ptb_lm.torch_backend.cells import Layer, StackLayer, ValidSteps
from ptb_lm.torch_backend.dropout import draw_mask
from ptb_lm.torch_backend.runtime import apply_execution
from ptb_lm.torch_backend.stack import RecurrentStack, State

STEPS, BATCH, INPUTS, HIDDEN = 9, 6, 4, (7, 5, 3)
LENGTHS = [4, 9, 6, 1, 6, 9]  # some equal, out of order, the least and the most

LSTM = parameters.DEFAULT_CELL
MODELS = tuple(CELLS["lstm"].layers["torch"])
every_model = pytest.mark.parametrize("model", MODELS)
every_direction = pytest.mark.parametrize("bidirectional", [False, True], ids=["one way", "both ways"])
every_length = pytest.mark.parametrize(
    "lengths",
    [None, [STEPS] * BATCH, LENGTHS, [5, 3, 5, 2, 4, 3]],
    ids=["full", "all full", "lengths", "none full"],
)
every_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

Numbers = dict[str, np.ndarray]


def random_weights(bidirectional: bool, cell: Cell = LSTM) -> Numbers:
    rng = np.random.default_rng(1)
    shapes = parameters.stack_shapes(INPUTS, HIDDEN, cell=cell, bidirectional=bidirectional)
    return {name: rng.uniform(-0.8, 0.8, shape) for name, shape in shapes.items()}


def build(
    model: str, bidirectional: bool, *, dtype: torch.dtype = torch.float64, cell: Cell = LSTM
) -> RecurrentStack:
    stack = RecurrentStack.build(model, INPUTS, HIDDEN, cell=cell, bidirectional=bidirectional).to(dtype)
    weights = random_weights(bidirectional, cell)
    assert list(stack.canonical_views()) == list(weights)
    for name, view in stack.canonical_views().items():
        view.value.copy_(torch.from_numpy(weights[name]))
    return stack


def tensors(
    seed: int, bidirectional: bool, first: int = INPUTS
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Random numbers in the shapes of (an input of some width, a state)."""
    generator = torch.Generator().manual_seed(seed)
    draw: Callable[..., Tensor] = partial(torch.randn, generator=generator, dtype=torch.float64)
    sizes = [hidden for hidden in HIDDEN for _ in range(2 if bidirectional else 1)]
    return draw(STEPS, BATCH, first), [(draw(BATCH, size), draw(BATCH, size)) for size in sizes]


def measure(
    stack: RecurrentStack, bidirectional: bool, x_TBI: Tensor, lengths: list[int] | None, *, run: Any = None
) -> Numbers:
    """Run a stack; return output and state after, and all gradients of a random sum of them."""
    like = next(stack.parameters())
    options: dict[str, Any] = {"device": like.device, "dtype": like.dtype}
    x_TBI = x_TBI.to(**options, copy=True).requires_grad_()
    _, before = tensors(3, bidirectional)
    state = [
        tuple(part.to(zero).requires_grad_() for part, zero in zip(parts, zeros, strict=True))
        for parts, zeros in zip(before, stack.zero_state(BATCH), strict=True)
    ]
    lengths_B = None if lengths is None else torch.tensor(lengths)
    stack.zero_grad()
    output, after = (run or stack)(x_TBI, state, lengths_B=lengths_B)
    d_output, d_state = tensors(4, bidirectional, output.shape[2])
    pairs = [(output, d_output)]
    for part, d_part in zip(after, d_state, strict=True):
        pairs.extend(zip(part, d_part, strict=True))
    torch.autograd.backward([y for y, _ in pairs], [d.to(y) for y, d in pairs])
    d_before = [tuple(part.grad for part in parts) for parts in state]
    found = {"output": output, "d_x": x_TBI.grad, **name_state(after), **name_state(d_before, "d_")}
    found |= {
        name: view._replace(parameter=view.parameter.grad).value
        for name, view in stack.canonical_views().items()
        if view.parameter.grad is not None
    }
    return {
        name: tensor.detach().cpu().double().numpy() for name, tensor in found.items() if tensor is not None
    }


def expected_by_reference(
    bidirectional: bool, x_TBI: Tensor, lengths: list[int] | None, cell: Cell = LSTM
) -> Numbers:
    """Return the same by the NumPy reference, which model/test_reference_stack.py holds against torch."""
    weights = random_weights(bidirectional, cell)

    def numbers(state: State) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(h.numpy(), c.numpy()) for h, c in state]

    output, after, tape = reference.stack_forward(
        weights,
        x_TBI.numpy(),
        numbers(tensors(3, bidirectional)[1]),
        lengths_B=None if lengths is None else np.array(lengths),
    )
    d_output, d_state = tensors(4, bidirectional, output.shape[2])
    d_x, gradients, d_before = reference.stack_backward(weights, tape, d_output.numpy(), numbers(d_state))
    return {"output": output, "d_x": d_x, **gradients, **name_state(after), **name_state(d_before, "d_")}


@every_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@every_length
@every_direction
@every_model
def test_outputs_states_and_gradients_equal_the_reference(
    model: str, bidirectional: bool, lengths: list[int] | None, dtype: torch.dtype, device: str
) -> None:
    x_TBI, _ = tensors(2, bidirectional)
    stack = build(model, bidirectional, dtype=dtype).to(device)
    if device == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.cudnn.rnn.fp32_precision = "ieee"  # type: ignore[attr-defined]
    found = measure(stack, bidirectional, x_TBI, lengths)
    by_cudnn = device == "cuda" and model in {"cudnn", "persistent"}
    atol = 1e-12 if dtype == torch.float64 else CUDNN_FP32 if by_cudnn else 5e-6
    assert_arrays(found, expected_by_reference(bidirectional, x_TBI, lengths), atol=atol)


# The bound of half precision is the rounding of its numbers, 2^-11 and 2^-8, times what nine steps add up.
MOGRIFIED = {torch.float64: 1e-12, torch.float32: 5e-6, torch.float16: 2e-2, torch.bfloat16: 2e-1}


@every_device
@pytest.mark.parametrize("dtype", MOGRIFIED, ids=str)
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("rounds", [0, 1, 2, 5])
@pytest.mark.parametrize("model", CELLS["mogrifier_lstm"].layers["torch"])
def test_a_mogrifier_of_any_rounds_and_rank_equals_the_reference(
    model: str, rounds: int, rank: int, dtype: torch.dtype, device: str
) -> None:
    """Over lengths, in both directions; its layers' inputs are narrower and wider than their states."""
    cell = cells.get("mogrifier_lstm", rounds=rounds, rank=rank)
    x_TBI, _ = tensors(2, True)
    found = measure(build(model, True, dtype=dtype, cell=cell).to(device), True, x_TBI, LENGTHS)
    assert_arrays(found, expected_by_reference(True, x_TBI, LENGTHS, cell), atol=MOGRIFIED[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_cudnn_s_float32_activations_are_within_a_hundred_thousandth(
    kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of zero leave biases, tanh and sigmoid; torch's own are within a millionth."""
    torch.manual_seed(5)
    exact, single = kind(3, 7, dtype=torch.float64), kind(3, 7)
    for name, parameter in exact.named_parameters():
        torch.nn.init.zeros_(parameter) if name.startswith("weight") else torch.nn.init.normal_(parameter)
    single.load_state_dict(exact.state_dict())
    single, x_TBI = single.cuda(), torch.zeros(STEPS, BATCH, 3)
    expected_TBH, by_cudnn_TBH = exact(x_TBI.double())[0], single(x_TBI.cuda())[0]
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    by_torch_TBH = single(x_TBI.cuda())[0]
    torch.testing.assert_close(by_torch_TBH.cpu().double(), expected_TBH, rtol=0, atol=1e-6)
    torch.testing.assert_close(by_cudnn_TBH.cpu().double(), expected_TBH, rtol=0, atol=1e-5)


@pytest.mark.parametrize("execution", ["eager", "jit"])
@every_direction
@every_model
def test_values_of_the_padding_change_no_bit(model: str, bidirectional: bool, execution: str) -> None:
    stack = build(model, bidirectional)
    run = (
        stack.with_execution(partial(apply_execution, execution=execution))
        if model in ("basic", "block")
        else stack
    )
    x_TBI, _ = tensors(2, bidirectional)
    padding_TB = torch.arange(STEPS)[:, None] >= torch.tensor(LENGTHS)
    expected = measure(stack, bidirectional, x_TBI, LENGTHS)
    measure(stack, bidirectional, x_TBI, LENGTHS, run=run)  # the run that TorchScript profiles
    x_TBI[padding_TB] = torch.nan
    found = measure(stack, bidirectional, x_TBI, LENGTHS, run=run)
    assert_arrays(found, expected, atol=0 if execution == "eager" else 1e-12)
    assert not found["output"][padding_TB].any()
    assert not found["d_x"][padding_TB].any()


@every_length
@every_direction
@every_model
def test_dropout_is_in_every_place_the_reference_has_it(
    model: str, bidirectional: bool, lengths: list[int] | None
) -> None:
    generator, directions = torch.Generator().manual_seed(0), 2 if bidirectional else 1
    *masks, top_mask = (
        draw_mask(MaskSpec((STEPS, BATCH, width), 0.5), generator, torch.float64)
        for width in (INPUTS, *(directions * hidden for hidden in HIDDEN))
    )
    x_TBI, state = tensors(2, bidirectional)
    stack = build(model, bidirectional)
    lengths_B = None if lengths is None else torch.tensor(lengths)
    output = top_mask * stack(x_TBI, state, masks=masks, lengths_B=lengths_B)[0]
    expected, _, _ = reference.stack_forward(
        random_weights(bidirectional),
        x_TBI.numpy(),
        [(h.numpy(), c.numpy()) for h, c in state],
        lengths_B=None if lengths is None else np.array(lengths),
        masks=[mask.numpy() for mask in (*masks, top_mask)],
    )
    np.testing.assert_allclose(output.detach().numpy(), expected, rtol=0, atol=1e-12)


@every_direction
@every_model
def test_the_second_biases_are_zero_and_not_trained(model: str, bidirectional: bool) -> None:
    stack = build(model, bidirectional)
    trained = {id(parameter) for parameter in stack.trained_parameters()}
    assert trained == {id(view.parameter) for view in stack.canonical_views().values()}
    others = [parameter for parameter in stack.parameters() if id(parameter) not in trained]
    assert not any(parameter.any() for parameter in others)
    assert (len(others) > 0) == (model in ("block", "cudnn"))


@every_direction
def test_the_zero_state_is_one_pair_for_each_layer_and_direction(bidirectional: bool) -> None:
    stack = build("basic", bidirectional)
    directions = 2 if bidirectional else 1
    state = stack.zero_state(BATCH)
    assert [h.shape for h, _ in state] == [(BATCH, hidden) for hidden in HIDDEN for _ in range(directions)]
    assert [c.shape for _, c in state] == [h.shape for h, _ in state]
    assert not any(part.any() for pair in state for part in pair)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize(
    ("cell", "model"), [(cell, each) for cell in CELLS for each in CELLS[cell].layers["torch"]]
)
def test_a_window_leaves_a_state_of_the_precision_of_the_first(
    cell: str, model: str, dtype: torch.dtype
) -> None:
    """A saved state is read in that of a zero state: else a resumed run would round it."""
    stack = build(model, False, dtype=dtype, cell=cells.get(cell))
    before = stack.zero_state(BATCH)
    _, after = stack(torch.ones(STEPS, BATCH, INPUTS, dtype=dtype), before)
    assert [[each.dtype for each in parts] for parts in after] == [
        [each.dtype for each in parts] for parts in before
    ]


def test_no_padded_step_is_computed() -> None:
    """The layer is given the valid steps alone, and never a batch wider than the samples that go on."""
    given: list[tuple[int, ...]] = []
    (layer,) = build("basic", False).layers[0].directions  # type: ignore[attr-defined]

    def note_shape(x_TBI: Tensor, state: Sequence[Tensor]) -> Any:
        given.append(tuple(x_TBI.shape[:2]))
        return layer(x_TBI, state)

    x_TBI, state = tensors(2, False)
    valid_steps = ValidSteps(torch.tensor(LENGTHS), STEPS, torch.device("cpu"))
    valid_steps.run(note_shape, x_TBI, state[0], backwards=False)  # type: ignore[arg-type]
    assert given == [(1, 6), (3, 5), (2, 4), (3, 2)]
    assert sum(steps * samples for steps, samples in given) == sum(LENGTHS)


@pytest.mark.parametrize("base", [Layer, StackLayer])
def test_a_layer_that_lacks_a_method_is_refused_when_it_is_built(base: type) -> None:
    class Half(base):  # type: ignore[misc]
        def canonical_views(self) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match="Can't instantiate abstract class Half"):
        Half()
