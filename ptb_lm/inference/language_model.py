"""A trained model in use, as ptb_lm.load(RUN) returns it.

V = vocabulary, E = embedding width.
"""

import copy
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common.errors import UserError
from ptb_lm.data.preparation import PLAIN, SPACE, Tokenizer
from ptb_lm.data.text import Ids
from ptb_lm.data.vocabulary import EOS, Vocabulary
from ptb_lm.inference import inputs
from ptb_lm.inference.neighbours import Neighbour, find_nearest
from ptb_lm.inference.reader import (
    CHUNK_SENTENCES,
    CHUNK_WORDS,
    Position,
    TextReader,
    check_scores,
    chunk_sentences,
    tokens_per_call,
)
from ptb_lm.inference.sampling import Prediction, Sampler, likeliest
from ptb_lm.inference.scoring import NATS_PER_UNIT, Scores, SentenceScore, Unit, perplexity
from ptb_lm.model.backend import Backend, build, check_not_forked
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config

if TYPE_CHECKING:
    from ptb_lm.inference.torch_module import PlainLanguageModel

PREDICTIONS = 5  # words of `predict`, unless `k` is given
LONGEST_SENTENCE = 10_000  # words of `generate`: the likeliest words may go in a circle that has no <eos>


class _SharedReader:
    """The reader of a model and its copies, made when it is first used.

    Unpickling makes none: a worker of multiprocessing that fails to unpickle its task never answers.

    Args:
        config: The hyper-parameters.
        weights: The trained weights; they are held until the reader is made.
        choice: Choice of framework, model, device and precision.
        vocabulary: The words.
    """

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice, vocabulary: Vocabulary
    ) -> None:
        self._config, self._choice, self._vocabulary = config, choice, vocabulary
        self._weights: Mapping[str, NDArray[Any]] = weights
        self._reader: TextReader | None = None
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        weights = self._weights or self.reader.backend.export_weights()
        return type(self), (self._config, weights, self._choice, self._vocabulary)

    @property
    def reader(self) -> TextReader:
        """The reader.

        Raises:
            UserError: The process was forked, and the backend cannot compute in it; or as
                ptb_lm.model.backend.build does.
        """
        check_not_forked()
        with self._lock:
            if self._reader is None:
                self._reader = TextReader(
                    build(self._config, self._weights, self._choice),
                    vocabulary=self._vocabulary,
                    max_tokens=tokens_per_call(self._config, len(self._vocabulary)),
                )
                self._weights = {}
            return self._reader

    @property
    def device(self) -> str | None:
        """The device, for people; None if there is no reader yet."""
        return self._reader.backend.environment()["device"] if self._reader else None

    @cached_property
    def embeddings(self) -> NDArray[np.floating]:
        """The words' vectors [V, E]; read only."""
        vectors_VE = self.reader.backend.export_weights()["embedding"]
        vectors_VE.flags.writeable = False
        return vectors_VE


