"""A language model over one row of text, a segment at a time, with its gradient in factors.

Dynamic evaluation changes all weights after a handful of words, so that its cost is that of reading and
writing them. Here the gradient of a matrix is never made: it is the product of two factors of T rows, which
is added to the weights in one pass. The gradient of the embedding is some of its rows.

Shapes: T = time steps of a segment, V = vocabulary, E = embedding width, I = a layer's input width,
H = hidden units, M = rows of any matrix. The batch is one row, and has no axis. Gates lie in the order i, f,
g, o along 4H.
"""

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.data.text import Ids
from ptb_lm.model.cells.mogrifier_lstm import BIAS, GATES, RIGHT
from ptb_lm.model.config import Config

State = list[tuple[Tensor, Tensor]]  # (h_H, c_H) of each layer


class SegmentScores(NamedTuple):
    """The scores of a segment.

    Attributes:
        log_p_T: The log-probability of each target, in nats.
        hidden_TH: The top layer's output, from which each target was predicted.
        state: The state after the segment.
    """

    log_p_T: Tensor
    hidden_TH: Tensor
    state: State


class Gradients(NamedTuple):
    """The gradient of a segment's negative log likelihood, summed over its steps.

    Attributes:
        factors: A matrix's name -> (left_TM, right_TN): its gradient [M, N] is left transposed times right.
        vectors: A bias's name -> its gradient.
        words_T: The input words, some perhaps more than once.
        rows_TE: The gradient with respect to the embedding's row of each.
    """

    factors: dict[str, tuple[Tensor, Tensor]]
    vectors: dict[str, Tensor]
    words_T: Tensor
    rows_TE: Tensor


class LayerRun(NamedTuple):
    """A layer's run over a segment.

    Attributes:
        output_TH: Output of the layer.
        state: The state after the segment.
        inputs: A matrix's name -> what it multiplies at each step, [T, M].
        products: A matrix's name -> a tensor [T, N] in the graph that has the same gradient as the matrix's
            product; for a bias, the tensor of the product to which the bias is added.
    """

    output_TH: Tensor
    state: tuple[Tensor, Tensor]
    inputs: dict[str, Tensor]
    products: dict[str, Tensor]


def run_lstm(
    weights: Mapping[str, Tensor], prefix: str, input_TI: Tensor, state: tuple[Tensor, Tensor]
) -> LayerRun:
    """Run a layer of the LSTM (model/cells/lstm.py) over a segment.

    Args:
        weights: The model's weights.
        prefix: Beginning of the names of the layer's weights.
        input_TI: The layer's input.
        state: (h_H, c_H) before the segment.
    """
    before_H, c_H = state
    h_H, steps = before_H, list[Tensor]()
    recurrent_4HH = weights[prefix + "recurrent_kernel"].T
    gates_T4H = torch.addmm(weights[prefix + "bias"], input_TI, weights[prefix + "kernel"])
    for gates_4H in gates_T4H.unbind():
        h_H, c_H = _step(torch.addmv(gates_4H, recurrent_4HH, h_H), c_H)
        steps.append(h_H)
    output_TH = torch.stack(steps)
    inputs = {"kernel": input_TI, "recurrent_kernel": torch.cat([before_H[None], output_TH[:-1]])}
    return LayerRun(
        output_TH,
        (h_H, c_H),
        {prefix + name: input_TM for name, input_TM in inputs.items()},
        dict.fromkeys((prefix + name for name in (*inputs, "bias")), gates_T4H),
    )


def run_mogrifier(
    weights: Mapping[str, Tensor], prefix: str, input_TI: Tensor, state: tuple[Tensor, Tensor]
) -> LayerRun:
    """Run a layer of the Mogrifier (model/cells/mogrifier_lstm.py), as `run_lstm` runs one of the LSTM."""
    own = {name: weight for name, weight in weights.items() if name.startswith(prefix)}
    rounds = list(_name_rounds(own, prefix))
    inputs: dict[str, list[Tensor]] = {name: [] for name, weight in own.items() if weight.ndim == 2}
    # Zeros that are added to a product have its gradient.
    products = {
        name: input_TI.new_zeros(len(input_TI), own[name].shape[1], requires_grad=torch.is_grad_enabled())
        for name in inputs
    }
    zeros = {name: product.unbind() for name, product in products.items()}

    def multiply(input_M: Tensor, name: str, step: int) -> Tensor:
        inputs[name].append(input_M)
        return torch.addmv(zeros[name][step], own[name].T, input_M)

    (h_H, c_H), steps = state, list[Tensor]()
    for step, x_I in enumerate(input_TI.unbind()):
        pair = [x_I, h_H]
        for side, factors, bias in rounds:
            product = pair[1 - side]
            for factor in factors:
                product = multiply(product, factor, step)
            pair[side] = 2 * torch.sigmoid(product + own[bias]) * pair[side]
        gates_4H = own[prefix + "bias"] + multiply(pair[0], prefix + "kernel", step)
        h_H, c_H = _step(gates_4H + multiply(pair[1], prefix + "recurrent_kernel", step), c_H)
        steps.append(h_H)
    products |= {bias: products[factors[-1]] for _, factors, bias in rounds}
    products[prefix + "bias"] = products[prefix + "kernel"]
    every_input = {name: torch.stack(rows) for name, rows in inputs.items()}
    return LayerRun(torch.stack(steps), (h_H, c_H), every_input, products)


