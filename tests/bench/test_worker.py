"""What a worker makes of its order, and what it tells of the device's memory: each pass's own peak."""

import dataclasses
import io
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import mutants
import numpy as np
import pytest
from torch import Tensor

from ptb_lm.bench import check
from ptb_lm.bench.check import expected
from ptb_lm.bench.check.bounds import BOUNDS
from ptb_lm.bench.language_workloads import PTB_VOCABULARY
from ptb_lm.bench.rivals.plain_torch import PlainModel
from ptb_lm.bench.run import timed_steps, worker
from ptb_lm.bench.run.timed_steps import WINDOWS, LanguageSteps
from ptb_lm.bench.run.worker import BlockTimer, BuiltVariant
from ptb_lm.bench.selection import Options
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import StepMetrics
from ptb_lm.model.config import Config
from ptb_lm.model.presets import PRESETS
from ptb_lm.torch_backend import cpu

MEMORY = """
import subprocess, sys
from ptb_lm.bench.run import worker
code = "import sys; kept = bytearray({}); print(flush=True); sys.stdin.read()"
def start(bytes):
    other = subprocess.Popen(
        [sys.executable, "-c", code.format(bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    other.stdout.readline()
    return other
small = start(1)
before = worker.host_memory()
large = start(300_000_000)
print(worker.host_memory() - before)
for other in (small, large):
    other.communicate()
"""


@pytest.mark.slow  # starts processes
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_memory_is_that_of_all_processes_of_a_variant() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert 300e6 < int(done.stdout) < 350e6


PASSES = """
from ptb_lm.bench.run.worker import BlockTimer

class Steps:
    def block(self, pass_name, steps, *, untimed):
        held = bytearray(steps)
        return 1.0

class Model:
    def device_memory(self):
        return None

Steps.model = Model()
blocks = BlockTimer(Steps())
for pass_name, held in (("train", 300_000_000), ("forward", 1), ("train", 1), ("forward", 1)):
    print(blocks.block(pass_name, held, untimed=0)["peak_memory"]["host_bytes"])
"""


@pytest.mark.slow  # starts a process
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_each_pass_has_its_own_peak_of_host_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PASSES], start_new_session=True, capture_output=True, text=True, check=True
    )
    train, forward, again, last = map(int, done.stdout.split())
    assert train - forward > 250e6
    assert again - last > 250e6, "as in its first block"


