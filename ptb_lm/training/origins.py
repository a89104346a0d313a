"""Where a run's text and its weights came from, as config.json keeps it."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, TypeVar

from ptb_lm.common.errors import UserError

_SHA256 = re.compile("[0-9a-f]{64}")
AnyRecord = TypeVar("AnyRecord", bound="_Record")


@dataclass(frozen=True, kw_only=True)
class _Record:
    """Some values that are kept as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls: type[AnyRecord], values: Any) -> AnyRecord:
        """Read what `to_json` returned.

        Raises:
            UserError: It is not that.
        """
        types: dict[str, Any] = {each.name: each.type for each in dataclasses.fields(cls)}
        if not isinstance(values, dict) or values.keys() != types.keys():
            raise UserError(f"{cls.__name__} must have the keys {', '.join(types)}")
        for name, value in values.items():
            if not isinstance(value, types[name]) or ("sha256" in name and not _SHA256.fullmatch(value)):
                raise UserError(f"{name} cannot be {value!r}")
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Source(_Record):
    """A text that --data named by its path, or another text in Penn Treebank's folder.

    Attributes:
        path: Absolute, so that the text is found from any folder.
        sha256: Of the corpus as it was read, its words and their order.
    """

    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class InitFrom(_Record):
    """The run whose weights a run began with.

    Attributes:
        run: Its folder's absolute path.
        weights_sha256: Of its file of weights.
        test_perplexity: On its own text; None if it had not ended.
        new_words: How many words were added to its vocabulary.
    """

    run: str
    weights_sha256: str
    test_perplexity: float | None
    new_words: int
