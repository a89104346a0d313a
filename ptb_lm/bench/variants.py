"""Variants: the named implementations that a benchmark compares.

A name is FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION]. It names one of this package's models
(`torch/cudnn`, `tensorflow/basic/graph/loop`, `torch/cudnn/graph@bf16`), or a program that people write
without this package (`plain-torch/cudnn`). `torch/cudnn#again` is the program of `torch/cudnn`, measured a
second time: the ratio of the two is 1, and the measured ratio shows how far the others can be trusted (an A/A
test).

A registry has a row for each framework and program: where it is built, and its options. A checkout has more
rows, in benchmarks/programs.toml. A command may add programs of the user's own (`add`).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ptb_lm.bench import checkout
from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.model.cells import LSTM
from ptb_lm.model.choice import Choice
from ptb_lm.model.frameworks import FRAMEWORKS, PRECISIONS, Framework

AGAIN = "#again"


def _framework(about: Mapping[str, Any]) -> Framework:
    """Return the row of a program, by what is declared of it below or in benchmarks/programs.toml."""
    needs = about["needs"]
    return Framework(
        build=about["build"],
        models=about["models"],
        executions=tuple(about["executions"]),
        unrolls=tuple(about.get("unrolls", ("static",))),
        precisions=tuple(about.get("precisions", ("fp32",))),
        install_hint=FRAMEWORKS[needs].install_hint if needs in FRAMEWORKS else how_to_install(needs),
        refusals={(model, option): why for model, option, why in about.get("refusals", ())},
    )


# Programs that people write, and this package's models in several processes; a report has their titles.
_PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    "plain-torch": {
        "title": "the plain loop in PyTorch",
        "build": "ptb_lm.bench.rivals.plain_torch:build",
        "models": {
            "cudnn": "nn.Embedding, nn.LSTM, nn.Linear, cross_entropy, clip_grad_norm_, SGD",
            "cudnn-kept-memory": "the loop of plain-torch/cudnn in a process that keeps freed memory",
        },
        "executions": ("eager", "compile"),
        "precisions": ("fp32", "tf32", "bf16"),
        "needs": "torch",
    },
    "plain-tensorflow": {
        "title": "the plain loop in Keras",
        "build": "ptb_lm.bench.rivals.plain_tensorflow:build",
        "models": {"keras": "Keras's Embedding, LSTM, Dense, cross-entropy and SGD, tf.clip_by_global_norm"},
        "executions": ("graph",),
        "precisions": ("fp32", "bf16"),
        "needs": "tensorflow",
    },
    "outer-torch": {
        "title": "torch's modules compiled as a whole",
        "build": "ptb_lm.bench.rivals.torch_outer:build",
        "models": {
            "basic": "elementary operations in a loop over time",
            "block": "torch.nn.LSTMCell at each time step",
            "cudnn": "torch.nn.LSTM",
        },
        "executions": ("jit", "compile"),
        "needs": "torch",
        "refusals": (("cudnn", "jit", "TorchScript does not compile torch.nn.LSTM"),),
    },
    **{
        f"torch-{count}-processes": {
            "title": f"{count} processes of torch",
            "build": f"ptb_lm.bench.run.multi_process:{build}",
            "models": FRAMEWORKS["torch"].models,
            "executions": ("auto", "eager"),
            "precisions": ("fp32", "tf32", "bf16"),
            "needs": "torch",
        }
        for count, build in ((2, "build_for_two"), (4, "build_for_four"))
    },
}
_IN_CHECKOUT = checkout.read_toml("programs")

_EVERY_PROGRAM = {**_PROGRAMS, **_IN_CHECKOUT.get("programs", {})}

# A task may have rows of its own for the frameworks: a classifier's (benchmarks/classifier_task.py).
REGISTRY = {**FRAMEWORKS, **{name: _framework(about) for name, about in _EVERY_PROGRAM.items()}}
ADDED: dict[str, Framework] = {}  # programs of the user's own that a command adds
# Names in titles. What is missing here, as a program of --add is, has its own name.
TITLES = {
    "torch": "torch",
    "tensorflow": "TensorFlow",
    **{name: about["title"] for name, about in _EVERY_PROGRAM.items()},
}


def description(variant: str, command: str) -> str:
    """Return what a variant is, as it is declared: in a row above, or by --add; "" where nothing says so.

    Args:
        variant: FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION], of a program's first measurement.
        command: The command that measured it, which names what was added.
    """
    framework, model = Variant(variant).program
    if framework in REGISTRY and (known := REGISTRY[framework].models.get(model)):
        return _describe(known)
    added = re.search(rf"(?<![^\s'=]){re.escape(framework)}=([^\s']+)", command)
    return _describe(added[1]) if added else ""


def _describe(known: str) -> str:
    """Return what a function is that --add names, where benchmarks/ says it; else its name."""
    # In rows of earlier commits it is of ptb_lm.bench.
    found = re.fullmatch(r"(?:benchmarks|ptb_lm\.bench)\.rivals\.(.*)", known)
    return _IN_CHECKOUT.get("added", {}).get(found[1] if found else "", known)


@dataclass(frozen=True)
class Variant:
    """An implementation that computes a workload.

    Attributes:
        name: Name, FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][#again][@PRECISION]. A part that is left out is the
            framework's default, or the run's precision.
        label: Name in tables, if it comes into one. It does not repeat the precision of the name; a report
            names the precision where a table has several (summary.py).
    """

    name: str
    label: str = ""

    @property
    def base(self) -> str:
        """The name without a precision."""
        return self.name.partition("@")[0]

    @property
    def parts(self) -> dict[str, str | None]:
        """The name's parts before the precision; None where it leaves one to the framework."""
        parts = (*self.base.removesuffix(AGAIN).split("/"), None, None, None)
        return dict(zip(("framework", "model", "execution", "unroll"), parts[:4], strict=True))

    @property
    def program(self) -> tuple[str, str]:
        """The framework and the model; "" where the name leaves the model to the framework."""
        parts = self.parts
        return parts["framework"] or "", parts["model"] or ""

    @property
    def precision(self) -> str | None:
        """The precision that the name gives; None where it leaves that to the run."""
        return self.name.partition("@")[2] or None

    def at(self, precision: str) -> "Variant":
        """Return the variant in a precision that its name then gives."""
        name = f"{self.base}@{precision}"
        return Variant(name, name if self.label == self.name else self.label)

    def again(self) -> "Variant":
        """Return the same program under another name, to be measured a second time."""
        base, at, precision = self.name.partition("@")
        name = f"{base}{AGAIN}{at}{precision}"
        return Variant(name, name if self.label == self.name else f"{self.label}, again")

    def has_precision(self, precision: str, registry: Mapping[str, Framework]) -> bool:
        """Return whether the framework computes this model in a precision."""
        framework, model = self.program
        return precision in registry[framework].options(model)["precision"]

    def builder(
        self, registry: Mapping[str, Framework], *, device: str, precision: str, seed: int
    ) -> Callable[..., Any]:
        """Return the function of (config, weights) that builds it; imports the framework.

        Args:
            registry: Rows of the frameworks and programs, by name.
            device: "auto", "cpu" or "cuda".
            precision: Precision, if the name gives none.
            seed: Seed of dropout.

        Raises:
            UserError: There is no such framework, model or combination here, and why.
        """
        if self.base.count("/") > 3:
            raise UserError(f"{self.name}: a variant is FRAMEWORK/MODEL[/EXECUTION[/UNROLL]][@PRECISION]")
        framework, model = self.program
        choice = Choice.create(
            registry,
            framework=framework,
            model=model,
            execution=self.parts["execution"],
            unroll=self.parts["unroll"],
            device=device,
            precision=self.precision or precision,
            seed=seed,
        )
        function = choice.builder()

        def build(config: Any, weights: Any) -> Any:
            choice.check_cell(getattr(config, "cell", LSTM))  # a classifier's is no hyper-parameter
            if framework in ADDED:  # other people's functions know no Choice
                chosen = choice.to_json()
                del chosen["framework"]
                return function(config, weights, **chosen)
            return function(config, weights, choice)

        return build


def add(name_and_build: str) -> Variant:
    """Register an implementation of the user's own, NAME=MODULE:FUNCTION, in ADDED.

    FUNCTION builds a ptb_lm.model.backend.Backend, or a Classifier (examples/sequence_classifier). Its call:
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
    if name in {*REGISTRY, *ADDED}:
        raise UserError(f"--add {name_and_build}: the name {name!r} is taken")
    ADDED[name] = Framework(
        build=build,
        models={"custom": build},
        executions=("eager",),
        unrolls=("static",),
        precisions=PRECISIONS,
        install_hint=f"{build} cannot be imported; is it on PYTHONPATH?",
        refusals={},
    )
    return Variant(f"{name}/custom", name)


def original(variant: str) -> str:
    """Return the name of the program that a variant measures again; its own name if it does not."""
    return variant.replace(AGAIN, "", 1)


def name_variants(table: Mapping[str, str]) -> tuple[Variant, ...]:
    """Return variants by name and label."""
    return tuple(Variant(name, label) for name, label in table.items())
