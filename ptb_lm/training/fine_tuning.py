"""Start a run from the weights of another run: --init-from."""

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.common.files import absolute, identity
from ptb_lm.common.flags import flag_list
from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.preparation import BUILT_IN, Preparation, Tokenizer, from_flags
from ptb_lm.data.vocabulary import Vocabulary
from ptb_lm.model import fastest, parameters
from ptb_lm.model.backend import Arrays
from ptb_lm.model.config import HYPERPARAMETERS
from ptb_lm.training import run_data, run_folders
from ptb_lm.training.run_config import InitFrom, RunConfig
from ptb_lm.training.run_directory import RunDirectory
from ptb_lm.training.run_flags import INIT_FROM_RATE, check_effects, contradictions, with_flags

HELD_OUT = ("valid_fraction", "test_fraction")
STRUCTURAL = tuple(each.name for each in HYPERPARAMETERS if each.structural)
INITIAL_SCALES = ("init_scale", "layer_init_scale")
TOKENIZER_FIELDS = tuple(each.name for each in fields(Tokenizer))
VOCABULARY_LIMITS = ("min_count", "vocab_size")
VOCABULARY_AXES = {"embedding": 0, "softmax.kernel": 1, "softmax.bias": 0}


@dataclass(frozen=True, eq=False)
class ParentRun:
    """The run whose weights a new run starts from.

    Attributes:
        directory: Files of the run.
        run: Configuration of the run.
        vocabulary: Words of the run.
        weights: Best weights of the run, by canonical name.
        weights_sha256: Digest of the file that the weights are from.
        test_perplexity: Perplexity on its own text; None if the run has not ended.
    """

    directory: RunDirectory
    run: RunConfig
    vocabulary: Vocabulary
    weights: Arrays
    weights_sha256: str
    test_perplexity: float | None

    @classmethod
    def read(cls, path: Path) -> "ParentRun":
        """Read a run.

        Raises:
            UserError: It is not a run directory, or has no weights, or its result.json is damaged.
        """
        directory = run_folders.find(path)
        while True:  # a run that still trains may replace the file between the two looks at it
            before = identity(directory.weights_path)
            run, vocabulary, weights = directory.read_model()
            digest = hashlib.sha256(directory.weights_path.read_bytes()).hexdigest()
            if identity(directory.weights_path) == before:
                break
        if result := directory.read_result() or {}:  # config.json may be of a run that goes on, and fails
            run = run.as_trained(result, result["epochs"])
        test_perplexity = result.get("test_perplexity")
        return cls(
            directory, run, vocabulary, weights, weights_sha256=digest, test_perplexity=test_perplexity
        )

    def derive_config(self, flag_values: Mapping[str, Any]) -> RunConfig:
        """Return the configuration of a new run that starts from this one, from the flags that were given.

        Without --data its text is that of this run.

        Raises:
            UserError: A flag contradicts this run or changes nothing; or no flag names a text, and this run's
                is not there.
        """
        before = self.run.hyperparameters
        for name, (here, there) in contradictions(self.run, flag_values).items():
            if name in ("config", "recipe", *STRUCTURAL):
                raise UserError(f"{here} contradicts the run {self.directory.path}, which has {there}")
        check_effects(before, {name: value for name, value in flag_values.items() if name in STRUCTURAL})
        self._check_scales(flag_values)
        own_text = {} if "data" in flag_values else self._own_text()
        data = {**own_text, **flag_values}["data"]
        flag_values = {
            "framework": self.run.choice.framework,
            **own_text,
            **self._held_out(data),
            **flag_values,
        }
        return RunConfig(
            preset=self.run.preset,
            recipe=self.run.recipe,
            data=data,
            choice=fastest.choose_safe(flag_values, cell=before.cell),
            hyperparameters=with_flags(
                before.replace(learning_rate=before.learning_rate * INIT_FROM_RATE),
                {name: value for name, value in flag_values.items() if name not in STRUCTURAL},
            ),
            preparation=self._preparation(flag_values, data),
            text_column=flag_values.get("text_column"),
        )

    def _check_scales(self, flag_values: Mapping[str, Any]) -> None:
        """Refuse a range of first weights if none of them are drawn: only those of new words are."""
        not_drawn = ("layer_init_scale",) if "extend_vocabulary" in flag_values else INITIAL_SCALES
        if idle := [name for name in not_drawn if name in flag_values]:
            raise UserError(
                f"{flag_list(idle)} would change nothing: --init-from begins with the weights of "
                f"{self.directory.path}"
            )

    def _own_text(self) -> dict[str, Any]:
        """Return the flags that name this run's text."""
        data = run_data.locate_text(self.run, str(self.directory.path))
        return {"data": data, "text_column": self.run.text_column}

    def _held_out(self, data: str) -> dict[str, float]:
        """Return the flags that hold out as large parts of a file as this run did."""
        if self.run.preparation is None or data in BUILT_IN or not Path(data).is_file():
            return {}
        return {name: getattr(self.run.preparation, name) for name in HELD_OUT}

    def _is_own_text(self, data: str, column: str | None) -> bool:
        """Return whether a text is the one that this run was trained on, wherever it lies; it is read."""
        try:
            found = corpus.load(data, self.run.preparation, column=column, vocabulary=self.vocabulary)
        except UserError:  # it has words that cannot be encoded
            return False
        return found.sha256 == run_data.known_digest(self.run)

    def check_unchanged(self, run: RunConfig, data: Corpus, *, is_named: bool) -> None:
        """Check that the text of a new run, if it lies where this run's lay, is still the same.

        Args:
            run: Configuration of the new run.
            data: Text of the new run.
            is_named: True if --data names the text; a change is then only reported.

        Raises:
            UserError: It has changed.
        """
        is_elsewhere = (
            run.source is None or self.run.source is None or run.source.path != self.run.source.path
        )
        if (is_named and is_elsewhere) or run_data.known_digest(self.run) in (None, data.sha256):
            return
        now = run.preparation, run.text_column, len(data.vocabulary)
        before = self.run.preparation, self.run.text_column, len(self.vocabulary)
        if now != before and self._is_own_text(run.data, self.run.text_column):
            return
        changed = (
            f"{run.source.path if run.source else run.data} has changed since {self.directory.path} was "
            "trained on it, so lines that are held out now may be among those that it learned"
        )
        if not is_named:
            raise UserError(f"{changed}; --data {shlex.quote(run.data)} uses it anyway")
        cli.try_print_line(changed)

    def _preparation(self, flag_values: Mapping[str, Any], data: str) -> Preparation | None:
        limits = [name for name in VOCABULARY_LIMITS if name in flag_values]
        if limits and "extend_vocabulary" not in flag_values:
            raise UserError(
                f"{flag_list(limits)} selects new words, but --init-from keeps the words of its run; "
                "add --extend-vocabulary to get new ones"
            )
        preparation = from_flags(flag_values, data)
        run_preparation = self.run.preparation
        if run_preparation is not None and run_preparation.tokenize == "characters" and data in BUILT_IN:
            raise UserError(
                f"the run {self.directory.path} reads characters, and --data {data} is a text of words"
            )
        if run_preparation is None and flag_values.get("tokenize") == "characters":
            raise UserError(
                f"--tokenize characters contradicts the run {self.directory.path}, whose text was prepared "
                "already"
            )
        if run_preparation is None or data in BUILT_IN:
            return preparation
        differing = [
            name
            for name in (*TOKENIZER_FIELDS, *HELD_OUT)
            if name in flag_values and flag_values[name] != getattr(run_preparation, name)
        ]
        # Of another text other parts may be held out. Of its own, lines would move from one split to another.
        if differing and (
            differing[0] in TOKENIZER_FIELDS or self._is_own_text(data, flag_values.get("text_column"))
        ):
            name = differing[0]
            raise UserError(
                f"{flag_list([name])} contradicts the run {self.directory.path}, whose text was prepared "
                f"with {name} = {getattr(run_preparation, name)}; leave the flag out"
            )
        kept = (
            TOKENIZER_FIELDS
            if "extend_vocabulary" in flag_values
            else (*TOKENIZER_FIELDS, *VOCABULARY_LIMITS)
        )
        settings = {name: getattr(run_preparation, name) for name in kept}
        return replace(preparation or Preparation(), **settings)

    def make_record(self, corpus: Corpus) -> InitFrom:
        """Return where the weights came from, for the record."""
        return InitFrom(
            run=str(absolute(self.directory.path)),
            weights_sha256=self.weights_sha256,
            test_perplexity=self.test_perplexity,
            new_words=len(corpus.vocabulary) - len(self.vocabulary),
        )

    def make_initial_weights(self, run: RunConfig, vocabulary_size: int) -> parameters.Weights:
        """Return the initial weights for a vocabulary of this size; those of new words are random."""
        weights: parameters.Weights = dict(self.weights)
        if (known := len(self.vocabulary)) == vocabulary_size:
            return weights
        drawn = parameters.draw_initial(run.hyperparameters, vocabulary_size, seed=run.choice.seed)
        for name in VOCABULARY_AXES.keys() & weights.keys():
            axis = VOCABULARY_AXES[name]
            _, new = np.split(drawn[name], [known], axis=axis)
            weights[name] = np.concatenate([weights[name], new], axis=axis)
        return weights


def load_text(run: RunConfig, parent: ParentRun | None, *, extend: bool) -> tuple[RunConfig, Corpus]:
    """Load the text of a new run.

    Args:
        run: Configuration of the run.
        parent: Run whose weights it starts from; None: it starts from random ones.
        extend: True if new words of the text follow the parent's.

    Returns:
        The configuration, with the origins of the text and of the weights.
        The text.

    Raises:
        UserError: The text is not there or cannot be read, or it has a word that cannot be encoded.
    """
    data = run_data.load_first(run, parent.vocabulary if parent else None, extend=extend)
    run = run_data.with_source(run, data)
    return replace(run, init_from=parent.make_record(data)) if parent else run, data
