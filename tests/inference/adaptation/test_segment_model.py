"""A segment's scores and its gradient in factors equal the reference's, in float64."""

import numpy as np
import pytest
from support import random_weights

from ptb_lm.common.errors import UserError
from ptb_lm.model import reference
from ptb_lm.model.config import Config
from ptb_lm.model.presets import SMALL

torch = pytest.importorskip("torch")

from ptb_lm.inference.adaptation.segment_model import SegmentModel  # noqa: E402

VOCABULARY = 11
CONFIGS = {
    "two layers, a narrow embedding": SMALL.replace(num_layers=2, hidden_size=7, embedding_size=5),
    "three layers": SMALL.replace(num_layers=3, hidden_size=4),
    "three widths, tied": SMALL.replace(num_layers=3, layer_sizes=(4, 8, 5), tie_weights=True),
    "tied": SMALL.replace(num_layers=2, hidden_size=6, tie_weights=True),
    "Mogrifier": SMALL.replace(cell="mogrifier_lstm", hidden_size=6, embedding_size=5, mogrifier_rounds=3),
    "Mogrifier of a rank": SMALL.replace(cell="mogrifier_lstm", hidden_size=6, mogrifier_rank=2),
}


def index(name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    return [(f"{name}.{number}", part) for number, part in enumerate(array)]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("steps", [1, 6])
def test_scores_state_and_gradients_equal_the_reference(config: Config, steps: int) -> None:
    weights = random_weights(config, VOCABULARY, seed=1)
    rng = np.random.default_rng(steps)
    words = rng.integers(VOCABULARY, size=steps + 1)
    before = [(rng.uniform(-1, 1, size), rng.uniform(-1, 1, size)) for size in config.hidden_sizes]
    model = SegmentModel(config, weights)
    with torch.no_grad():
        scored, found = model.score_and_gradients(
            torch.tensor(words[:-1]),
            torch.tensor(words[1:]),
            [(torch.tensor(h_H), torch.tensor(c_H)) for h_H, c_H in before],
        )
    loss, expected, after = reference.loss_and_gradients(
        weights,
        words[None, :-1],
        words[None, 1:],
        [(h_H[None], c_H[None]) for h_H, c_H in before],
    )
    assert -scored.log_p_T.sum().item() == pytest.approx(loss, rel=1e-12)
    assert len(scored.log_p_T) == len(scored.hidden_TH) == steps
    for found_layer, expected_layer in zip(scored.state, after, strict=True):
        for part_H, expected_BH in zip(found_layer, expected_layer, strict=True):
            np.testing.assert_allclose(part_H, expected_BH[0], rtol=1e-10, atol=1e-14)
    gradients = {name: (left.T @ right).numpy() for name, (left, right) in found.factors.items()}
    gradients |= {name: vector.numpy() for name, vector in found.vectors.items()}
    embedding = gradients.setdefault("embedding", np.zeros_like(weights["embedding"]))
    np.add.at(embedding, words[:-1], found.rows_TE.numpy())
    # Those of a Mogrifier's rounds are each by itself.
    expected = {
        part: values
        for name, array in expected.items()
        for part, values in ([(name, array)] if name in gradients else index(name, array))
    }
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-10, atol=1e-14, err_msg=name)


def test_the_hidden_states_are_what_the_targets_are_predicted_from() -> None:
    config = CONFIGS["three layers"]
    weights = random_weights(config, VOCABULARY, seed=2)
    model, words = SegmentModel(config, weights), torch.arange(8)
    scored = model.score(words[:-1], words[1:], model.zero_state())
    log_p_TV = reference.log_softmax(
        scored.hidden_TH.numpy() @ weights["softmax.kernel"] + weights["softmax.bias"]
    )
    expected = log_p_TV[np.arange(7), words[1:].numpy()]
    np.testing.assert_allclose(scored.log_p_T, expected, rtol=1e-12)


def test_another_cell_is_refused() -> None:
    class Other:
        cell = "gru"

    with pytest.raises(UserError, match="cell is gru"):
        SegmentModel(Other(), {})  # type: ignore[arg-type]
