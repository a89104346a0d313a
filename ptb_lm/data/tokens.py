"""Turn text into words: split at white space or tokenized, optionally in lower case, with N for numbers."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from ptb_lm.common.errors import UserError, how_to_install
from ptb_lm.data.vocabulary import EOS, UNK

TOKENIZERS = ("whitespace", "words", "characters")
SPACE = "▁"  # U+2581, as SentencePiece writes it: a space among characters
NUMBER = "N"  # as in Penn Treebank

_NEXT = " X"  # appended, and dropped again: NLTK takes the period off the last word of a text, even off Mr.
_WHITE = re.compile(r"\s+")  # what str.split() splits at
_NUMBER = re.compile(r"[+-]?\d+([.,:/]\d+)*")
# Their period ends no sentence. Punkt counts them without it, in lower case.
_ABBREVIATIONS = (
    "a.m adm apr aug ave bros capt co col corp dec dept dr e.g est etc feb fig gen gov hon i.e inc jan "
    "jr jul jun lt ltd maj mar mr mrs ms mt no nov oct p.m prof rep rev sen sep sept sgt sr st u.k u.n u.s v "
    "vol vs"
)


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """The way a text becomes words. By default white space separates them, and they stay unchanged.

    Attributes:
        tokenize: "whitespace"; "words", Penn Treebank's as NLTK finds them; or "characters", Unicode's code
            points, with SPACE for white space between words.
        lowercase: True if words are put into lower case.
        numbers: True if a word that is a number becomes N.

    Raises:
        UserError: There is no such tokenizer.
    """

    tokenize: str = "whitespace"
    lowercase: bool = False
    numbers: bool = False

    def __post_init__(self) -> None:
        if self.tokenize not in TOKENIZERS:
            raise UserError(f"tokenize must be one of {', '.join(TOKENIZERS)}, not {self.tokenize!r}")

    def words(self, text: str) -> list[str]:
        """Return the words of a sentence; the ends of lines are white space.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        return self._normalize(self._find(text))

    def prefix(self, text: str, *, begins: bool = True) -> list[str]:
        """Return the words of a sentence that goes on after them.

        Among characters the space at its end is one of them: another word comes next. The training text had
        none at the beginning of a sentence.

        Args:
            text: The sentence so far.
            begins: True if the sentence begins with it.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        if self.tokenize == "whitespace":
            return self.words(text)
        if self.tokenize == "words":
            return self.words(text + _NEXT)[:-1]
        return self._normalize(list(_WHITE.sub(SPACE, text.lstrip() if begins else text)))

    def cut(self, text: str) -> int:
        """Return where a text that goes on can be cut without changing its words; 0: nowhere."""
        line = text.rfind("\n") + 1
        if self.tokenize == "characters":
            return max(len(text.rstrip()), line)  # a space counts only if a word of its line follows
        return max(text.rfind(" ") + 1, line) if self.tokenize == "whitespace" else line

    def prefix_tokens(self, text: str, *, begins: bool = True) -> list[str]:
        """Return the words of a text that goes on after them, with `<eos>` for each newline.

        Args:
            text: The text so far; its last line is a `prefix`.
            begins: True if a sentence begins with it.

        Raises:
            UserError: NLTK is needed, and is not installed.
        """
        if self.tokenize == "whitespace":
            return self._normalize(text.replace("\n", f" {EOS} ").split())
        tokens = list[str]()
        *lines, last = text.split("\n")
        for line in lines:
            within = not begins and self.tokenize == "characters"  # the space before it is one of them
            tokens += self.prefix(line.rstrip(), begins=False) if within else self.words(line)
            tokens.append(EOS)
            begins = True
        return tokens + self.prefix(last, begins=begins)

    def join(self, words: Iterable[str]) -> str:
        """Return words as a person reads them."""
        text = self.gap.join(words)
        return text if self.gap else text.replace(SPACE, " ")

    def pieces(self, words: Iterable[str], *, after: str) -> Iterator[str]:
        """Yield the text of each word, with the gap before it, behind a text; a newline for `<eos>`."""
        gap = self.gap if after and not after[-1].isspace() else ""
        for word in words:
            yield "\n" if word == EOS else gap + self.join([word])
            gap = "" if word == EOS else self.gap

    @property
    def gap(self) -> str:
        """The text between two words."""
        return "" if self.tokenize == "characters" else " "

    @cached_property
    def _find(self) -> Callable[[str], list[str]]:
        if self.tokenize == "whitespace":
            return str.split
        if self.tokenize == "characters":
            return lambda text: list(SPACE.join(text.split()))
        return _treebank()

    def _normalize(self, words: list[str]) -> list[str]:
        if self.lowercase:
            # N for a number stays, so that treating a text again does not change it.
            kept = NUMBER if self.numbers else None
            words = [word if word == kept else word.lower() for word in words]
        if self.numbers:
            words = [NUMBER if _NUMBER.fullmatch(word) else word for word in words]
        return words


PLAIN = Treatment()


def _treebank() -> Callable[[str], list[str]]:
    """Return NLTK's tokenizer after the conventions of Penn Treebank, over the sentences of a line."""
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
        from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer
    except ModuleNotFoundError:
        raise UserError(
            f"--tokenize words needs the package nltk, which is not installed; {how_to_install('text')}"
        ) from None
    parameters = PunktParameters()
    parameters.abbrev_types.update(_ABBREVIATIONS.split())
    # The word tokenizer takes the period off the last word of what it is given only.
    sentences, words = PunktSentenceTokenizer(parameters), NLTKWordTokenizer()

    def whole(text: str) -> list[str]:
        return [word for sentence in sentences.tokenize(text) for word in words.tokenize(sentence)]

    def find(text: str) -> list[str]:
        found = list[str]()
        *parts, last = text.split(UNK)  # which the tokenizer would take apart
        for part in parts:
            found += [*whole(part + _NEXT)[:-1], UNK]
        return found + whole(last)

    return find
