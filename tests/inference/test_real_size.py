"""Scores and predictions are the NumPy reference's at the size of a real model, too.

With ten words in the vocabulary no sum is long: what float32 rounds away in a sum over 10,000 is not seen.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import runs
from implementations import override_implementation
from support import installed

import ptb_lm
from ptb_lm.model import parameters, reference
from ptb_lm.model.config import Config
from ptb_lm.training import tensors

TOLERANCE = 1e-5  # absolute, of a log-probability in nats
WORDS = ("<eos>", "<unk>", "sure", "likely", *(f"w{i}" for i in range(9_996)))
# The standard deviations of the small model that was trained on Penn Treebank.
SCALES = {
    "embedding": 0.14,
    "lstm.0.kernel": 0.28,
    "lstm.0.recurrent_kernel": 0.22,
    "lstm.0.bias": 0.9,
    "lstm.1.kernel": 0.36,
    "lstm.1.recurrent_kernel": 0.28,
    "lstm.1.bias": 1.1,
    "softmax.kernel": 0.2,
    "softmax.bias": 0.7,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = parameters.shapes(Config(hidden_size=200), len(WORDS))
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, SCALES[name], shape).astype(np.float32) for name, shape in shapes.items()}
    # A word of probability 0.99, as a trained model gives many: beside it the sum of the others is lost.
    weights["softmax.bias"][[2, 3]] = 17, 9
    folder = tmp_path_factory.mktemp("real_size")
    return runs.write_run(folder / "run", WORDS, hidden_size=200, weights=weights)


@pytest.fixture(scope="module")
def expected(run: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Sentences, by the reference the log-probability of each word, and those of all words after the first.

    A sentence has 20 words: over many more, random weights multiply what float32 rounds away in a state.
    """
    rng = np.random.default_rng(1)
    sure_or_not = [*range(1, len(WORDS)), *[WORDS.index("sure")] * len(WORDS)]
    ids_BT = rng.choice(sure_or_not, (15, 20))
    arrays, _ = tensors.load(run / "weights.safetensors")
    weights = {name: array.astype(np.float64) for name, array in arrays.items()}
    zero = reference.zero_state(weights, len(ids_BT))
    _, log_p_BTV = reference.log_probabilities(weights, np.pad(ids_BT, ((0, 0), (1, 0))), zero)
    targets_BT1 = np.pad(ids_BT, ((0, 0), (0, 1)))[..., None]
    sentences = [" ".join(WORDS[i] for i in ids_T) for ids_T in ids_BT]
    return sentences, np.take_along_axis(log_p_BTV, targets_BT1, 2)[..., 0], log_p_BTV[0, -1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "kernels"),
    [
        ("torch", "native"),
        ("torch", "torch"),
        pytest.param("tensorflow", None, marks=installed("tensorflow")),
    ],
)
def test_every_number_is_the_reference_s(
    framework: str, kernels: str | None, run: Path, expected: tuple[list[str], np.ndarray, np.ndarray]
) -> None:
    sentences, expected_BT, log_p_V = expected
    with override_implementation(kernels=kernels) if kernels else contextlib.nullcontext():
        model = ptb_lm.load(run, framework=framework)
        scored_BT = [sentence.log_probabilities for sentence in model.score(sentences)]
        predicted = model.predict(sentences[0], 50)
    # What is rounded away in the sum over the words has one sign, so that the mean shows it.
    assert abs(np.mean(scored_BT - expected_BT)) < 1e-6
    np.testing.assert_allclose(scored_BT, expected_BT, rtol=0, atol=TOLERANCE)
    likeliest = np.argsort(-log_p_V)[:50]
    assert [word for word, _ in predicted] == [WORDS[i] for i in likeliest]
    found = np.log([probability for _, probability in predicted])
    np.testing.assert_allclose(found, log_p_V[likeliest], rtol=0, atol=TOLERANCE)
