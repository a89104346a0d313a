"""Everything that determines a run, and its form in config.json."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import Preparation
from ptb_lm.model.choice import CHOICE_NAMES, Choice
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.training.origins import InitFrom, Source

# Keys of config.json that a run lacks where the attribute is None, and how each is read.
OPTIONAL_KEYS: dict[str, Callable[[Any], Any]] = {
    "preparation": Preparation.from_json,
    "source": Source.from_json,
    "init_from": InitFrom.from_json,
    "imported": Source.from_json,
    "text_column": str,
}

# A resumed run may change these. Any other change would make it a different run.
PLACES = ("data", "device")  # where a run reads and computes
RESUMABLE_HYPERPARAMETERS = tuple(each.name for each in HYPERPARAMETERS if each.resumable)
RESUMABLE = (*PLACES, *RESUMABLE_HYPERPARAMETERS)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run.

    Attributes:
        config: The preset's name.
        recipe: How it is trained, a name in ptb_lm.model.config.RECIPES.
        data: What --data named; "" if the run was imported without its text.
        choice: What computes it.
        hyperparameters: The preset's, with what was given in their place.
        preparation: What is done to the text; None: it was prepared before.
        source: Where the text was; None: it is the synthetic corpus, or Penn Treebank by the name ptb.
        init_from: Whose weights it began with; None: with random ones.
        imported: The file that its weights are from; None: it was trained.
        text_column: The column that has the text, if that is a table; None: the usual or the only one.
    """

    config: str
    recipe: str
    data: str
    choice: Choice
    hyperparameters: Config
    preparation: Preparation | None = None
    source: Source | None = None
    init_from: InitFrom | None = None
    imported: Source | None = None
    text_column: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON types, with the choices at the same level as the other keys."""
        return {
            "config": self.config,
            "recipe": self.recipe,
            "data": self.data,
            **self.choice.to_json(),
            "hyperparameters": dataclasses.asdict(self.hyperparameters),
            **{
                name: value if isinstance(value, str) else value.to_json()
                for name in OPTIONAL_KEYS
                if (value := getattr(self, name)) is not None
            },
        }

    def differences(self, other: "RunConfig", *, allowed: Collection[str]) -> list[str]:
        """Return what differs from another configuration, with both values; some names may."""
        ours, others = ({**c.to_json(), **c.to_json()["hyperparameters"]} for c in (self, other))
        return [
            f"{name} {value!r} there, {others[name]!r} here"
            for name, value in ours.items()
            if name not in (*allowed, *OPTIONAL_KEYS, "hyperparameters") and value != others[name]
        ]

    def fixed_differences(self, other: "RunConfig") -> list[str]:
        """Return the differences of two configurations that one run may not have, with both values."""
        return self.differences(other, allowed=RESUMABLE)

    @classmethod
    def from_json(cls, values: Any, source: Path) -> "RunConfig":
        """Read what `to_json` returned; unknown and missing keys are errors.

        Raises:
            UserError: A key is unknown or missing, or a value impossible.
        """
        keys = ("config", "recipe", "data", *CHOICE_NAMES, "hyperparameters")
        values = _checked_keys(keys, values, source, optional=OPTIONAL_KEYS)
        given = {name: values.pop(name) for name in OPTIONAL_KEYS if name in values}
        names = [each.name for each in HYPERPARAMETERS]
        hyperparameters = _checked_keys(names, values.pop("hyperparameters"), source)
        for name, value in values.items():
            if type(value) is not (int if name == "seed" else str):
                raise UserError(f"{source}: {name} cannot be {value!r}")
        try:
            choice = Choice(**{name: values.pop(name) for name in CHOICE_NAMES})
            read = {name: OPTIONAL_KEYS[name](value) for name, value in given.items()}
            return cls(choice=choice, hyperparameters=Config(**hyperparameters), **values, **read)
        except UserError as error:
            raise UserError(f"{source}: {error}") from None


def _checked_keys(
    expected: Sequence[str], values: Any, source: Path, *, optional: Collection[str] = ()
) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{source} is not a run's configuration")
    for name in sorted(values.keys() - {*expected, *optional}):
        raise UserError(f"{source}: unknown key {name!r}")
    for name in sorted(set(expected) - values.keys()):
        raise UserError(f"{source}: the key {name!r} is missing")
    return dict(values)
