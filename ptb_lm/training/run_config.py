"""Everything that determines a run, and its form in config.json."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from ptb_lm.common.errors import UserError
from ptb_lm.common.json_fields import Count, Positive, convert, without_nulls
from ptb_lm.data.preparation import PLAIN, Preparation, Tokenizer
from ptb_lm.model.choice import CHOICE_NAMES, Choice
from ptb_lm.model.config import HYPERPARAMETERS, Config
from ptb_lm.model.hyperparameter import format_value

Sha256: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


def describe_digest(sha256: Sha256) -> str:
    """Return a digest as messages show it, by its first digits."""
    return f"SHA-256 {sha256[:12]}…"


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that --data named by its path, or another text in Penn Treebank's folder.

    Attributes:
        path: Absolute path, so that the text is found from any folder.
        sha256: Digest of the corpus as it was read: its words and their order.
    """

    path: str
    sha256: Sha256


class InitFrom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run whose weights a run began with.

    Attributes:
        run: Absolute path of its folder.
        weights_sha256: Digest of its file of weights.
        test_perplexity: Perplexity on its own text; None if the run had not ended.
        new_words: Number of words that were added to its vocabulary.
    """

    run: str
    weights_sha256: Sha256
    test_perplexity: Positive | None = None
    new_words: Count


class EarlierSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hyper-parameters that a run had until it was resumed with others.

    Attributes:
        epoch: Epochs that were finished then.
        step: Steps of the next epoch that were done then.
        settings: The values by name, of those that differ from what came next.

    Raises:
        ValueError: A resumed run cannot have changed such a value.
    """

    epoch: Count
    step: Count
    settings: dict[str, Any]

    @property
    def end(self) -> tuple[int, int]:
        """The end of these settings: the epochs and steps done."""
        return self.epoch, self.step

    def __post_init__(self) -> None:
        for name, value in self.settings.items():
            hyperparameter = RESUMABLE_HYPERPARAMETERS.get(name)
            problem = (
                hyperparameter.problem(value) if hyperparameter else "cannot be changed in a resumed run"
            )
            if problem:
                raise ValueError(f"{name} {problem}")


# Keys of config.json that a run lacks where the attribute is None or empty, and their types.
OPTIONAL_KEYS: dict[str, Any] = {
    "preparation": dict[str, Any],
    "source": Source,
    "init_from": InitFrom,
    "imported": Source,
    "text_column": str,
    "earlier": tuple[EarlierSettings, ...],
}
_TEXTS = ("config", "recipe", "data", *(name for name in CHOICE_NAMES if name != "seed"))
_ConfigFile = msgspec.defstruct(
    "ConfigFile",
    [
        *((name, str) for name in _TEXTS),
        ("seed", int),
        ("hyperparameters", dict[str, Any]),
        *((name, kind | None, None) for name, kind in OPTIONAL_KEYS.items()),
    ],
    forbid_unknown_fields=True,
)

