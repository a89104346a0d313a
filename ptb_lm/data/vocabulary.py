"""A vocabulary: words and their ids."""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import name_in_errors, refuse_pipe

EOS = "<eos>"
UNK = "<unk>"
_NO_VOCABULARY = "is not a vocabulary (one distinct word per line, in UTF-8)"


class Vocabulary:
    """The words of a corpus; a word's id is its index in `words`.

    Args:
        words: Distinct words, in the order of their ids.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if len(self.ids) != len(self.words):
            raise ValueError("a vocabulary's words must be distinct")

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self):,} words)"

    @property
    def unknown(self) -> int | None:
        """The id of `<unk>`, which stands for unknown words; None if the vocabulary has no `<unk>`."""
        return self.ids.get(UNK)

    @cached_property
    def sha256(self) -> str:
        """The digest of the words in id order: equal for equal vocabularies only."""
        return hashlib.sha256(self.to_text().encode()).hexdigest()

    def to_text(self) -> str:
        """Return the words, one per line, in id order."""
        return "".join(word + "\n" for word in self.words)

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read a file that holds what `to_text` returned.

        Raises:
            UserError: The file is missing or is not a vocabulary.
        """
        refuse_pipe(path)
        try:
            return cls(read_words(path))
        except ValueError:
            raise UserError(f"{path} {_NO_VOCABULARY}") from None


def read_words(path: Path) -> list[str]:
    """Return the lines of a file that has a word in each; two may be the same.

    Raises:
        UserError: The file is missing or not UTF-8.
    """
    try:
        with name_in_errors(path):
            content = path.read_bytes()
        return content.decode("utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} {_NO_VOCABULARY}") from None