def _name_rounds(names: Collection[str], prefix: str) -> Iterator[tuple[int, list[str], str]]:
    """Yield of each round what it gates (0: x, 1: h), and the names of its factors and its bias."""
    for number in itertools.count():
        index, side = divmod(number, 2)
        factors = [f"{prefix}{GATES[side]}{end}.{index}" for end in ("", RIGHT)]
        if factors[0] not in names:
            return
        yield side, [name for name in factors if name in names], f"{prefix}{GATES[side]}{BIAS}.{index}"


def _step(gates_4H: Tensor, c_H: Tensor) -> tuple[Tensor, Tensor]:
    """Return (h_H, c_H) after a step of an LSTM."""
    i_H, f_H, g_H, o_H = gates_4H.chunk(4)
    c_H = torch.addcmul(f_H.sigmoid() * c_H, i_H.sigmoid(), g_H.tanh())
    return o_H.sigmoid() * c_H.tanh(), c_H


def _split_parameter(name: str, array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the matrices and vectors of a canonical parameter by name: several if it is of several rounds."""
    if not name.rpartition(".")[2].startswith(GATES):
        yield name, array
    else:
        yield from ((f"{name}.{index}", part) for index, part in enumerate(array))


LAYERS = {"lstm": run_lstm, "mogrifier_lstm": run_mogrifier}


class SegmentModel:
    """A language model whose weights may change from segment to segment.

    Attributes:
        weights: Canonical parameters (model/parameters.py) as tensors of this model's own; those of several
            rounds of a Mogrifier are each by itself.
        is_tied: True if the softmax's kernel is the embedding, transposed.

    Args:
        config: The hyper-parameters.
        weights: Canonical parameters; they are copied.
        device: The device that computes.

    Raises:
        UserError: The cell is not one of LAYERS.
    """

    def __init__(
        self, config: Config, weights: Mapping[str, NDArray[Any]], *, device: torch.device | None = None
    ) -> None:
        self._cell = config.cell
        if self._cell not in LAYERS:
            raise UserError(
                f"only a model with the cell {' or '.join(LAYERS)} adapts to a text, but this model's cell "
                f"is {self._cell}"
            )
        self._run_layer = LAYERS[self._cell]
        self.weights = {
            part: torch.tensor(values, device=device)
            for name, array in weights.items()
            for part, values in _split_parameter(name, array)
        }
        self.is_tied = "softmax.kernel" not in weights
        self._layers = config.num_layers

    def to_device(self, ids: Ids) -> Tensor:
        """Return word ids on the model's device, int64."""
        return torch.from_numpy(ids).to(self.weights["embedding"].device, torch.int64)

    def zero_state(self) -> State:
        """Return the state before the first word."""
        names = [f"{self._cell}.{layer}.recurrent_kernel" for layer in range(self._layers)]
        kernels = [self.weights[name] for name in names]
        return [(kernel.new_zeros(len(kernel)), kernel.new_zeros(len(kernel))) for kernel in kernels]

    def score(self, x_T: Tensor, y_T: Tensor, state: State) -> SegmentScores:
        """Score the targets y_T of a segment's input words x_T."""
        return self._forward(self.weights["embedding"][x_T], y_T, state)[0]

    def score_and_gradients(self, x_T: Tensor, y_T: Tensor, state: State) -> tuple[SegmentScores, Gradients]:
        """Score a segment's targets; return the gradient of their negative log likelihood, too.

        None flows into the state before the segment.
        """
        with torch.enable_grad():
            rows_TE = self.weights["embedding"][x_T].requires_grad_()
            scores, runs, logits_TV = self._forward(rows_TE, y_T, state)
            nll = -scores.log_p_T.sum()
        # Several weights may have one product: it is a row of this table once.
        products = {id(product): product for run in runs for product in run.products.values()}
        wanted = [rows_TE, logits_TV, *products.values()]
        d_rows_TE, d_logits_TV, *others = torch.autograd.grad(nll, wanted)
        d_products = dict(zip(products, others, strict=True))
        after = [(h_H.detach(), c_H.detach()) for h_H, c_H in scores.state]
        scores = SegmentScores(scores.log_p_T.detach(), scores.hidden_TH.detach(), after)
        if self.is_tied:
            factors = {"embedding": (d_logits_TV, scores.hidden_TH)}
        else:
            factors = {"softmax.kernel": (scores.hidden_TH, d_logits_TV)}
        vectors = {"softmax.bias": d_logits_TV.sum(0)}
        for run in runs:
            for name, product in run.products.items():
                if name in run.inputs:
                    factors[name] = run.inputs[name].detach(), d_products[id(product)]
                else:
                    vectors[name] = d_products[id(product)].sum(0)
        return scores, Gradients(factors, vectors, x_T, d_rows_TE)

    def _forward(
        self, rows_TE: Tensor, y_T: Tensor, state: State
    ) -> tuple[SegmentScores, list[LayerRun], Tensor]:
        """Return (the segment's scores, each layer's run, logits_TV).

        Args:
            rows_TE: The embeddings of the input words.
            y_T: The targets.
            state: The state before the segment.
        """
        output_TH, runs = rows_TE, list[LayerRun]()
        for layer, before in enumerate(state):
            runs.append(self._run_layer(self.weights, f"{self._cell}.{layer}.", output_TH, before))
            output_TH = runs[-1].output_TH
        after = [run.state for run in runs]
        kernel_HV = self.weights["embedding"].T if self.is_tied else self.weights["softmax.kernel"]
        logits_TV = torch.addmm(self.weights["softmax.bias"], output_TH, kernel_HV)
        log_p_T = torch.log_softmax(logits_TV, dim=-1).gather(1, y_T[:, None])[:, 0]
        return SegmentScores(log_p_T, output_TH, after), runs, logits_TV
