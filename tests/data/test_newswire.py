"""The process that writes the synthetic corpus."""

import numpy as np

from ptb_lm.data import newswire


def test_rows_of_the_newswire_process_are_distributions():
    model, words = newswire.newswire()
    assert model.emission.shape == (len(model.initial), len(words))
    for rows in (model.initial, model.transition, model.emission):
        assert (rows >= 0).all()
        np.testing.assert_allclose(rows.sum(-1), 1, rtol=0, atol=1e-12)


def test_every_state_is_reached_and_every_word_emitted():
    model, _ = newswire.newswire()
    assert (np.linalg.matrix_power(model.transition, 500) > 0).all()
    assert (model.emission > 0).any(0).all()


def test_words_are_plain_and_distinct():
    _, words = newswire.newswire()
    assert len(set(words)) == len(words) > 500
    assert [word for word in words if not (word.isascii() and word.isalpha() and word.islower())] == ["<eos>"]


def test_no_word_stands_twice_in_a_list():
    for name, words in newswire._WORDS.items():
        assert len(set(words.split())) == len(words.split()), name
