"""Scores as rows of a table or as lines of JSON, and sentences about them all."""

import itertools
import json
from collections.abc import Iterable
from typing import TextIO

from ptb_lm.common import streams
from ptb_lm.inference.sentences import SentenceScore, Unit, perplexity, shown


def write(
    file: TextIO, scores: Iterable[SentenceScore], *, unit: Unit, per_word: bool, as_json: bool
) -> list[str]:
    """Write scores as they come; return sentences on how many they were and on their perplexity.

    If there were unknown words, the last sentence is about the perplexity of the others.

    The columns of the table: log_probability (in the unit), tokens (`<eos>` among them), unknown, sentence;
    of words: sentence (counted from 1), word, log_probability, unknown (0 or 1). One space stands between
    words, whatever did.

    Args:
        file: Where to.
        scores: Of the sentences, one at least.
        unit: Of the scores.
        per_word: Whether a row is a word's; in JSON, whether an object has its words'.
        as_json: An object a line, in place of a table.
    """
    total, known_total, tokens, unknown, count = 0.0, 0.0, 0, 0, 0
    scores = iter(scores)
    ahead = list(itertools.islice(scores, 1))  # what cannot be read is refused before a word is written
    if not as_json:
        file.write("\t".join(_WORD_COLUMNS if per_word else _COLUMNS) + "\n")
    for count, score in enumerate(itertools.chain(ahead, scores), 1):
        if as_json:
            file.write(_object(score, per_word=per_word) + "\n")
        elif per_word:
            file.writelines(
                f"{count}\t{streams.shown(word, file)}\t{log_p:.6f}\t{unknown_word:d}\n"
                for word, log_p, unknown_word in _words(score)
            )
        else:
            sentence = streams.shown(" ".join(score.words[:-1]), file)
            file.write(f"{score.total:.6f}\t{len(score.words)}\t{score.unknown}\t{sentence}\n")
        total, known_total = total + score.total, known_total + score.known_total
        tokens, unknown = tokens + len(score.words), unknown + score.unknown
    unknown_words = f"{unknown:,} of them not in the vocabulary{' and read as <unk>' * bool(unknown)}"
    found = shown(perplexity(total, tokens, unit), digits=4)
    without = shown(perplexity(known_total, tokens - unknown, unit), digits=4)
    return [
        f"perplexity {found} ({count:,} sentence{'s' * (count != 1)}, "
        f"{tokens:,} word{'s' * (tokens != 1)} with every <eos>, {unknown_words})",
        *[f"without the unknown words the perplexity is {without}"] * bool(unknown),
    ]


_COLUMNS = ("log_probability", "tokens", "unknown", "sentence")
_WORD_COLUMNS = ("sentence", "word", "log_probability", "unknown")


def _words(score: SentenceScore) -> list[tuple[str, float, bool]]:
    """Return each word, its log-probability, and whether the vocabulary lacks it."""
    return list(zip(score.words, score.log_probabilities.tolist(), score.is_unknown, strict=True))


def _object(score: SentenceScore, *, per_word: bool) -> str:
    values = {
        "sentence": " ".join(score.words[:-1]),
        "log_probability": score.total,
        "unit": score.unit,
        "tokens": len(score.words),
        "unknown": score.unknown,
    }
    if per_word:
        values["words"] = _words(score)
    return json.dumps(values)
