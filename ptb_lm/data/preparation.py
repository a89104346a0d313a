"""The preparation of raw text: its words, the vocabulary and the lines that are held out.

A run stores it, and prepares other text in the same way.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ptb_lm.common.errors import UserError
from ptb_lm.data.tables import HUB
from ptb_lm.data.tokens import Treatment

PTB = "ptb"  # Penn Treebank, as --data names it
BUILT_IN = (PTB, "synthetic")  # the corpora that --data knows by name
DEFAULT_MIN_COUNT = 2  # the least count of a word that is kept
DEFAULT_FRACTION = 0.1  # the part of the lines that is held out for valid, and for test


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """The tokenizer of raw text, the limits of its vocabulary, and the parts that are held out.

    Attributes:
        tokenize: The tokenizer, as in Treatment.
        lowercase: True if words are put into lower case.
        numbers: True if a word that is a number becomes N.
        min_count: The least count of a word of the training text; a rarer one becomes `<unk>`. None:
            `vocab_size` decides.
        vocab_size: The number of words that are kept, the most frequent, with `<eos>` and `<unk>`. None:
            `min_count` decides.
        valid_fraction: The part of a single file's lines that is held out for validation.
        test_fraction: The part that is held out for the test.

    Raises:
        UserError: A value is impossible.
    """

    tokenize: str = "whitespace"
    lowercase: bool = False
    numbers: bool = False
    min_count: int | None = None
    vocab_size: int | None = None
    valid_fraction: float = DEFAULT_FRACTION
    test_fraction: float = DEFAULT_FRACTION

    def __post_init__(self) -> None:
        Treatment(tokenize=self.tokenize)  # refuses an unknown name
        if self.min_count is not None and self.vocab_size is not None:
            raise UserError("--min-count and --vocab-size cannot be combined: each selects the words")
        if self.min_count is not None and self.min_count < 1:
            raise UserError(f"--min-count must be at least 1, not {self.min_count}")
        if self.vocab_size is not None and self.vocab_size < 3:
            raise UserError(
                f"--vocab-size must be at least 3, for <eos>, <unk> and a word, not {self.vocab_size}"
            )
        for name in ("valid_fraction", "test_fraction"):
            if not 0 < getattr(self, name) < 1:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} must lie between 0 and 1, not {getattr(self, name)}")
        if self.valid_fraction + self.test_fraction >= 1:
            raise UserError(
                f"--valid-fraction {self.valid_fraction:g} and --test-fraction {self.test_fraction:g} leave "
                "nothing to train on: their sum must be below 1"
            )

    @cached_property
    def treatment(self) -> Treatment:
        """The treatment that turns the text into words."""
        return Treatment(tokenize=self.tokenize, lowercase=self.lowercase, numbers=self.numbers)

    @property
    def least_count(self) -> int:
        """The count below which a word is not kept."""
        return self.min_count or (1 if self.vocab_size else DEFAULT_MIN_COUNT)

    def to_json(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> "Preparation":
        """Read what `to_json` returned.

        Raises:
            UserError: A key is unknown or missing, or a value impossible.
        """
        types: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(cls)}
        if not isinstance(values, dict) or values.keys() != types.keys():
            raise UserError(f"preparation must have the keys {', '.join(types)}")
        for name, value in values.items():
            if not isinstance(value, types[name]) or isinstance(value, bool) != (types[name] is bool):
                raise UserError(f"preparation: {name} cannot be {value!r}")
        return cls(**values)


def effective_settings(preparation: Preparation | None) -> dict[str, Any]:
    """Return the settings that take effect, by the names of the flags.

    Args:
        preparation: The preparation; None: the text is prepared already, and every word is kept.
    """
    preparation = preparation or Preparation(min_count=1)
    return {**preparation.to_json(), "min_count": preparation.least_count}


FIELDS = tuple(each.name for each in dataclasses.fields(Preparation))


def from_flags(given: Mapping[str, Any], data: str, *, is_file: bool) -> Preparation | None:
    """Return the preparation that the flags ask for; None if the text is already prepared.

    Args:
        given: The flags that were given, by name.
        data: The value of --data.
        is_file: True if it is a single file, which has no splits.

    Raises:
        UserError: A value is impossible, or the text is prepared already.
    """
    values = {name: given[name] for name in FIELDS if name in given}
    if data in BUILT_IN:
        if values:
            raise UserError(
                f"{flag_list(values)} cannot be used with --data {data}, which is already prepared"
            )
        return None
    held_out = [name for name in values if name.endswith("_fraction")]
    if held_out and not is_file:
        raise UserError(f"{flag_list(held_out)} is for a single file; a folder {data} has its own splits")
    return Preparation(**values) if values or is_file else None


def is_path(data: str) -> bool:
    """Return whether --data names a file or folder, not a corpus or data set."""
    return data not in BUILT_IN and not data.startswith(HUB)


def flag_list(names: Any) -> str:
    """Return the flags of some fields, as a person types them: "--min-count, --lowercase"."""
    return ", ".join("--" + name.replace("_", "-") for name in names)