# A resumed run may change these. Any other change would make it a different run.
PLACES = ("data", "device")  # where a run reads and computes
RESUMABLE_HYPERPARAMETERS = {each.name: each for each in HYPERPARAMETERS if each.resumable}
RESUMABLE = (*PLACES, *RESUMABLE_HYPERPARAMETERS)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that determines a run.

    Attributes:
        preset: Name of the preset, the value of --config.
        recipe: Name of the recipe in ptb_lm.model.presets.RECIPES.
        data: Value of --data; "" if the run was imported without its text.
        choice: Choice of framework, model, device, precision and seed.
        hyperparameters: Hyper-parameters of the preset, with the given ones in their place.
        preparation: Preparation of the text; None: it was prepared before.
        source: Place of the text; None: it is the synthetic corpus, or Penn Treebank by the name ptb.
        init_from: Run whose weights it began with; None: it began with random ones.
        imported: File that its weights are from; None: it was trained.
        text_column: Column that has the text, if that is a table; None: the usual or the only one.
        earlier: Hyper-parameters that trained a part of it, the first ones first.
    """

    preset: str
    recipe: str
    data: str
    choice: Choice
    hyperparameters: Config
    preparation: Preparation | None = None
    source: Source | None = None
    init_from: InitFrom | None = None
    imported: Source | None = None
    text_column: str | None = None
    earlier: tuple[EarlierSettings, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The preset, the choices and the hyper-parameters, by the names of their flags."""
        return {
            "config": self.preset,
            "recipe": self.recipe,
            "data": self.data,
            **self.choice.to_json(),
            **asdict(self.hyperparameters),
        }

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that turned the text into words."""
        return self.preparation or PLAIN

    def to_json(self) -> dict[str, Any]:
        """Return the configuration as JSON types, with the choices at the same level as the other keys."""
        return {
            "config": self.preset,
            "recipe": self.recipe,
            "data": self.data,
            **self.choice.to_json(),
            "hyperparameters": self.hyperparameters.to_json(),
            **{
                name: msgspec.to_builtins(value)
                for name in OPTIONAL_KEYS
                if (value := getattr(self, name)) not in (None, ())
            },
        }

    def as_trained(self, result: Mapping[str, Any], epochs: int | None = None) -> "RunConfig":
        """Return the configuration with the settings that trained a result, if that has so many epochs.

        config.json has the settings of a run that goes on, which may fail before they train a step. It alone
        has the planned epochs.

        Args:
            result: The content of result.json; empty if there is none.
            epochs: Number of epochs; None: the planned ones.
        """
        if "hyperparameters" not in result or result["epochs"] != (epochs or self.hyperparameters.epochs):
            return self
        trained = Config.from_json(result["hyperparameters"])
        changes = {name: getattr(trained, name) for name in RESUMABLE_HYPERPARAMETERS if name != "epochs"}
        done = result["epochs"], 0
        before = tuple(each for each in self.earlier if each.end < done)
        # Of what was changed after the result only the planned epochs stay.
        since = tuple(
            msgspec.structs.replace(each, settings={"epochs": each.settings["epochs"]})
            for each in self.earlier[len(before) :]
            if "epochs" in each.settings
        )
        hyperparameters = self.hyperparameters.replace(**changes)
        return replace(self, hyperparameters=hyperparameters, earlier=before + since)

    def going_on(self, before: "RunConfig", *, epoch: int, step: int) -> "RunConfig":
        """Return the configuration of a resumed run, which remembers what trained it until now.

        Settings that trained no step are forgotten. The number of epochs is a setting only where it decides
        the learning rate of each.

        Args:
            before: The content of config.json.
            epoch: Number of epochs that are finished.
            step: Number of steps of the next epoch that are done.
        """
        until, now, earlier = asdict(before.hyperparameters), asdict(self.hyperparameters), before.earlier
        while earlier and earlier[-1].end >= (epoch, step):
            until, earlier = until | earlier[-1].settings, earlier[:-1]
        settings = {
            name: until[name]
            for name in RESUMABLE_HYPERPARAMETERS
            if until[name] != now[name]
            and not (name == "epochs" and self.hyperparameters.schedule == "exponential")
        }
        if settings and (epoch, step) > (0, 0):
            earlier += (EarlierSettings(epoch=epoch, step=step, settings=settings),)
        return replace(self, earlier=earlier)

    def learning_rate_at(self, epoch: int, step: int, steps: int) -> float:
        """Return the learning rate that a training step has, or had by the settings of then.

        Args:
            epoch: Number of the epoch, from 0.
            step: Number of the step in it, from 0.
            steps: Training steps of the epoch.
        """
        settings = dict[str, Any]()
        for each in reversed(self.earlier):
            if each.end > (epoch, step):
                settings |= each.settings
        if self.hyperparameters.schedule == "exponential":
            # It remembers no planned epochs, and with those of now these settings may be impossible.
            settings["epochs"] = epoch + 1
        return self.hyperparameters.replace(**settings).learning_rate_at(epoch, step, steps)

    @property
    def changes(self) -> list[str]:
        """The changes made when the run was resumed: each value, and until when it was one."""
        newest, found = asdict(self.hyperparameters), dict[str, str]()
        for each in reversed(self.earlier):
            end = f"step {each.step} of epoch {each.epoch + 1}" if each.step else f"epoch {each.epoch}"
            for name, value in each.settings.items():
                after = found.get(name) or format_value(newest[name])
                found[name] = f"{format_value(value)} until {end}, then {after}"
        return [f"{name} {values}" for name, values in found.items()]

    def differences(self, other: "RunConfig", *, ignore: Collection[str]) -> list[str]:
        """Return the differences from another configuration, with both values; some names do not count."""
        others = other.settings
        return [
            f"{name} {value!r} there, {others[name]!r} here"
            for name, value in self.settings.items()
            if name not in ignore and value != others[name]
        ]

    @classmethod
    def from_json(cls, values: Any, source: Path) -> "RunConfig":
        """Read what `to_json` returned; unknown and missing keys are errors.

        Raises:
            UserError: A key is unknown or missing, or a value impossible.
        """
        if not isinstance(values, dict):
            raise UserError(f"{source} is not a run's configuration")
        try:
            keys = without_nulls(msgspec.structs.asdict(convert(values, _ConfigFile)))
            written = keys.pop("hyperparameters")
            hyperparameters = Config.from_json(written)
            for each in HYPERPARAMETERS:
                if not each.optional and each.name not in written:
                    raise ValueError(f"the key {each.name!r} is missing")
            if "preparation" in keys:
                keys["preparation"] = Preparation.from_json(keys["preparation"])
            choice = Choice(**{name: keys.pop(name) for name in CHOICE_NAMES})
            return cls(preset=keys.pop("config"), choice=choice, hyperparameters=hyperparameters, **keys)
        except (UserError, ValueError) as error:
            raise UserError(f"{source}: {error}") from None
