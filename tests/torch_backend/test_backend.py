"""torch's own parts: the places of dropout, the fused loss, the embedding's gradient; and a step's way."""

import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from implementations import override_implementation
from support import assert_arrays, random_weights, random_windows, trace_alone
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_steps import VOCABULARY, build, cut_random_windows, export_all, record_executed_windows

import ptb_lm
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model import backend, cells, parameters, reference, reference_updates
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import MaskSpec
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.parameters import DEFAULT_CELL
from ptb_lm.model.presets import PRESETS, SMALL
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import cpu
from ptb_lm.torch_backend.backend import to_time_major
from ptb_lm.torch_backend.dropout import (
    derive_seed,
    draw_mask,
    is_from_other_device,
    mask_weights,
    restore_generator,
)
from ptb_lm.torch_backend.loss import SoftmaxLayer, global_norm, sum_by_word
from ptb_lm.torch_backend.lstm import BasicLayer
from ptb_lm.torch_backend.lstm_fused import BlockFusedLayer, FusedSequence, take_last_steps
from ptb_lm.torch_backend.optimizers import add_scaled
from ptb_lm.torch_backend.precision import PRECISIONS
from ptb_lm.torch_backend.runtime import apply_execution

EAGER_OR_PER_LAYER = [name for name in FRAMEWORKS["torch"].executions if name != "graph"]


