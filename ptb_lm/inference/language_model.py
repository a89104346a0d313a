"""A trained model to use, as ptb_lm.load(RUN) returns it.

V = vocabulary, E = embedding width.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.text import Ids
from ptb_lm.data.tokens import PLAIN, Treatment
from ptb_lm.data.vocabulary import EOS, Vocabulary
from ptb_lm.inference import batches
from ptb_lm.inference.checks import check_count, check_text, check_whole
from ptb_lm.inference.encoding import encode_lines, encode_prefix, split
from ptb_lm.inference.neighbours import Neighbour, Neighbours
from ptb_lm.inference.position import Position, checked
from ptb_lm.inference.sampling import Prediction, Sampler, likeliest
from ptb_lm.inference.sentences import NATS, Scores, SentenceScore, Unit, perplexity
from ptb_lm.model.backend import Backend, build, check_not_forked, max_tokens_per_call
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

if TYPE_CHECKING:
    from ptb_lm.inference.torch_module import PlainLanguageModel

PREDICTIONS = 5  # of `predict`, unless it is told how many
LONGEST_SENTENCE = 10_000  # words of `generate`: the likeliest words may go in a circle that has no <eos>


class LanguageModel:
    """A trained model and its vocabulary.

    A text begins after an `<eos>`, and each newline in it is one. It becomes words as that of the training
    did: white space separates them, unless it was raw text. Those that the vocabulary lacks are read as
    `<unk>`. With `carry_state` a call goes on where the last such call ended, instead;
    `perplexity` never does.

    Any number of threads may use a model at once, and each gets the numbers that it would get alone. Only
    `state` is one reader's: of several, each takes a `copy.copy` of the model, which shares the weights and
    has a `state` of its own. copy.deepcopy and pickle copy the weights, too.

    Attributes:
        state: Where the last call with `carry_state` ended; None: before the first word. It can be kept, and
            set again.

    Args:
        config: The hyper-parameters.
        weights: The trained weights, by canonical name.
        choice: What computes.
        vocabulary: The words.
        treatment: How a text becomes words.
        run: The run that it is from, as it was named.

    Raises:
        UserError: As ptb_lm.model.backend.build does.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        vocabulary: Vocabulary,
        treatment: Treatment = PLAIN,
        run: str | Path = "",
    ) -> None:
        self._backend = build(config, weights, choice)
        self.config, self.choice, self.run = config, choice, run
        self.vocabulary, self.treatment = vocabulary, treatment
        self.state: Position | None = None
        self._tokens = max_tokens_per_call(len(vocabulary), max(*config.layer_sizes, config.embedding_width))

    def __repr__(self) -> str:
        facts = {
            "run": str(self.run),
            "cell": self.config.cell,
            "embedding": self.config.embedding_width,
            "layers": self.config.layer_sizes,
            "words": len(self.vocabulary),
            **{name: getattr(self.choice, name) for name in ("framework", "model", "precision")},
            "device": self._backend.environment()["device"],
        }
        return f"LanguageModel({', '.join(f'{name}={value!r}' for name, value in facts.items() if value)})"

    def __copy__(self) -> "LanguageModel":
        """Return another reader of the same weights: a model with a `state` of its own."""
        reader = object.__new__(type(self))
        reader.__dict__.update(self.__dict__)
        return reader

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how it is built again, with the same weights and the same `state`."""
        weights = self.backend.export_weights()
        given = self.config, weights, self.choice, self.vocabulary, self.treatment, self.run
        return type(self), given, {"state": self.state}

    @property
    def backend(self) -> Backend:
        """What computes.

        Raises:
            UserError: It cannot, in a forked process.
        """
        check_not_forked()
        return self._backend

    def score(self, text: str | Iterable[str], *, unit: Unit = "nats", carry_state: bool = False) -> Scores:
        """Return the log-probability of every word of every sentence, `<eos>` at its end too.

        Args:
            text: Sentences, or a text with one a line.
            unit: "nats" or "bits".
            carry_state: Read the sentences as one text, each after all before it. Otherwise each is read for
                itself, after an `<eos>`.

        Raises:
            UserError: It is no text, or the vocabulary lacks a word and has no `<unk>`.
        """
        return Scores(tuple(self.score_each(text, unit=unit, carry_state=carry_state)), unit)

    def score_each(
        self,
        text: str | Iterable[str],
        *,
        unit: Unit = "nats",
        carry_state: bool = False,
        ahead: int = batches.WINDOW_SENTENCES,
    ) -> Iterator[SentenceScore]:
        """Return the scores of `score` one after the other; at most `ahead` sentences are read at a time.

        With `carry_state`, `state` stands behind all sentences that were read, which may be further than the
        one that was returned last. With `ahead=1` it stands behind that one.
        """
        check_whole(ahead, least=1, name="ahead")
        if unit not in tuple(NATS):
            raise UserError(f"the unit must be one of {', '.join(NATS)}, not {unit!r}")
        encoded = encode_lines(split(text), self.vocabulary, self.treatment)
        # A stream is one row: a longer one gains nothing.
        most = self._tokens if carry_state else batches.WINDOW_WORDS
        log_p_of = self._carried if carry_state else self._independent
        return (
            SentenceScore(sentence.words, log_p_N / NATS[unit], sentence.unknown, unit)
            for window in batches.windows(encoded, count=ahead, words=most)
            for sentence, log_p_N in zip(window, log_p_of([each.ids for each in window]), strict=True)
        )

    def perplexity(self, text: str | Iterable[str], *, carry_state: bool = True) -> float:
        """Return the perplexity of a text, every line's `<eos>` included.

        Args:
            text: Sentences, or a text with one a line.
            carry_state: Read them as one text from a first `<eos>` on, as training does. Otherwise each is
                read for itself. Neither goes on from `state`, which stays as it is.
        """
        total, tokens, reader = 0.0, 0, copy.copy(self)
        reader.state = None
        for sentence in reader.score_each(text, carry_state=carry_state):
            total, tokens = total + sentence.total, tokens + len(sentence.words)
        return perplexity(total, tokens)

    def predict(
        self, prefix: str = "", k: int | None = None, *, carry_state: bool = False
    ) -> list[Prediction]:
        """Return the k most likely words to follow a prefix, the most likely first.

        Args:
            prefix: The words before.
            k: How many words. None: 5, or all if the vocabulary has fewer.
            carry_state: Go on from `state`, and move it behind the prefix.

        Raises:
            UserError: The vocabulary lacks a word and has no `<unk>`, or has fewer than k words.
        """
        if k is None:
            k = min(PREDICTIONS, len(self.vocabulary))
        check_count(k, len(self.vocabulary), name="k")
        log_p_V, _ = self.next_words(self._read(prefix, carry_state=carry_state))
        return likeliest(log_p_V, self.vocabulary, k)

    def generate(
        self,
        prompt: str = "",
        length: int | None = None,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | np.random.Generator | None = None,
        unk: bool = False,
        carry_state: bool = False,
    ) -> Iterator[str]:
        """Return words that follow a prompt. Each is computed when it is asked for, and none is stored.

        Args:
            prompt: What the text begins with; it is not returned.
            length: How many words, through the ends of sentences. None: to the end of the sentence, whose
                `<eos>` is not returned, and 10,000 words at most.
            temperature: Below 1 the likely words become likelier. 0: always the likeliest.
            top_k: Only the k likeliest words are drawn from.
            top_p: Only the fewest likeliest words that have this probability together are.
            seed: Of the random numbers, or a NumPy generator to take them from.
            unk: Whether `<unk>` may be drawn.
            carry_state: Go on from `state`, and move it with every word.

        Raises:
            UserError: A value is impossible, or the vocabulary lacks a word of the prompt and has no `<unk>`.
        """
        if length is not None:
            check_whole(length, least=0, name="the length")
        unknown = self.vocabulary.unknown
        sampler = Sampler(
            len(self.vocabulary),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden=() if unk or unknown is None else (unknown,),
            seed=seed,
        )
        position = self._read(prompt, carry_state=carry_state)
        return self._generate(position, sampler, length, carry_state=carry_state)

    @cached_property
    def embeddings(self) -> NDArray[np.floating]:
        """The words' vectors [V, E], in the order of the vocabulary; read only."""
        vectors_VE = self.backend.export_weights()["embedding"]
        vectors_VE.flags.writeable = False
        return vectors_VE

    @cached_property
    def _neighbours(self) -> Neighbours:
        return Neighbours(self.embeddings, self.vocabulary)

    def nearest(self, word: str, k: int | None = None) -> list[Neighbour]:
        """Return the k words whose embeddings have the smallest angle to a word's, the nearest first.

        Args:
            word: One of the vocabulary, or one that a text's treatment turns into one of the vocabulary.
            k: How many others. None: 10, or all if the vocabulary has fewer.

        Raises:
            UserError: The vocabulary lacks the word or has fewer than k others, or scikit-learn is missing.
        """
        check_text(word, name="the word")
        if word not in self.vocabulary.ids and len(treated := self.treatment.words(word)) == 1:
            (word,) = treated
        return self._neighbours.of(word, k)

    def to_torch(self) -> "PlainLanguageModel":
        """Return the model as a plain torch.nn.Module, of torch.nn.Embedding, LSTM and Linear, on the CPU.

        Raises:
            UserError: The cell is not torch.nn.LSTM's.
        """
        from ptb_lm.inference.torch_module import to_torch

        return to_torch(self.config, self.backend.export_weights())

    def beginning(self) -> Position:
        """Return where a text begins: after an `<eos>`."""
        return Position(self.backend.zero_state(1), self.vocabulary.ids[EOS])

    def read(self, position: Position, ids: Ids) -> Position:
        """Return the position in a text after some more words."""
        if not len(ids):
            return position
        inputs_N, state = np.concatenate([[position.last], ids[:-1]]).astype(np.int32), position.state
        for begin in range(0, len(inputs_N), self._tokens):
            state, _ = self.backend.next_words(inputs_N[None, begin : begin + self._tokens], state)
        return Position(state, int(ids[-1]))

    def next_words(self, position: Position) -> tuple[NDArray[np.floating], Any]:
        """Return (log-probability of every word to come next [V] in nats, the backend's state behind it).

        The text that goes on with a word stands at Position(that state, the word).
        """
        state, log_p_1V = self.backend.next_words(np.array([[position.last]], np.int32), position.state)
        return log_p_1V[0], state

    def _start(self, *, carry_state: bool) -> Position:
        return (checked(self.state) if carry_state else None) or self.beginning()

    def _read(self, prefix: str, *, carry_state: bool) -> Position:
        position = self._start(carry_state=carry_state)
        begins = position.last == self.vocabulary.ids[EOS]
        encoded = encode_prefix(prefix, self.vocabulary, begins=begins, treatment=self.treatment)
        position = self.read(position, encoded.ids)
        if carry_state:
            self.state = position
        return position

    def _generate(
        self, position: Position, sampler: Sampler, length: int | None, *, carry_state: bool
    ) -> Iterator[str]:
        produced, most = 0, LONGEST_SENTENCE if length is None else length
        while produced != most:
            log_p_V, state = self.next_words(position)
            position = Position(state, sampler(log_p_V))
            if carry_state:
                self.state = position
            word = self.vocabulary.words[position.last]
            if length is None and word == EOS:
                return
            produced += 1
            yield word

    def _independent(self, targets: list[Ids]) -> list[NDArray[np.float64]]:
        first = self.vocabulary.ids[EOS]
        return batches.independent(self.backend, targets, first=first, tokens=self._tokens)

    def _carried(self, targets: list[Ids]) -> list[NDArray[np.float64]]:
        position = self._start(carry_state=True)
        log_p, state = batches.one_text(
            self.backend, targets, position.state, first=position.last, tokens=self._tokens
        )
        self.state = Position(state, int(targets[-1][-1]))
        return log_p
