"""From text to sentences, and from their words to ids."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from ptb_lm.common.errors import LineError, UserError
from ptb_lm.data.text import Ids
from ptb_lm.data.tokens import PLAIN, Treatment
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.inference.checks import check_strings, check_text

EXAMPLES = 12  # words of a vocabulary that are named where one is not in it


class Encoded(NamedTuple):
    """A sentence as a model reads it."""

    words: tuple[str, ...]  # as they were given, and `<eos>`
    ids: Ids  # of each
    unknown: tuple[bool, ...]  # which of them the vocabulary lacks; `<unk>` stands for each


def encode(sentence: str, vocabulary: Vocabulary, *, treatment: Treatment = PLAIN) -> Encoded:
    """Return a sentence's words, with an `<eos>` after the last, and their ids.

    Args:
        sentence: May be empty.
        vocabulary: The model's.
        treatment: How it becomes words; by default white space separates them.

    Raises:
        UserError: It is no string, or the vocabulary lacks a word and has no `<unk>`.
    """
    check_text(sentence, name="a sentence")
    return _encoded((*treatment.words(sentence), EOS), vocabulary)


def encode_prefix(
    prefix: str, vocabulary: Vocabulary, *, begins: bool = True, treatment: Treatment = PLAIN
) -> Encoded:
    """Return the words of a text that goes on after them, and their ids.

    Args:
        prefix: May be empty; `<eos>` stands for each newline.
        vocabulary: The model's.
        begins: Whether a sentence begins with it.
        treatment: As in `encode`.

    Raises:
        UserError: As `encode` does.
    """
    check_text(prefix, name="a sentence")
    return _encoded(tuple(treatment.prefix_tokens(prefix, begins=begins)), vocabulary)


def _encoded(words: tuple[str, ...], vocabulary: Vocabulary) -> Encoded:
    missing = [word for word in words if word not in vocabulary.ids]
    if missing and vocabulary.unknown is None:
        examples = ", ".join(islice((word for word in vocabulary.words if word != EOS), EXAMPLES))
        raise UserError(
            f"the word {missing[0]!r} is not in the vocabulary, which has no {UNK}, but {len(vocabulary):,} "
            f"words such as {examples}"
        )
    ids = [vocabulary.ids.get(word, vocabulary.unknown) for word in words]
    return Encoded(words, np.array(ids, np.int32), tuple(word not in vocabulary.ids for word in words))


def encode_lines(
    lines: Iterable[str], vocabulary: Vocabulary, treatment: Treatment = PLAIN
) -> Iterator[Encoded]:
    """Encode each line as a sentence.

    Raises:
        LineError: As `encode` does.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield encode(line, vocabulary, treatment=treatment)
        except UserError as error:
            raise LineError(f"line {number}: {error}") from None


def split(text: str | Iterable[str]) -> Iterable[str]:
    """Return the sentences of a text, one per line, as training reads it. A list stays as it is.

    Raises:
        UserError: It is neither.
    """
    if isinstance(text, str):
        return text.removesuffix("\n").split("\n")
    check_strings(text)
    return text
