"""TensorFlow's own side of the backend: the graph, random streams, the softmax, its devices, its silence."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import training_steps
from support import assert_arrays, random_weights, random_windows
from training_steps import VOCABULARY

from ptb_lm import evaluate, train
from ptb_lm.common import nvidia
from ptb_lm.common.errors import UserError
from ptb_lm.common.host import hold_back_stderr
from ptb_lm.model import reference
from ptb_lm.model.config import Config
from ptb_lm.model.ranks import Ranks
from ptb_lm.training.run_directory import RunDirectory

tf = pytest.importorskip("tensorflow")

from ptb_lm.tf_backend.cells import run_over_time  # noqa: E402
from ptb_lm.tf_backend.dropout import (  # noqa: E402
    device_seed,
    draw_mask,
    export_streams,
    load_streams,
    new_stream,
)
from ptb_lm.tf_backend.loss import (  # noqa: E402
    SoftmaxCrossEntropy,
    SoftmaxLayer,
    TiedSoftmaxLayer,
    sum_by_word,
)


@pytest.mark.parametrize(("unroll", "steps"), [("static", 6), ("loop", 1)])
def test_the_graph_holds_every_step_or_one(unroll: str, steps: int) -> None:
    traced = []

    def step(x_BI: Any, state: Any) -> Any:
        traced.append(x_BI)
        return x_BI + state[0], state[1]

    function = tf.function(lambda x_TBI, state: run_over_time(step, x_TBI, state, unroll=unroll))
    x_TBI, zeros_BH = tf.ones([6, 2, 3]), tf.zeros([2, 3])
    h_TBH, (h_BH, _) = function(x_TBI, (zeros_BH, zeros_BH))
    assert len(traced) == steps
    np.testing.assert_array_equal(h_TBH[:, 0, 0], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(h_BH, h_TBH[-1])


def build(config: Config, model: str, **choice: Any) -> Any:
    return training_steps.build(config, framework="tensorflow", model=model, **choice)


@pytest.mark.parametrize("model", ["block_fused", "cudnn"])  # Keras's layer has a function of its own
def test_only_the_first_step_is_traced(model: str, tiny_config: Config) -> None:
    """Whatever the learning rate, and in evaluation whatever the window."""
    built = build(tiny_config.replace(keep_prob=0.5), model)
    state = built.zero_state(3)
    for step, (x_BT, y_BT) in enumerate(random_windows(tiny_config, VOCABULARY, 5, seed=2)):
        state, _ = built.train_step(x_BT, y_BT, state, learning_rate=0.5**step)
    built.load_training_state(built.export_training_state(state))
    assert built.training.execute_step.experimental_get_tracing_count() == 1
    for batch, steps in ((1, 1), (1, 9), (3, 5), (4, 2), (3, 5)):
        sizes = tiny_config.replace(batch_size=batch, num_steps=steps)
        ((x_BT, y_BT),) = random_windows(sizes, VOCABULARY, 1, seed=2)
        built.evaluate_step(x_BT, y_BT, built.zero_state(batch))
    assert built.window_function.experimental_get_tracing_count() == 1
    assert built.evaluate_function.experimental_get_tracing_count() == 1


@pytest.mark.parametrize(
    ("model", "execution", "unroll", "loops"),
    [
        ("basic", "graph", "static", False),
        ("basic", "graph", "loop", True),
        ("basic", "eager", "static", False),
        ("block", "graph", "static", False),
        ("cudnn", "xla", "static", True),  # the Keras layer's own loop
    ],
)
def test_windows_of_the_configuration_s_shape_are_evaluated_as_they_are_trained(
    model: str, execution: str, unroll: str, loops: bool, tiny_config: Config
) -> None:
    """And those of another shape are not; both score what the reference does."""
    built = build(tiny_config, model, execution=execution, unroll=unroll)
    weights = random_weights(tiny_config, VOCABULARY, seed=1)
    for steps in (5, 3):
        ((x_BT, y_BT),) = random_windows(tiny_config.replace(num_steps=steps), VOCABULARY, 1, seed=2)
        zero = reference.zero_state(weights, 3)
        expected, _, after = reference.loss_and_gradients(weights, x_BT, y_BT, zero)
        h = [h_BH for h_BH, _ in after]
        state, loss = built.evaluate_step(x_BT, y_BT, built.zero_state(3))
        assert built.read([loss])[0].nll == pytest.approx(3 * expected, rel=1e-6)
        np.testing.assert_allclose(built.export_training_state(state)["h"], h, rtol=0, atol=1e-6)
    if execution == "eager":
        return
    window = tf.TensorSpec([3, 5], tf.int32)
    graph = built.window_function.get_concrete_function(window, window, built.zero_state(3)).graph
    assert any("While" in operation.type for operation in graph.get_operations()) is loops
    assert built.window_function.experimental_get_tracing_count() == 1
    assert built.evaluate_function.experimental_get_tracing_count() == 1


def test_streams_of_different_seeds_do_not_overlap() -> None:
    """Whatever their distance; of neighbouring seeds, of a second device, and of the greatest seed."""
    seeds = (1, 2, device_seed(1, device=1), 2**63 - 1)
    masks = [draw_mask(new_stream(seed), [1000], 0.5, tf.float32).numpy() for seed in seeds]
    for (one, other), shift in itertools.product(itertools.permutations(masks, 2), range(100)):
        alike = (one[shift:] == other[: 1000 - shift]).mean()
        assert alike == pytest.approx(0.5, abs=6 * 0.5 / (1000 - shift) ** 0.5)


def test_a_stream_goes_on_where_it_was_saved_and_on_other_devices_begins_anew() -> None:
    """Also one whose seed was the counter, as it was once."""
    before = tf.random.Generator.from_seed(3, alg="philox")
    before.uniform([5])
    saved, expected = before.state.numpy(), before.uniform([5])
    stream = new_stream(1)
    load_streams([stream], saved)
    np.testing.assert_array_equal(stream.uniform([5]), expected)
    two_streams = [new_stream(1), new_stream(2)]
    load_streams(two_streams, saved)
    assert len({int(each.key) for each in (before, *two_streams)}) == 3


def test_each_rank_goes_on_with_the_streams_of_its_own_devices() -> None:
    """Two ranks of two devices each; and from a run of one device each gets streams of its own."""

    def restored(saved: np.ndarray) -> list[int]:
        streams = [new_stream(1) for _ in range(4)]
        for rank in range(2):
            ranks = Ranks()
            ranks.rank, ranks.size = rank, 2
            load_streams(streams[2 * rank : 2 * rank + 2], saved, ranks)
        return [int(stream.key) for stream in streams]

    assert restored(export_streams([new_stream(seed) for seed in (3, 4, 5, 6)])) == [3, 4, 5, 6]
    for saved in ([3], [3, 4]):
        anew = restored(export_streams([new_stream(seed) for seed in saved]))
        assert len({*anew, *saved}) == 4 + len(saved)


@pytest.mark.parametrize(
    ("name", "damaged", "problem"),
    [
        ("tensorflow.adam.steps", np.zeros(2, np.int64), "has shape"),
        ("tensorflow.generator", np.zeros((0, 3), np.int64), "random stream"),
        ("tensorflow.generator", np.zeros(3), "random stream"),
        ("tensorflow.generator", np.zeros(2, np.int64), "random stream"),  # of another length
    ],
)
def test_a_damaged_state_is_refused_in_a_sentence(
    name: str, damaged: np.ndarray, problem: str, tiny_config: Config
) -> None:
    model = build(tiny_config.replace(keep_prob=0.5, optimizer="adam"), "basic")
    arrays = model.export_training_state(model.zero_state(tiny_config.batch_size))
    assert name in arrays
    with pytest.raises(UserError, match=problem):
        model.load_training_state({**arrays, name: damaged})


def test_a_bound_near_the_greatest_float_clips_nothing(tiny_config: Config) -> None:
    ((x_BT, y_BT),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    after = []
    for bound in (1e3, 3e38):
        built = build(tiny_config.replace(max_grad_norm=bound), "basic", execution="eager")
        built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=2.0)
        after.append(built.export_weights())
    assert_arrays(after[1], after[0])


def test_the_loss_and_its_gradients_equal_the_tape_s() -> None:
    """Against TensorFlow's own softmax cross-entropy, with logits far apart."""
    rng = np.random.default_rng(0)
    layer = SoftmaxLayer(7, 13, dtype=tf.float64)
    layer.variable.assign(50 * rng.normal(size=(8, 13)))
    hidden, targets = tf.constant(rng.normal(size=(9, 7))), tf.constant(rng.integers(13, size=9))
    nll_N, d_hidden_NH, (d_weight,) = layer.loss_and_gradients(hidden, targets, 0.3)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        logits_NV = hidden @ layer.variable[:-1] + layer.variable[-1]
        expected_N = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits_NV)
        scaled = 0.3 * tf.reduce_sum(expected_N)
    d_hidden, d_expected = tape.gradient(scaled, [hidden, layer.variable])
    np.testing.assert_allclose(nll_N, expected_N)
    np.testing.assert_allclose(SoftmaxCrossEntropy(layer.logits(hidden), targets).nll_N, expected_N)
    np.testing.assert_allclose(d_hidden_NH, d_hidden)
    np.testing.assert_allclose(d_weight, d_expected)


