"""The synthetic corpus: its bytes, its bound, and its files."""

import hashlib
import itertools
import math

import numpy as np
import pytest
from forward_algorithm import log_likelihood, perplexity

from ptb_lm.data import SPLITS, synthetic
from ptb_lm.data.synthetic import HiddenMarkovModel

FILES = ("train.txt", "valid.txt", "test.txt")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synthetic")
    synthetic.ensure(folder)
    return folder


@pytest.fixture
def small(monkeypatch):
    for split in synthetic.SHA256:
        monkeypatch.setitem(synthetic._TOKENS, split, 300)
        monkeypatch.setitem(synthetic.SHA256, split, hashlib.sha256(synthetic._write(split)).hexdigest())


def read_ids(path):
    ids = {word: i for i, word in enumerate(synthetic.newswire()[1])}
    return [ids[word] for line in path.read_text().splitlines() for word in [*line.split(" "), "<eos>"]]


def snapshot(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def test_golden_bytes(corpus):
    digests = {s: hashlib.sha256((corpus / f"{s}.txt").read_bytes()).hexdigest() for s in SPLITS}
    assert digests == synthetic.SHA256


def test_bound_is_the_perplexity_of_the_text_on_disk(corpus):
    model, _ = synthetic.newswire()
    for split, bound in synthetic.BEST_PERPLEXITIES.items():
        assert perplexity(model, read_ids(corpus / f"{split}.txt")) == pytest.approx(bound, rel=1e-12)


@pytest.mark.parametrize("split", SPLITS)
def test_a_sentence_a_line(corpus, split):
    text = (corpus / f"{split}.txt").read_bytes().decode("ascii")
    assert text.endswith("\n")
    assert "<" not in text
    assert all(line and line == " ".join(line.split()) for line in text[:-1].split("\n"))
    tokens = len(text.split()) + text.count("\n")
    assert synthetic._TOKENS[split] - 200 < tokens <= synthetic._TOKENS[split]


def test_every_word_occurs_in_train(corpus):
    # The corpus has no <unk>: a word that train lacks could not be scored.
    assert set(read_ids(corpus / "train.txt")) == set(range(len(synthetic.newswire()[1])))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_no_model_of_counts_beats_the_bound(corpus, split):
    vocabulary = len(synthetic.newswire()[1])
    train, ids = np.array(read_ids(corpus / "train.txt")), np.array(read_ids(corpus / f"{split}.txt"))
    unigram = (np.bincount(train, minlength=vocabulary) + 1) / (len(train) + vocabulary)
    counts = np.zeros((vocabulary, vocabulary))
    np.add.at(counts, (train[:-1], train[1:]), 1)
    # Witten-Bell: the weight of the unigram follows from how many different words have followed.
    kinds = (counts > 0).sum(-1, keepdims=True)
    bigram = (counts + kinds * unigram) / (counts.sum(-1, keepdims=True) + kinds)

    scored = len(ids) - 1
    best = scored * math.log(synthetic.BEST_PERPLEXITIES[split])
    for nll in (-np.log(unigram[ids[1:]]).sum(), -np.log(bigram[ids[:-1], ids[1:]]).sum()):
        # For every model q that has not seen the split, P(log q(x) - log p(x) > t) <= exp(-t) (Markov).
        assert nll >= best - math.log(1e9)
        # And there must be something to learn beyond neighbours: a model has to carry the topic.
        assert math.exp(nll / scored) > 1.5 * synthetic.BEST_PERPLEXITIES[split]


@pytest.mark.parametrize("part", ["transition", "emission"])
def test_the_process_fits_its_text_better_than_a_neighbour(corpus, part):
    # Were the text not a draw from this very process, a slightly different one could come out ahead.
    model, _ = synthetic.newswire()
    ids = read_ids(corpus / "valid.txt")
    parts = {name: getattr(model, name) for name in ("initial", "transition", "emission")}
    parts[part] = 0.95 * parts[part] + 0.05 / parts[part].shape[-1]
    assert log_likelihood(model, ids) > log_likelihood(HiddenMarkovModel(**parts), ids) + 100


def test_ensure_makes_the_folder_and_is_deterministic(small, tmp_path):
    synthetic.ensure(tmp_path / "a" / "b")
    synthetic.ensure(tmp_path / "c")
    assert snapshot(tmp_path / "a" / "b") == snapshot(tmp_path / "c")
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == sorted(FILES)


def test_ensure_leaves_an_intact_corpus_alone(small, tmp_path, monkeypatch):
    synthetic.ensure(tmp_path)
    before = {name: (tmp_path / name).stat() for name in FILES}
    monkeypatch.setattr(synthetic, "newswire", lambda: pytest.fail("generated again"))
    synthetic.ensure(tmp_path)
    for name, stat in before.items():
        now = (tmp_path / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)


DAMAGES = {
    "missing": None,
    "truncated": lambda content: content[:-9],
    "empty": lambda content: b"",
    "changed": lambda content: content.swapcase(),
    "binary": lambda content: b"\xff\x00",
}


@pytest.mark.parametrize(("damage", "name"), [*zip(DAMAGES, itertools.cycle(FILES), strict=False)])
def test_ensure_repairs_what_is_damaged_alone(small, tmp_path, name, damage):
    synthetic.ensure(tmp_path)
    before, path = snapshot(tmp_path), tmp_path / name
    others = {each: (tmp_path / each).stat().st_ino for each in FILES if each != name}
    change = DAMAGES[damage]
    path.write_bytes(change(before[name])) if change else path.unlink()
    synthetic.ensure(tmp_path)
    assert snapshot(tmp_path) == before
    assert {each: (tmp_path / each).stat().st_ino for each in others} == others


def test_every_state_is_reached_and_every_word_emitted():
    model, words = synthetic.newswire()
    states = len(model.initial)
    assert (model.transition.shape, model.emission.shape) == ((states, states), (states, len(words)))
    for distributions in (model.initial, model.transition, model.emission):
        assert (distributions >= 0).all()
        np.testing.assert_allclose(distributions.sum(-1), 1, rtol=0, atol=1e-9)
    assert (np.linalg.matrix_power(model.transition, 500) > 0).all()
    assert (model.emission > 0).any(0).all()


def test_words_are_plain_and_distinct():
    _, words = synthetic.newswire()
    assert len(set(words)) == len(words) > 500
    assert [word for word in words if not (word.isascii() and word.isalpha() and word.islower())] == ["<eos>"]


def test_no_word_stands_twice_in_a_list():
    for name, words in synthetic._WORDS.items():
        assert len(set(words.split())) == len(words.split()), name
