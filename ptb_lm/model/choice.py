"""The choices of a run that are not hyper-parameters: framework, model, device and so on, in one object."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.model import cells
from ptb_lm.model.frameworks import DEVICES, FRAMEWORKS, Framework

MAX_SEED = 2**63 - 1  # of a framework's random generator


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choices of a run. `create` fills in defaults for the choices that are not given.

    Attributes:
        framework: A name in the registry.
        model: The LSTM implementation, a name in the framework's row.
        execution: The way that a training step's operations are run, a name in the row.
        unroll: The way that a loop over time enters the graph, a name in the row.
        device: "cpu", "cuda", or "auto", which is cuda if there is one.
        precision: A name in the row.
        seed: The seed of the initial weights, of dropout and of the windows of --vary-num-steps.
        registry: The frameworks to choose from.

    Raises:
        UserError: A name is unknown, two of them cannot be combined, or the seed is out of range.
    """

    framework: str
    model: str
    execution: str
    unroll: str
    device: str
    precision: str
    seed: int
    registry: Mapping[str, Framework] = field(default_factory=lambda: FRAMEWORKS, repr=False, compare=False)

    def __post_init__(self) -> None:
        row = self.framework_row
        available = {"model": tuple(row.models), "device": DEVICES, **row.options(self.model)}
        for kind, names in available.items():
            name = getattr(self, kind)
            if name in names:
                continue
            choices = ", ".join(names)
            if reason := row.refusals.get((self.model, name)):
                raise UserError(
                    f"{self.framework} has no {self.model} with --{kind} {name}: {reason}; "
                    f"choose from {choices}"
                )
            raise UserError(f"unknown {kind} {name!r} for {self.framework}; choose from {choices}")
        if not 0 <= self.seed <= MAX_SEED:
            raise UserError(f"--seed must be at least 0 and at most {MAX_SEED}, not {self.seed}")

    @classmethod
    def create(
        cls,
        registry: Mapping[str, Framework] = FRAMEWORKS,
        *,
        framework: str = "torch",
        model: str = "cudnn",
        execution: str | None = None,
        unroll: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
        seed: int = 1,
    ) -> "Choice":
        """Return a complete choice, with the defaults that are here.

        Of a model and a precision, a command's defaults are not these but those of fastest.py.

        Args:
            registry: The frameworks to choose from.
            framework: A name in the registry.
            model: A name in the framework's row.
            execution: A name in the row; None: the first.
            unroll: A name in the row; None: the first.
            device: "cpu", "cuda", or "auto".
            precision: A name in the row.
            seed: The seed of the initial weights, of dropout and of the windows of --vary-num-steps.

        Raises:
            UserError: As for the class.
        """
        row = _row(registry, framework)
        return cls(
            framework=framework,
            model=model,
            execution=row.executions[0] if execution is None else execution,
            unroll=row.unrolls[0] if unroll is None else unroll,
            device=device,
            precision=precision,
            seed=seed,
            registry=registry,
        )

    @property
    def framework_row(self) -> Framework:
        """The framework's row of the registry."""
        return _row(self.registry, self.framework)

    def check_cell(self, cell: str, *, has_weights: bool = False) -> None:
        """Check that the framework's model computes a cell.

        Args:
            cell: A name in CELLS.
            has_weights: True for a trained model: its weights are of that cell, which cannot be changed.

        Raises:
            UserError: It does not compute the cell. The message says which models do.
        """
        computed = cells.names_for(self.framework, self.model)
        if cell in computed:
            return
        models = {name: f"--model {' or '.join(row)}" for name, row in cells.CELLS[cell].layers.items()}
        if self.framework in models:
            what, others = f"{self.framework} {self.model}", models[self.framework]
        else:
            what = self.framework
            others = " or ".join(f"--framework {name} {flags}" for name, flags in models.items())
        if not has_weights:
            others += f", or --cell {' or '.join(computed)}"
        raise UserError(f"{what} does not compute the cell {cell}; choose {others}")

    def can_have(self, precision: str) -> bool:
        """Return whether the framework and the model have a precision on the device.

        For a precision of CUDA devices this imports the framework, and looks at the device.

        Raises:
            UserError: The framework is not installed.
        """
        row = self.framework_row
        if precision in row.needs_cuda and self.import_function(row.examine)(self.device).device != "cuda":
            return False
        return precision in row.options(self.model)["precision"]

    def builder(self) -> Callable[..., Any]:
        """Return the framework's function of (config, weights, choice); this imports the framework.

        Raises:
            UserError: The framework is not installed.
        """
        return self.import_function(self.framework_row.build)

    def import_function(self, name: str) -> Callable[..., Any]:
        """Return a function of the framework that its row names as "module:function"; this imports it.

        Raises:
            UserError: The framework is not installed.
        """
        module, _, attribute = name.partition(":")
        try:
            function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("ptb_lm"):
                raise
            hint = self.framework_row.install_hint
            raise UserError(f"{self.framework} is not installed; {hint}") from None
        return function

    def to_json(self) -> dict[str, Any]:
        """Return the choices by name, without the registry."""
        return {name: getattr(self, name) for name in CHOICE_NAMES}


# The names of the choices.
CHOICE_NAMES = tuple(each.name for each in fields(Choice) if each.name != "registry")


def _row(registry: Mapping[str, Framework], framework: str) -> Framework:
    if framework not in registry:
        raise UserError(f"unknown framework {framework!r}; choose from {', '.join(registry)}")
    return registry[framework]