def test_a_tied_softmax_computes_what_an_untied_one_does() -> None:
    rng = np.random.default_rng(0)
    untied, embedding = SoftmaxLayer(7, 13, dtype=tf.float64), tf.Variable(rng.normal(size=(13, 7)))
    tied = TiedSoftmaxLayer(embedding)
    bias = rng.normal(size=13)
    canonical = {"softmax.kernel": embedding.numpy().T, "softmax.bias": bias}
    for layer in (tied, untied):
        layer.variable.assign(layer.from_canonical(canonical))
    hidden, targets = tf.constant(rng.normal(size=(9, 7))), tf.constant(rng.integers(13, size=9))
    expected_N, expected_NH, (d_weight,) = untied.loss_and_gradients(hidden, targets, 0.3)
    nll_N, d_hidden_NH, (d_embedding_VE, d_bias_V) = tied.loss_and_gradients(hidden, targets, 0.3)
    np.testing.assert_allclose(nll_N, expected_N)
    np.testing.assert_allclose(SoftmaxCrossEntropy(tied.logits(hidden), targets).nll_N, expected_N)
    np.testing.assert_allclose(d_hidden_NH, expected_NH)
    np.testing.assert_allclose(d_embedding_VE, tf.transpose(d_weight[:-1]))
    np.testing.assert_allclose(d_bias_V, d_weight[-1])


