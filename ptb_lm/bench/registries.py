"""Who there is to be measured: this package's frameworks, and programs that people write without it.

A row says where a program is built and what it can be asked for (ptb_lm.model.frameworks.Framework). A
checkout has more rows, in benchmarks/programs.toml. A row of the user's own is added while a process runs
(variants.add).
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ptb_lm import classifier
from ptb_lm.bench import checkout
from ptb_lm.common.errors import how_to_install
from ptb_lm.model.frameworks import FRAMEWORKS, Framework


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
        install_hint=FRAMEWORKS[framework].install_hint,
        refusals={},
    )


def _declared(about: Mapping[str, Any]) -> Framework:
    """Return the row of a program that benchmarks/programs.toml declares."""
    needs = about["needs"]
    return Framework(
        build=about["build"],
        models=about["models"],
        executions=tuple(about["executions"]),
        unrolls=tuple(about["unrolls"]),
        precisions=tuple(about["precisions"]),
        install_hint=FRAMEWORKS[needs].install_hint if needs in FRAMEWORKS else how_to_install(needs),
        refusals={(model, option): why for model, option, why in about.get("refusals", ())},
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
CLASSIFIERS: dict[str, Framework] = {**classifier.CLASSIFIERS}

# What a title calls them; what is not here has the name that --add gave it.
TITLES = {
    "torch": "torch",
    "tensorflow": "TensorFlow",
    "plain-torch": "the plain torch loop",
    "plain-tensorflow": "the plain Keras loop",
    "outer-torch": "torch's modules compiled as a whole",
    "torch-2-processes": "2 processes of torch",
    "torch-4-processes": "4 processes of torch",
}
_BESIDE = checkout.declared("programs")
for _kind, _registry in (("language_models", LANGUAGE_MODELS), ("classifiers", CLASSIFIERS)):
    for _name, _about in _BESIDE.get(_kind, {}).items():
        _registry[_name], TITLES[_name] = _declared(_about), _about["title"]


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
            return _described(known)
    added = re.search(rf"(?<![^\s']){re.escape(framework)}=([^\s']+)", command)
    return _described(added[1]) if added else ""


def _described(known: str) -> str:
    """Return what a function is that --add names, where benchmarks/ says it; else its name."""
    # In rows of earlier commits it is of ptb_lm.bench.
    found = re.fullmatch(r"(?:benchmarks|ptb_lm\.bench)\.rivals\.(.*)", known)
    about: str = _BESIDE.get("added", {}).get(found[1] if found else "", known)
    return about
