"""Who there is to be measured: this package's frameworks, and programs that people write without it.

A row says where a program is built and what it can be asked for (ptb_lm.model.frameworks.Framework). A row of
the user's own is added while a process runs (variants.add).
"""

import dataclasses
from collections.abc import Mapping

from ptb_lm import classifier
from ptb_lm.errors import how_to_install
from ptb_lm.model.frameworks import FRAMEWORKS, Framework

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
            "cudnn-kept-memory": "the same in a process that keeps freed memory",
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