def test_very_unlikely_targets_have_a_finite_loss() -> None:
    layer = SoftmaxLayer(1, 2, dtype=tf.float32)
    layer.variable.assign([[0.0, 0.0], [400.0, -400.0]])
    hidden, targets = tf.zeros([1, 1]), tf.constant([1])
    assert SoftmaxCrossEntropy(layer.logits(hidden), targets).nll_N.numpy().tolist() == [800.0]
    nll_N, d_hidden_NH, (d_weight,) = layer.loss_and_gradients(hidden, targets, 0.5)
    assert nll_N.numpy().tolist() == [800.0]
    assert d_hidden_NH.numpy().tolist() == [[0.0]]
    assert d_weight.numpy().tolist() == [[0.0, 0.0], [0.5, -0.5]]


@pytest.mark.parametrize("tokens", [1, 2, 50])
def test_sum_by_word_has_a_row_for_each_word(tokens: int) -> None:
    rng = np.random.default_rng(tokens)
    ids_N, gradient_NE = rng.integers(9, size=tokens), rng.normal(size=(tokens, 4))
    dense_VE = np.zeros((9, 4))
    np.add.at(dense_VE, ids_N, gradient_NE)
    summed_NE = sum_by_word(tf.constant(gradient_NE), tf.constant(ids_N), 9).numpy()
    for position, word in enumerate(ids_N):
        first = word not in ids_N[:position]
        np.testing.assert_allclose(summed_NE[position], dense_VE[word] if first else np.zeros(4))


def test_words_outside_the_window_keep_their_embedding(tiny_config: Config) -> None:
    built = build(tiny_config, "block_fused")
    before = built.export_weights()["embedding"]
    x_BT, y_BT = np.full((3, 5), 4, np.int32), np.full((3, 5), 6, np.int32)
    built.train_step(x_BT, y_BT, built.zero_state(3), learning_rate=0.7)
    changed = (built.export_weights()["embedding"] != before).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [4]


def test_the_engine_says_what_runs(tiny_config: Config) -> None:
    engine = build(tiny_config, "cudnn").engine
    assert re.match(r"keras\.layers\.LSTM .*cpu .graph", engine)
    assert build(tiny_config, "block", execution="eager").engine == "tensorflow block on cpu (eager)"
    other = build(tiny_config.replace(cell="mogrifier_lstm"), "basic")
    assert other.engine == "tensorflow basic mogrifier_lstm on cpu (graph)"


