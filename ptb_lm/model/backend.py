"""The contract between the trainer and a framework, and the registry of backends.

The trainer owns tokens, their order, initial weights, schedule, stopping, the clock and the files. A backend
owns the graph, loss, gradients, clipping, update, dropout and compilation. Arrays cross this line as NumPy;
words may stay on the backend's device, where its `place` put them.

Shapes: B = batch, T = time steps, L = layers, or the length of a row, H = hidden units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ptb_lm.model.config import Config

if TYPE_CHECKING:  # the registry is all that --help wants, and NumPy takes longer to import
    import numpy as np
    from numpy.typing import NDArray

    from ptb_lm.data.corpus import Words
    from ptb_lm.data.text import Ids
    from ptb_lm.model.choice import Choice  # which stands on the registry

Arrays: TypeAlias = "dict[str, NDArray[Any]]"
State = Any  # opaque to the trainer: the carried h and c, in the framework's own tensors
Loss = Any  # opaque: a window's measurements, possibly still being computed


class Measured(NamedTuple):
    """The numbers behind a `Loss`: what one window measured."""

    nll: float  # negative log likelihood of the window's targets in nats, summed over batch and time
    gradient_norm: float  # global norm before clipping; 0 for an evaluation step
    # Of a step that was skipped because its gradient, and so its norm, overflowed float16: the loss scale of
    # the next one. 0 for all others.
    new_loss_scale: float = 0.0


class Model(ABC):
    """What one framework computes on one device: a language model (Backend) or a sequence classifier."""

    @property
    @abstractmethod
    def engine(self) -> str:
        """What computes the LSTM, for people: "torch.nn.LSTM on cpu (oneDNN)"."""

    @abstractmethod
    def export_weights(self) -> Arrays:
        """Return the parameters by canonical name (model/parameters.py), in the precision of the model."""

    @abstractmethod
    def load_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Set the parameters from canonical arrays of the right names and shapes."""

    @abstractmethod
    def device_memory(self) -> int | None:
        """Return the peak of the bytes allocated on the device since it was last asked for; None on a CPU."""

    @abstractmethod
    def environment(self) -> dict[str, Any]:
        """Return versions, device and threads, for the run's record."""