class LanguageModel:
    """A trained model and its vocabulary.

    A text begins after an `<eos>`, and each newline in it is an `<eos>`. The text is cut into words as the
    training text was: at white space, unless that was raw text. Words that the vocabulary lacks are read as
    `<unk>`. With `carry_state` a call continues where the last such call ended, instead of after an `<eos>`;
    `perplexity` never does.

    Any number of threads may use a model at once, and each gets the numbers that it would get alone. Only
    `state` cannot be shared: give each reader a `copy.copy` of the model, which shares the weights and has
    its own `state`. copy.deepcopy and pickle copy the weights, too.

    Every method that scores words raises DivergenceError if weights are so large that scores are not finite.

    Attributes:
        state: The position at which the last call with `carry_state` ended; None: before the first word. A
            program can keep it, and set it again.

    Args:
        config: The hyper-parameters.
        weights: The trained weights, by canonical name.
        choice: The framework, model, device and precision that compute.
        vocabulary: The words.
        tokenizer: Turns text into words.
        run: The run of the model, as it was named.

    Raises:
        UserError: As ptb_lm.model.backend.build does.
    """

    def __init__(
        self,
        config: Config,
        weights: Mapping[str, NDArray[Any]],
        choice: Choice,
        vocabulary: Vocabulary,
        tokenizer: Tokenizer = PLAIN,
        run: str | Path = "",
    ) -> None:
        self.config, self.choice, self.run = config, choice, run
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self.state: Position | None = None
        self._shared = _SharedReader(config, weights, choice, vocabulary)
        _ = self.reader

    def __repr__(self) -> str:
        facts = {
            "run": str(self.run),
            "cell": self.config.cell,
            "embedding": self.config.embedding_width,
            "layers": self.config.hidden_sizes,
            "words": len(self.vocabulary),
            **{name: getattr(self.choice, name) for name in ("framework", "model", "precision")},
            "device": self._shared.device,
        }
        return f"LanguageModel({', '.join(f'{name}={value!r}' for name, value in facts.items() if value)})"

    @property
    def reader(self) -> TextReader:
        """The reader of texts, on the backend that computes.

        Raises:
            UserError: The process was forked, and the backend cannot compute in it; or, if the model was
                pickled, as ptb_lm.model.backend.build does.
        """
        return self._shared.reader

    @property
    def backend(self) -> Backend:
        """The backend that computes; see `reader`."""
        return self.reader.backend

    def score(self, text: str | Iterable[str], *, unit: Unit = "nats", carry_state: bool = False) -> Scores:
        """Return the log-probability of every word of every sentence, `<eos>` at its end too.

        Args:
            text: A list of sentences, or a text with one sentence per line.
            unit: "nats" or "bits".
            carry_state: True to score the sentences as one text, each after all before it. Otherwise each is
                scored independently, after an `<eos>`.

        Raises:
            UserError: `text` is no text, or the vocabulary lacks a word and has no `<unk>`.
        """
        return Scores(tuple(self.score_each(text, unit=unit, carry_state=carry_state)), unit)

    def score_each(
        self,
        text: str | Iterable[str],
        *,
        unit: Unit = "nats",
        carry_state: bool = False,
        ahead: int = CHUNK_SENTENCES,
    ) -> Iterator[SentenceScore]:
        """Return the scores of `score` one after the other; at most `ahead` sentences are read at a time.

        With `carry_state`, `state` is the position after all sentences that were read, which may be further
        than the last one that was returned. With `ahead=1` it is the position after the last one returned.
        """
        inputs.check_whole(ahead, least=1, name="ahead")
        if unit not in tuple(NATS_PER_UNIT):
            raise UserError(f"the unit must be one of {', '.join(NATS_PER_UNIT)}, not {unit!r}")
        begins = not carry_state or self._begins(self.reader.resume(self.state))
        sentences = inputs.encode_lines(
            inputs.split_sentences(text), self.vocabulary, self.tokenizer, begins=begins
        )
        # A stream is one row: a longer one gains nothing.
        most = self.reader.max_tokens if carry_state else CHUNK_WORDS
        score = self._score_stream if carry_state else self._score_independent
        return (
            SentenceScore(
                sentence.words, check_scores(log_p_N) / NATS_PER_UNIT[unit], sentence.is_unknown, unit
            )
            for chunk in chunk_sentences(sentences, count=ahead, words=most)
            for sentence, log_p_N in zip(chunk, score([each.ids for each in chunk]), strict=True)
        )

    def perplexity(self, text: str | Iterable[str], *, carry_state: bool = True) -> float:
        """Return the perplexity of a text, every line's `<eos>` included; not a number if it has no sentence.

        Args:
            text: A list of sentences, or a text with one sentence per line.
            carry_state: True to score them as one text after a first `<eos>`, as training does. Otherwise
                each is scored independently. Neither continues from `state`, and neither changes it.
        """
        total, tokens, model = 0.0, 0, copy.copy(self)
        model.state = None
        for sentence in model.score_each(text, carry_state=carry_state):
            total, tokens = total + sentence.total, tokens + len(sentence.words)
        return perplexity(total, tokens)

    def predict(
        self, prefix: str = "", k: int | None = None, *, carry_state: bool = False
    ) -> list[Prediction]:
        """Return the k most likely words to follow a prefix, the most likely first.

        Args:
            prefix: The words before.
            k: The number of words. None: 5, or all if the vocabulary has fewer.
            carry_state: True to continue from `state`, and to move it to the end of the prefix.

        Raises:
            UserError: The vocabulary lacks a word and has no `<unk>`, or has fewer than k words.
        """
        if k is None:
            k = min(PREDICTIONS, len(self.vocabulary))
        inputs.check_count(k, len(self.vocabulary), name="k")
        _, log_p_V = self.reader.next_word_log_probabilities(self._read(prefix, carry_state=carry_state))
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
            prompt: The beginning of the text; it is not returned.
            length: The number of words, through the ends of sentences. None: to the end of the sentence,
                whose `<eos>` is not returned, and 10,000 words at most.
            temperature: A divisor of log-probabilities: below 1 the likely words become likelier. 0: always
                the likeliest.
            top_k: The number of likeliest words that are drawn from; None: all.
            top_p: A probability: only the smallest set of words that together reach it is drawn from.
            seed: The seed of the random numbers, or a NumPy generator to take them from.
            unk: True if `<unk>` may be drawn.
            carry_state: True to continue from `state`, and to move it with every word.

        Raises:
            UserError: A value is impossible, or the vocabulary lacks a word of the prompt and has no `<unk>`.
        """
        if length is not None:
            inputs.check_whole(length, least=0, name="the length")
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

    @property
    def embeddings(self) -> NDArray[np.floating]:
        """The words' vectors [V, E], in the order of the vocabulary; read only."""
        return self._shared.embeddings

    def nearest(self, word: str, k: int | None = None) -> list[Neighbour]:
        """Return the k words whose embeddings have the smallest angle to a word's, the nearest first.

        Args:
            word: A word of the vocabulary, or one that the tokenizer turns into such a word.
            k: The number of others. None: 10, or all if the vocabulary has fewer.

        Raises:
            UserError: The vocabulary lacks the word or has fewer than k others.
        """
        return find_nearest(self.embeddings, self.vocabulary, word, k, tokenizer=self.tokenizer)

    def to_torch(self) -> "PlainLanguageModel":
        """Return the model as a plain torch.nn.Module, of torch.nn.Embedding, LSTM and Linear, on the CPU.

        Raises:
            UserError: The cell is not torch.nn.LSTM's, or there is not enough memory.
        """
        from ptb_lm.inference.torch_module import to_torch

        return to_torch(self.config, self.backend.export_weights())

    def _begins(self, position: Position) -> bool:
        """Return whether a sentence, or a word after a space among characters, begins at a position."""
        is_space = self.tokenizer.tokenize == "characters" and (
            self.vocabulary.words[position.last_word] == SPACE
        )
        return is_space or position.last_word == self.reader.eos

    def _read(self, prefix: str, *, carry_state: bool) -> Position:
        position = self.reader.resume(self.state if carry_state else None)
        begins = self._begins(position)
        words = inputs.encode(prefix, self.vocabulary, begins=begins, tokenizer=self.tokenizer)
        position = self.reader.read(position, words.ids)
        if carry_state:
            self.state = position
        return position

    def _generate(
        self, position: Position, sampler: Sampler, length: int | None, *, carry_state: bool
    ) -> Iterator[str]:
        count, most = 0, LONGEST_SENTENCE if length is None else length
        while count != most:
            state, log_p_V = self.reader.next_word_log_probabilities(position)
            position = dataclasses.replace(position, state=state, last_word=sampler(log_p_V))
            if carry_state:
                self.state = position
            word = self.vocabulary.words[position.last_word]
            if length is None and word == EOS:
                return
            count += 1
            yield word

    def _score_independent(self, targets: list[Ids]) -> list[NDArray[np.float64]]:
        return self.reader.score_independent(targets)  # looked up for each chunk: the process may have forked

    def _score_stream(self, targets: list[Ids]) -> list[NDArray[np.float64]]:
        self.state, log_p = self.reader.score_stream(targets, self.reader.resume(self.state))
        return log_p
