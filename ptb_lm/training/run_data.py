"""A run's text: where it is, its words, its digest, and sentences about its preparation."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from ptb_lm.common.errors import UserError
from ptb_lm.common.files import absolute, penn_treebank_folder
from ptb_lm.data import corpus, splits, tables, text_file
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.preparation import PTB, Preparation, is_path
from ptb_lm.data.text import NO_SPACES, Ids, UnknownWordError
from ptb_lm.data.vocabulary import EOS, UNK, Vocabulary
from ptb_lm.training.run_config import RunConfig, Source


def with_source(run: RunConfig, data: Corpus) -> RunConfig:
    """Return the configuration with the location and digest of its text, unless its name says which it is.

    The name ptb says so only if the text is Penn Treebank.
    """
    location = locate_text(run)
    path = penn_treebank_folder() if location == PTB else Path(location)
    if run.data == "synthetic" or (run.data == PTB and _is_penn_treebank(run, path, data)):
        return dataclasses.replace(run, source=None)
    name = tables.absolute_name(location) if location.startswith(tables.HUB) else str(absolute(path))
    return dataclasses.replace(run, source=Source(path=name, sha256=data.sha256))


def _is_penn_treebank(run: RunConfig, folder: Path, data: Corpus) -> bool:
    known = corpus.PENN_TREEBANK_SHA256
    # The digest covers the vocabulary, too: with another run's, the text is read again with its own.
    has_own_words = "train" not in data.unknown_counts
    return data.sha256 == known or (
        not has_own_words and corpus.load(folder, column=run.text_column).sha256 == known
    )


def locate_text(run: RunConfig, run_name: str = "the run") -> str:
    """Return the absolute path of a run's text; or how --data named it, if there is none or it has moved.

    Args:
        run: Configuration of the run.
        run_name: Name of the run in an error, such as its folder.

    Raises:
        UserError: The run was imported, and no text is known to be its own; or the text is not there.
    """
    if not run.data:
        raise UserError(
            "an imported run does not know its text; name one with --data (evaluate also takes --text)"
        )
    source = run.source
    if source and (source.path.startswith(tables.HUB) or Path(source.path).exists()):
        return source.path
    if is_path(run.data) and not Path(run.data).exists():
        raise UserError(
            f"there is no file or folder {source.path if source else run.data}, the text of {run_name}; name "
            "a text with --data"
        )
    return run.data


def check_folder(run: RunConfig) -> None:
    """Check that the folder of a new run's text is there, with a file of each split.

    Files, downloads and data sets are looked at when the text is loaded.

    Raises:
        UserError: It is not.
    """
    path = Path(run.data)
    if is_path(run.data) and not path.is_file() and not text_file.URL.fullmatch(run.data):
        splits.find(path, run.preparation, run.text_column)


def load_first(run: RunConfig, vocabulary: Vocabulary | None, *, extend: bool) -> Corpus:
    """Load the text of a new run.

    Args:
        run: Configuration of the run.
        vocabulary: Words of the run that it starts from; None: those of its text.
        extend: True if new words of its text follow them.

    Raises:
        UserError: The text is not there or cannot be read, or it has a word that cannot be encoded.
    """
    try:
        return corpus.load(
            run.data, run.preparation, column=run.text_column, vocabulary=vocabulary, extend=extend
        )
    except UnknownWordError as error:
        hint = "--min-count 2 makes <unk> of rare words"
        if vocabulary is not None and not extend:
            hint = f"--extend-vocabulary adds those of the training text; with --min-count 2 others are {UNK}"
        raise UserError(f"{error}; {hint}") from None


def load_again(
    run: RunConfig, vocabulary: Vocabulary, *, moved_to: str | None = None, run_name: str = "the run"
) -> Corpus:
    """Load the text of a run that has a vocabulary, prepared as it was then.

    Args:
        run: Configuration of the run.
        vocabulary: Words of the run.
        moved_to: Location of the text now; None: it is where it was.
        run_name: Name of the run in an error, such as its folder.

    Raises:
        UserError: The text is not there or cannot be read, or it has other words.
    """
    location = locate_text(run, run_name) if moved_to is None else moved_to
    # If the run's words came from this text alone, building them again tells whether it is the same text.
    has_own_words = run.preparation is None and run.init_from is None and run.imported is None
    known = None if has_own_words else vocabulary
    try:
        data = corpus.load(location, run.preparation, column=run.text_column, vocabulary=known)
    except UnknownWordError as error:
        if run.imported:  # without a text of its own
            raise
        raise UserError(f"{error}: it is not the text of {run_name}, or vocabulary.txt has changed") from None
    if data.vocabulary.sha256 != vocabulary.sha256:
        # The digest is of its own words, too; and the synthetic corpus is always the same.
        if known_digest(run) == data.sha256 or (has_own_words and location == run.data == "synthetic"):
            raise UserError(f"vocabulary.txt of {run_name} has changed since it was written: restore it")
        raise UserError(
            f"the vocabulary of the data {location} ({len(data.vocabulary):,} words) is not that of "
            f"{run_name}; name its own text with --data"
        )
    return data


def known_digest(run: RunConfig) -> str | None:
    """Return the digest of a run's text and words, as far as config.json tells; None if it does not."""
    if run.source:
        return run.source.sha256
    # With the words of another run, Penn Treebank has another digest.
    return corpus.PENN_TREEBANK_SHA256 if run.data == PTB and run.init_from is None else None