def test_the_plain_loop_s_keras_is_on_tensorflow_whatever_computes_elsewhere() -> None:
    code = "import os; os.environ['KERAS_BACKEND'] = 'torch'; "
    code += "from ptb_lm.bench.rivals.plain_tensorflow import keras; "
    done = python(code + "print(keras.config.backend(), os.environ['KERAS_BACKEND'])")
    assert (done.stderr, done.stdout) == ("", "tensorflow torch\n")


def test_keras_on_another_library_is_refused(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tiny_config, "cudnn")
    monkeypatch.setattr("keras.config.backend", lambda: "jax")
    with pytest.raises(UserError, match="has imported Keras on jax"):
        build(tiny_config, "cudnn")


@pytest.mark.parametrize("value", ["x", "-1", "2.5"])
def test_what_is_no_number_of_threads_is_refused(
    value: str, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow would take as many threads as there are cores, and say nothing."""
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", value)
    problem = f"^TF_NUM_INTRAOP_THREADS must be a whole number of at least 0, not '{value}'$"
    with pytest.raises(UserError, match=problem):
        build(tiny_config, "basic")


@pytest.mark.parametrize(("value", "threads"), [("0", "one a core"), ("", "one a core"), ("3", "3")])
def test_the_threads_of_the_environment_are_recorded(
    value: str, threads: str, tiny_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorFlow takes 0 as leaving the number to it."""
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", value)
    assert build(tiny_config, "basic").environment()["threads"] == threads


def test_a_missing_device_is_one_sentence(tiny_config: Config) -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match="--device cuda"):
        build(tiny_config, "basic", device="cuda")