def change_quick(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Change the workload of quick for workers of this process."""
    suite: Any = SimpleNamespace(workloads=[dataclasses.replace(*SUITES["quick"].workloads, **changes)])
    monkeypatch.setattr(worker, "SUITES", {"quick": suite})


def build_variant(variant: str) -> BuiltVariant:
    return BuiltVariant(Options(suite="quick", batch_size=2, device="cpu"), "small", variant)


@pytest.mark.slow  # the reference is asked in a process of its own
def test_a_variant_is_built_and_checked_in_the_precision_of_its_name() -> None:
    single, half = (build_variant(name).check() for name in ("torch/cudnn", "torch/cudnn@bf16"))
    bounds = [BOUNDS[name].gradient for name in ("fp32", "bf16")]
    assert [facts["parity"]["gradient_bound"] for facts in (single, half)] == bounds
    assert single["parity"]["gradient_error"] < bounds[0] < half["parity"]["gradient_error"] < bounds[1]
    assert single["parity"]["loss_error"] < half["parity"]["loss_error"]
    assert single["parity"]["rows"] == single["parity"]["distinct_rows"] == 2
    assert half["check"]["precision"] == "bf16"
    assert "2 × 200 units" in half["check"]["steps"]
    assert "batch 2 × 20 steps" in half["check"]["steps"]
    assert half["loss"] == pytest.approx(single["loss"], rel=1e-3)


@pytest.mark.slow  # the reference is asked in a process of its own
def test_what_was_compared_is_timed_from_a_run_s_initial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The object that was compared is the one that is timed."""
    compared, compare = [], check.check

    def spied(task: Any, build: Any, model: Any, **more: Any) -> check.CheckResult:
        compared.append(model)
        return compare(task, build, model, **more)

    monkeypatch.setattr(check, "check", spied)
    built = build_variant("torch/cudnn")
    built.check()
    timed = built.steps
    (model,) = compared
    assert model is timed.model
    assert isinstance(timed, LanguageSteps)
    initial = parameters.draw_initial(timed.task.config, timed.task.vocabulary_size, seed=1)
    for name, array in timed.model.export_weights().items():
        np.testing.assert_array_equal(array, initial[name])
    assert all((h_BH == 0).all() and (c_BH == 0).all() for h_BH, c_BH in timed.state)


@pytest.mark.slow  # the reference is asked in a process of its own
@pytest.mark.parametrize("variant", ["torch/block_fused", "plain-torch/cudnn"])
def test_a_later_process_is_compared_only_if_its_first_losses_differ(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With dropout, whose masks the first tells and the second does not; after other steps, too."""
    with_dropout = PRESETS["small"].replace(batch_size=6, hidden_size=16, keep_prob=0.5, num_layers=2)
    task = LanguageTask(config=with_dropout, vocabulary_size=50)
    change_quick(monkeypatch, task=task)

    def build() -> BuiltVariant:
        return BuiltVariant(Options(suite="quick", device="cpu"), "small", variant)

    keys, key = [], expected._key
    monkeypatch.setattr(expected, "_key", lambda question: keys.append(key(question)) or keys[-1])
    first = build()
    first.check()
    answered = [*keys]
    first.steps.losses("train", 5)
    told = first.confirm(None)
    assert (told["same"], len(told["first_losses"])) == (False, 3)
    assert keys == 2 * answered, "the reference need not answer again"

    compared: list[Any] = []
    compare = check.check
    monkeypatch.setattr(check, "check", lambda *given, **more: compared.append(0) or compare(*given, **more))
    later = build()
    later.steps.losses("train", 3)
    assert later.confirm(told["first_losses"])["same"]
    assert compared == []
    *others, last = told["first_losses"]
    refused = later.confirm([*others, np.nextafter(last, 0)])
    assert not refused["same"]
    assert refused["parity"]["loss_error"] < refused["parity"]["loss_bound"]
    assert len(compared) == 1

    # What is not seen while its dropout is switched off: a process that drops nothing from the top output.
    if variant == "plain-torch/cudnn":
        dropping = build()
        dropping.steps.losses("train", 3)
        network = dropping.steps.model.network
        with monkeypatch.context() as patch:
            patch.setattr(type(network), "forward", _without_top_dropout)
            with pytest.raises(check.WrongError, match="dropout"):
                dropping.confirm(told["first_losses"])

    wrong = build()
    wrong.steps.model = mutants.GatesSwapped(wrong.steps.model, wrong.steps.model.export_weights())
    with pytest.raises(check.WrongError, match="off by"):
        wrong.confirm(told["first_losses"])


def _renamed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.replace("lstm.0.bias", "lstm.0.biases"): array for name, array in weights.items()}


def _transposed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.T if name == "embedding" else array for name, array in weights.items()}


@pytest.mark.parametrize(
    ("exported", "told"),
    [
        (_renamed, "'lstm.0.bias' is missing"),
        (
            lambda weights: {name: array.tolist() for name, array in _transposed(weights).items()},
            "'embedding' has shape (16, 50), not (50, 16)",
        ),
        (_transposed, "'embedding' has shape (16, 50), not (50, 16)"),
        (lambda weights: {**weights, "more": np.zeros(3)}, "'more' does not belong to this model"),
    ],
)
def test_what_exports_other_tensors_is_wrong_by_name(
    exported: Any, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = LanguageTask(
        config=PRESETS["small"].replace(batch_size=2, hidden_size=16, num_layers=1), vocabulary_size=50
    )
    change_quick(monkeypatch, task=task)
    built = BuiltVariant(Options(suite="quick", device="cpu"), "small", "torch/block")
    right = built.steps.model.export_weights
    monkeypatch.setattr(built.steps.model, "export_weights", lambda: exported(right()))
    with pytest.raises(check.WrongError) as error:
        built.check()
    assert str(error.value) == f"it exports other tensors: the tensor {told}"
    monkeypatch.setattr(type(built.steps.model), "engine", 2)  # which no row could hold
    with pytest.raises(ValueError, match=r"engine .* 2$"):
        built.facts()


@pytest.mark.parametrize(
    ("reply", "written"),
    [
        ({"loss": np.float32(1.5), "steps": np.int64(3)}, {"loss": 1.5, "steps": 3}),
        (
            {"environment": {"x": {1}}},
            {"status": "failed", "reason": "TypeError: no row can hold {1}"},
        ),
        (
            {"environment": {"x": float("nan")}},
            {"status": "failed", "reason": "ValueError: Out of range float values are not JSON compliant"},
        ),
        (
            {"loss": np.float32("inf")},
            {"status": "failed", "reason": "ValueError: Out of range float values are not JSON compliant"},
        ),
    ],
)
def test_numpy_s_numbers_are_written_and_what_no_row_holds_is_a_failure(
    reply: dict[str, Any], written: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this variant alone: the benchmark itself would end when it wrote the row."""
    stream = io.StringIO()
    monkeypatch.setattr(worker, "_replies", lambda requests: iter([reply]))
    worker.serve(io.StringIO(), stream)
    (line,) = stream.getvalue().splitlines()
    assert "3.0" not in line, "a count stays a whole number"
    found = json.loads(line)
    if "reason" in found:
        found["reason"] = found["reason"].split(": nan")[0].split(": inf")[0]  # Python 3.12 and later say it
    assert found == written


def _without_top_dropout(self: PlainModel, x_TB: Tensor, state: Any) -> tuple[Tensor, Any]:
    output_TBH, state = self.lstm(self.dropout(self.embedding(x_TB)), state)
    return self.linear(output_TBH), state


def test_windows_go_on_where_the_last_block_stopped() -> None:
    """Cut inside of the clock, one after the other, and over again after the last."""
    task = LanguageTask(config=PRESETS["small"].replace(batch_size=2), vocabulary_size=PTB_VOCABULARY)
    seen: list[np.ndarray] = []

    class Model(SimpleNamespace):
        def train_step(self, x_BT: np.ndarray, y_BT: np.ndarray, state: int, *, learning_rate: float) -> Any:
            seen.append(x_BT)
            return state + 1, None

    def build(config: Config, weights: Any) -> Any:
        return Model(
            to_device=lambda rows_BL: rows_BL,
            zero_state=lambda batch_size: 0,
            read=lambda losses: [StepMetrics(1.0, 1.0) for _ in losses],
        )

    timed = LanguageSteps(task, build, seed=1)
    for steps in (3, WINDOWS, 2):
        timed.block("train", steps - 1, untimed=1)
    assert timed.state == len(seen) == WINDOWS + 5
    rows_BL = task.rows(WINDOWS, seed=1)
    expected = [x_BT for x_BT, _ in corpus.windows(rows_BL, task.config.num_steps)]
    np.testing.assert_array_equal(seen, [*expected, *expected[:5]])


@pytest.mark.parametrize(
    "task", [each.task for suite in ("quick", "template") for each in SUITES[suite].workloads]
)
@pytest.mark.parametrize("told", [lambda losses: losses[:1], lambda losses: [], lambda losses: 2 * losses])
def test_a_model_that_does_not_tell_the_loss_of_each_step_is_wrong(task: Any, told: Any) -> None:
    """It may leave steps running when the clock stops."""

    class Reads(mutants.Wrapped):
        def read(self, losses: Any) -> Any:
            return self.model.read(losses if len(losses) == 1 else told(losses))

    steps = timed_steps.prepare(task.with_batch_size(2), mutants.wrapped(Reads), seed=1)
    steps.block("train", 1, untimed=0)
    for measure in (lambda: steps.block("train", 2, untimed=1), lambda: steps.first_losses({"train"})):
        with pytest.raises(check.WrongError, match="still be running"):
            measure()


def test_a_precision_that_a_cpu_lacks_is_told() -> None:
    with pytest.raises(UserError, match=r"--precision tf32 .*CUDA"):
        build_variant("plain-torch/cudnn@tf32")


@pytest.mark.parametrize("products", ["", "AMX"])
def test_what_would_take_minutes_without_bfloat16_products_is_refused(
    products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_quick(monkeypatch, needs_native_precision=True)
    monkeypatch.setattr(cpu, "bfloat16_products", lambda: products)
    build_variant("torch/block_fused")
    if products:
        build_variant("torch/block_fused@bf16")
        return
    with pytest.raises(UserError, match="bfloat16 itself"):
        build_variant("torch/block_fused@bf16")


@pytest.mark.parametrize(
    ("of_device", "device_peaks"), [((9, 3, 7, 4), [9, 3, 9, 4]), ((None,) * 4, [None] * 4)]
)
def test_each_pass_has_its_own_peak_from_its_first_step_on(
    of_device: tuple[int | None, ...], device_peaks: list[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is the warm-up, in which libraries allocate; a CPU has no memory of a device."""
    host, device = iter((900, 300, 700, 400)), iter(of_device)
    monkeypatch.setattr(worker, "host_memory", lambda: next(host))
    model = SimpleNamespace(device_memory=lambda: next(device))
    steps: Any = SimpleNamespace(block=lambda pass_name, steps, untimed: 1.0, model=model)
    blocks = BlockTimer(steps)
    found = [
        blocks.block(pass_name, 1, untimed=0)["peak_memory"]
        for pass_name in ("train", "forward", "train", "forward")
    ]
    assert [each["host_bytes"] for each in found] == [900, 300, 900, 400]
    assert [each["device_bytes"] for each in found] == device_peaks
