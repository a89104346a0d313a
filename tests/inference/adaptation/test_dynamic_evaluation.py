"""Dynamic evaluation against one in NumPy, by the reference's gradient; no word is seen too early."""

from typing import Any

import numpy as np
import pytest
from support import assert_arrays, random_weights

from ptb_lm.common.errors import UserError
from ptb_lm.inference.adaptation import DynamicEvaluation
from ptb_lm.model import reference
from ptb_lm.model.config import Config
from ptb_lm.model.presets import SMALL

torch = pytest.importorskip("torch")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from ptb_lm.inference.adaptation import dynamic_evaluation  # noqa: E402
from ptb_lm.inference.adaptation.segment_model import SegmentModel  # noqa: E402

VOCABULARY = 9
UNTIED = SMALL.replace(num_layers=2, hidden_size=6, embedding_size=5)
TIED = SMALL.replace(num_layers=2, hidden_size=6, tie_weights=True)
CONFIGS = {"untied": UNTIED, "tied": TIED}
SETTINGS = {
    "sgd": DynamicEvaluation(rule="sgd", segment=4, rate=0.3, decay=0.1),
    "sgd, no decay": DynamicEvaluation(rule="sgd", segment=5, rate=0.2, decay=0.0),
    "rms": DynamicEvaluation(rule="rms", segment=4, rate=0.3, decay=0.1, damping=0.5),
    "rms, decay above 1": DynamicEvaluation(rule="rms", segment=3, rate=0.1, decay=0.7, damping=0.1),
}


