"""The neural cache against one written out in NumPy, a word and a pair at a time."""

import numpy as np
import pytest

from ptb_lm.inference.adaptation import NeuralCache

torch = pytest.importorskip("torch")

from ptb_lm.inference.adaptation import adapted_scorer  # noqa: E402
from ptb_lm.inference.adaptation.dynamic_evaluation import ScoredText  # noqa: E402

VOCABULARY, WIDTH = 6, 5


def drawn(length: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hidden states, a distribution over the words at each place, and the words."""
    rng = np.random.default_rng(seed)
    hidden_NH = rng.uniform(-1, 1, (length, WIDTH))
    p_NV = rng.dirichlet(np.ones(VOCABULARY), size=length)
    return hidden_NH, p_NV, rng.integers(VOCABULARY, size=length)


def scored(log_p_N: np.ndarray, hidden_NH: np.ndarray, targets_N: np.ndarray) -> ScoredText:
    return ScoredText(*map(torch.tensor, (log_p_N, hidden_NH, targets_N)))


def reference_mixture(
    hidden_NH: np.ndarray, p_NV: np.ndarray, targets_N: np.ndarray, settings: NeuralCache
) -> np.ndarray:
    """The whole distribution over the vocabulary at each place."""
    mixed_NV = p_NV.copy()
    for n in range(1, len(targets_N)):
        shares_V = np.zeros(VOCABULARY)
        for i in range(max(0, n - settings.words), n):
            shares_V[targets_N[i]] += np.exp(settings.theta * hidden_NH[n] @ hidden_NH[i])
        mixed_NV[n] = (1 - settings.weight) * p_NV[n] + settings.weight * shares_V / shares_V.sum()
    return mixed_NV


@pytest.mark.parametrize("chunk", [1, 7, 256])
@pytest.mark.parametrize(
    "settings",
    [
        NeuralCache(words=5, theta=0.7, weight=0.3),
        NeuralCache(words=1, theta=2.0, weight=0.9),
        NeuralCache(words=1000, theta=0.0, weight=0.1),
        NeuralCache(words=20, theta=300.0, weight=0.2),  # scores beyond what exp holds
    ],
    ids=str,
)
def test_every_word_equals_the_reference(
    settings: NeuralCache, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapted_scorer, "CACHE_CHUNK", chunk)
    hidden_NH, p_NV, targets_N = drawn(40, seed=1)
    with np.errstate(over="ignore", invalid="ignore"):
        mixed_NV = reference_mixture(hidden_NH, p_NV, targets_N, settings)
    log_p_N = np.log(p_NV[np.arange(40), targets_N])
    found = adapted_scorer.add_cache(scored(log_p_N, hidden_NH, targets_N), settings).numpy()
    expected = np.log(mixed_NV[np.arange(40), targets_N])
    known = np.isfinite(expected)
    assert known.sum() > 5
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-9)
    assert np.isfinite(found).all()


def test_the_mixture_is_a_distribution() -> None:
    hidden_NH, p_NV, targets_N = drawn(12, seed=2)
    settings = NeuralCache(words=4, theta=1.0, weight=0.4)
    total = 0.0
    for word in range(VOCABULARY):
        last = np.append(targets_N[:-1], word)  # the last place, with each word in it
        text = scored(np.log(p_NV[np.arange(12), last]), hidden_NH, last)
        mixture_N = adapted_scorer.add_cache(text, settings)
        total += mixture_N[-1].exp().item()
    assert total == pytest.approx(1)


def test_a_score_does_not_depend_on_later_words() -> None:
    hidden_NH, p_NV, targets_N = drawn(30, seed=3)
    text = scored(np.log(p_NV[:, 0]), hidden_NH, targets_N)
    settings = NeuralCache(words=8, theta=1.0, weight=0.3)
    whole = adapted_scorer.add_cache(text, settings)
    for known in (1, 2, 9, 29):
        found = adapted_scorer.add_cache(ScoredText(*(part[:known] for part in text)), settings)
        np.testing.assert_allclose(found, whole[:known], rtol=1e-12)


def test_a_weight_of_zero_is_no_cache() -> None:
    hidden_NH, p_NV, targets_N = drawn(9, seed=5)
    text = scored(np.log(p_NV[:, 1]), hidden_NH, targets_N)
    assert torch.equal(
        adapted_scorer.add_cache(text, NeuralCache(words=3, theta=1.0, weight=0.0)), text.log_p_N
    )


def test_a_weight_near_1_leaves_every_word_possible() -> None:
    """In float32 it would be 1, and so would a word that the cache lacks be impossible."""
    log_p_N, hidden_NH = np.log(np.full(2, 0.5, np.float32)), np.zeros((2, WIDTH), np.float32)
    text = scored(log_p_N, hidden_NH, np.array([0, 1]))
    found = adapted_scorer.add_cache(text, NeuralCache(words=3, theta=1.0, weight=0.99999999))
    np.testing.assert_allclose(found, [np.log(0.5), np.log(0.5) + np.log1p(-0.99999999)], rtol=1e-6)


def test_scores_that_overflow_are_no_number() -> None:
    """Not a cache without a share, whose probabilities would not sum to one."""
    hidden_NH, p_NV, targets_N = drawn(9, seed=5)
    hidden_NH = 10 * hidden_NH.astype(np.float32)
    text = scored(np.log(p_NV[:, 1], dtype=np.float32), hidden_NH, np.zeros_like(targets_N))
    found = adapted_scorer.add_cache(text, NeuralCache(words=3, theta=3e38, weight=0.5))
    assert not found[1:].isfinite().any()
