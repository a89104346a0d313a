"""A variant of several processes that train one model together.

The worker is the first rank. It starts the others, gives each step's words to them, and all do the step as
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
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import host
from ptb_lm.data.text import Ids
from ptb_lm.model import backend
from ptb_lm.model.backend import Arrays, Loss, State
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.model.ranks import Ranks


class Rank:
    """One of the processes.

    Args:
        config: Hyper-parameters, with the rows of all processes.
        weights: Initial weights.
        choice: Model, execution, device and precision.
    """

    def __init__(self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> None:
        import torch  # only where it computes

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # it may have counted them already
        join = choice.import_function(choice.framework_row.join)
        self.ranks: Ranks = join(device=choice.device, reduce_precision="fp32")
        self.rows = self.ranks.share(config.batch_size)
        self.model: Any = backend.build(config, weights, choice, self.ranks)
        self.model.prepare_training()
        self.state: State = None

    def zero_state(self) -> None:
        """Carry the zero state."""
        self.state = self.model.zero_state(self.rows.stop - self.rows.start)

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters."""
        self.model.load_weights(weights)

    def train_step(self, x_BT: Ids, y_BT: Ids, learning_rate: float) -> Loss:
        """Do a training step with this rank's rows of a window; return what all have measured."""
        self.state, loss = self.model.train_step(
            x_BT[self.rows], y_BT[self.rows], self.state, learning_rate=learning_rate
        )
        return loss

    def export_training_state(self) -> Arrays:
        """Return the carried state and the dropout streams of all ranks."""
        exported: Arrays = self.model.export_training_state(self.state)
        return exported

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set what `export_training_state` returned."""
        self.state = self.model.load_training_state(arrays)

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return what dropout will keep in the next window of all ranks."""
        rank_masks = self.ranks.gather(self.model.next_masks(batch // self.ranks.size, steps))
        assert not any(masks.weights for masks in rank_masks), "each rank drops other weights"
        units = zip(*(masks.units for masks in rank_masks), strict=True)
        return Masks({}, [np.concatenate(masks, axis=1) for masks in units])


class MultiProcessModel:
    """A language model that several processes train, as the benchmark's worker speaks to it.

    Args:
        processes: Number of processes.
        config: Hyper-parameters.
        weights: Initial weights.
        choice: Model, execution, device and precision.
    """

    def __init__(
        self, processes: int, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
        # One process alone would have the threads that the environment grants, or one for each core.
        self.threads = max(1, int(os.environ.get("OMP_NUM_THREADS") or len(host.cores())) // processes)
        os.environ.update(address, OMP_NUM_THREADS=str(self.threads), RANK="0", LOCAL_RANK="0")
        # They end with the worker: its stdin is a pipe, and theirs are its own.
        self.others = [
            subprocess.Popen(
                [sys.executable, "-m", "ptb_lm.bench.run.together"],
                stdin=subprocess.PIPE,
                env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(1, processes)
        ]
        self._send(config, dict(weights), choice.to_json())
        self.rank = Rank(config, weights, choice)
        self.model = self.rank.model
        self.export_weights, self.environment = self.model.export_weights, self.model.environment
        self.read, self.device_memory = self.model.read, self.model.device_memory

    @property
    def engine(self) -> str:
        """Description of the code that computes the layers."""
        return f"{self.model.engine}; {self.rank.ranks.size} processes, threads of each: {self.threads}"

    def place(self, rows_BL: Ids) -> Ids:
        """Return the rows as they are; each process takes its own of a window."""
        return rows_BL

    def zero_state(self, batch_size: int) -> State:
        """Let each process carry the zero state; the worker need not see it."""
        self._call_all("zero_state")

    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters in each process."""
        self._call_all("load_weights", dict(weights))

    def train_step(self, x_BT: Ids, y_BT: Ids, state: State, *, learning_rate: float) -> tuple[State, Loss]:
        """Do a training step in each process."""
        return None, self._call_all("train_step", x_BT, y_BT, learning_rate)

    def export_training_state(self, state: State) -> Arrays:
        """Return the state that all processes carry, and their dropout streams."""
        exported: Arrays = self._call_all("export_training_state")
        return exported

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set in each process what `export_training_state` returned."""
        self._call_all("load_training_state", dict(arrays))

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return what dropout will keep in the next training window."""
        masks: Masks[NDArray[np.bool_]] = self._call_all("next_masks", batch, steps)
        return masks

    def _call_all(self, method: str, *arguments: Any) -> Any:
        """Call a method of each process's rank; return what the first one's returns."""
        self._send(method, *arguments)
        return getattr(self.rank, method)(*arguments)

    def _send(self, *message: Any) -> None:
        for other in self.others:
            assert other.stdin is not None
            pickle.dump(message, other.stdin)
            other.stdin.flush()


def _build(
    processes: int, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice
) -> MultiProcessModel:
    """Return a model that some processes train, each by torch."""
    own_choice = Choice.create(**{**choice.to_json(), "framework": "torch"})
    return MultiProcessModel(processes, config, weights, own_choice)


build_for_two, build_for_four = (functools.partial(_build, count) for count in (2, 4))


def _main() -> None:
    """Be a rank other than the first: do what it says until it ends."""
    source = sys.stdin.buffer
    config, weights, choice = pickle.load(source)  # noqa: S301 (of our own process)
    rank = Rank(config, weights, Choice.create(**choice))
    while True:
        try:
            name, *arguments = pickle.load(source)  # noqa: S301 (of our own process)
        except EOFError:
            return
        getattr(rank, name)(*arguments)


if __name__ == "__main__":
    _main()
