"""The loops that people write in torch: each computes what the reference does, in each of its precisions."""

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

import forked
import pytest
import torch
from support import Build, checked_twice, trace_alone

from ptb_lm.bench import check
from ptb_lm.bench.rivals.plain_torch import KEPT_MEMORY, PlainLoop
from ptb_lm.bench.variants import REGISTRY, Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.model import parameters
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, RECIPES
from ptb_lm.torch_backend import cpu, runtime

TASK = LanguageTask(
    config=Config(hidden_size=40, embedding_size=30, num_steps=20, keep_prob=0.5), vocabulary_size=500
)
PLAIN = REGISTRY["plain-torch"]
ON_A_CPU = [name for name in PLAIN.precisions if name not in FRAMEWORKS["torch"].needs_cuda]


def builder(name: str, *, device: str = "cpu") -> Build:
    return Variant(f"plain-torch/{name}").builder(REGISTRY, device=device, precision="fp32", seed=1)


def built(name: str, config: Config = TASK.config) -> PlainLoop:
    loop: PlainLoop = builder(name)(config, parameters.draw_initial(config, TASK.vocabulary_size, seed=1))
    return loop


def compare(build: Build, precision: str, *, second_model: bool = False) -> None:
    found = checked_twice(TASK, build, precision=precision)
    assert found.errors["rows"] == found.errors["distinct_rows"] == 20
    assert ("second model" in found.what["dropout"]) == second_model
    assert "mean of 4" in found.what["dropout"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ON_A_CPU)
@pytest.mark.parametrize(
    ("model", "execution"),
    [
        (model, execution)
        for model in PLAIN.models
        for execution in PLAIN.executions
        # What is compiled is the same module, whatever becomes of the memory.
        if (model, execution) != (KEPT_MEMORY, "compile")
    ],
)
def test_every_plain_loop_passes_in_each_precision(
    model: str, execution: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace_alone(monkeypatch)
    if precision == "bf16" and not cpu.has_bfloat16_lstm():
        with pytest.raises(UserError, match="bfloat16"):
            compare(builder(f"{model}/{execution}@{precision}"), precision)
        return
    compare(builder(f"{model}/{execution}@{precision}"), precision, second_model=execution == "compile")


def test_dropout_is_back_after_it_was_switched_off() -> None:
    loop = built("cudnn")
    window, zero = TASK.window(seed=1), loop.zero_state(20)

    def losses() -> set[float]:
        steps = (loop.train_step(*window, zero, learning_rate=0.0)[1] for _ in range(2))
        return {measured.nll for measured in loop.read([*steps])}

    with loop.without_dropout():
        assert len(losses()) == 1
    assert len(losses()) == 2
    assert (loop.network.dropout.p, loop.network.lstm.dropout) == (0.5, 0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PLAIN.precisions)
@pytest.mark.parametrize("execution", PLAIN.executions)
def test_the_plain_loop_passes_on_a_gpu(execution: str, precision: str) -> None:
    if (execution, precision) == ("compile", "tf32"):
        pytest.skip("torch.compile does not go with TF32 as it is set here")
    second_model = execution == "compile"
    compare(builder(f"cudnn/{execution}@{precision}", device="cuda"), precision, second_model=second_model)


@pytest.mark.skipif(not cpu.has_bfloat16_lstm(), reason="torch refuses this processor")
def test_autocast_keeps_weights_and_gradients_in_float32_and_computes_in_bfloat16() -> None:
    loop = built("cudnn@bf16")
    state, loss = loop.train_step(*TASK.window(seed=1), loop.zero_state(20), learning_rate=0.5)
    assert {h.dtype for h in loop.zero_state(20)} == {torch.float32}, "as a program that knows nothing of it"
    assert {h.dtype for h in state} == {torch.bfloat16}
    assert {view.value.dtype for view in loop.canonical_views().values()} == {torch.float32}
    assert {view.parameter.grad.dtype for view in loop.canonical_views().values()} == {torch.float32}
    assert {number.dtype for number in loss} == {torch.float32}
    with pytest.raises(check.WrongError, match="NumPy reference's, more than"):
        compare(builder("cudnn@bf16"), "fp32")


@pytest.mark.slow
def test_torch_compiles_a_part_of_the_module_and_the_row_says_which() -> None:
    from torch._dynamo.utils import counters

    counters.clear()
    loop = built("cudnn/compile")
    loop.train_step(*TASK.window(seed=1), loop.zero_state(20), learning_rate=0.5)
    assert counters["stats"]["unique_graphs"] >= 1, "everything ran as it stands"
    assert "compile stops" in loop.engine
    assert "compile" not in built("cudnn").engine


def test_compiling_without_a_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"^--execution compile .*C\+\+"):
        built("cudnn/compile")


