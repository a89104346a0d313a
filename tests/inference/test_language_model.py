"""ptb_lm.load: every number is that of the NumPy reference, for every model and both frameworks."""

import gc
import itertools
import json
import math
import os
import pickle
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from support import ROOT, installed

import ptb_lm
from ptb_lm.common.errors import DivergenceError, LineError, UserError
from ptb_lm.data.preparation import SPACE
from ptb_lm.inference import inputs, language_model, reader
from ptb_lm.inference.inputs import encode_lines
from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.inference.sampling import Sampler
from ptb_lm.model import backend, reference
from ptb_lm.model.cells import CELLS
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.training import tensors

WORDS = ("a", "<eos>", "b", "<unk>", "c", "d", "e", "f", "g", "h", "i")
# Lengths from none to many, some of them equal, and words that the vocabulary lacks.
SENTENCES = ["a b c", "", "d zebra e f g h i a b", "i", "h g f", "zebra quagga", "a " * 23, "b", "<unk> c"]
UNKNOWN = [0, 0, 1, 0, 0, 2, 0, 0, 0]
TOLERANCE = 1e-5  # absolute, of a log-probability in nats

# TensorFlow's others, which take long to trace, are those of the backends' contract.
EVERY_MODEL = [
    pytest.param("torch", model, {"cell": cell}, id=f"torch-{model}-{cell}")
    for cell, row in CELLS.items()
    for model in row.layers["torch"]
]
TIED = [
    pytest.param(
        framework, "block_fused", {"tie_weights": True}, marks=installed(framework), id=f"{framework}-tied"
    )
    for framework in FRAMEWORKS
]
OTHER_SIZES = [pytest.param("torch", "cudnn", {"embedding_size": 5, "num_layers": 3}, id="sizes")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("language_model")


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    return runs.write_run(folder / "run", WORDS)


@pytest.fixture
def model(run: Path) -> LanguageModel:
    return ptb_lm.load(run, model="block_fused")


class Expected:
    """The NumPy reference's scores of a run, in float64, a sentence at a time."""

    def __init__(self, run: Path) -> None:
        arrays, _ = tensors.load(run / "weights.safetensors")
        self.weights = {name: array.astype(np.float64) for name, array in arrays.items()}
        self.words = (run / "vocabulary.txt").read_text().splitlines()

    def ids(self, text: str) -> list[int]:
        return [self.words.index(word if word in self.words else "<unk>") for word in text.split()]

    def next_word_log_probabilities(self, text: str) -> np.ndarray:
        """Return the log-probabilities of all words after each word of a text, [words, V]."""
        zero = reference.zero_state(self.weights, 1)
        return reference.log_probabilities(self.weights, np.array([self.ids(text)]), zero)[1][0]

    def score(self, sentence: str) -> np.ndarray:
        targets = self.ids(sentence + " <eos>")
        return self.next_word_log_probabilities("<eos> " + sentence)[range(len(targets)), targets]

    def stream(self, sentences: list[str]) -> list[np.ndarray]:
        """Return the scores of sentences that are read as one text."""
        scores = self.score(" <eos> ".join(sentences))
        return np.split(scores, np.cumsum([len(sentence.split()) + 1 for sentence in sentences])[:-1])


def check(scores: ptb_lm.inference.scoring.Scores, expected: list[np.ndarray]) -> None:
    assert [sentence.words for sentence in scores] == [(*text.split(), "<eos>") for text in SENTENCES]
    assert [sentence.unknown for sentence in scores] == UNKNOWN
    for sentence in scores:
        assert sentence.is_unknown == tuple(word not in WORDS for word in sentence.words)
    for sentence, log_p_N in zip(scores, expected, strict=True):
        np.testing.assert_allclose(sentence.log_probabilities, log_p_N, rtol=0, atol=TOLERANCE)
        assert sentence.total == pytest.approx(log_p_N.sum(), rel=1e-6)
        assert sentence.perplexity == pytest.approx(np.exp(-log_p_N.mean()), rel=1e-6)
        known_N = log_p_N[[word in WORDS for word in sentence.words]]
        assert sentence.perplexity_without_unknown == pytest.approx(np.exp(-known_N.mean()), rel=1e-6)
    every = np.concatenate(expected)
    assert (scores.tokens, scores.unknown) == (len(every), sum(UNKNOWN))
    assert scores.perplexity == pytest.approx(np.exp(-every.mean()), rel=1e-6)
    known = every[[word in WORDS for sentence in scores for word in sentence.words]]
    assert scores.perplexity_without_unknown == pytest.approx(np.exp(-known.mean()), rel=1e-6)


@pytest.mark.parametrize(("framework", "implementation", "changes"), [*EVERY_MODEL, *TIED, *OTHER_SIZES])
def test_every_number_is_the_reference_s(
    framework: str,
    implementation: str,
    changes: dict[str, object],
    folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    run = runs.write_run(
        folder / request.node.callspec.id, WORDS, framework=framework, model=implementation, **changes
    )
    model, expected = ptb_lm.load(run, model=implementation), Expected(run)
    check(model.score(SENTENCES), [expected.score(sentence) for sentence in SENTENCES])
    check(model.score(SENTENCES, carry_state=True), expected.stream(SENTENCES))
    for prefix in ("", "c", "d zebra e"):
        log_p_V = expected.next_word_log_probabilities("<eos> " + prefix)[-1]
        predicted = model.predict(prefix, len(WORDS))
        assert [word for word, _ in predicted] == [WORDS[i] for i in np.argsort(-log_p_V)]
        np.testing.assert_allclose(np.log([p for _, p in predicted]), np.sort(log_p_V)[::-1], atol=TOLERANCE)
    np.testing.assert_allclose(model.embeddings, expected.weights["embedding"], rtol=1e-6)


def test_a_printed_object_says_what_it_is(run: Path, model: LanguageModel) -> None:
    scores = model.score(["a b", "zebra"])
    probability = f"{model.predict(k=1)[0].probability:.4g}"
    for printed, parts in (
        (model, [str(run), "lstm", "(7,", f"words={len(WORDS)}", "block_fused", "fp32", "cpu"]),
        (scores, ["sentences=2", "tokens=5", f"{scores.perplexity:.4g}", "unknown=1"]),
        (scores[1], ["'zebra <eos>'", f"{scores[1].perplexity:.4g}", "unknown=1"]),
        (model.predict(k=1), [f"probability={probability})"]),
        (model.vocabulary, [f"{len(WORDS)} words"]),
    ):
        assert [part for part in parts if part not in repr(printed)] == []
        assert len(repr(printed)) < 300
        assert "object at" not in repr(printed)


def test_help_and_dir_name_load_and_the_version_alone() -> None:
    assert sorted(dir(ptb_lm)) == ["__version__", "load"]
    text = pydoc.plain(pydoc.render_doc(ptb_lm))
    assert 'ptb_lm.load("demo")' in text.partition("PACKAGE CONTENTS")[0]
    # From Python 3.13 on each argument has a line.
    assert re.match(r"\s*load\(\s*run: str", text.partition("FUNCTIONS\n")[2])


def test_a_text_is_its_lines(model: LanguageModel) -> None:
    check(model.score("\n".join(SENTENCES)), [s.log_probabilities for s in model.score(SENTENCES)])
    for end in ("\n", "\r", "\r\n"):
        text = "".join(sentence + end for sentence in SENTENCES)
        check(model.score(text), [s.log_probabilities for s in model.score(SENTENCES)])
        assert model.predict(text) == model.predict("\n".join([*SENTENCES, ""]))
        assert [*model.generate(f"a{end}b", 3, seed=1)] == [*model.generate("a\nb", 3, seed=1)]
    assert [sentence.words for sentence in model.score("")] == [("<eos>",)]
    assert [each.words for each in model.score_each("a b\nc")] == [("a", "b", "<eos>"), ("c", "<eos>")]
    assert len(model.score([])) == 0
    assert math.isnan(model.score([]).perplexity)


def test_bits_are_nats_by_the_logarithm_of_2(model: LanguageModel) -> None:
    nats, bits = model.score(SENTENCES), model.score(SENTENCES, unit="bits")
    for one, other in zip(nats, bits, strict=True):
        np.testing.assert_allclose(other.log_probabilities * math.log(2), one.log_probabilities, rtol=1e-12)
        assert other.perplexity == pytest.approx(one.perplexity, rel=1e-12)
    assert bits.perplexity == pytest.approx(nats.perplexity, rel=1e-12)
    assert bits.total * math.log(2) == pytest.approx(nats.total, rel=1e-12)


@pytest.mark.parametrize("logits", [1, 50, 300])
@pytest.mark.parametrize("carry_state", [False, True])
def test_memory_is_bounded_and_changes_nothing(
    logits: int, carry_state: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "MAX_LOGITS", logits)
    model, expected = ptb_lm.load(run, model="block_fused"), Expected(run)
    sizes = []
    ask, read = model.backend.log_probabilities, model.backend.next_word_log_probabilities
    monkeypatch.setattr(
        model.backend,
        "log_probabilities",
        lambda x, y, state, **lengths: (sizes.append(x.size), ask(x, y, state, **lengths))[1],
    )
    monkeypatch.setattr(
        model.backend,
        "next_word_log_probabilities",
        lambda x, state: (sizes.append(x.size), read(x, state))[1],
    )
    each = expected.stream(SENTENCES) if carry_state else [expected.score(text) for text in SENTENCES]
    check(model.score(SENTENCES, carry_state=carry_state), each)
    log_p_V = expected.next_word_log_probabilities("<eos>" + " a b" * 20)[-1]
    (likeliest,) = model.predict("a b " * 20, 1)
    assert math.log(likeliest.probability) == pytest.approx(log_p_V.max(), abs=TOLERANCE)
    # The vocabulary is so small that the layers take more memory.
    word_size = 8 * model.config.hidden_size
    assert len(WORDS) < word_size
    assert max(sizes) * word_size <= max(logits, word_size)
    buffers: Any = model.backend
    kept = [len(inputs) for free in buffers.network.softmax._free.values() for inputs, _ in free]
    assert max(kept) * word_size <= max(logits, word_size)


def test_the_wider_of_vocabulary_and_layers_bounds_the_words_of_a_call() -> None:
    """With Penn Treebank's it is the vocabulary, up to 1250 units."""
    assert backend.max_tokens_per_call(10_000, 1250) == backend.MAX_LOGITS // 10_000
    assert backend.max_tokens_per_call(50, 1500) == backend.MAX_LOGITS // (8 * 1500)
    assert backend.max_tokens_per_call(2 * backend.MAX_LOGITS, 1) == 1


def test_what_the_mogrifier_s_rounds_keep_bounds_the_words_of_a_call() -> None:
    lstm = Config(hidden_size=64, mogrifier_rounds=12)
    mogrifier = lstm.replace(cell="mogrifier_lstm")
    assert reader.tokens_per_call(lstm, 50) == backend.MAX_LOGITS // (8 * 64)
    assert reader.tokens_per_call(mogrifier, 50) == backend.MAX_LOGITS // (4 * 8 * 64)


def test_only_a_window_of_sentences_is_read_ahead(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is endless; whatever the lengths, results come in the order of the sentences."""
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield "a " * (read % 7)

    for count, scored in enumerate(itertools.islice(model.score_each(endless()), 10_000), 1):
        assert len(scored.words) == count % 7 + 1
        assert count <= read < count + reader.CHUNK_SENTENCES
    sentences = encode_lines(["a b c"] * 10, model.vocabulary)
    assert [len(window) for window in reader.chunk_sentences(sentences, words=12)] == [3, 3, 3, 1]


def test_scores_that_nobody_asks_for_are_dropped_at_python_s_end(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When modules have lost their names."""
    sentences = encode_lines(["a"] * 2, model.vocabulary)
    next(sentences)
    monkeypatch.setattr(inputs, "UserError", None)
    sentences.close()  # type: ignore[attr-defined]


def test_batches_are_of_like_lengths_and_hold_every_sentence_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 40, 500).tolist()
    grouped = list(reader.batch_by_length(lengths, 100))
    assert sorted(itertools.chain(*grouped)) == list(range(500))
    padded = sum(len(indices) * max(lengths[index] for index in indices) for indices in grouped)
    assert padded < 1.1 * sum(lengths)
    assert all(len(indices) * lengths[indices[0]] <= 100 for indices in grouped)
    assert list(reader.batch_by_length([3, 200, 1], 100)) == [[1], [0, 2]]


def test_the_state_is_carried_from_call_to_call(run: Path, model: LanguageModel) -> None:
    """Through scores, predictions and generated words; it can be put back."""
    expected = Expected(run)
    check(model.score(SENTENCES, carry_state=True), expected.stream(SENTENCES))
    model.state = None
    first = model.score(SENTENCES[:4], carry_state=True)
    kept = model.state
    for _ in range(2):
        model.state = kept
        second = model.score(SENTENCES[4:], carry_state=True)
        for scored, log_p_N in zip([*first, *second], expected.stream(SENTENCES), strict=True):
            np.testing.assert_allclose(scored.log_probabilities, log_p_N, rtol=0, atol=TOLERANCE)
    text = "<eos> " + " <eos> ".join(SENTENCES) + " <eos>"
    model.predict("a b", carry_state=True)
    words = list(model.generate("c", 4, seed=1, unk=True, carry_state=True))
    text += " ".join([" a b c", *words, "d"])
    ((_, probability), *_) = model.predict("d", carry_state=True)
    assert math.log(probability) == pytest.approx(
        expected.next_word_log_probabilities(text)[-1].max(), abs=TOLERANCE
    )
    # Without being asked to, nothing reads or moves it.
    kept = model.state
    model.score("a")
    model.perplexity("a")
    model.predict("b")
    list(model.generate("c", 3))
    assert model.state is kept
    np.testing.assert_allclose(
        model.score("a b")[0].log_probabilities, expected.score("a b"), rtol=0, atol=TOLERANCE
    )


def test_the_state_stands_behind_what_was_read_ahead(run: Path, model: LanguageModel) -> None:
    expected = Expected(run)
    for ahead, text in ((1, "<eos> a b <eos>"), (2, "<eos> a b <eos> c <eos>")):
        model.state = None
        next(model.score_each(["a b", "c", "d"], carry_state=True, ahead=ahead))
        (likeliest,) = model.predict("", 1, carry_state=True)
        log_p = expected.next_word_log_probabilities(text)[-1].max()
        assert math.log(likeliest.probability) == pytest.approx(log_p, abs=TOLERANCE)


def test_perplexity_is_of_one_text_or_of_each_sentence(run: Path, model: LanguageModel) -> None:
    expected = Expected(run)
    whole, each = np.concatenate(expected.stream(SENTENCES)), [expected.score(s) for s in SENTENCES]
    assert model.perplexity("\n".join(SENTENCES)) == pytest.approx(np.exp(-whole.mean()), rel=1e-6)
    model.score("g h", carry_state=True)  # it begins anew
    assert model.perplexity("\n".join(SENTENCES)) == pytest.approx(np.exp(-whole.mean()), rel=1e-6)
    assert model.perplexity(SENTENCES, carry_state=False) == pytest.approx(
        np.exp(-np.concatenate(each).mean()), rel=1e-6
    )


@pytest.mark.parametrize("prompt", ["", "a", "d zebra e"])
@pytest.mark.parametrize(
    "choice", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_k": 4, "temperature": 0.7}], ids=str
)
def test_each_generated_word_is_drawn_from_the_reference_s_distribution(
    choice: dict[str, float], prompt: str, run: Path, model: LanguageModel
) -> None:
    """`<unk>` never is; a length goes through the ends of sentences, and without one the first end it is."""
    expected, text, sampler = Expected(run), "<eos> " + prompt, Sampler(len(WORDS), forbidden=[3], **choice)
    words = list(model.generate(prompt, 30, **choice))
    assert len(words) == 30
    assert "<unk>" not in words
    for word in words:
        assert word == WORDS[sampler(expected.next_word_log_probabilities(text)[-1])]
        text += " " + word
    if "<eos>" in words:
        assert list(model.generate(prompt, **choice)) == words[: words.index("<eos>")]
    assert list(model.generate(prompt, 0)) == []


@pytest.mark.parametrize("choice", [{"temperature": 0}, {"top_k": 1}], ids=str)
def test_a_sentence_without_an_end_is_ended(
    choice: dict[str, float], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The likeliest words go in a circle. A length that is given is not touched."""
    weights, _ = tensors.load(run / "weights.safetensors")
    bias = weights["softmax.bias"].copy()
    bias[WORDS.index("<eos>")] = -1e4
    model = ptb_lm.load(runs.write_run(tmp_path / "run", WORDS, weights={**weights, "softmax.bias": bias}))
    monkeypatch.setattr(language_model, "LONGEST_SENTENCE", 50)
    assert len(list(model.generate("a", **choice))) == 50
    assert len(list(model.generate("a", 60, **choice))) == 60


def test_unk_is_drawn_where_that_is_allowed(model: LanguageModel) -> None:
    assert "<unk>" in model.generate("a", 300, seed=1, unk=True)


def test_generating_keeps_nothing_of_earlier_words(model: LanguageModel) -> None:
    def tensors() -> int:
        gc.collect()
        return sum(thing.numel() for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor))

    words = model.generate("a", 10**12, seed=1)  # which come as they are computed
    list(itertools.islice(words, 20))
    before = tensors()
    assert len(list(itertools.islice(words, 100))) == 100
    assert tensors() == before


def test_nearest_words_have_the_largest_cosines(run: Path, model: LanguageModel) -> None:
    vectors = Expected(run).weights["embedding"]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for index, word in enumerate(WORDS):
        cosines = unit @ unit[index]
        order = [i for i in np.argsort(-cosines) if i != index]
        for k in (1, 4, len(WORDS) - 1):
            nearest = model.nearest(word, k)
            assert [name for name, _ in nearest] == [WORDS[i] for i in order[:k]]
            np.testing.assert_allclose([c for _, c in nearest], cosines[order[:k]], rtol=0, atol=TOLERANCE)


def test_the_nearest_words_are_of_the_word_as_a_text_is_read(folder: Path) -> None:
    words = ("judge", "<eos>", "Court", "N", "<unk>", "court")
    run = runs.write_run(folder / "tokenized", words, data="text", lowercase=True, numbers=True)
    model = ptb_lm.load(run)
    for given, read in (("Judge", "judge"), ("1,987", "N"), ("COURT", "court")):
        assert model.nearest(given) == model.nearest(read)
    assert "court" in [word for word, _ in model.nearest("Court")]  # a word of the vocabulary is itself
    for missing in ("Zebra", "a judge", ""):
        with pytest.raises(UserError, match=f"{missing.lower()!r} .* vocabulary$"):
            model.nearest(missing)


def test_the_space_after_a_prefix_is_read_among_characters(folder: Path) -> None:
    """As score reads the space before another word."""
    words = ("a", "<eos>", "b", "<unk>", SPACE)
    model = ptb_lm.load(runs.write_run(folder / "characters", words, data="text", tokenize="characters"))
    (scored,) = model.score("ab a")
    before_space, after_space = np.exp(scored.log_probabilities[2:4])
    assert dict(model.predict("ab", 5))[SPACE] == pytest.approx(before_space, abs=TOLERANCE)
    for prefix in ("ab ", " ab \t"):  # no sentence of the training began with a space
        assert dict(model.predict(prefix, 5))["a"] == pytest.approx(after_space, abs=TOLERANCE)
    for parts in (("ab", " "), ("ab ", ""), ("ab ", " "), ("ab", " ", "\t")):  # one space all the same
        model = pickle.loads(pickle.dumps(model))
        model.state = None
        for part in parts:
            predicted = dict(model.predict(part, 5, carry_state=True))
        assert predicted["a"] == pytest.approx(after_space, abs=TOLERANCE)


def test_the_end_of_a_line_within_a_sentence_of_several_is_refused(model: LanguageModel) -> None:
    """A string of several sentences has one in each line; of a list each string is one."""
    for end in ("\n", "\r", "\r\n"):
        assert model.score([f"a b{end}", "c"])[0].words == ("a", "b", "<eos>")
    for lines, number in ((["a\nb"], 1), (["a", "b\n\n"], 2), (["a\rb"], 1), (["a", "b\r\r\n"], 2)):
        with pytest.raises(LineError, match="ends a sentence") as caught:
            model.perplexity(lines)
        assert caught.value.number == number


@pytest.mark.parametrize("rest", [" a", "  a", " a\n b", "b \na"])
def test_a_sentence_that_goes_on_keeps_the_space_before_it_among_characters(rest: str, folder: Path) -> None:
    words = ("a", "<eos>", "b", "<unk>", SPACE)
    model = ptb_lm.load(runs.write_run(folder / "going-on", words, data="text", tokenize="characters"))
    whole = model.score(f"ab{rest}", carry_state=True)
    model.state = None
    model.predict("ab", carry_state=True)
    parts = model.score(rest, carry_state=True)
    assert ("a", "b", *parts[0].words) == whole[0].words
    assert [each.words for each in parts[1:]] == [each.words for each in whole[1:]]
    for begin, part, scored in zip((2, 0), parts, whole, strict=False):
        np.testing.assert_allclose(
            part.log_probabilities, scored.log_probabilities[begin:], rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize("prompt", ["c\nd", "c \n", "\n a\n\nd"])
def test_each_newline_of_a_prompt_is_an_eos(prompt: str, run: Path, model: LanguageModel) -> None:
    log_p_V = Expected(run).next_word_log_probabilities("<eos> " + prompt.replace("\n", " <eos> "))[-1]
    predicted = model.predict(prompt, len(WORDS))
    np.testing.assert_allclose(np.log([p for _, p in predicted]), np.sort(log_p_V)[::-1], atol=TOLERANCE)
    written = list(model.generate(prompt, 9, temperature=0))
    assert written == list(model.generate(prompt.replace("\n", " <eos> "), 9, temperature=0))


def test_the_embeddings_are_read_only(model: LanguageModel) -> None:
    with pytest.raises(ValueError, match="read-only"):
        model.embeddings[0, 0] = 1


def test_the_plain_module_gives_the_same_numbers(model: LanguageModel) -> None:
    module = model.to_torch()
    for sentence in SENTENCES:
        (scored,) = model.score(sentence)
        ids = [WORDS.index(word if word in WORDS else "<unk>") for word in ("<eos>", *scored.words)]
        logits_1TV, _ = module(torch.tensor([ids[:-1]]))
        log_p_TV = logits_1TV[0].detach().log_softmax(-1).numpy()
        np.testing.assert_allclose(
            log_p_TV[range(len(ids) - 1), ids[1:]], scored.log_probabilities, rtol=0, atol=TOLERANCE
        )


@pytest.mark.parametrize(
    ("call", "nouns"),
    [
        (lambda m: m.predict("a", 0), "k .* 11, .* words, .* 0"),
        (lambda m: m.predict("a", 12), "k .* 11, .* words, .* 12"),
        (lambda m: m.nearest("a", 11), "k .* 10, .* other words, .* 11"),
        (lambda m: m.nearest("zebra"), ".* 'zebra' .* vocabulary"),
        (lambda m: m.generate(temperature=-1), ".* temperature .* -1"),
        (lambda m: m.generate(temperature=math.nan), ".* temperature .* nan"),
        (lambda m: m.generate(top_k=12), "top-k .* 11, .* words, .* 12"),
        (lambda m: m.generate(top_p=0), "top-p .* 0"),
        (lambda m: m.generate(length=-1), ".* length .* -1"),
        (lambda m: m.generate(seed=-1), ".* seed .* -1"),
        (lambda m: m.generate(length=5.5), r".* length .* whole .* 5\.5"),
        (lambda m: m.generate(length="5"), ".* length .* whole .* '5'"),
        (lambda m: m.generate(top_k=2.5), r"top-k .* whole .* 2\.5"),
        (lambda m: m.generate(top_p="1"), "top-p .* '1'"),
        (lambda m: m.generate(temperature="1"), ".* temperature .* '1'"),
        (lambda m: m.generate(seed=np.int64(-1)), ".* seed .* -1"),
        (lambda m: m.generate(seed="1"), ".* seed .* whole .* '1'"),
        (lambda m: m.generate(b"a"), "a sentence .* bytes"),
        (lambda m: m.predict("a", 2.5), r"k .* whole .* 2\.5"),
        (lambda m: m.predict(None), "a sentence .* NoneType"),
        (lambda m: m.nearest(["a"]), "the word .* list"),
        (lambda m: m.score(b"a"), "the text .* bytes"),
        (lambda m: m.score(None), "the text .* NoneType"),
        (lambda m: m.score(["a", 1]), "line 2: .* int"),
        (lambda m: m.perplexity(1), "the text .* int"),
        (lambda m: m.score_each(["a"], ahead=0), "ahead .* 0"),
        (lambda m: m.score_each(["a"], unit="dits"), "the unit .* nats, bits, .* 'dits'"),
        (lambda m: m.score_each(b"a"), "the text .* bytes"),
        (lambda m: m.score_each(5), "the text .* int"),
        (lambda m: m.score("a", unit="dits"), "the unit .* nats, bits, .* 'dits'"),
        (lambda m: m.score("a", unit=["nats"]), "the unit .* nats, bits"),
    ],
)
def test_impossible_values_are_refused_at_once(call: object, nouns: str, model: LanguageModel) -> None:
    with pytest.raises(UserError, match=f"^{nouns}"):
        call(model)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["score", "perplexity", "predict", "generate"])
def test_a_model_whose_logits_overflow_is_refused(name: str, run: Path, folder: Path) -> None:
    """Each weight is a finite number."""
    weights = {
        name: np.ones_like(array) for name, array in tensors.load(run / "weights.safetensors")[0].items()
    }
    weights["softmax.kernel"] *= np.float32(3e38)
    model = ptb_lm.load(runs.write_run(folder / "huge", WORDS, weights=weights))
    with pytest.raises(DivergenceError, match="scores are not finite: its weights are unusable"):
        list(getattr(model, name)("a b"))


def test_a_state_that_is_no_position_is_refused(model: LanguageModel) -> None:
    model.state = 5  # type: ignore[assignment]
    for call in (model.score, model.predict, model.generate):
        with pytest.raises(UserError, match=r"state .* 5"):
            call("a", carry_state=True)
    assert len(model.score("a")) == 1


def test_the_rest_of_a_sentence_is_tokenized_as_in_a_whole_one(folder: Path) -> None:
    """By NLTK, which takes the last period off, and no other."""
    pytest.importorskip("nltk")
    words = ("a", "<eos>", "<unk>", "U.S", "U.S.", ".")
    model = ptb_lm.load(runs.write_run(folder / "rest", words, data="text", tokenize="words"))
    (whole,) = model.score("a U.S.", carry_state=True)
    model.state = None
    model.predict("a", carry_state=True)
    (rest,) = model.score("U.S.", carry_state=True)
    assert ("a", *rest.words) == whole.words


def test_inference_mode_changes_nothing_later(model: LanguageModel) -> None:
    """Memory that is used again was first used there."""
    with torch.inference_mode():
        within = model.score(SENTENCES)
    assert model.score(SENTENCES).perplexity == within.perplexity


@pytest.mark.parametrize("name", ["cudnn", "basic", "block_fused"])
def test_a_caller_s_autocast_rounds_nothing(name: str, folder: Path) -> None:
    run = runs.write_run(folder / f"autocast-{name}", WORDS)
    expected = ptb_lm.load(run, model=name).score(SENTENCES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ptb_lm.load(run, model=name).score(SENTENCES).perplexity == expected.perplexity


@pytest.mark.parametrize("cell", ["lstm", "mogrifier_lstm"])
def test_a_kept_state_keeps_no_more_than_itself(cell: str, folder: Path) -> None:
    model = ptb_lm.load(runs.write_run(folder / f"kept-{cell}", WORDS, cell=cell), model="block_fused")
    model.score(SENTENCES * 9, carry_state=True)
    assert model.state is not None
    for part in (part for layer in model.state.state for part in layer):
        assert part.untyped_storage().nbytes() == part.nbytes


@pytest.mark.parametrize("precision", ["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("implementation", ["basic", "block", "block_fused", "cudnn"])
def test_a_state_is_that_of_its_own_model(implementation: str, precision: str, folder: Path) -> None:
    run = runs.write_run(folder / f"own-{implementation}-{precision}", WORDS, model=implementation)
    model = ptb_lm.load(run, model=implementation, precision=precision)
    for _ in range(2):
        model.predict("a b", carry_state=True)


@pytest.mark.parametrize(
    ("changes", "precision"),
    [
        ({"cell": "gru"}, "fp32"),
        ({"num_layers": 1}, "fp32"),
        ({"hidden_size": 9}, "fp32"),
        ({"words": (*WORDS, "j")}, "fp32"),
        ({"words": WORDS[::-1]}, "fp32"),  # each id is another word's
        ({}, "fp64"),
    ],
    ids=str,
)
def test_a_state_of_another_model_is_refused(
    changes: dict[str, Any], precision: str, model: LanguageModel, tmp_path: Path
) -> None:
    """However it was reached."""
    run = runs.write_run(tmp_path / "other", **{"words": WORDS, **changes})
    other = ptb_lm.load(run, precision=precision)
    for read in (other.score, other.predict, lambda text, **carry: list(other.generate(text, 2, **carry))):
        other.state = None
        read("a", carry_state=True)
        model.state = other.state
        for call in (model.score, model.predict, model.generate):
            with pytest.raises(UserError, match="state is of another kind of model"):
                call("a", carry_state=True)


def test_a_state_is_that_of_another_copy_of_its_run_too(run: Path, model: LanguageModel) -> None:
    model.predict("a b", carry_state=True)
    other = ptb_lm.load(run, model="block_fused")
    other.state = pickle.loads(pickle.dumps(model.state))
    assert other.predict("c", carry_state=True) == model.predict("c", carry_state=True)


def test_scores_and_positions_are_compared_without_their_arrays(model: LanguageModel) -> None:
    """Each is equal to itself alone, and may be a key."""
    found = []
    for _ in range(2):
        model.state = None
        scores = model.score("a b", carry_state=True)
        found.append((scores, scores[0], model.state))
    for one, other in zip(*found, strict=True):
        assert one == one
        assert one != other
        assert len({one, other, one}) == 2


def test_numbers_of_numpy_are_numbers(model: LanguageModel) -> None:
    words = model.generate("a", np.int64(9), top_k=np.int32(5), temperature=np.float32(1), seed=np.int64(3))
    assert list(words) == list(model.generate("a", 9, top_k=5, temperature=1, seed=3))


def test_an_unknown_word_without_unk_is_refused(folder: Path) -> None:
    model = ptb_lm.load(runs.write_run(folder / "no_unk", ("a", "<eos>", "b")))
    message = ".* 'zebra' .* <unk>.* 3 words such as a, b"
    with pytest.raises(UserError, match=f"^{message}$"):
        model.predict("a zebra", 1)
    with pytest.raises(UserError, match=f"^{message}$"):
        model.generate("a zebra")
    with pytest.raises(UserError, match=f"^line 3: {message}$"):
        model.score("a\nb\na zebra")
    assert len(list(model.generate("a", 20, seed=1))) == 20  # there is no <unk> to avoid


def test_a_folder_that_is_no_run_or_has_no_weights_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json is missing"):
        ptb_lm.load(tmp_path)
    for name in ("config.json", "vocabulary.txt"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(UserError, match=r"weights\.safetensors is missing"):
        ptb_lm.load(tmp_path)


def test_a_run_in_another_precision_is_computed_in_float32_unless_asked(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    for path in run.glob("*.*"):
        (tmp_path / "run" / path.name).write_bytes(path.read_bytes())
    config = {**runs.without_checksum((run / "config.json").read_text()), "precision": "bf16"}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    arrays, metadata = tensors.load(run / "weights.safetensors")
    tensors.save(tmp_path / "run" / "weights.safetensors", arrays, {**metadata, "config": config})
    exact = ptb_lm.load(run).score(SENTENCES).total
    assert ptb_lm.load(tmp_path / "run").score(SENTENCES).total == exact
    rounded = ptb_lm.load(tmp_path / "run", precision="bf16").score(SENTENCES).total
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=5e-3)
    double = ptb_lm.load(run, precision="fp64")
    expected = np.concatenate([Expected(run).score(sentence) for sentence in SENTENCES])
    assert double.score(SENTENCES).total == pytest.approx(expected.sum(), rel=1e-12)


@pytest.mark.slow
def test_importing_the_package_imports_nothing_else() -> None:
    """Nor does parsing a command's flags; and `load` is there whatever was imported before."""
    code = (
        "import sys, ptb_lm\n"
        "from ptb_lm import score, generate, predict, neighbours\n"
        "from ptb_lm.common.cli import Parser\n"
        "for command in score, generate, predict, neighbours:\n"
        "    command._add_flags(Parser(prog='', description=''))\n"
        "slow = {'numpy', 'torch', 'tensorflow', 'sklearn', 'matplotlib'} & sys.modules.keys()\n"
        "assert not slow, slow\n"
        "import ptb_lm.common.host\n"
        "assert callable(ptb_lm.load)\n"
        "assert not {'torch', 'tensorflow', 'sklearn', 'matplotlib'} & sys.modules.keys()\n"
        "assert not hasattr(ptb_lm, 'lode')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


MEMORY_WHILE_SCORING = """
import sys
import ptb_lm

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

model, memory = ptb_lm.load(sys.argv[1]), []
# Every window of sentences has a few words more than the one before it.
lines = ("w1 " * (6 + (number % 4096 < number // 4096 * 200)) for number in range(6 * 4096))
for number, _ in enumerate(model.score_each(lines)):
    if number % 4096 == 0:
        memory.append(resident())
print(max(memory) - memory[0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/statm is Linux's")
def test_a_long_text_takes_no_more_memory_than_a_short_one(folder: Path) -> None:
    """Not even if its batches grow little by little, which leaves holes between what was allocated."""
    words = ("<eos>", "<unk>", *(f"w{i}" for i in range(998)))
    run = runs.write_run(folder / "memory", words)
    command = [sys.executable, "-c", MEMORY_WHILE_SCORING, str(run)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 * 2**20