def text(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(VOCABULARY, size=length)


def segments(ids: np.ndarray, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    places = range(0, len(ids) - 1, length)
    return [(ids[at : at + length][: len(ids) - 1 - at], ids[at + 1 : at + 1 + length]) for at in places]


def reference_squares(
    weights: dict[str, np.ndarray], ids: np.ndarray, segment: int, count: int
) -> dict[str, np.ndarray]:
    totals: dict[str, Any] = dict.fromkeys(weights, 0.0)
    distance = (len(ids) - 1) // count
    for begin in range(0, count * distance, distance):
        first = ids[begin : begin + segment + 1]
        second = ids[begin + segment : begin + 2 * segment + 1]
        state = reference.zero_state(weights, 1)
        _, _, state = reference.loss_and_gradients(weights, first[None, :-1], first[None, 1:], state)
        _, gradients, _ = reference.loss_and_gradients(weights, second[None, :-1], second[None, 1:], state)
        for name, gradient in gradients.items():
            totals[name] = totals[name] + gradient**2 / count
    return totals


def reference_scores(
    trained: dict[str, np.ndarray],
    ids: np.ndarray,
    dynamic: DynamicEvaluation,
    squares: dict[str, np.ndarray] | None,
) -> np.ndarray:
    """The paper's rule, written out: the log-probability of each word but the first."""
    weights, state, log_p = dict(trained), reference.zero_state(trained, 1), []
    roots: dict[str, Any] = {}
    if squares is not None:
        mean = np.concatenate([np.sqrt(mean).ravel() for mean in squares.values()]).mean()
        roots = {name: np.sqrt(each) / mean for name, each in squares.items()}
    for x_T, y_T in segments(ids, dynamic.segment):
        inner = state
        for x, y in zip(x_T, y_T, strict=True):
            nll, _, inner = reference.loss_and_gradients(weights, np.array([[x]]), np.array([[y]]), inner)
            log_p.append(-nll)
        _, gradients, state = reference.loss_and_gradients(weights, x_T[None], y_T[None], state)
        for name, gradient in gradients.items():
            decay, step = dynamic.decay, dynamic.rate * gradient
            if squares is not None:
                decay = np.minimum(dynamic.decay * roots[name], 1)
                step = step / (roots[name] + dynamic.damping)
            weights[name] = weights[name] + decay * (trained[name] - weights[name]) - step
    return np.array(log_p)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("dynamic", SETTINGS.values(), ids=SETTINGS)
def test_every_score_equals_the_reference(
    dynamic: DynamicEvaluation, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_evaluation, "CHUNK", 50)  # so that a matrix is more than one
    weights = random_weights(config, VOCABULARY, seed=1)
    ids, train = text(42, seed=2), text(61, seed=3)
    model = SegmentModel(config, weights)
    squares = expected_squares = None
    if dynamic.rule == "rms":
        squares = dynamic_evaluation.mean_squares(model, torch.tensor(train), dynamic.segment, segments=5)
        expected_squares = reference_squares(weights, train, dynamic.segment, 5)
        for name, expected in expected_squares.items():
            np.testing.assert_allclose(squares[name], expected, rtol=1e-9, atol=1e-16, err_msg=name)
    found = dynamic_evaluation.score(model, torch.tensor(ids), dynamic, squares=squares)
    expected = reference_scores(weights, ids, dynamic, expected_squares)
    np.testing.assert_allclose(found.log_p_N, expected, rtol=1e-9)
    for name, array in weights.items():
        np.testing.assert_array_equal(model.weights[name], array, "the trained weights are back")


def test_one_step_in_float32_equals_the_reference() -> None:
    weights = {
        name: array.astype(np.float32) for name, array in random_weights(UNTIED, VOCABULARY, 4).items()
    }
    ids, dynamic = text(9, seed=5), SETTINGS["sgd"]
    found = dynamic_evaluation.score(SegmentModel(UNTIED, weights), torch.tensor(ids), dynamic)
    expected = reference_scores(
        {name: w.astype(np.float64) for name, w in weights.items()}, ids, dynamic, None
    )
    np.testing.assert_allclose(found.log_p_N, expected, rtol=1e-5)


def test_a_training_text_without_gradients_damps_every_step_alike() -> None:
    model = SegmentModel(UNTIED, random_weights(UNTIED, VOCABULARY, seed=1))
    ids = torch.tensor(text(42, seed=2))
    squares = {name: torch.zeros_like(weight) for name, weight in model.weights.items()}
    rms = DynamicEvaluation(rule="rms", segment=4, rate=0.3, decay=0.1, damping=0.5)
    sgd = DynamicEvaluation(rule="sgd", segment=4, rate=0.3 / 0.5, decay=0)
    found = dynamic_evaluation.score(model, ids, rms, squares=squares)
    expected = dynamic_evaluation.score(model, ids, sgd)
    np.testing.assert_allclose(found.log_p_N, expected.log_p_N, rtol=1e-9)


@pytest.mark.parametrize("segment", [1, 3, 10, 1000])
def test_without_steps_it_is_the_ordinary_score(segment: int) -> None:
    weights, ids = random_weights(UNTIED, VOCABULARY, seed=1), text(50, seed=2)
    model = SegmentModel(UNTIED, weights)
    expected, _, _ = reference.loss_and_gradients(
        weights, ids[None, :-1], ids[None, 1:], reference.zero_state(weights, 1)
    )
    for dynamic in (None, DynamicEvaluation(segment=segment, rate=0.0, decay=0.5)):
        found = dynamic_evaluation.score(model, torch.tensor(ids), dynamic)
        assert -found.log_p_N.sum().item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("length", [2, 5, 6, 8, 10])
def test_a_training_text_shorter_than_two_segments_has_the_squares_of_its_last_words(length: int) -> None:
    """Of the words beyond a segment, which is read before; of all words if there are no more than that."""
    weights, ids, segment = random_weights(UNTIED, VOCABULARY, seed=1), text(length, seed=3), 5
    model, state = SegmentModel(UNTIED, weights), reference.zero_state(weights, 1)
    rest = ids
    if length > segment + 1:
        first, rest = ids[None, : segment + 1], ids[segment:]
        _, _, state = reference.loss_and_gradients(weights, first[:, :-1], first[:, 1:], state)
    _, gradients, _ = reference.loss_and_gradients(weights, rest[None, :-1], rest[None, 1:], state)
    found = dynamic_evaluation.mean_squares(model, torch.tensor(ids), segment, segments=4)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient**2, rtol=1e-9, atol=1e-16, err_msg=name)


def test_a_training_text_of_one_word_has_no_gradients() -> None:
    model = SegmentModel(UNTIED, random_weights(UNTIED, VOCABULARY, seed=1))
    with pytest.raises(UserError, match="two words"):
        dynamic_evaluation.mean_squares(model, torch.tensor(text(1, 3)), 5, segments=4)


@pytest.mark.parametrize("dynamic", [SETTINGS["sgd"], SETTINGS["rms"]], ids=["sgd", "rms"])
def test_a_score_does_not_depend_on_later_words(dynamic: DynamicEvaluation) -> None:
    """Bit for bit, wherever in a segment the texts part."""
    weights, ids = random_weights(UNTIED, VOCABULARY, seed=1), text(30, seed=2)
    model = SegmentModel(UNTIED, weights)
    squares = dynamic_evaluation.mean_squares(model, torch.tensor(text(40, 3)), dynamic.segment, segments=4)
    whole = dynamic_evaluation.score(model, torch.tensor(ids), dynamic, squares=squares).log_p_N
    for known in range(8, 14):
        other = ids.copy()
        other[known:] = (other[known:] + 1 + text(len(ids) - known, seed=known) % 7) % VOCABULARY
        found = dynamic_evaluation.score(model, torch.tensor(other), dynamic, squares=squares).log_p_N
        assert torch.equal(found[: known - 1], whole[: known - 1])
        assert not torch.equal(found[known - 1 :], whole[known - 1 :])


def test_the_trained_weights_come_back_after_an_interruption() -> None:
    weights, calls = random_weights(UNTIED, VOCABULARY, seed=1), 0

    def interrupt(words: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    model = SegmentModel(UNTIED, weights)
    with pytest.raises(KeyboardInterrupt):
        dynamic_evaluation.score(model, torch.tensor(text(50, 2)), SETTINGS["sgd"], progress=interrupt)
    assert_arrays(model.weights, weights)


class Watched(SegmentModel):
    """A model that knows which of its outputs are still in memory."""

    def __init__(self) -> None:
        super().__init__(UNTIED, random_weights(UNTIED, VOCABULARY, seed=1))
        self._outputs: list[StorageWeakRef] = []

    def _forward(self, *given: Any) -> Any:
        found = super()._forward(*given)
        self._outputs.append(StorageWeakRef(found[0].hidden_TH.untyped_storage()))
        return found

    def count_held(self) -> int:
        return sum(not output.expired() for output in self._outputs)


@pytest.mark.parametrize("dynamic", [None, SETTINGS["sgd"]], ids=["static", "sgd"])
@pytest.mark.parametrize("keep_hidden", [False, True])
def test_hidden_states_are_held_only_where_they_are_asked_for(
    keep_hidden: bool, dynamic: DynamicEvaluation | None
) -> None:
    model, held = Watched(), list[int]()
    ids = torch.tensor(text(1000, seed=2))
    found = dynamic_evaluation.score(
        model, ids, dynamic, keep_hidden=keep_hidden, progress=lambda _: held.append(model.count_held())
    )
    assert found.hidden_NH.shape == (999, 6 if keep_hidden else 0)
    assert len(held) > 9
    if keep_hidden:
        assert held == [*range(1, len(held) + 1)]
    else:
        assert max(held) <= 2  # the newest, and the one that the state before it is a row of