class Backend(Model):
    """A language model of one framework on one device, with its optimiser."""

    @property
    def hints(self) -> Sequence[str]:
        """Advice for the user, a sentence each: what would be faster on this machine."""
        return ()

    @abstractmethod
    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""

    @abstractmethod
    def place(self, rows_BL: Ids) -> Words:
        """Return rows on the device, laid out so that windows are cheap to cut; steps take NumPy's too."""

    @abstractmethod
    def train_step(
        self, x_BT: Words, y_BT: Words, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step of SGD with dropout and clipping; may return before the device is done.

        The loss for the gradient is summed over time and averaged over the batch. The state is used up: the
        one returned may be the same memory.
        """

    @abstractmethod
    def evaluate_step(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, Loss]:
        """Score a window without dropout; may return before the device is done."""

    @abstractmethod
    def log_probabilities(self, x_BT: Words, y_BT: Words, state: State) -> tuple[State, NDArray[np.floating]]:
        """Return the state after a window and the log-probability of each target [B, T], in nats.

        Without dropout; the state given stays as it is. It waits for the device, and its memory is that of
        B * T * V logits: the caller bounds B * T.
        """

    @abstractmethod
    def next_words(self, x_BT: Words, state: State) -> tuple[State, NDArray[np.floating]]:
        """Read words; return the state, and the log-probability of every word to come next [B, V], in nats.

        As `log_probabilities` is; the memory is that of B * V logits.
        """

    @abstractmethod
    def read(self, losses: Sequence[Loss]) -> list[Measured]:
        """Wait for the device and return the numbers behind some losses: the only synchronisation."""

    @abstractmethod
    def average(self, weight: float) -> None:
        """Move the averages of the parameters towards them: average += weight * (parameter - average).

        The first call of all makes them equal to the parameters, whatever the weight.
        """

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the averages replace the parameters; `average` must have been called.

        Scoring, exporting and loading then mean the averages; nothing is trained. Afterwards the parameters
        are what they were, to the bit.
        """

    @abstractmethod
    def export_training_state(self, state: State) -> Arrays:
        """Return what the next step depends on besides the parameters and their averages.

        What the cell carries is there by its names, each [L, B, H]: "h" and "c" for an LSTM. Other names are
        the framework's (random generators).
        """

    @abstractmethod
    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set what `export_training_state` returned, and return the carried state."""


@dataclass(frozen=True)
class Framework:
    """A row of the registry: data only, so that listing it imports no framework."""

    build: str  # "module:function" of (config, weights, choice), imported when it is used
    models: Mapping[str, str]  # name -> what it is
    executions: tuple[str, ...]  # how the operations are run; the first is the default
    unrolls: tuple[str, ...]  # how a loop over time enters the graph; the first is the default
    precisions: tuple[str, ...]
    missing: str  # what to do if the module cannot be imported
    refusals: Mapping[tuple[str, str], str]  # (model, one of the above) -> why they cannot be combined
    needs_cuda: tuple[str, ...] = ()  # of the above, what a CPU cannot do
    auto_precision: str = ""  # "module:function" of a device's name; "": auto is fp32
    # Whether `build` takes the names of the choice as keywords, not the choice: other people's functions do.
    takes_keywords: bool = False

    def options(self, model: str) -> dict[str, tuple[str, ...]]:
        """Return what may be chosen for a model: the values of execution, unroll and precision."""
        every = {"execution": self.executions, "unroll": self.unrolls, "precision": self.precisions}
        return {
            kind: tuple(name for name in names if (model, name) not in self.refusals)
            for kind, names in every.items()
        }


FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(
        build="ptb_lm.torch_backend.backend:build",
        models={
            "basic": "elementary operations, a Python loop over time",
            "block": "torch.nn.LSTMCell, one fused operation a time step",
            "block_fused": "one operation a layer, with a gradient of our own",
            "cudnn": "torch.nn.LSTM, one operation a layer: cuDNN on a GPU, oneDNN on a CPU",
            "persistent": "cudnn, padded to the sizes of cuDNN's persistent kernel; for --precision fp16",
        },
        executions=("auto", "eager", "graph", "compile", "jit"),
        unrolls=("static",),
        precisions=("fp32", "tf32", "bf16", "fp16", "fp64"),
        missing="install it with: pip install torch",
        refusals={
            ("block_fused", "jit"): "TorchScript leaves an autograd function as it is",
            ("cudnn", "compile"): "torch.compile leaves torch.nn.LSTM as it is",
            ("cudnn", "jit"): "TorchScript leaves torch.nn.LSTM as it is",
            ("persistent", "compile"): "torch.compile leaves torch's LSTM as it is",
            ("persistent", "jit"): "TorchScript leaves torch's LSTM as it is",
        },
        needs_cuda=("graph", "tf32"),
        auto_precision="ptb_lm.torch_backend.base:auto_precision",
    ),
    "tensorflow": Framework(
        build="ptb_lm.tf_backend.backend:build",
        models={
            "basic": "elementary operations at each time step",
            "block": "LSTMBlockCell, one fused operation a time step",
            "block_fused": "BlockLSTMV2, one operation a layer, with a gradient of our own",
            "cudnn": "CudnnRNNV3 on a GPU, the Keras LSTM layer's loop on a CPU",
        },
        executions=("graph", "eager", "xla"),
        unrolls=("static", "loop"),
        precisions=("fp32", "fp64"),
        missing="install it with: pip install 'ptb-lm[tensorflow]' (a checkout: -e '.[tensorflow]')",
        refusals={
            ("block", "xla"): "XLA cannot compile LSTMBlockCell",
            ("block", "fp64"): "LSTMBlockCell computes in float32 at most",
            ("block_fused", "xla"): "XLA cannot compile BlockLSTMV2",
            ("block_fused", "fp64"): "BlockLSTMV2 computes in float32 at most",
            ("block_fused", "loop"): "the loop over time is inside the operation",
            ("cudnn", "loop"): "the loop over time is inside the layer",
        },
    ),
}


def _every(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in names for name in row))


MODELS = _every(tuple(row.models) for row in FRAMEWORKS.values())
EXECUTIONS = _every(row.executions for row in FRAMEWORKS.values())
UNROLLS = _every(row.unrolls for row in FRAMEWORKS.values())
PRECISIONS = _every(row.precisions for row in FRAMEWORKS.values())
DEVICES = ("auto", "cpu", "cuda")
AUTO = "auto"  # as a precision: the fastest of the device


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> Backend:
    """Build a framework's backend; only that framework is imported.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters to start from.
        choice: What computes it, of FRAMEWORKS.

    Raises:
        UserError: The model does not compute the configuration's cell; or the framework is not installed, or
            its device is missing or cannot do what was chosen.
    """
    choice.check_cell(config.cell)
    backend: Backend = choice.builder()(config, weights, choice)
    return backend
