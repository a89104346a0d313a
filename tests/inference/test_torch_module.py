"""A trained model as plain torch modules: the numbers of the NumPy reference, every step."""

import numpy as np
import pytest
import torch
from support import random_weights, random_windows

from ptb_lm.common.errors import UserError
from ptb_lm.inference.torch_module import PlainLanguageModel, to_torch
from ptb_lm.model import reference
from ptb_lm.model.config import Config

VOCABULARY = 11
# torch.nn.LSTM has layers of one width: the other units are zero.
WIDTHS = [
    {"num_layers": 3, "layer_sizes": (5, 8, 6), "tie_weights": tied, "embedding_size": 6}
    for tied in (False, True)
]


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_weights": True}, {"embedding_size": 5, "num_layers": 3}, {"keep_prob": 0.3}, *WIDTHS],
    ids=str,
)
def test_it_computes_what_the_reference_does(changes: dict[str, object], tiny_config: Config) -> None:
    """In float64, state carried from window to window, and into one step at a time."""
    config = tiny_config.replace(**changes)
    weights = random_weights(config, VOCABULARY, seed=1)
    with torch.inference_mode():  # whose tensors cannot have gradients
        module = to_torch(config, weights)
    state, expected_state = module.zero_state(3), reference.zero_state(weights, 3)
    for x_BT, y_BT in random_windows(config, VOCABULARY, 20, seed=2):
        logits_BTV, state = module(torch.from_numpy(x_BT), state)
        log_p_BTV = logits_BTV.detach().log_softmax(-1).numpy()
        log_p_BT = np.take_along_axis(log_p_BTV, y_BT[..., None].astype(np.int64), axis=-1)
        loss, _, expected_state = reference.loss_and_gradients(weights, x_BT, y_BT, expected_state)
        assert -log_p_BT.sum() / 3 == pytest.approx(loss, rel=1e-12)
        for tensor, arrays in zip(state, zip(*expected_state, strict=True), strict=True):
            widest = tensor.shape[2]
            expected = [np.pad(array, ((0, 0), (0, widest - array.shape[1]))) for array in arrays]
            np.testing.assert_allclose(tensor.detach().numpy(), expected, rtol=0, atol=1e-13)


def test_it_begins_at_the_zero_state_and_takes_one_step_at_a_time(tiny_config: Config) -> None:
    module = to_torch(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1))
    ((x_BT, _),) = random_windows(tiny_config, VOCABULARY, 1, seed=2)
    whole_BTV, _ = module(torch.from_numpy(x_BT))
    state, steps = None, []
    for x_B in x_BT.T:
        logits_B1V, state = module(torch.from_numpy(x_B[:, None]), state)
        steps.append(logits_B1V)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole_BTV)


def test_it_is_made_of_torch_s_own_modules(tiny_config: Config) -> None:
    module = to_torch(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1))
    assert [type(part) for part in module.children()] == [
        torch.nn.Embedding,
        torch.nn.LSTM,
        torch.nn.Linear,
    ]
    assert not module.training
    for layer in range(tiny_config.num_layers):
        assert not module.lstm.get_parameter(f"bias_hh_l{layer}").any()


def test_tied_weights_are_one_tensor_and_weights_are_copied(tiny_config: Config) -> None:
    config = tiny_config.replace(tie_weights=True)
    weights = random_weights(config, VOCABULARY, seed=1)
    kept = weights["embedding"].copy()
    module = to_torch(config, weights)
    assert module.softmax.weight is module.embedding.weight
    with torch.no_grad():
        module.embedding.weight.zero_()
    assert not module.softmax.weight.any()
    np.testing.assert_array_equal(weights["embedding"], kept)


def test_making_it_draws_no_random_number(tiny_config: Config) -> None:
    before = torch.random.get_rng_state()
    to_torch(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_its_state_dict_loads_into_a_new_one(tiny_config: Config) -> None:
    """As who has no ptb_lm at hand would restore it: from the class alone."""
    module = to_torch(tiny_config, random_weights(tiny_config, VOCABULARY, seed=1))
    other = PlainLanguageModel(VOCABULARY, 7, 7, 2).double()
    other.load_state_dict(module.state_dict())
    x_BT = torch.tensor([[3, 1, 4]])
    torch.testing.assert_close(other(x_BT)[0], module(x_BT)[0])


def test_weights_of_another_model_are_refused(tiny_config: Config) -> None:
    weights = random_weights(tiny_config, VOCABULARY, seed=1)
    with pytest.raises(UserError, match=r"the tensor 'lstm.1.kernel' does not belong"):
        to_torch(
            tiny_config.replace(num_layers=1),
            {k: v for k, v in weights.items() if k[:6] != "lstm.1" or k == "lstm.1.kernel"},
        )
