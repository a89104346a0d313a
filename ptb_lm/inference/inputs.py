"""Inputs of a trained model: numbers and texts are checked, and words become ids."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from ptb_lm.common.errors import LineError, UserError
from ptb_lm.data.preparation import PLAIN, Tokenizer
from ptb_lm.data.text import Ids
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary

EXAMPLES = 12  # words of a vocabulary that are named where one is not in it


class EncodedWords(NamedTuple):
    """Words of a text as a model reads them."""

    words: tuple[str, ...]  # as they were given, and `<eos>`
    ids: Ids  # one a word
    is_unknown: tuple[bool, ...]  # true of a word that the vocabulary lacks; `<unk>` stands for it


def check_count(count: int, most: int, *, name: str, noun: str = "words") -> None:
    """Check a number of words.

    Raises:
        UserError: It is no whole number, or there are not so many.
    """
    check_whole(count, name=name)
    if not 1 <= count <= most:
        raise UserError(f"{name} must be from 1 to {most:,}, the number of {noun}, not {count:,}")


def check_whole(value: object, *, least: int | None = None, name: str) -> None:
    """Check a whole number, which may be NumPy's.

    Raises:
        UserError: It is none, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def is_finite(value: object) -> bool:
    """Return whether it is a finite number, which may be NumPy's."""
    try:
        return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def check_text(text: object, *, name: str) -> None:
    """Check that it is a string.

    Raises:
        UserError: It is not.
    """
    if not isinstance(text, str):
        raise UserError(f"{name} must be a string, not {type(text).__name__}")


def encode(
    text: str, vocabulary: Vocabulary, *, begins: bool = True, tokenizer: Tokenizer = PLAIN
) -> EncodedWords:
    """Return the words of a text, with an `<eos>` for the end of each line, and their ids.

    Args:
        text: A text, perhaps empty. Unless a line's end is its end, its last line goes on.
        vocabulary: The model's words.
        begins: True if a sentence begins with the text.
        tokenizer: Turns text into words; by default white space separates them.

    Raises:
        UserError: It is no string, or the vocabulary lacks a word and has no `<unk>`.
    """
    check_text(text, name="a sentence")
    words = tuple(tokenizer.prefix_tokens(_with_newlines(text), begins=begins))
    is_unknown = tuple(word not in vocabulary.ids for word in words)
    if any(is_unknown) and vocabulary.unknown is None:
        examples = ", ".join(islice((word for word in vocabulary.words if word != EOS), EXAMPLES))
        raise UserError(
            f"the word {words[is_unknown.index(True)]!r:.100} is not in the vocabulary, which has no {UNK}, "
            f"but {len(vocabulary):,} words such as {examples}"
        )
    ids = [vocabulary.ids.get(word, vocabulary.unknown) for word in words]
    return EncodedWords(words, np.array(ids, np.int32), is_unknown)


def encode_lines(
    lines: Iterable[str], vocabulary: Vocabulary, tokenizer: Tokenizer = PLAIN, *, begins: bool = True
) -> Iterator[EncodedWords]:
    """Encode each line as a sentence; the first goes on with one if `begins` is false.

    Raises:
        LineError: A line is no string, or is several; or the vocabulary lacks a word of it and has no
            `<unk>`.
    """
    for number, line in enumerate(lines, 1):
        try:
            check_text(line, name="a sentence")
            sentence = _with_newlines(line).removesuffix("\n")
            if "\n" in sentence:
                raise UserError("a newline ends a sentence; give each sentence as its own string")
            words = encode(f"{sentence}\n", vocabulary, begins=begins or number > 1, tokenizer=tokenizer)
        except UserError as error:
            raise LineError(number, str(error)) from None
        yield words  # not above: a generator that is closed at Python's end has no globals to look up


def _with_newlines(text: str) -> str:
    r"""Return a text whose lines end in \n, where they may end in \r or \r\n, as those of a file."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def split_sentences(text: object) -> Iterable[str]:
    """Return the sentences of a text, one per line, as training reads it. A list stays as it is.

    Raises:
        UserError: It is neither.
    """
    if isinstance(text, str):
        return _with_newlines(text).removesuffix("\n").split("\n")
    if isinstance(text, bytes) or not isinstance(text, Iterable):  # bytes would give numbers
        raise UserError(
            f"the text must be a string, or several with a sentence each, not {type(text).__name__}"
        )
    return text