def short_name(run: RunConfig) -> str:
    """Return the last part of the path of a run's text; or its name, if it has no path."""
    return Path(run.source.path if run.source else run.data).name if is_path(run.data) else run.data


def identify(run: RunConfig) -> str:
    """Return the digest of a run's text, or its name where no other text has that."""
    return known_digest(run) or run.data


def difference(run: RunConfig, data: Corpus) -> str | None:
    """Return a sentence if a text is not the one that config.json names; None if it is, or nothing tells."""
    if known_digest(run) in (None, data.sha256):
        return None
    if run.source is None:
        return "the text is not Penn Treebank, which the run's config.json names"
    return (
        f"the text differs from the one that the run was trained on, {run.source.path}: its SHA-256 is "
        f"{data.sha256[:12]}…, not {run.source.sha256[:12]}…"
    )


def report(run: RunConfig, data: Corpus) -> Iterator[str]:
    """Yield sentences about a run's text: a warning if its name is wrong, and how it was prepared."""
    if run.data == PTB and run.source:
        yield (
            f"warning: the files in {run.source.path} are not those of Penn Treebank, so perplexities cannot "
            "be compared with published ones"
        )
    yield from data.notes
    if run.preparation:
        yield _describe_preparation(
            run.preparation, data, new_words=run.init_from.new_words if run.init_from else None
        )
        shares = ", ".join(f"{_share(data, split):.2%} of {split}" for split in data.splits)
        yield f"words read as {UNK}, with {EOS} not counted: {shares}"
    unknown = ", ".join(f"{split} {number:,}" for split, number in data.unknown_counts.items())
    if run.init_from:
        count = run.init_from.new_words
        new_ones = f", {count:,} new {'one' if count == 1 else 'ones'} among them" if count else ""
        yield (
            f"weights and vocabulary of {run.init_from.run}: {len(data.vocabulary):,} words{new_ones}; "
            f"tokens that it lacks, read as {UNK}: {unknown}"
        )
    elif not run.preparation and any(data.unknown_counts.values()):
        yield f"tokens that the training text lacks, read as {UNK}: {unknown}"


def _describe_preparation(preparation: Preparation, data: Corpus, *, new_words: int | None) -> str:
    """Return a sentence about a text.

    Args:
        preparation: Preparation of the text.
        data: The text.
        new_words: The number of its words that were added to another run's; None: all are its own.
    """
    has_limit, word = new_words != 0, "word" if new_words is None else "new word"
    parts = [f"tokenized by {preparation.tokenize}"]
    if preparation.lowercase:
        parts.append("lower case")
    if preparation.numbers:
        parts.append("N for numbers")
    if has_limit and preparation.vocab_size:
        count = len(data.vocabulary) if new_words is None else new_words
        parts.append(f"the {count:,} most frequent {word}{'s' * (count > 1)}")
    elif has_limit:
        seen = f" seen {preparation.least_count} times or more" if preparation.least_count > 1 else ""
        parts.append(f"every {word}{seen}")
    coverage = 1 - _share(data, "train")
    # Words that another run or --vocab-size chose may lack most of any text.
    may_lack_spaces = has_limit and not preparation.vocab_size and preparation.tokenize != "characters"
    hint = f"; {NO_SPACES}" if may_lack_spaces and coverage < 0.5 else ""
    return f"text: {', '.join(parts)}; the vocabulary covers {coverage:.2%} of the training text{hint}"


def _share(data: Corpus, split: str) -> float:
    """Return which part of the words of a split, without ends of lines, is `<unk>`."""
    ids: Ids = data.splits[split]
    words = int((ids != data.vocabulary.ids.get(EOS, -1)).sum())
    unknown = data.vocabulary.unknown
    return int((ids == unknown).sum()) / words if unknown is not None and words else 0.0