@pytest.mark.slow
def test_signals_are_kept_from_the_compiler_of_every_model() -> None:
    """Though each forgets what was compiled before, and with it what torch calls around a compilation."""
    handler = torch._dynamo.callback.callback_handler
    for _ in range(2):
        built("cudnn/compile")
        runtime.prepare_compiler()  # as each layer of a stack does
        assert [each.__module__ for each in handler.start_callbacks].count(runtime.__name__) == 1
        assert len(handler.start_callbacks) == len(handler.end_callbacks)


def test_a_loop_on_a_gpu_asks_nothing_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels would be compiled for it."""
    loop = built("cudnn")
    loop.device = loop.runtime.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(cpu, "facts", lambda: pytest.fail("asked"))
    assert loop.environment()["device"] == "a GPU"


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        ({"tie_weights": True, "embedding_size": 0}, "--tie-weights"),
        ({"variational": True}, "--variational"),
        ({"embedding_keep_prob": 0.9}, "--embedding-keep-prob"),
        ({"recurrent_keep_prob": 0.9}, "--recurrent-keep-prob"),
        (
            {"variational": True, "embedding_keep_prob": 0.9, "recurrent_keep_prob": 0.9},
            "--variational, --embedding-keep-prob, --recurrent-keep-prob",
        ),
    ],
)
def test_flags_that_the_plain_loop_lacks_are_refused(changes: dict[str, Any], flags: str) -> None:
    with pytest.raises(UserError, match=f"has no {flags}$"):
        built("cudnn", TASK.config.replace(**changes))


def test_the_tutorial_s_configurations_are_not_refused() -> None:
    assert RECIPES["default"]["medium"].variational, "which is refused above"
    for config in PRESETS["test"], PRESETS["medium"].replace(hidden_size=4):
        built("cudnn", config)


def test_the_plain_loop_s_process_keeps_denormal_numbers() -> None:
    torch.set_flush_denormal(True)
    loop = built("cudnn-kept-memory")
    assert (torch.full((), 1e-38) * 0.01).item() > 0
    loop.train_step(*TASK.window(seed=1), loop.zero_state(20), learning_rate=0.5)
    assert (torch.full((), 1e-38) * 0.01).item() > 0


SPINNING = """
import sys
import benchmarks  # finds the classifier of the examples
{}
try:
    import ptb_lm.bench.run.worker, {}
except ModuleNotFoundError as error:
    if error.name != "torch._C":
        raise
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="OpenMP's library may be another")
@pytest.mark.parametrize(
    ("module", "ours"),
    [
        ("ptb_lm.torch_backend.backend", True),
        ("sequence_classifier.on_torch", True),
        ("ptb_lm.bench.rivals.torch_outer", True),
        ("benchmarks.rivals.without", True),
        ("ptb_lm.bench.rivals.plain_torch", False),
        ("benchmarks.rivals.keras.on_torch", False),
    ],
)
def test_openmp_s_threads_spin_as_the_package_sets_it_in_its_own_models_alone(
    module: str, ours: bool
) -> None:
    if "keras" in module and importlib.util.find_spec("keras") is None:
        pytest.skip("Keras is not installed")
    unset = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    # OpenMP's library is loaded, and tells, before the rest of torch, which takes seconds to import.
    for rest in ("sys.modules['torch._C'] = None", "pass"):
        done = subprocess.run(
            [sys.executable, "-c", SPINNING.format(rest, module)],
            env={**unset, "OMP_DISPLAY_ENV": "verbose"},
            capture_output=True,
            text=True,
            check=True,
        )
        found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
        if found is not None:
            break
    else:
        pytest.skip("OpenMP's library is not GNU's")
    assert (found[1] == "20000") == ours


FAULTS = """
import resource, torch
from ptb_lm.model import parameters
from ptb_lm.bench.variants import REGISTRY
from ptb_lm.bench.variants import Variant
from ptb_lm.model.presets import PRESETS
config = PRESETS["test"]
build = Variant("plain-torch/{}").builder(REGISTRY, device="cpu", precision="fp32", seed=1)
loop = build(config, parameters.draw_initial(config, 50, seed=1))
def use():
    torch.ones(2**23)
for _ in range(20):
    use()  # the heap grows, here and there, until one place is used again and again
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(model: str) -> int:
    done = forked.python(FAULTS.format(model))
    done.check_returncode()
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is told")
def test_the_model_of_kept_memory_keeps_it_and_the_other_gives_it_back() -> None:
    given_back = faults("cudnn")
    if given_back < 1000:
        pytest.skip("this C library keeps its memory by itself, or its pages are huge")
    assert faults("cudnn-kept-memory") < given_back / 20
