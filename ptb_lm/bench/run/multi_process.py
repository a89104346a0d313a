"""A variant of several processes that train one model together.

The worker is the first rank. It starts the others and tells them each step's words, and all do the step as
the trainer's processes do: what is timed is `train_step` of each, and what the ranks exchange in it. Handing
over the words stands for what the trainer's ranks agree on after each step.

Shapes: B = batch, T = time steps, L = length of a row.
"""

import functools
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import host
from ptb_lm.data.text import Ids
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import Ranks, check_divisible

Method = TypeVar("Method", bound=Callable[..., Any])


def on_all_ranks(method: Method) -> Method:
    """Run a method on all ranks: the first tells the others to call theirs, and then calls its own."""

    @functools.wraps(method)
    def call(rank: "Rank", *arguments: Any, **named: Any) -> Any:
        _send(rank.others, (method.__name__, arguments, named))
        return method(rank, *arguments, **named)

    return cast(Method, call)


class Rank:
    """One of the processes; the first is the model as the benchmark's worker speaks to it.

    Each carries its own state, so that the worker sees None in its place.

    Args:
        config: Hyper-parameters, with the rows of all processes.
        weights: Initial weights.
        choice: Model, execution, device and precision.
        others: Processes of the other ranks, if this is the first.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        others: Sequence["subprocess.Popen[bytes]"] = (),
    ) -> None:
        import torch  # only where it computes

        self.others, self.threads = others, int(os.environ["OMP_NUM_THREADS"])
        torch.set_num_threads(self.threads)  # it may have counted them already
        join = choice.import_function(choice.framework_row.join)
        self.ranks: Ranks = join(device=choice.device, reduce_precision="fp32")
        self.rows = self.ranks.share(config.batch_size)
        self.model: Any = backend.build(config, weights, choice, self.ranks)
        self.model.prepare_training()
        self.state: backend.State = None
        self.export_weights, self.environment = self.model.export_weights, self.model.environment
        self.read, self.device_memory = self.model.read, self.model.device_memory

    @property
    def engine(self) -> str:
        """Description of the code that computes the layers."""
        return f"{self.model.engine}; {self.ranks.size} processes, threads of each: {self.threads}"

    def to_device(self, rows_BL: Ids) -> Ids:
        """Return the rows as they are; each process takes its own of a window."""
        return rows_BL

    @on_all_ranks
    def zero_state(self, batch_size: int) -> None:
        """Carry the zero state."""
        self.state = self.model.zero_state(batch_size // self.ranks.size)

    @on_all_ranks
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters."""
        self.model.load_weights(weights)

    @on_all_ranks
    def train_step(self, x_BT: Ids, y_BT: Ids, _: None, *, learning_rate: float) -> tuple[None, backend.Loss]:
        """Do a training step with this rank's rows of a window; return what all have measured."""
        self.state, loss = self.model.train_step(
            x_BT[self.rows], y_BT[self.rows], self.state, learning_rate=learning_rate
        )
        return None, loss

    @on_all_ranks
    def export_training_state(self, _: None) -> backend.Arrays:
        """Return the carried state and the dropout streams of all ranks."""
        return self.model.export_training_state(self.state)

    @on_all_ranks
    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set what `export_training_state` returned."""
        self.state = self.model.load_training_state(arrays)

    @on_all_ranks
    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return what dropout will keep in the next training window of all ranks."""
        rank_masks = self.ranks.gather(self.model.next_masks(batch // self.ranks.size, steps))
        assert not any(masks.weights for masks in rank_masks), "each rank drops other weights"
        units = zip(*(masks.units for masks in rank_masks), strict=True)
        return Masks({}, [np.concatenate(masks, axis=1) for masks in units])


def _build(processes: int, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> Rank:
    """Return the first rank of a model that some processes train, each by torch.

    Raises:
        UserError: The processes do not get equal parts of the batch, or there are fewer GPUs.
    """
    from ptb_lm.torch_backend import gpu, ranks  # only where it computes

    check_divisible(config.batch_size, processes)
    if choice.device != "cpu" and gpu.is_seen():
        ranks.check_gpus(processes)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    # One process alone would have the threads that the environment grants, or one for each core.
    threads = max(1, int(os.environ.get("OMP_NUM_THREADS") or len(host.cores())) // processes)
    os.environ.update(address, OMP_NUM_THREADS=str(threads), RANK="0", LOCAL_RANK="0")
    own_choice = {**choice.to_json(), "framework": "torch"}
    # The others end with the worker, which alone holds the other ends of their stdins.
    others = [
        subprocess.Popen(
            [sys.executable, "-m", "ptb_lm.bench.run.multi_process"],
            stdin=subprocess.PIPE,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(1, processes)
    ]
    _send(others, (config, dict(weights), own_choice))
    return Rank(config, weights, Choice.create(**own_choice), others)


def _send(others: Iterable["subprocess.Popen[bytes]"], message: object) -> None:
    for other in others:
        assert other.stdin is not None
        pickle.dump(message, other.stdin)
        other.stdin.flush()


build_for_two, build_for_four = (functools.partial(_build, count) for count in (2, 4))


def _main() -> None:
    """Be a rank other than the first: do what it says until it ends."""
    source = sys.stdin.buffer
    config, weights, choice = pickle.load(source)  # noqa: S301 (of our own process)
    rank = Rank(config, weights, Choice.create(**choice))
    while True:
        try:
            name, arguments, named = pickle.load(source)  # noqa: S301 (of our own process)
        except EOFError:
            return
        getattr(rank, name)(*arguments, **named)


if __name__ == "__main__":
    _main()
