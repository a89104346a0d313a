"""The registry of frameworks: what each computes, as data alone, so that listing it imports none of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ptb_lm.common.errors import UserError, how_to_install


@dataclass(frozen=True)
class Framework:
    """A row of the registry."""

    build: str  # "module:function" of (config, weights, choice), imported when it is used
    models: Mapping[str, str]  # name -> what it is
    executions: tuple[str, ...]  # how the operations are run; the first is the default
    unrolls: tuple[str, ...]  # how a loop over time enters the graph; the first is the default
    precisions: tuple[str, ...]
    install_hint: str  # what to do if the module cannot be imported
    refusals: Mapping[tuple[str, str], str]  # (model, one of the above) -> why they cannot be combined
    needs_cuda: tuple[str, ...] = ()  # of the above, what a CPU cannot do
    gpu_refusals: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (model, execution) -> why
    # Model -> the one precision that it is for on a GPU.
    gpu_precisions: Mapping[str, str] = field(default_factory=dict)
    examine: str = ""  # "module:function": a device's name -> its MachineFacts (rules.py); "": unknown
    join: str = ""  # "module:function" that joins other processes and returns their Ranks; "": cannot
    start: str = ""  # "module:function" that starts several processes on this machine; "": cannot
    trains_on_devices: bool = False  # whether one process trains on several devices

    def options(self, model: str) -> dict[str, tuple[str, ...]]:
        """Return what may be chosen for a model: the values of execution, unroll and precision."""
        every = {"execution": self.executions, "unroll": self.unrolls, "precision": self.precisions}
        return {
            kind: tuple(name for name in names if (model, name) not in self.refusals)
            for kind, names in every.items()
        }

    def check_on_cpu(self, *, execution: str, precision: str) -> None:
        """Check that a CPU can do what was chosen.

        Raises:
            UserError: It needs a CUDA device.
        """
        for kind, name in (("execution", execution), ("precision", precision)):
            if name in self.needs_cuda:
                raise UserError(f"--{kind} {name} needs a CUDA device, and this is a CPU")


FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework(
        build="ptb_lm.torch_backend.backend:build",
        models={
            "basic": "elementary operations, a Python loop over time",
            "block": "torch.nn.LSTMCell, one fused operation per time step",
            "block_fused": "one operation per layer, with a hand-written backward pass",
            "cudnn": "torch.nn.LSTM, one operation per layer: cuDNN on a GPU, oneDNN on a CPU",
            "persistent": "cudnn, padded to the sizes of cuDNN's persistent kernel; for --precision fp16",
        },
        executions=("auto", "eager", "graph", "compile", "jit"),
        unrolls=("static",),
        precisions=("fp32", "tf32", "bf16", "fp16", "fp64"),
        install_hint="install it with: pip install torch",
        refusals={
            ("block_fused", "jit"): "TorchScript does not compile an autograd function",
            ("cudnn", "compile"): "torch.compile does not compile torch.nn.LSTM",
            ("cudnn", "jit"): "TorchScript does not compile torch.nn.LSTM",
            ("persistent", "compile"): "torch.compile does not compile torch's LSTM",
            ("persistent", "jit"): "TorchScript does not compile torch's LSTM",
        },
        needs_cuda=("graph", "tf32"),
        gpu_precisions={"persistent": "fp16"},
        examine="ptb_lm.torch_backend.runtime:examine",
        join="ptb_lm.torch_backend.ranks:join",
        start="ptb_lm.torch_backend.launcher:start",
    ),
    "tensorflow": Framework(
        build="ptb_lm.tf_backend.backend:build",
        examine="ptb_lm.tf_backend.runtime:examine",
        join="ptb_lm.tf_backend.ranks:join",
        trains_on_devices=True,
        models={
            "basic": "elementary operations at each time step",
            "block": "LSTMBlockCell, one fused operation per time step",
            "block_fused": "BlockLSTMV2, one operation per layer, with a hand-written backward pass",
            "cudnn": "CudnnRNNV3 on a GPU, the Keras LSTM layer's loop on a CPU",
        },
        executions=("graph", "eager", "xla"),
        unrolls=("static", "loop"),
        precisions=("fp32", "fp64"),
        install_hint=how_to_install("tensorflow"),
        refusals={
            ("block", "xla"): "XLA cannot compile LSTMBlockCell",
            ("block", "fp64"): "LSTMBlockCell computes in float32 at most",
            ("block_fused", "xla"): "XLA cannot compile BlockLSTMV2",
            ("block_fused", "fp64"): "BlockLSTMV2 computes in float32 at most",
            ("block_fused", "loop"): "the loop over time is inside the operation",
            ("cudnn", "loop"): "the loop over time is inside the layer",
        },
        gpu_refusals={("cudnn", "xla"): "XLA cannot compile CudnnRNNV3"},
    ),
}


def _every(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in names for name in row))


MODELS = _every(tuple(row.models) for row in FRAMEWORKS.values())
EXECUTIONS = _every(row.executions for row in FRAMEWORKS.values())
UNROLLS = _every(row.unrolls for row in FRAMEWORKS.values())
PRECISIONS = _every(row.precisions for row in FRAMEWORKS.values())
DEVICES = ("auto", "cpu", "cuda")
REDUCE_PRECISIONS = ("fp32", "bf16")  # of gradients between several processes; the first is the default
AUTO = "auto"  # as a model or a precision: the fastest that was measured (fastest.py)