@pytest.mark.parametrize("execution", EAGER_OR_PER_LAYER)
def test_evaluation_is_executed_for_training_s_windows_alone(
    execution: str, short_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training is, and in between it changes no bit of what is trained."""
    trace_alone(monkeypatch)
    batch, steps = short_config.batch_size, short_config.num_steps
    # In float32 kernels compute it, unless a compiler does.
    choice = {"execution": execution, "precision": "fp64" if execution == "compile" else "fp32"}
    trained, both = (build(short_config, model="basic", **choice) for _ in range(2))
    windows, shapes = random_windows(short_config, VOCABULARY, 4, seed=2), record_executed_windows(both)
    state, other = trained.zero_state(batch), both.zero_state(batch)
    for x_BT, y_BT in windows:
        state, _ = trained.train_step(x_BT, y_BT, state, learning_rate=0.7)
        both.evaluate_step(x_BT[:, :-1], y_BT[:, :-1], other)
        _, score = both.evaluate_step(x_BT, y_BT, other)
        _, again = both.evaluate_step(x_BT, y_BT, other)
        assert both.read([score]) == both.read([again])
        other, _ = both.train_step(x_BT, y_BT, other, learning_rate=0.7)
    assert shapes == [(steps, batch)] * 3 * len(windows)
    assert_arrays(export_all(both, other), export_all(trained, state))


# The files on the way of a training step, from method to kernels (docs/architecture.md). Before them is
# training/trainer.py, and after them native/kernels.cpp.
FILES_OF_A_STEP = {
    "model/backend.py",
    "model/config.py",
    "model/dropout_places.py",
    "torch_backend/backend.py",
    "torch_backend/cpu.py",
    "torch_backend/dropout.py",
    "torch_backend/loss.py",
    "torch_backend/lstm_fused.py",
    "torch_backend/native/__init__.py",
    "torch_backend/network.py",
    "torch_backend/optimizers.py",
    "torch_backend/runtime.py",
    "torch_backend/settings.py",
    "torch_backend/stack.py",
    "torch_backend/training_step.py",
}


def test_a_training_step_passes_few_files(tiny_config: Config) -> None:
    config = tiny_config.replace(keep_prob=0.5)
    built = build(config, model="block_fused", execution="eager", precision="fp32")
    package, passed = Path(backend.__file__).parents[1], set[str]()

    def note_file(frame: Any, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            passed.add(path.relative_to(package).as_posix())

    first, second = random_windows(config, VOCABULARY, 2, seed=2)
    # The first step makes what all others use.
    state, _ = built.train_step(*first, built.zero_state(3), learning_rate=0.7)
    before = sys.getprofile()
    sys.setprofile(note_file)
    try:
        built.train_step(*second, state, learning_rate=0.7)
    finally:
        sys.setprofile(before)
    assert passed <= FILES_OF_A_STEP
    assert passed >= FILES_OF_A_STEP - {"torch_backend/native/__init__.py"}


@pytest.mark.parametrize(
    ("choice", "option"), [({"execution": "graph"}, "graph"), ({"precision": "tf32"}, "tf32")]
)
def test_options_of_a_gpu_are_refused_on_a_cpu(
    choice: dict[str, str], option: str, tiny_config: Config
) -> None:
    with pytest.raises(UserError, match=f"{option}.*CUDA"):
        build(tiny_config, model="cudnn", **choice)


# All that a step may do otherwise, but for the optimiser.
REGULARISED: dict[str, Any] = {
    "tie_weights": True,
    "layer_sizes": (9, 7),
    "embedding_keep_prob": 0.7,
    "recurrent_keep_prob": 0.8,
    "activation_penalty": 2.0,
    "slowness_penalty": 1.0,
    "weight_decay": 1e-3,
    "vary_num_steps": True,
}


@pytest.mark.gpu
@pytest.mark.parametrize("changes", [{}, REGULARISED, {"optimizer": "adam", "weight_decay": 1e-3}])
@pytest.mark.parametrize("precision", FRAMEWORKS["torch"].precisions)
@pytest.mark.parametrize("model", sorted(FRAMEWORKS["torch"].models))
def test_a_captured_step_does_what_an_eager_one_does(
    model: str, precision: str, changes: dict[str, Any], tiny_config: Config
) -> None:
    """Twenty steps with dropout at changing learning rates, an evaluation between, and a restored state."""
    config = tiny_config.replace(keep_prob=0.5, max_grad_norm=1.8, **changes)
    largest = 0.02 if config.optimizer == "adam" else 1.0
    eager, graph = (
        build(config, model=model, execution=execution, device="cuda", precision=precision)
        for execution in ("eager", "graph")
    )
    states = [built.zero_state(3) for built in (eager, graph)]
    exact = {"rtol": 0, "atol": 1e-12 if precision == "fp64" else 1e-5 if precision == "fp32" else 2e-3}
    for step, (x_BT, y_BT) in enumerate(cut_random_windows(config, [5, 3, 6, 2] * 5)):
        measured, rate = [], largest / (1 + step)
        for index, built in enumerate((eager, graph)):
            states[index], loss = built.train_step(x_BT, y_BT, states[index], learning_rate=rate)
            _, score = built.evaluate_step(x_BT, y_BT, built.zero_state(3))
            measured.append(built.read([loss, score]))
        np.testing.assert_allclose(measured[1], measured[0], rtol=exact["atol"], err_msg=f"step {step}")
        if step == 9:
            states = [
                built.load_training_state(built.export_training_state(state))
                for built, state in zip((eager, graph), states, strict=True)
            ]
    for name, array in eager.export_weights().items():
        np.testing.assert_allclose(graph.export_weights()[name], array, **exact, err_msg=name)


CPU_STATE = torch.Generator().manual_seed(3).get_state()
GPU_STATE = torch.tensor([3, 8]).view(torch.uint8)  # as torch saves it there: the seed and the offset


@pytest.mark.parametrize(
    ("state", "moved_to"),
    [
        pytest.param(CPU_STATE, "cuda", id="of a CPU"),
        pytest.param(GPU_STATE, "cpu", id="of a GPU"),
        pytest.param(CPU_STATE[:-8], None, id="cut short"),
        pytest.param(torch.zeros_like(CPU_STATE), None, id="zeros"),
        pytest.param(CPU_STATE.float(), None, id="of other numbers"),
        pytest.param(torch.tensor([3, 9]).view(torch.uint8), None, id="of an impossible offset"),
        pytest.param(GPU_STATE[:0], None, id="empty"),
    ],
)
def test_a_random_stream_of_the_other_kind_of_device_is_known(state: Tensor, moved_to: str | None) -> None:
    """From one that is damaged, and from one of the same kind."""
    for device in ("cpu", "cuda"):
        assert is_from_other_device(state, torch.device(device)) == (device == moved_to)


@pytest.mark.parametrize("shape", [(0, 5056), (2, 17)])
def test_a_random_stream_that_is_none_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(UserError, match=r"^the random stream .* not saved by torch"):
        restore_generator(torch.Generator(), np.zeros(shape, np.uint8), SINGLE_PROCESS)


class Rank(Ranks):
    """One of several processes."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size = rank, size


def test_a_stream_goes_on_where_it_was_saved_and_in_other_processes_begins_anew() -> None:
    saved = [torch.Generator().manual_seed(seed).get_state().numpy() for seed in (3, 4)]

    def restore(streams: np.ndarray, size: int) -> list[bytes]:
        generators = [torch.Generator() for _ in range(size)]
        for rank, generator in enumerate(generators):
            restore_generator(generator, streams, Rank(rank, size))
        return [generator.get_state().numpy().tobytes() for generator in generators]

    one, two = saved[0], np.stack(saved)
    assert restore(one, 1) == [one.tobytes()]
    assert restore(two, 2) == [each.tobytes() for each in saved]
    anew = [*restore(one, 2), *restore(two, 1), *restore(two, 3)]
    assert len({*anew, *(each.tobytes() for each in saved)}) == 8


@pytest.mark.gpu
@pytest.mark.parametrize(("there", "here"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_state_moves_to_the_other_kind_of_device(there: str, here: str, tiny_config: Config) -> None:
    """Its random stream begins anew there: with a seed that depends on the stream that was saved."""
    config = tiny_config.replace(keep_prob=0.5)
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    seeds = []
    for seed in (3, 4, 4):
        before, after = (build(config, device=device, seed=seed) for device in (there, here))
        state, _ = before.train_step(x_BT, y_BT, before.zero_state(3), learning_rate=0.0)
        saved = before.export_training_state(state)
        carried = after.export_training_state(after.load_training_state(saved))
        for name in before.training.state_names:
            np.testing.assert_array_equal(carried[name], saved[name])
        seeds.append(after.training.dropout.generator.initial_seed())
    assert seeds[1] == seeds[2]
    assert len({*seeds, 3, 4}) == 4


@pytest.mark.gpu
def test_a_captured_step_draws_new_masks_at_each_replay(tiny_config: Config) -> None:
    config = tiny_config.replace(keep_prob=0.5)
    built = build(config, model="cudnn", execution="graph", device="cuda", precision="fp32")
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    losses = [
        built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.0)[1].clone() for _ in range(8)
    ]
    assert len({measured.nll for measured in built.read(losses)}) == 8


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize(
    "changes",
    [{"keep_prob": 0.5}, REGULARISED, {**REGULARISED, "optimizer": "adam", "tie_weights": False}],
    ids=["units", "weights and more", "adam"],
)
@pytest.mark.parametrize("execution", ["eager", "graph"])
@pytest.mark.parametrize("model", sorted(FRAMEWORKS["torch"].models))
def test_no_step_waits_for_the_device_or_copies_from_the_host(
    model: str, execution: str, changes: dict[str, Any], tiny_config: Config
) -> None:
    """Windows of device rows, in training and in evaluation; in float16, which has the longest step."""
    choice = {"model": model, "execution": execution, "precision": "fp16"}
    built = build(tiny_config.replace(**changes), device="cuda", **choice)
    rows_BL = np.random.default_rng(2).integers(VOCABULARY, size=(3, 7 * 5 + 1), dtype=np.int32)
    windows = list(corpus.windows(built.to_device(rows_BL), 5))
    state, scored = built.zero_state(3), built.zero_state(3)
    for x_BT, y_BT in windows[:2]:  # libraries choose their kernels, the graph is captured
        state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
        scored, score = built.evaluate_step(x_BT, y_BT, scored)
    built.read([loss, score])
    losses = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiled:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for x_BT, y_BT in windows[2:]:
                state, loss = built.train_step(x_BT, y_BT, state, learning_rate=0.7)
                scored, score = built.evaluate_step(x_BT, y_BT, scored)
                losses.extend([loss, score])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        measured = built.read(losses)
    on_device = [event.name for event in profiled.events() if event.device_type == DeviceType.CUDA]
    assert len(on_device) > len(losses)
    assert [name for name in on_device if "HtoD" in name] == []
    assert np.isfinite(measured).all()


@pytest.mark.gpu
def test_cudnn_s_persistent_kernel_is_the_one_that_runs() -> None:
    """At medium's sizes, which are padded to those that it takes: by its name in a profile."""
    config = PRESETS["medium"].replace(num_steps=5)
    choice = {"model": "persistent", "execution": "eager", "precision": "fp16"}
    built = build(config, vocabulary=50, device="cuda", **choice)
    (x_BT, y_BT), *_ = random_windows(config, 50, 1, seed=2)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        built.read([built.train_step(x_BT, y_BT, built.zero_state(config.batch_size), learning_rate=0.1)[1]])
    kernels = {event.key for event in profiled.key_averages()}
    assert any("persist" in kernel.lower() for kernel in kernels), kernels


def test_the_persistent_model_says_that_its_kernel_is_not_the_one_that_runs(tiny_config: Config) -> None:
    assert "CUDA and fp16" in build(tiny_config, model="persistent", precision="fp16").engine


@pytest.mark.parametrize(("model", "cell"), [("cudnn", "lstm"), ("block", "lstm"), ("cudnn", "gru")])
def test_building_a_model_draws_no_number_of_torch_s_own_stream(
    model: str, cell: str, tiny_config: Config
) -> None:
    before = torch.random.get_rng_state()
    build(tiny_config.replace(cell=cell), model=model)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_loaded_model_scores_without_what_trains() -> None:
    model = ptb_lm.load("demo")
    assert model.score("the judge sues the court").perplexity > 1
    assert "training" not in vars(model.backend)


def test_a_device_window_s_words_are_a_view_in_time_major_order(tiny_config: Config) -> None:
    """Nothing is copied or launched to cut it; of another type or order it would be, at every step."""
    built = build(tiny_config, model="cudnn")
    rows_BL = np.arange(3 * 11, dtype=np.int32).reshape(3, 11)
    device_rows_BL = built.to_device(rows_BL)
    for (x_BT, y_BT), expected in zip(
        corpus.windows(device_rows_BL, 5), corpus.windows(rows_BL, 5), strict=True
    ):
        for ids_BT, numbers_BT in zip((x_BT, y_BT), expected, strict=True):
            words_N = to_time_major(ids_BT, built.device).flatten()
            assert words_N.tolist() == numbers_BT.T.flatten().tolist()
            assert words_N.untyped_storage().data_ptr() == device_rows_BL.untyped_storage().data_ptr()
            assert words_N.is_contiguous()
            assert words_N.dtype == torch.int64


def test_the_learning_rate_is_sent_to_the_device_when_it_changes(tiny_config: Config) -> None:
    built = build(tiny_config, model="cudnn")
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    sent = []
    for rate in (0.7, 0.7, 0.5, 0.5, 0.7):
        before = built.training.rate._version
        built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=rate)
        sent.append(built.training.rate._version - before)
        assert built.training.rate.item() == rate
    assert sent == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_peak_of_a_gpu_s_memory_is_known_and_a_cpu_s_is_not(device: str, tiny_config: Config) -> None:
    peak = build(tiny_config, model="cudnn", device=device, precision="fp32").device_memory()
    least = 4 * sum(array.size for array in random_weights(tiny_config, VOCABULARY, seed=1).values())
    assert peak is None if device == "cpu" else peak >= least


def test_compiling_without_a_compiler_is_refused(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="compiler"):
        build(tiny_config, model="basic", execution="compile")
    monkeypatch.setattr(torch._dynamo.eval_frame, "is_dynamo_supported", lambda: False)
    with pytest.raises(UserError, match=f"on Python {platform.python_version()}"):
        build(tiny_config, model="basic", execution="compile")


@pytest.mark.parametrize("execution", EAGER_OR_PER_LAYER)
def test_the_layers_as_executed_share_the_parameters(execution: str, tiny_config: Config) -> None:
    layer = BasicLayer(7, 7, DEFAULT_CELL)
    ours = apply_execution(layer, execution, window=(3, 5))
    assert [p.data_ptr() for p in ours.parameters()] == [p.data_ptr() for p in layer.parameters()]
    assert all(p.grad is None for p in layer.parameters())


def test_training_goes_on_from_a_scored_state(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript optimises a class once in a process, for the inputs that it sees first."""

    class OptimisedWithoutGradient(BasicLayer):
        """A class that no other test has scripted."""

    monkeypatch.setattr(cells, "layer_class", lambda *_: OptimisedWithoutGradient)
    layer = OptimisedWithoutGradient(4, 5, DEFAULT_CELL)
    first = apply_execution(layer, "jit")
    for _ in range(2):
        first(torch.zeros(3, 2, 4), layer.zero_state(2))[0].sum().backward()
    config = tiny_config.replace(recurrent_keep_prob=0.5)
    scripted, eager = (build(config, model="basic", execution=name) for name in ("jit", "eager"))
    (x_BT, y_BT), *_ = random_windows(config, VOCABULARY, 1, seed=2)
    losses = []
    for model in (scripted, eager):
        state, scored = model.evaluate_step(x_BT, y_BT, model.zero_state(config.batch_size))
        assert not any(part.requires_grad for layer_state in state for part in layer_state)
        _, trained = model.train_step(x_BT, y_BT, state, learning_rate=1.0)
        losses.append([loss.nll for loss in model.read([scored, trained])])
    np.testing.assert_allclose(*losses, rtol=1e-5)


every_batch_sizes = pytest.mark.parametrize(
    "batch_sizes", [(2,), (2,) * 4, (3, 3, 1, 1), (4, 3, 2, 1), (3, 1)]
)


@every_batch_sizes
def test_the_fused_sequence_has_the_gradient_of_every_input(batch_sizes: tuple[int, ...]) -> None:
    """The carried state's too, which training does not use; against finite differences."""
    generator = torch.Generator().manual_seed(0)
    batch = batch_sizes[0]
    shapes = [(sum(batch_sizes), 5), (batch, 3), (batch, 3), (5, 12), (3, 12), (12,)]
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    ]

    def every_output(*inputs: Tensor) -> tuple[Tensor, ...]:
        output_PH, c_BH = FusedSequence.apply(*inputs, batch_sizes)  # type: ignore[no-untyped-call]
        return output_PH, take_last_steps(output_PH, batch_sizes), c_BH

    assert torch.autograd.gradcheck(every_output, inputs)


@every_batch_sizes
def test_the_fused_sequence_equals_torch_s_packed_one(batch_sizes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = BlockFusedLayer(5, 3, DEFAULT_CELL), torch.nn.LSTM(5, 3)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(ours.kernel.T)
        theirs.weight_hh_l0.copy_(ours.recurrent_kernel.T)
        theirs.bias_ih_l0.copy_(ours.bias)
        theirs.bias_hh_l0.zero_()
    x_PI = torch.randn(sum(batch_sizes), 5, generator=generator)
    h_BH, c_BH = torch.randn(2, batch_sizes[0], 3, generator=generator)
    output_PH, (h_last_BH, c_last_BH) = ours.forward_packed(x_PI, (h_BH, c_BH), batch_sizes)
    packed = torch.nn.utils.rnn.PackedSequence(x_PI, torch.tensor(batch_sizes))
    expected, (h_1BH, c_1BH) = theirs(packed, (h_BH[None], c_BH[None]))
    torch.testing.assert_close(output_PH, expected.data)
    torch.testing.assert_close(h_last_BH, h_1BH[0])
    torch.testing.assert_close(c_last_BH, c_1BH[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("vocabulary", "chosen"), [(10_000, ["cudnn"]), (200, ["basic", "block", "block_fused"])]
)
def test_twenty_steps_of_small_at_its_real_size(vocabulary: int, chosen: list[str]) -> None:
    """From the tutorial's initial weights and at its learning rate, where rounding grows fast: in float64.

    The ends of the network, which see the vocabulary, are the same whatever the model.
    """
    config = SMALL
    weights = {
        name: array.astype(np.float64)
        for name, array in parameters.draw_initial(config, vocabulary, seed=1).items()
    }
    models = {
        model: backend.build(
            config, weights, Choice.create(model=model, device="cpu", precision="fp64", seed=1)
        )
        for model in chosen
    }
    states = {model: built.zero_state(config.batch_size) for model, built in models.items()}
    state = reference.zero_state(weights, config.batch_size)
    words = np.random.default_rng(0).zipf(1.3, size=(config.batch_size, 20 * config.num_steps + 1))
    for step, (x_BT, y_BT) in enumerate(corpus.windows(np.minimum(words, vocabulary) - 1, config.num_steps)):
        expected, gradients, state = reference.loss_and_gradients(weights, x_BT, y_BT, state)
        weights, _ = reference_updates.sgd_update(weights, gradients, learning_rate=1.0, max_grad_norm=5.0)
        for model, built in models.items():
            states[model], loss = built.train_step(x_BT, y_BT, states[model], learning_rate=1.0)
            (measured,) = built.read([loss])
            assert measured.nll / config.batch_size == pytest.approx(expected, rel=1e-10), (model, step)


def test_every_bit_of_a_seed_counts(tiny_config: Config) -> None:
    """torch's generator of a CPU reads the lowest 32; seeds that have no more are taken as they are."""
    config, seeds = tiny_config.replace(keep_prob=0.5), (1, 2**32 + 1, 2**62 + 1)
    drawn = [build(config, seed=seed).next_masks(3, 5).units for seed in seeds]
    masks = [np.concatenate([mask.ravel() for mask in each]) for each in drawn]
    assert len({mask.tobytes() for mask in masks}) == 3
    assert derive_seed(2**32 - 1) == 2**32 - 1


def test_units_that_are_hardly_ever_kept_are_kept_at_their_rate() -> None:
    """16 random bits would keep at least one of 65,536: here fifteen times too many."""
    keep_prob, count = 1e-6, 4_000_000
    mask = draw_mask(MaskSpec((count,), keep_prob), torch.Generator().manual_seed(0), torch.float32)
    expected = keep_prob * count
    assert (mask != 0).sum().item() == pytest.approx(expected, abs=5 * expected**0.5)
    assert mask.unique().tolist() == pytest.approx([0, 1 / keep_prob])


def test_a_masked_parameter_is_what_it_was_to_the_bit() -> None:
    """After a failure too; and a gradient taken within is that of the product."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(3, 4, generator=generator))
    before, factor = parameter.detach().clone(), torch.tensor([0.0, 3.0, 1.0, 1 / 3])
    with mask_weights({parameter: factor}):
        assert torch.equal(parameter, before * factor)
        (gradient,) = torch.autograd.grad((parameter**2).sum(), parameter)
    assert torch.equal(gradient, 2 * before * factor)
    assert torch.equal(parameter, before)
    with pytest.raises(RuntimeError, match="out of memory"), mask_weights({parameter: factor}):
        raise RuntimeError("out of memory")
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("words_contiguous", [False, True])
def test_the_loss_and_its_gradients_equal_torch(words_contiguous: bool) -> None:
    """Against torch's own linear and cross_entropy, with logits far apart."""
    generator = torch.Generator().manual_seed(0)
    layer = SoftmaxLayer(
        7, 13, device=torch.device("cpu"), precision=PRECISIONS["fp64"], words_contiguous=words_contiguous
    )
    assert (layer.kernel.T.stride(1) == 1) is words_contiguous
    for tokens in (5, 9, 5):
        layer.weight.copy_(50 * torch.randn(8, 13, generator=generator, dtype=torch.float64))
        hidden = torch.randn(tokens, 7, generator=generator, dtype=torch.float64, requires_grad=True)
        targets = torch.randint(13, (tokens,), generator=generator)
        kernel, bias = (part.clone().requires_grad_() for part in (layer.weight[:-1], layer.weight[-1]))
        nll_N, d_hidden_NH = layer.loss_and_gradients(hidden.detach(), targets, 0.3)
        expected_N = torch.nn.functional.cross_entropy(hidden @ kernel + bias, targets, reduction="none")
        (0.3 * expected_N.sum()).backward()
        torch.testing.assert_close(nll_N, expected_N)
        torch.testing.assert_close(layer.losses(hidden.detach(), targets), expected_N)
        torch.testing.assert_close(d_hidden_NH, hidden.grad)
        torch.testing.assert_close(layer.gradient, torch.vstack([kernel.grad, bias.grad]))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_loss_in_half_precision_keeps_its_weight_in_single(precision: str) -> None:
    """Updates far below the weight's rounding in half precision add up."""
    generator = torch.Generator().manual_seed(0)
    layer = SoftmaxLayer(7, 13, device=torch.device("cpu"), precision=PRECISIONS[precision])
    layer.weight.copy_(torch.randn(8, 13, generator=generator))
    layer.masters.refresh()
    before = layer.weight.double()
    hidden = torch.randn(9, 7, generator=generator).to(PRECISIONS[precision].compute)
    targets = torch.randint(13, (9,), generator=generator)
    moved = torch.zeros(8, 13, dtype=torch.float64)
    for _ in range(50):
        nll_N, _ = layer.loss_and_gradients(hidden, targets, 1.0)
        weight = layer.weight.to(PRECISIONS[precision].compute).double()
        expected_N = torch.nn.functional.cross_entropy(
            hidden.double() @ weight[:-1] + weight[-1], targets, reduction="none"
        )
        torch.testing.assert_close(nll_N.double(), expected_N, rtol=0, atol=0.02)
        add_scaled(layer.masters.pairs, [layer.gradient], torch.tensor(1e-5))
        moved += 1e-5 * layer.gradient.double()
    torch.testing.assert_close(layer.weight.double() - before, moved, rtol=1e-2, atol=1e-5)
    assert layer.losses(hidden, targets).dtype == torch.float32


def test_very_unlikely_targets_have_a_finite_loss() -> None:
    layer = SoftmaxLayer(1, 2, device=torch.device("cpu"), precision=PRECISIONS["fp32"])
    layer.weight.copy_(torch.tensor([[0.0, 0.0], [400.0, -400.0]]))
    nll_N, _ = layer.loss_and_gradients(torch.zeros(1, 1), torch.tensor([1]), 1.0)
    assert nll_N.tolist() == [800.0]


@pytest.mark.parametrize("kernels", cpu.KERNELS)
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("shape", [(201, 10_000), (65, 100_000), (2, 250_000)])
def test_the_global_norm_is_exact_over_millions_of_numbers(
    shape: tuple[int, int], is_transposed: bool, kernels: str
) -> None:
    """The gradient of a tied softmax is transposed."""
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(shape, generator=generator) * torch.rand(shape[0], 1, generator=generator) ** 4
    if is_transposed:
        wide = wide.t().contiguous().t()
    constant = torch.full_like(wide, 0.7)  # torch rounds each term of such a sum the same way
    gradients = [wide, torch.randn(800, generator=generator), torch.randn(3, 4, generator=generator)]
    expected = sum(gradient.double().square().sum().item() for gradient in gradients) ** 0.5
    with override_implementation(kernels=kernels):
        assert global_norm(gradients).item() == pytest.approx(expected, rel=1e-7)
        expected = constant.double().square().sum().item() ** 0.5
        assert global_norm([constant]).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_sum_by_word_has_the_rows_and_the_norm_of_the_dense_gradient(tokens: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    ids_N = torch.randint(9, (tokens,), generator=generator)
    gradient_NE = torch.randn(tokens, 4, generator=generator, dtype=torch.float64)
    dense = torch.zeros(9, 4, dtype=torch.float64).index_add_(0, ids_N, gradient_NE)
    summed = sum_by_word(gradient_NE, ids_N)
    assert summed.norm().item() == pytest.approx(dense.norm().item(), rel=1e-14)
    words = ids_N.unique()
    torch.testing.assert_close(summed[: len(words)], dense[words])
    assert not summed[len(words) :].any()
