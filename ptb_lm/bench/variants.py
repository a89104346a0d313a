"""Who computes it: a variant is a name of a program, behind which is a row of registries.py.

A variant, FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION], is what a program can be asked for,
`torch/cudnn`, `tensorflow/basic/graph/loop` or `torch/cudnn/graph@bf16`; or a program that people write
without this package, kept here to be compared with: `plain-torch/cudnn`. `torch/cudnn#again` is the same
program as `torch/cudnn`, measured a second time: the ratio of the two is 1, and what a benchmark says of it
shows how far its other ratios can be trusted (an A/A test).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptb_lm.bench import registries
from ptb_lm.common.errors import UserError
from ptb_lm.model.cells import LSTM
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS, PRECISIONS, Framework

AGAIN = "#again"


@dataclass(frozen=True)
class Variant:
    """Somebody who computes a workload.

    Attributes:
        name: FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][#again][@PRECISION]; what is left out is the framework's
            default, and the run's precision.
        label: How a table calls it; a precision that the name gives is not repeated, but a report names it
            where a table has several (summary.py).
    """

    name: str
    label: str

    @property
    def base(self) -> str:
        """The name without a precision."""
        return self.name.partition("@")[0]

    @property
    def parts(self) -> dict[str, str | None]:
        """The name's parts before the precision; None where it leaves one to the framework."""
        parts = (*self.base.removesuffix(AGAIN).split("/"), None, None)
        return dict(zip(("framework", "model", "execution", "unroll"), parts[:4], strict=True))

    @property
    def precision(self) -> str | None:
        """The precision that the name gives; None where it leaves that to the run."""
        return declared_precision(self.name)

    def at(self, precision: str) -> "Variant":
        """Return the variant in a precision that its name then gives."""
        name = f"{self.base}@{precision}"
        return Variant(name, name if self.label == self.name else self.label)

    def again(self) -> "Variant":
        """Return the same program under another name, to be measured a second time."""
        base, at, precision = self.name.partition("@")
        name = f"{base}{AGAIN}{at}{precision}"
        return Variant(name, name if self.label == self.name else f"{self.label}, again")

    def offers(self, precision: str, registry: Mapping[str, Framework]) -> bool:
        """Return whether the framework computes this model in a precision."""
        row = registry[str(self.parts["framework"])]
        return precision in row.options(str(self.parts["model"]))["precision"]

    def builder(
        self, registry: Mapping[str, Framework], *, device: str, precision: str, seed: int
    ) -> Callable[..., Any]:
        """Return the function of (config, weights) that builds it; imports the framework.

        Args:
            registry: Who there is.
            device: "auto", "cpu" or "cuda".
            precision: Holds where the name gives none.
            seed: Of dropout.

        Raises:
            UserError: There is no such framework, model or combination here, and why.
        """
        if self.base.count("/") > 3:
            raise UserError(f"{self.name}: a variant is FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION]")
        parts = self.parts
        choice = Choice.create(
            registry,
            framework=parts["framework"] or "",
            model=parts["model"] or "",
            execution=parts["execution"],
            unroll=parts["unroll"],
            device=device,
            precision=self.precision or precision,
            seed=seed,
        )
        function = choice.builder()

        def build(config: Any, weights: Any) -> Any:
            choice.check_cell(getattr(config, "cell", LSTM))  # a classifier's is no hyper-parameter
            if choice.framework_row.takes_keywords:
                chosen = choice.to_json()
                del chosen["framework"]
                return function(config, weights, **chosen)
            return function(config, weights, choice)

        return build


def add(name_and_build: str) -> Variant:
    """Register an implementation of the user's own, NAME=MODULE:FUNCTION, for the time of this process.

    FUNCTION builds a ptb_lm.model.backend.Backend or a ptb_lm.classifier.Classifier. It is called as
    FUNCTION(config, weights, model=..., execution=..., unroll=..., device=..., precision=..., seed=...).

    Returns:
        The variant, NAME/custom.

    Raises:
        UserError: It is not of this form, or the name is taken.
    """
    name, _, build = name_and_build.partition("=")
    module, _, function = build.partition(":")
    if not name or {"/", "@", "#"} & set(name) or not module or not function or ":" in function:
        raise UserError(f"--add {name_and_build}: give it as NAME=MODULE:FUNCTION")
    if name in registries.LANGUAGE_MODELS or name in registries.CLASSIFIERS:
        raise UserError(f"--add {name_and_build}: the name {name!r} is taken")
    row = Framework(
        build=build,
        models={"custom": build},
        executions=("eager",),
        unrolls=("static",),
        precisions=PRECISIONS,
        install_hint=f"{build} cannot be imported; is it on PYTHONPATH?",
        refusals={},
        takes_keywords=True,
    )
    registries.LANGUAGE_MODELS[name] = registries.CLASSIFIERS[name] = row
    return Variant(f"{name}/custom", name)


def every(framework: str) -> Iterator[Variant]:
    """Yield every model × execution × unroll of a framework that go together.

    Not "auto", which is one of the others.
    """
    row = FRAMEWORKS[framework]
    for model in row.models:
        options = row.options(model)
        for execution in options["execution"]:
            if execution == "auto":
                continue
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


def original(variant: str) -> str:
    """Return the name of the program that a variant measures again; its own name if it does not."""
    return variant.replace(AGAIN, "", 1)


def declared_precision(variant: str) -> str | None:
    """Return the precision that a variant's name gives; None where it gives none."""
    return variant.partition("@")[2] or None


def named(table: Mapping[str, str]) -> tuple[Variant, ...]:
    """Return variants by name and label."""
    return tuple(Variant(name, label) for name, label in table.items())


# The models that both frameworks have.
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
