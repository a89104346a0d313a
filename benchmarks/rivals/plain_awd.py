"""AWD-LSTM as people write it in torch today: what the speed of the preset `awd` is compared with.

After Merity et al., "Regularizing and Optimizing LSTM Language Models", 2018, whose program
(salesforce/awd-lstm-lm) was written for torch 0.4. It speaks in that program's terms: the loss is the mean
over a window's words, its gradient's norm is bounded by 0.25 (here max_grad_norm / num_steps), and the rate
is 30 (learning_rate * num_steps) for windows of num_steps, and for others in proportion to their length.

A recurrent kernel is dropped anew for each window, and nn.LSTM computes with it in
torch.func.functional_call: torch.nn.utils.parametrize would draw four masks for it, one after the other. In
some versions of torch a layer keeps a list of its weights, and a weight that is set beside the list is never
used: then nothing is dropped, and nothing says so. All other masks are locked: they hold for all time steps.
Of torch.nn.LSTM's two biases the second is frozen at zero, as in ptb_lm.bench.rivals.plain_torch.

Shapes: B = batch, T = time steps, E = embedding width, I = units, H = a layer's hidden units, V = vocabulary.
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional
from typing_extensions import override

from ptb_lm.bench.rivals import check_config
from ptb_lm.bench.rivals.plain_torch import Loss, TorchLoop, lstm_parameters
from ptb_lm.common.errors import UserError
from ptb_lm.data.corpus import TokenArray
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, mask_specs

State = list[tuple[Tensor, Tensor]]  # h_1BH, c_1BH of each layer

# Hyper-parameters that other plain loops lack.
MORE_FIELDS = (
    *("layer_sizes", "tie_weights", "variational", "vary_num_steps"),
    *("input_keep_prob", "between_keep_prob", "output_keep_prob"),
    *("embedding_keep_prob", "recurrent_keep_prob"),
    *("activation_penalty", "slowness_penalty", "weight_decay"),
)


class AWDModel(nn.Module):
    """The network.

    Attributes:
        layers: Trained parameters of each layer.
        raw_TBH: Top layer's output of the newest window.
        dropped_TBH: The same after dropout.
    """

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        widths = (config.embedding_width, *config.hidden_sizes)
        self.embedding = nn.Embedding(vocabulary_size, widths[0])
        lstms = [nn.LSTM(*sizes) for sizes in itertools.pairwise(widths)]
        self.lstms = nn.ModuleList(lstms)
        self.linear = nn.Linear(widths[-1], vocabulary_size)
        if config.tie_weights:
            self.linear.weight = self.embedding.weight
        self.layers = [lstm_parameters(lstm, 0) for lstm in lstms]
        self.drop_words, self.drop_weights = 1 - config.embedding_keep_prob, 1 - config.recurrent_keep_prob
        self.drop_units = [1 - keep_prob for keep_prob in config.unit_keep_probs]

    def forward(self, x_TB: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits [T, B, V] and the state."""
        embedding_VE = self.embedding.weight
        if self.training and self.drop_words:
            embedding_VE = embedding_VE * functional.dropout(
                torch.ones_like(embedding_VE[:, :1]), self.drop_words
            )
        output_TBI, after = self._lock(functional.embedding(x_TB, embedding_VE), self.drop_units[0]), []
        for lstm, before, drop in zip(self.lstms, state, self.drop_units[1:], strict=True):
            weight = functional.dropout(lstm.get_parameter("weight_hh_l0"), self.drop_weights, self.training)
            raw_TBH, last = functional_call(lstm, {"weight_hh_l0": weight}, (output_TBI, before))
            output_TBI = self._lock(raw_TBH, drop)
            after.append(last)
        self.raw_TBH, self.dropped_TBH = raw_TBH, output_TBI
        return self.linear(output_TBI), after

    def _lock(self, x_TBI: Tensor, drop: float) -> Tensor:
        """Return units after dropout with one mask for all time steps."""
        if not (self.training and drop):
            return x_TBI
        return x_TBI * functional.dropout(torch.ones_like(x_TBI[:1]), drop)