def test_a_gpu_that_tensorflow_does_not_find_wants_an_environment_of_its_own(
    tiny_config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is a CUDA device")
    monkeypatch.setattr(nvidia, "gpus", lambda: [nvidia.Gpu("NVIDIA H100", (580, 65), (9, 0))])
    nvidia.warn.cache_clear()
    build(tiny_config, "basic", device="cpu")
    assert capsys.readouterr().err == ""
    build(tiny_config, "basic", device="auto")
    (warning,) = capsys.readouterr().err.splitlines()
    with pytest.raises(UserError, match="--device cuda") as caught:
        build(tiny_config, "basic", device="cuda")
    for sentence in (warning, str(caught.value)):
        assert "NVIDIA H100" in sentence
        assert nvidia.PAGE in sentence


def test_a_cpu_s_memory_is_not_measured(tiny_config: Config) -> None:
    assert build(tiny_config, "basic").device_memory() is None


@pytest.mark.gpu
def test_a_gpu_s_memory_is_measured_at_its_peak(tiny_config: Config) -> None:
    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("there is no CUDA device")
    built = build(tiny_config, "basic", device="cuda")
    before = built.device_memory()
    with tf.device("GPU:0"):
        tf.zeros([before + 2**20], tf.uint8).numpy()
    assert built.device_memory() >= before + 2**20


@pytest.mark.gpu
def test_xla_refuses_cudnn(tiny_config: Config) -> None:
    with pytest.raises(UserError, match="CudnnRNNV3"):
        build(tiny_config, "cudnn", device="cuda", execution="xla")


def test_a_refused_execution_leaves_nothing_behind(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--framework", "tensorflow", "--model", "block_fused", "--execution", "xla")
    assert "xla" in runs.refusal(capsys, train, *runs.arguments(data, tmp_path / "run", *more))
    assert not (tmp_path / "run").exists()


TRAIN_FLAGS = ("--framework", "tensorflow", "--model", "block_fused", "--keep-prob", "0.7")


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.train_run(data, tmp_path_factory.mktemp("whole") / "run", *TRAIN_FLAGS)


def test_a_run_scores_the_same_in_torch(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = RunDirectory(whole).read_config().choice
    assert (chosen.framework, chosen.execution, chosen.unroll) == ("tensorflow", "graph", "static")
    assert runs.run_command(evaluate, whole, "--framework", "torch", "--model", "cudnn") == 0
    scored = float(capsys.readouterr().out.split()[2])
    assert scored == pytest.approx(runs.result(whole)["test_perplexity"], abs=1.1e-4)


def test_a_resumed_run_ends_with_the_same_weights(whole: Path, data: Path, tmp_path: Path) -> None:
    parts = runs.train_run(data, tmp_path / "parts", *TRAIN_FLAGS, "--epochs", "1")
    assert train.main(["--resume", str(parts), "--epochs", "2"]) == 0
    runs.assert_equal_runs(parts, whole)


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python without the variables that TensorFlow reads, as a user would."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "KERAS"))}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=environment
    )


def test_triton_is_there_before_tensorflow(tmp_path: Path) -> None:
    """Later it would crash. The one here stands for that of torch's builds for CUDA."""
    (tmp_path / "triton.py").write_text("import sys; assert 'tensorflow' not in sys.modules\n")
    begin = "import sys; sys.path.insert(0, sys.argv[1])"
    end = "assert {'triton', 'tensorflow'} <= {*sys.modules}"
    of_rivals = ("ptb_lm.bench.rivals.plain_tensorflow", "benchmarks.rivals.without_tensorflow")
    for module in ("ptb_lm.tf_backend", *of_rivals):
        ended = python(f"{begin}; import {module}; {end}", str(tmp_path))
        assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize(
    ("framework", "chosen", "last"),
    [
        (
            "tensorflow",
            [("basic", "xla", []), ("cudnn", "graph", ["keras"])],
            "import tensorflow; tensorflow.keras.layers.LSTM; assert os.environ['KERAS_BACKEND'] == 'jax'",
        ),
        ("torch", [("basic", "jit", [])], "pass"),
    ],
)
def test_training_imports_one_framework_and_says_nothing_but_its_lines(
    framework: str, chosen: list[tuple[str, str, list[str]]], last: str, data: Path, tmp_path: Path
) -> None:
    """One after the other in a process. Keras comes with its own layer alone; tf.keras stays at hand.

    What a user has Keras compute with elsewhere stays as it was.
    """
    commands = [
        runs.arguments(
            data,
            tmp_path / execution,
            *("--framework", framework, "--model", model, "--execution", execution),
            *("--epochs", "1", "--num-layers", "1", "--num-steps", "2"),
        )
        for model, execution, _ in chosen
    ]
    code = "import os; os.environ['KERAS_BACKEND'] = 'jax'\n"
    code += "import json, sys; from ptb_lm import train; others = ['torch', 'tensorflow', 'keras', 'sympy']\n"
    code += "for command in json.loads(sys.argv[1]): "
    code += "print(train.main(command), 'with', [name for name in others if name in sys.modules])\n"
    done = python(code + last, json.dumps(commands))
    assert (done.returncode, done.stderr) == (0, "")
    told = [line for line in done.stdout.splitlines() if re.match(r"\d+ with", line)]
    assert told == [f"0 with {[framework, *more]}" for *_, more in chosen]


def test_without_tensorflow_one_sentence_says_how_to_install_it(data: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['tensorflow'] = None; "
    code += "from ptb_lm import train; sys.exit(train.main(sys.argv[1:]))"
    done = python(code, *runs.arguments(data, tmp_path / "run", "--framework", "tensorflow"))
    assert done.returncode == 2
    assert runs.sentence(done.stderr, train).endswith("pip install -e '.[tensorflow]'")
    assert not (tmp_path / "run").exists()


def test_without_tensorflow_its_run_is_read_in_torch(tmp_path: Path) -> None:
    """A sentence says so, unless the command computes nothing."""
    run = runs.write_run(tmp_path / "run", ("a", "<eos>", "b", "<unk>"), framework="tensorflow")
    (tmp_path / "text").write_text("a b\n")
    text = str(tmp_path / "text")
    lines = [
        ("evaluate", "--text", text),
        ("score", text),
        ("score", text, "--model", "block"),  # so that no choice asks the framework
        ("score", text, "--framework", "tensorflow"),
        ("score", text, "--framework", "torch"),
        ("neighbours", "a"),
    ]
    code = "import sys; sys.modules['tensorflow'] = None; import json; from ptb_lm.__main__ import main\n"
    code += "for command, *flags in json.loads(sys.argv[2]): print(main([command, sys.argv[1], *flags]))"
    done = python(code, str(run), json.dumps(lines))
    problems = [line for line in done.stderr.splitlines() if "tensorflow is not installed" in line]
    advised = [problem.endswith("or give --framework torch, which computes the same") for problem in problems]
    assert advised == [True, True, True, False]
    statuses = [line for line in done.stdout.splitlines() if line in ("0", "2")]
    assert statuses == ["2", "2", "2", "2", "0", "0"]


def test_notices_are_held_back_unless_the_body_fails(capfd: pytest.CaptureFixture[str]) -> None:
    with hold_back_stderr():
        os.write(2, b"a notice\n")
    assert capfd.readouterr().err == ""
    with pytest.raises(ZeroDivisionError), hold_back_stderr():
        os.write(2, b"a reason\n") / 0
    assert capfd.readouterr().err == "a reason\n"
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
