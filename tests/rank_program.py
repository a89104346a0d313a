"""The program of one of several processes that train together, for tests: `python -m rank_program HOW`.

It reads cases on stdin, does each of them by a function of this file, and prints the results.
"""

import contextlib
import io
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from support import random_weights

from ptb_lm.common.errors import UserError
from ptb_lm.common.signals import StopRequest
from ptb_lm.data import corpus
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice
from ptb_lm.model.presets import SMALL
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks

WORDS, BATCH, STEPS, WINDOWS = 23, 8, 3, 6
LENGTHS = (2, 4, 3, 1, 5, 3)  # of the windows, if they vary


@contextlib.contextmanager
def count_sent_bytes(size: int) -> Iterator[list[float]]:
    """Yield the bytes that this rank sends in the context, by each call of torch.distributed."""
    import torch.distributed as dist

    found: list[float] = []
    all_reduce, all_gather, broadcast = dist.all_reduce, dist.all_gather, dist.broadcast

    def count_sum(tensor: Any, *arguments: Any, **more: Any) -> Any:
        found.append(2 * (size - 1) / size * tensor.nbytes)
        return all_reduce(tensor, *arguments, **more)

    def count_gather(tensors: Any, tensor: Any, *arguments: Any, **more: Any) -> Any:
        found.append((size - 1) * tensor.nbytes)
        return all_gather(tensors, tensor, *arguments, **more)

    def count_broadcast(tensor: Any, *arguments: Any, **more: Any) -> Any:
        found.append((size - 1) / size * tensor.nbytes)  # one rank sends it, and that is its part
        return broadcast(tensor, *arguments, **more)

    with (
        mock.patch.object(dist, "broadcast", count_broadcast),
        mock.patch.object(dist, "all_reduce", count_sum),
        mock.patch.object(dist, "all_gather", count_gather),
    ):
        yield found


@contextlib.contextmanager
def infinite_norms(framework: str, ranks: Ranks) -> Iterator[None]:
    """Make each gradient's norm infinite on all ranks, or devices, but the first."""
    place: Any
    if framework == "torch":
        from ptb_lm.torch_backend import training_step as place

        def is_first() -> bool:
            return ranks.is_first

    else:
        import tensorflow as tf
        from tensorflow import linalg as place

        def is_first() -> bool:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return int(tf.get_static_value(replica)) == 0

    norm = place.global_norm

    def global_norm(gradients: Any) -> Any:
        return norm(gradients) if is_first() else norm(gradients) * math.inf

    with mock.patch.object(place, "global_norm", global_norm):
        yield


def compute(case: dict[str, Any], ranks: Ranks = SINGLE_PROCESS) -> dict[str, Any]:
    """Train a few windows from random weights, on this rank's rows, and score one."""
    choice = {"device": "cpu", **case["choice"]}
    # JSON has no tuples.
    changes = {name: tuple(v) if isinstance(v, list) else v for name, v in case["config"].items()}
    config = SMALL.replace(
        num_layers=2, hidden_size=7, num_steps=STEPS, batch_size=BATCH, max_grad_norm=2.0, **changes
    )
    words = case.get("words", WORDS)
    built = backend.build(config, random_weights(config, words, seed=1), Choice.create(**choice), ranks)
    rows_BL = np.random.default_rng(2).integers(words, size=(BATCH, WINDOWS * STEPS + 1)).astype(np.int32)
    mine = ranks.share(BATCH)
    state, losses = built.zero_state(mine.stop - mine.start), []
    with contextlib.ExitStack() as stack:
        sent: list[float] = []
        framework = case["choice"].get("framework", "torch")
        if framework == "torch":
            sent = stack.enter_context(count_sent_bytes(ranks.size))
        if case.get("other_norms"):
            stack.enter_context(infinite_norms(framework, ranks))
        rate = 0.02 if config.optimizer == "adam" else 0.5
        lengths = LENGTHS if config.vary_num_steps else (STEPS,) * WINDOWS
        for x_BT, y_BT in corpus.cut_windows(rows_BL[mine], itertools.accumulate(lengths, initial=0)):
            state, loss = built.train_step(x_BT, y_BT, state, learning_rate=rate)
            losses.append(loss)
    measured = built.read(losses)
    _, loss = built.evaluate_step(
        rows_BL[mine, :STEPS], rows_BL[mine, 1 : STEPS + 1], built.zero_state(mine.stop - mine.start)
    )
    weights = built.export_weights()
    # TensorFlow's graphs for windows of the configuration's own shape, of which that was one.
    of_tensorflow: Any = built
    own_graphs = (
        of_tensorflow.window_function.experimental_get_tracing_count() if framework == "tensorflow" else 0
    )
    return {
        "nll": [each.nll for each in measured],
        "gradient_norm": [each.gradient_norm for each in measured],
        "evaluated": ranks.sum_over_ranks(built.read([loss])[0].nll),
        "own_graphs": own_graphs,
        "carried": built.export_training_state(state)["h"].tolist(),
        "sent": sum(sent) / WINDOWS,
        "weights": {name: array.astype(np.float64).tolist() for name, array in weights.items()},
    }


