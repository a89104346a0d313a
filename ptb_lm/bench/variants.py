"""Who computes it: variants, named FRAMEWORK/MODEL[/EXECUTION[/UNROLL]], and the registries behind the names.

A variant is what a program can be asked for, `torch/cudnn` or `tensorflow/basic/graph/loop`; or a program
that people write without this package, kept here to be compared with: `plain-torch/cudnn`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptb_lm import classifier
from ptb_lm.backend import FRAMEWORKS, Framework, resolve
from ptb_lm.errors import UserError


def _program(build: str, model: str) -> Framework:
    """Return the row of a torch program without choices."""
    return Framework(
        build=build,
        models={"cudnn": model},
        executions=("eager",),
        unrolls=("static",),
        precisions=("fp32",),
        missing=FRAMEWORKS["torch"].missing,
        refusals={},
    )


LANGUAGE_MODELS: dict[str, Framework] = {
    **FRAMEWORKS,
    "plain-torch": _program(
        "ptb_lm.torch_backend.plain:build",
        "nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_, SGD",
    ),
}
CLASSIFIERS: dict[str, Framework] = {
    **classifier.CLASSIFIERS,
    "one-call-torch": _program("ptb_lm.torch_backend.one_call:build", "one torch.nn.LSTM for all layers"),
}


@dataclass(frozen=True)
class Variant:
    """Somebody who computes a workload.

    Attributes:
        name: FRAMEWORK/MODEL[/EXECUTION[/UNROLL]]; what is left out is the framework's default.
        label: How a table calls it.
    """

    name: str
    label: str

    @property
    def parts(self) -> dict[str, str | None]:
        """The name's parts; None where it leaves one to the framework."""
        parts = (*self.name.split("/"), None, None)
        return dict(zip(("framework", "model", "execution", "unroll"), parts[:4], strict=True))

    def builder(
        self, registry: Mapping[str, Framework], *, device: str, precision: str, seed: int
    ) -> Callable[..., Any]:
        """Return the function of (config, weights) that builds it; imports the framework.

        Raises:
            UserError: There is no such framework, model or combination here, and why.
        """
        parts = self.parts
        function, chosen = resolve(registry, **parts, device=device, precision=precision)  # type: ignore[arg-type]
        return lambda config, weights: function(
            config, weights, model=parts["model"], device=device, seed=seed, **chosen
        )


def add(name_and_build: str) -> Variant:
    """Register an implementation of the user's own, NAME=MODULE:FUNCTION, for the time of this process.

    FUNCTION builds a ptb_lm.backend.Backend or a ptb_lm.classifier.Classifier, as those of ptb_lm do.

    Returns:
        The variant, NAME/custom.

    Raises:
        UserError: It is not of this form, or the name is taken.
    """
    name, _, build = name_and_build.partition("=")
    if not name or "/" in name or build.count(":") != 1:
        raise UserError(f"--add {name_and_build}: give it as NAME=MODULE:FUNCTION")
    if name in LANGUAGE_MODELS or name in CLASSIFIERS:
        raise UserError(f"--add {name_and_build}: the name {name!r} is taken")
    row = Framework(
        build=build,
        models={"custom": build},
        executions=("eager",),
        unrolls=("static",),
        precisions=("fp32", "fp64"),
        missing=f"{build} cannot be imported; is it on PYTHONPATH?",
        refusals={},
    )
    LANGUAGE_MODELS[name] = CLASSIFIERS[name] = row
    return Variant(f"{name}/custom", name)


def every(framework: str) -> Iterator[Variant]:
    """Yield every model × execution × unroll of a framework that go together."""
    row = FRAMEWORKS[framework]
    for model in row.models:
        options = row.options(model)
        for execution in options["execution"]:
            for unroll in options["unroll"]:
                # Eager has no graph to unroll into.
                if execution == "eager" and unroll != row.unrolls[0]:
                    continue
                parts = [framework, model, execution, unroll]
                if unroll == row.unrolls[0]:
                    parts.pop()
                    if execution == row.executions[0]:
                        parts.pop()
                name = "/".join(parts)
                yield Variant(name, name)


def named(table: Mapping[str, str]) -> tuple[Variant, ...]:
    """Return variants by name and label."""
    return tuple(Variant(name, label) for name, label in table.items())


# Every model of both frameworks, as --model and --framework choose them.
MODELS = named(
    {
        "torch/basic": "PyTorch basic",
        "torch/block": "PyTorch block (LSTMCell)",
        "torch/block_fused": "PyTorch block_fused",
        "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
        "tensorflow/basic": "TensorFlow basic",
        "tensorflow/block": "TensorFlow block (LSTMBlockCell)",
        "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
        "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
    }
)
