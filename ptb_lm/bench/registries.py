"""Who there is to be measured: this package's frameworks, and programs that people write without it.

A row says where a program is built and what it can be asked for (ptb_lm.model.frameworks.Framework). A row of
the user's own is added while a process runs (variants.add).
"""

import dataclasses
import re
from collections.abc import Mapping

from ptb_lm import classifier
from ptb_lm.errors import how_to_install
from ptb_lm.model.frameworks import FRAMEWORKS, Framework

_RIVALS = "ptb_lm.bench.rivals."  # the folder of these programs
_KERAS_MODELS = {
    "lstm": "keras.layers.LSTM, Keras's own loop over elementary operations",
    "cudnn": "keras.layers.LSTM with cuDNN on a GPU; on a CPU, of torch alone, a loop after one product",
}
_KERAS_MISSING = how_to_install("jax")


def _program(
    framework: str,
    build: str,
    models: Mapping[str, str],
    *,
    executions: tuple[str, ...],
    precisions: tuple[str, ...] = ("fp32",),
) -> Framework:
    """Return the row of a framework's program that people write."""
    return Framework(
        build=build,
        models=models,
        executions=executions,
        unrolls=("static",),
        precisions=precisions,
        missing=FRAMEWORKS[framework].missing,
        refusals={},
    )


LANGUAGE_MODELS: dict[str, Framework] = {
    **FRAMEWORKS,
    "plain-torch": _program(
        "torch",
        "ptb_lm.bench.rivals.plain_torch:build",
        {
            "cudnn": "nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_, SGD",
            "cudnn-kept-memory": "the loop of plain-torch/cudnn in a process that keeps freed memory",
        },
        executions=("eager", "compile"),
        precisions=("fp32", "tf32", "bf16"),
    ),
    "outer-torch": dataclasses.replace(
        _program(
            "torch",
            "ptb_lm.bench.rivals.torch_outer:build",
            {
                "basic": "elementary operations in a loop over time",
                "block": "torch.nn.LSTMCell at each time step",
                "cudnn": "torch.nn.LSTM",
            },
            executions=("jit", "compile"),
        ),
        refusals={("cudnn", "jit"): "TorchScript leaves torch.nn.LSTM as it is"},
    ),
    "plain-tensorflow": _program(
        "tensorflow",
        "ptb_lm.bench.rivals.plain_tensorflow:build",
        {"keras": "Keras's Embedding, LSTM, Dense, cross-entropy and SGD, tf.clip_by_global_norm"},
        executions=("graph",),
        precisions=("fp32", "bf16"),
    ),
    **{
        f"torch-{count}-processes": _program(
            "torch",
            f"ptb_lm.bench.together:{build}",
            FRAMEWORKS["torch"].models,
            executions=("auto", "eager"),
            precisions=("fp32", "tf32", "bf16"),
        )
        for count, build in ((2, "two"), (4, "four"))
    },
}
CLASSIFIERS: dict[str, Framework] = {
    **classifier.CLASSIFIERS,
    "one-call-torch": _program(
        "torch",
        "ptb_lm.bench.rivals.torch_one_call:build",
        {"cudnn": "one torch.nn.LSTM for all layers"},
        executions=("eager",),
    ),
    "keras-jax": Framework(
        build="ptb_lm.bench.rivals.keras.on_jax:build",
        models=_KERAS_MODELS,
        executions=("xla",),
        unrolls=("loop",),
        precisions=("fp32",),
        missing=_KERAS_MISSING,
        refusals={},
    ),
    "keras-torch": Framework(
        build="ptb_lm.bench.rivals.keras.on_torch:build",
        models=_KERAS_MODELS,
        executions=("eager",),
        unrolls=("static",),
        precisions=("fp32",),
        missing=_KERAS_MISSING,
        refusals={},
    ),
    "keras-tensorflow": Framework(
        build="ptb_lm.bench.rivals.keras.on_tensorflow:build",
        models=_KERAS_MODELS,
        executions=("graph", "xla"),
        unrolls=("loop",),
        precisions=("fp32",),
        missing=FRAMEWORKS["tensorflow"].missing,
        refusals={("cudnn", "xla"): "XLA cannot compile CudnnRNNV3"},
    ),
    "pytensor": Framework(
        build="ptb_lm.bench.rivals.pytensor.classifier:build",
        models={"scan": "elementary operations in pytensor.scan, after one product of all inputs"},
        executions=("graph",),
        unrolls=("loop",),
        precisions=("fp32", "fp64"),
        missing=how_to_install("pytensor"),
        refusals={},
    ),
}

# What a title calls them; what is not here has the name that --add gave it.
TITLES = {
    "torch": "torch",
    "tensorflow": "TensorFlow",
    "plain-torch": "the plain torch loop",
    "plain-tensorflow": "the plain Keras loop",
    "outer-torch": "torch's modules compiled as a whole",
    "torch-2-processes": "2 processes of torch",
    "torch-4-processes": "4 processes of torch",
    "one-call-torch": "one call of all layers",
    "keras-jax": "Keras on JAX",
    "keras-torch": "Keras on torch",
    "keras-tensorflow": "Keras on TensorFlow",
    "pytensor": "PyTensor",
}
_EARLIER = (
    "of this package at an earlier commit: that of PTB_LM_BEFORE, or 7c1d749, before its kernels for CPUs"
)
# What the programs of rivals/ are that --add names by MODULE:FUNCTION; an unknown one is shown by that name.
RIVALS = {
    "before:cudnn": f"cudnn {_EARLIER}",
    "before:block_fused": f"block_fused {_EARLIER}",
    "without:own_softmax": "torch/cudnn with torch's own softmax loss and its gradients",
    "without:sparse_embedding": "torch/cudnn with an embedding's gradient for every word of the vocabulary",
    "without:kept_memory": "torch/cudnn in a process that gives freed memory back",
    "without:fast_masks": "torch/cudnn with dropout masks from torch's bernoulli_",
    "without:own_kernels": "torch/block_fused by torch's operations alone",
    "without:chosen_library": "torch/block_fused with torch's own float32 products",
    "without_tensorflow:own_softmax": "tensorflow/block_fused with TensorFlow's softmax loss",
    "without_tensorflow:own_gradient": "tensorflow/block_fused with the gradient of TensorFlow's BlockLSTMV2",
    "without_tensorflow:kept_memory": "tensorflow/block_fused in a process that gives freed memory back",
}


def program(variant: str) -> tuple[str, str]:
    """Return the framework and the model of a variant's name; "" where it names no model."""
    framework, model = [*re.split("[/@#]", variant), ""][:2]
    return framework, model


def description(variant: str, command: str) -> str:
    """Return what a variant is, as it is declared: in a row above, or by --add; "" where nothing says so.

    Args:
        variant: FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION], of a program's first measurement.
        command: The command that measured it, which names what was added.
    """
    framework, model = program(variant)
    for registry in (LANGUAGE_MODELS, CLASSIFIERS):
        if framework in registry and (known := registry[framework].models.get(model)):
            return RIVALS.get(known.removeprefix(_RIVALS), known)
    added = re.search(rf"(?<![^\s']){re.escape(framework)}=([^\s']+)", command)
    return RIVALS.get(added[1].removeprefix(_RIVALS), added[1]) if added else ""