def run_command(case: dict[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Train by a command line.

    Args:
        case: Keys: "arguments": of all ranks, or a list of each one's; "stop": a rank, and the number of the
            trainer's question at which it stops (one at each step); "commit" and "sends": a rank's own
            commit and precision of sums; "environment": each rank's variables.
        ranks: The processes.
    """

    from ptb_lm import train
    from ptb_lm.training import launch

    arguments = case["arguments"]
    mine = arguments[ranks.rank] if isinstance(arguments[0], list) else arguments
    rank, question = case.get("stop", (None, 0))
    commit = case.get("commit", {}).get(str(ranks.rank), "the same")
    sent = case.get("sends", {}).get(str(ranks.rank), ranks.reduce_precision)
    after = question if rank == ranks.rank else 10**9
    environment = case.get("environment", [{}] * ranks.size)[ranks.rank]
    out, problem = io.StringIO(), ""
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(ranks, "reduce_precision", sent),
        stopped_at_question(after),
        mock.patch.object(launch.host, "environment", return_value={"commit": commit}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            status = launch.train(train.parse_flags(mine), "", command_start=0.0, ranks=ranks)
        except UserError as error:
            status, problem = 2, str(error)
    return {"status": status, "error": problem, "out": out.getvalue()}


def be_late(case: dict[str, Any], ranks: Any) -> dict[str, Any]:
    """Be late where others must be patient, and then where they must not be, when this is the second rank.

    The process group ends with it. The result has the error that this rank got at each place; "" if none.
    """
    from ptb_lm.common.errors import LostRankError
    from ptb_lm.model import ranks as model_ranks
    from ptb_lm.torch_backend.ranks import TorchRanks

    seconds = case["seconds"]
    with mock.patch.dict(os.environ, {model_ranks.STEP_TIMEOUT: str(seconds)}):
        impatient = TorchRanks(ranks._store, ranks.rank, ranks.size)
    config = SMALL.replace(num_layers=1, hidden_size=7, num_steps=STEPS, batch_size=BATCH)
    model: Any = backend.build(
        config, random_weights(config, WORDS, seed=1), Choice.create(device="cpu"), impatient
    )
    x_BT = np.zeros((BATCH // ranks.size, STEPS), np.int32)

    def step() -> None:
        model.train_step(x_BT, x_BT, model.zero_state(len(x_BT)), learning_rate=0.5)

    places = {
        "folder": lambda: impatient.run_on_first(lambda: None),
        "first step": step,
        "second step": step,
    }
    found = {}
    for name, do in places.items():
        if ranks.rank == 1:
            time.sleep(2 * seconds)
        try:
            found[name] = str(do() or "")
        except LostRankError as error:
            found[name] = str(error)
    return found


def _find_function(case: dict[str, Any]) -> Callable[[dict[str, Any], Any], Any]:
    """Return the function of this file that does a case."""
    by_key = {"arguments": run_command, "choice": compute, "seconds": be_late, "abandoned": lose_last_rank}
    return next(do for key, do in by_key.items() if key in case)


class StopAfter(StopRequest):
    """A stop request that comes when the trainer has asked for it so many times."""

    def __init__(self, questions: int) -> None:
        self._left = questions
        super().__init__()

    @property
    def signal_number(self) -> int | None:  # type: ignore[override]
        self._left -= 1
        return signal.SIGTERM if self._left < 0 else None

    @signal_number.setter
    def signal_number(self, value: int | None) -> None:
        pass


@contextlib.contextmanager
def stopped_at_question(number: int) -> Iterator[None]:
    """Let a run stop when the trainer, which asks at each step and window, has asked so often."""
    with mock.patch("ptb_lm.training.launch.StopRequest", return_value=StopAfter(number)):
        yield


def backend_type(framework: str) -> Any:
    """A framework's class of backends."""
    if framework == "torch":
        from ptb_lm.torch_backend.backend import TorchBackend

        return TorchBackend
    from ptb_lm.tf_backend.backend import TensorFlowBackend

    return TensorFlowBackend


@contextlib.contextmanager
def stopped_after(steps: int, framework: str = "torch") -> Iterator[None]:
    """Let a framework's runs stop when so many training steps have been done in this context."""
    kind, done = backend_type(framework), 0
    train_step = kind.train_step

    def count(self: backend.Backend, *given: Any, **more: Any) -> Any:
        nonlocal done
        done += 1
        return train_step(self, *given, **more)

    class Stop(StopAfter):
        @property
        def signal_number(self) -> int | None:  # type: ignore[override]
            return signal.SIGTERM if done >= steps else None

        @signal_number.setter
        def signal_number(self, value: int | None) -> None:
            pass

    with (
        mock.patch.object(kind, "train_step", count),
        mock.patch("ptb_lm.training.launch.StopRequest", return_value=Stop(0)),
    ):
        yield


class EndedError(Exception):
    """This rank must end here, without a word to the others."""


def lose_last_rank(_: dict[str, Any], ranks: Any) -> str:
    """End the last rank; return the error that another rank gets."""
    from ptb_lm.common.errors import LostRankError

    if ranks.rank == ranks.size - 1:
        raise EndedError

    try:
        ranks.barrier()
    except LostRankError as error:
        return str(error)
    return ""


def _main(how: str) -> None:
    cases = json.loads(sys.stdin.read())
    if how == "devices":
        print(json.dumps([_find_function(case)(case, Ranks(2)) for case in cases]))
        return
    choice = Choice.create(framework=how)
    found: list[Any] = []
    ranks: Any = choice.import_function(choice.framework_row.join)(device="cpu", reduce_precision="fp32")
    for case in cases:
        ranks.reduce_precision = case.get("reduce_precision", "fp32")
        try:
            found.append(_find_function(case)(case, ranks))
        except EndedError:
            print(json.dumps([*found, None]), flush=True)
            os._exit(0)
    ranks.leave()
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1])