class AWDLoop(TorchLoop):
    """Trains an AWDModel."""

    network: AWDModel

    @override
    def build_network(self, vocabulary_size: int) -> AWDModel:
        return AWDModel(self.config, vocabulary_size)

    def zero_state(self, batch_size: int) -> State:
        """Return the zero state for a batch."""
        zeros = self.network.linear.bias.new_zeros
        return [
            (zeros(1, batch_size, hidden), zeros(1, batch_size, hidden))
            for hidden in self.config.hidden_sizes
        ]

    def train_step(
        self, x_BT: TokenArray, y_BT: TokenArray, state: State, *, learning_rate: float
    ) -> tuple[State, Loss]:
        """Do one step with dropout, penalties, clipping and weight decay."""
        config, steps = self.config, x_BT.shape[1]
        self.network.train()
        for group in self.optimizer.param_groups:
            # The rate of a window of num_steps, learning_rate * num_steps, times steps / num_steps.
            group["lr"] = learning_rate * steps
        loss, state = self.forward(x_BT, y_BT, [(h.detach(), c.detach()) for h, c in state])
        mean, raw_TBH = loss.detach(), self.network.raw_TBH
        if config.activation_penalty:
            loss = loss + config.activation_penalty * self.network.dropped_TBH.pow(2).mean()
        if config.slowness_penalty:
            loss = loss + config.slowness_penalty * (raw_TBH[1:] - raw_TBH[:-1]).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.trained, config.max_grad_norm / config.num_steps)
        self.optimizer.step()
        # The contract's numbers are those of a sum over the time steps.
        return state, (mean * math.prod(y_BT.shape), norm * steps)

    def next_masks(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that dropout will keep in the next training window; its random stream stays."""
        config, network, stream = self.config, self.network, self.stream.get_state()

        def draw(drop: float, *shape: int, dtype: torch.dtype | None = None) -> NDArray[np.bool_]:
            drawn = functional.dropout(torch.ones(shape, dtype=dtype, device=self.device), drop)
            return drawn.bool().cpu().numpy()

        # In the order in which the network draws them, and in the types, on which a GPU's numbers may depend.
        masks = {"embedding": draw(network.drop_words, network.embedding.num_embeddings, 1)}
        units = [draw(network.drop_units[0], 1, batch, config.embedding_width)]
        for layer, hidden in enumerate(config.hidden_sizes):
            masks[f"lstm.{layer}.recurrent_kernel"] = draw(network.drop_weights, 4 * hidden, hidden).T
            units.append(draw(network.drop_units[layer + 1], 1, batch, hidden, dtype=self.runtime.dtype))
        self.stream.set_state(stream)
        specs = mask_specs(config, network.embedding.num_embeddings, batch=batch, steps=steps)
        return Masks({name: masks[name] for name in specs.weights}, units if specs.units else [])

    def export_training_state(self, state: State) -> Arrays:
        """Return the carried state, and that of the random stream."""
        parts = enumerate(itertools.chain.from_iterable(state))
        carried = {f"carried.{index}": part.float().cpu().numpy() for index, part in parts}
        return {"stream": self.stream.get_state().numpy(), **carried}

    def load_training_state(self, arrays: Mapping[str, NDArray[Any]]) -> State:
        """Set a state that `export_training_state` returned; return the carried state."""
        self.stream.set_state(torch.from_numpy(arrays["stream"]))
        carried = [
            torch.from_numpy(arrays[f"carried.{index}"]).to(self.device, self.precision.master)
            for index in range(2 * self.config.num_layers)
        ]
        return list(zip(carried[::2], carried[1::2], strict=True))

    @property
    def stream(self) -> torch.Generator:
        """The random stream of torch's own dropout."""
        if self.device.type == "cuda":
            return torch.cuda.default_generators[self.device.index or 0]
        return torch.default_generator


def build(config: Config, weights: Mapping[str, NDArray[Any]], choice: Choice) -> AWDLoop:
    """Build the loop; see ptb_lm.model.backend.build.

    Raises:
        UserError: There is no such device, or the configuration asks for what the loop lacks.
    """
    check_config(config, "AWD-LSTM", more=MORE_FIELDS)
    if min(config.unit_keep_probs) < 1 and not config.variational:
        raise UserError("the plain loop of AWD-LSTM has no dropout of units without --variational")
    return AWDLoop(config, weights, choice)
