"""The text or split that a run is evaluated on, and how it was read."""

import argparse
import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import cli, streams
from ptb_lm.data import text_file
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.text import Ids, encode
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.training import run_data
from ptb_lm.training.run_config import RunConfig


class EvaluatedText(NamedTuple):
    """A text to score.

    Attributes:
        ids: The words, after an `<eos>` if it is no split.
        split: The split that it is scored as.
        name: The name of the split or file.
        note: Sentences on how it is read, one a line; "" for a split.
        data: The run's data.
        is_unknown: Flags of a text's words, without the first `<eos>`: true of one that the vocabulary
            lacks. None for a split.
    """

    ids: Ids
    split: str
    name: str
    note: str
    data: Corpus | None
    is_unknown: NDArray[np.bool_] | None = None


def load(
    arguments: argparse.Namespace, run: RunConfig, vocabulary: Vocabulary, *, needs_data: bool
) -> EvaluatedText:
    """Return the text to score. The run's data are loaded for a split, and for a text if `needs_data`."""
    if arguments.text is None:
        if arguments.text_column is not None:
            run = dataclasses.replace(run, text_column=arguments.text_column)
        corpus = _data(run, vocabulary, arguments.data)
        return EvaluatedText(corpus.splits[arguments.split], arguments.split, arguments.split, "", corpus)
    data = _data(run, vocabulary, arguments.data) if needs_data else None
    text_slice = text_file.TextSlice(arguments.text, tokenizer=run.tokenizer, column=arguments.text_column)
    ids, is_unknown = encode(text_slice, vocabulary)
    # What stands before the first word of a text, which is then scored too.
    ids = np.concatenate([[vocabulary.ids[EOS]], ids]).astype(np.int32)
    name = text_file.display_name(arguments.text)
    if unknown := int(is_unknown.sum()):
        verb = "is" if unknown == 1 else "are"
        about_words = f"{unknown:,} of its words {verb} not in the vocabulary, and read as {UNK}"
    else:
        about_words = "the vocabulary has all of its words"
    note = "\n".join([f"the text is one stream after {EOS}; {about_words}", *text_slice.notes.sentences()])
    return EvaluatedText(ids, "test", name, note, data, is_unknown)


def _data(run: RunConfig, vocabulary: Vocabulary, folder: str | None) -> Corpus:
    data = run_data.load_again(run, vocabulary, moved_to=folder)
    if difference := run_data.difference(run, data):
        streams.print_to_stderr(f"{cli.command_name('evaluate')}: {difference}")
    return data
