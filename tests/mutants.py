"""Models with one thing wrong, in torch: what the benchmark must refuse to time."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import sequence_classifier
import torch
from sequence_classifier import Batch
from torch import Tensor, nn

from ptb_lm.bench import check
from ptb_lm.bench.run import timed_steps
from ptb_lm.model import backend, cells
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks
from ptb_lm.torch_backend.cells import Layer, LayerState
from ptb_lm.torch_backend.exchange import WindowGradients
from ptb_lm.torch_backend.loss import sum_by_word
from ptb_lm.torch_backend.optimizers import Clipping

Weights: TypeAlias = Mapping[str, np.ndarray]
Model: TypeAlias = Any  # a Backend or a Classifier
Mutant: TypeAlias = Callable[[Any, Weights], Model]


def right(config: Any, weights: Weights, *, model: str = "cudnn", precision: str = "fp32") -> Model:
    """Build a model as it should be; `basic` where the one asked for lacks the cell."""
    if isinstance(config, Config):
        if config.cell not in cells.names_for("torch", model):
            model = "basic"
        return backend.build(config, weights, Choice.create(model=model, device="cpu", precision=precision))
    chosen = {"device": "cpu", "precision": precision}
    return sequence_classifier.build(
        config, weights, Choice.create(sequence_classifier.CLASSIFIERS, model=model, **chosen)
    )


class Wrapped:
    """A model, some of whose methods a subclass replaces."""

    def __init__(self, model: Model, weights: Weights) -> None:
        self.model = model
        self.load_weights(weights)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def load_weights(self, weights: Weights) -> None:
        self.loaded = dict(weights)
        self.model.load_weights(self.inwards(weights))

    def export_weights(self) -> dict[str, np.ndarray]:
        return self.outwards(self.model.export_weights())

    def loss_and_gradients(self, batch: Batch) -> Any:
        loss, gradients = self.model.loss_and_gradients(batch)
        zeros = {name: np.zeros_like(array) for name, array in self.loaded.items()}
        return loss, self.outwards({**zeros, **gradients}) if gradients.keys() < zeros.keys() else gradients

    def inwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return dict(weights)

    def outwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return dict(weights)


def of_layer(name: str) -> bool:
    """Return whether a parameter is a recurrent layer's."""
    return name.count(".") > 1


def swapped(weights: Weights) -> dict[str, np.ndarray]:
    """Swap the first two gates of every layer: input and forget gate of an LSTM."""

    def swap(name: str, array: np.ndarray) -> np.ndarray:
        if not of_layer(name):
            return array
        hidden, width = weights[name.rpartition(".")[0] + ".recurrent_kernel"].shape
        if array.shape[-1] != width:  # it is no gates'
            return array
        first, second, rest = np.split(array, [hidden, 2 * hidden], axis=-1)
        return np.concatenate([second, first, rest], axis=-1)

    return {name: swap(name, array) for name, array in weights.items()}


class GatesSwapped(Wrapped):
    """It takes the input gate for the forget gate, and speaks of them in the right order."""

    def inwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return swapped(weights)

    outwards = inwards

    def loss_and_gradients(self, batch: Batch) -> Any:
        loss, gradients = self.model.loss_and_gradients(batch)
        return loss, self.outwards(gradients)


class ParametersDropped(Wrapped):
    """It computes as if some of its layers' parameters were zero."""

    kind: str

    def inwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return {name: 0 * w if self._is_dropped(name) else w for name, w in weights.items()}

    def outwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return {name: w + self.loaded[name] if self._is_dropped(name) else w for name, w in weights.items()}

    def _is_dropped(self, name: str) -> bool:
        return of_layer(name) and name.endswith(self.kind)


class BiasDropped(ParametersDropped):
    """It has no biases in its layers."""

    kind = "bias"


class RecurrenceIgnored(ParametersDropped):
    """It has no recurrent kernels."""

    kind = "recurrent_kernel"


class TopLayerSkipped(Wrapped):
    """It leaves the top layer out; its weights stay as they were loaded."""

    def inwards(self, weights: Weights) -> dict[str, np.ndarray]:
        top = max(name.split(".")[1] for name in weights if of_layer(name))
        return {name: w for name, w in weights.items() if not of_layer(name) or name.split(".")[1] != top}

    def outwards(self, weights: Weights) -> dict[str, np.ndarray]:
        return {**self.loaded, **weights}

    def loss_and_gradients(self, batch: Batch) -> Any:
        loss, gradients = self.model.loss_and_gradients(batch)
        return loss, {name: gradients.get(name, np.zeros_like(w)) for name, w in self.loaded.items()}


class StateNotCarried(Wrapped):
    """Every window begins with the zero state."""

    def train_step(self, x_BT: Any, y_BT: Any, state: Any, *, learning_rate: float) -> Any:
        return self.model.train_step(
            x_BT, y_BT, self.model.zero_state(len(x_BT)), learning_rate=learning_rate
        )

    def evaluate_step(self, x_BT: Any, y_BT: Any, state: Any) -> Any:
        return self.model.evaluate_step(x_BT, y_BT, self.model.zero_state(len(x_BT)))


class Reduced(Wrapped):
    """It reads a part of what it is given, which `window` takes of words and `batch` of sequences."""

    def train_step(self, *given: Any, **rate: float) -> Any:
        if isinstance(given[0], Batch):
            return self.model.train_step(self.batch(given[0]))
        x_BT, y_BT, state = given
        return self.model.train_step(self.window(x_BT), self.window(y_BT), state, **rate)

    def evaluate_step(self, x_BT: Any, y_BT: Any, state: Any) -> Any:
        return self.model.evaluate_step(self.window(x_BT), self.window(y_BT), state)

    def forward_step(self, batch: Batch) -> Any:
        return self.model.forward_step(self.batch(batch))

    def loss_and_gradients(self, batch: Batch) -> Any:
        return self.model.loss_and_gradients(self.batch(batch))


class LastStepDropped(Reduced):
    """It reads a window, or each sequence, but for its last step; its loss is scaled to all steps."""

    def window(self, words_BT: Any) -> Any:
        return words_BT[:, :-1]

    def batch(self, batch: Batch) -> Batch:
        if batch.lengths_B is not None:
            return batch._replace(lengths_B=batch.lengths_B - 1)
        return batch._replace(x_BTI=batch.x_BTI[:, :-1])


class HalfOfTheBatch(Reduced):
    """It computes the first half of the batch alone, and a mean over that is its loss."""

    def window(self, words_BT: Any) -> Any:
        return words_BT[: len(words_BT) // 2]

    def batch(self, batch: Batch) -> Batch:
        return Batch(*(None if part is None else self.window(part) for part in batch))  # type: ignore[arg-type]

    def zero_state(self, batch_size: int) -> Any:
        return self.model.zero_state(batch_size // 2)

    def read(self, losses: Sequence[Any]) -> Any:
        # A classifier's are means.
        read = self.model.read(losses)
        return [
            each._replace(nll=2 * each.nll) if isinstance(each, backend.StepMetrics) else each
            for each in read
        ]

    def next_masks(self, batch: int, steps: int) -> Any:
        kept = self.model.next_masks(batch // 2, steps)
        return Masks(kept.weights, [np.concatenate([mask, mask], axis=1) for mask in kept.units])


class WrongRate(Wrapped):
    """It moves the weights by 5 % more than it should."""

    def train_step(self, *given: Any, **rate: float) -> Any:
        before = self.model.export_weights()
        taken = self.model.train_step(*given, **rate)
        after = self.model.export_weights()
        self.model.load_weights({name: w + 0.05 * (w - before[name]) for name, w in after.items()})
        return taken


class OneTensorStays(Wrapped):
    """Its training steps leave the softmax's bias as it is."""

    def train_step(self, *given: Any, **rate: float) -> Any:
        taken = self.model.train_step(*given, **rate)
        self.model.load_weights({**self.model.export_weights(), "softmax.bias": self.loaded["softmax.bias"]})
        return taken


class SecondBiasTrained(Wrapped):
    """torch's second bias is trained as well, so that both together move twice as fast."""

    def train_step(self, *given: Any, **rate: float) -> Any:
        before = [first.clone() for first, _ in self._biases()]
        taken = self.model.train_step(*given, **rate)
        for (first, second), was in zip(self._biases(), before, strict=True):
            second.add_(first - was)
        return taken

    def _biases(self) -> Iterator[tuple[Tensor, Tensor]]:
        for layer in getattr(self.model, "network", self.model).stack.layers:
            for suffix in layer.suffixes:
                yield tuple(
                    layer.module.get_parameter(f"bias_{kind}{suffix}").detach() for kind in ("ih", "hh")
                )  # type: ignore[misc]


class NeverMoves(Wrapped):
    """Its training steps move nothing."""

    def train_step(self, *given: Any, **rate: float) -> Any:
        taken = self.model.train_step(*given, **rate)
        self.model.load_weights(self.loaded)
        return taken


class OldWeights(Wrapped):
    """Its steps compute with the weights that were loaded, and move others."""

    def __init__(self, model: Model, weights: Weights) -> None:
        self.moved = dict(weights)
        super().__init__(model, weights)

    def load_weights(self, weights: Weights) -> None:
        super().load_weights(weights)
        self.moved = self.model.export_weights()

    def export_weights(self) -> dict[str, np.ndarray]:
        return dict(self.moved)

    def train_step(self, *given: Any, **rate: float) -> Any:
        self.model.load_weights(self.loaded)
        before = self.model.export_weights()
        taken = self.model.train_step(*given, **rate)
        after = self.model.export_weights()
        self.moved = {name: moved + (after[name] - before[name]) for name, moved in self.moved.items()}
        return taken


class Counted(Wrapped):
    """It counts its training steps."""

    steps = 0

    def train_step(self, *given: Any, **rate: float) -> Any:
        self.steps += 1
        return self.model.train_step(*given, **rate)


class Stale(Wrapped):
    """It does some training steps, and then returns the last one's result for ever and moves nothing.

    As a graph does that was captured after these, and is replayed on the inputs that it was captured with.
    """

    steps: int

    def train_step(self, *given: Any, **rate: float) -> Any:
        if self.steps:
            self.steps -= 1
            self.kept = self.model.train_step(*given, **rate)
        return self.kept


def steps_of_a_comparison(task: Any, build: Mutant, *, passes: Sequence[str] = ("train",)) -> int:
    """Return how many training steps a first comparison asks a model for."""
    model = timed_steps.prepare(task, lambda *given: Counted(build(*given), given[1]), seed=3).model
    check.check(task, build, model, precision="fp32", seed=3, passes=passes)
    return model.steps


def stale_after_a_comparison(task: Any, build: Mutant, *, passes: Sequence[str] = ("train",)) -> Mutant:
    """Return what builds a model that goes wrong after the training steps of a first comparison."""
    steps = steps_of_a_comparison(task, build, passes=passes)

    def build_stale(config: Any, weights: Any) -> Any:
        stale = Stale(build(config, weights), weights)
        stale.steps = steps
        return stale

    return build_stale


class EveryStepIsTheFirst(Wrapped):
    """Its optimiser forgets what it did before."""

    def train_step(self, batch: Batch) -> Any:
        self.model.optimizer.state.clear()
        return self.model.train_step(batch)


class WrongForward(Wrapped):
    """It trains as it should, and computes something else when it scores."""

    def evaluate_step(self, x_BT: Any, y_BT: Any, state: Any) -> Any:
        return self._swapped(lambda: self.model.evaluate_step(x_BT, y_BT, state))

    def forward_step(self, batch: Batch) -> Any:
        return self._swapped(lambda: self.model.forward_step(batch))

    def _swapped(self, compute: Callable[[], Any]) -> Any:
        weights = self.model.export_weights()
        self.model.load_weights(swapped(weights))
        taken = compute()
        self.model.load_weights(weights)
        return taken


class BackwardCut(Wrapped):
    """The first time step is missing in the gradient of a training step, and not in one that is asked for."""

    def train_step(self, batch: Batch) -> Any:
        whole = self.model.executed_stack
        self.model.executed_stack = self.model.stack.with_execution(WithoutGradientOfTheFirstStep)
        taken = self.model.train_step(batch)
        self.model.executed_stack = whole
        return taken


class WithoutGradientOfTheFirstStep(nn.Module):
    """A layer whose first time step is computed as it should be, and not learnt from."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_TBI: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        if state[0].any():  # it is over: sequences of different lengths come in pieces
            output_TBH, after = self.layer(x_TBI, state)
            return output_TBH, after
        with torch.no_grad():
            begun_TBH, state = self.layer(x_TBI[:1], state)
        output_TBH, after = self.layer(x_TBI[1:], state)
        return torch.cat([begun_TBH, output_TBH]), after


class WithoutRecurrence(nn.Module):
    """A layer whose output at a step does not reach the next; its cell state does."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x_TBI: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
        zero_BH, carried = torch.zeros_like(state[0]), state[1:]
        outputs = []
        for x_BI in x_TBI:
            output_1BH, (_, *carried) = self.layer(x_BI[None], (zero_BH, *carried))
            outputs.append(output_1BH)
        return torch.cat(outputs), (outputs[-1][0], *carried)


def recurrence_cut(config: Any, weights: Weights) -> Model:
    """Build a model of layers without recurrence."""
    model = right(config, weights, model="basic")
    owner = getattr(model, "network", model)  # a classifier has its stack itself
    owner.executed_stack = owner.stack.with_execution(WithoutRecurrence)
    return model


def clip_forgotten(config: Any, weights: Weights) -> Model:
    """Build a model that does not clip."""
    if isinstance(config, Config):
        return right(config.replace(max_grad_norm=1e9), weights)
    return right(dataclasses.replace(config, clip_value=None), weights)


def clipped(change: Callable[[Clipping, Tensor], Clipping]) -> Mutant:
    """Return what builds a language model whose clipping, made of the gradient's norm, is changed."""

    def build(config: Any, weights: Weights) -> Model:
        model = right(config, weights)
        make = model.training.make_clipping
        model.training.make_clipping = lambda norm, *, steps: change(make(norm, steps=steps), norm)
        return model

    return build


def embedding_left_out(*, of_told: bool) -> Mutant:
    """Return what builds a language model that clips by a norm without the embedding's gradient.

    Args:
        of_told: True for one that tells this norm, too.
    """

    def build(config: Any, weights: Weights) -> Model:
        model = right(config, weights)
        training, make, update = model.training, model.training.make_clipping, model.training.update

        def update_by_the_rest(window: WindowGradients, *, steps: int) -> Tensor:
            words = sum_by_word(window.d_embedded, window.ids).norm()
            training.make_clipping = lambda norm, *, steps: make(_without(norm, words), steps=steps)
            norm = update(window, steps=steps)
            return _without(norm, words) if of_told else norm

        training.update = update_by_the_rest
        return model

    return build


def _without(norm: Tensor, part: Tensor) -> Tensor:
    return (norm**2 - part**2).sqrt()


def top_layer_skipped(config: Any, weights: Weights) -> Model:
    """Build a model with a layer fewer."""
    if isinstance(config, Config):
        fewer: Any = config.replace(num_layers=config.num_layers - 1, layer_sizes=config.layer_sizes[:-1])
    else:
        fewer = dataclasses.replace(config, hidden_sizes=config.hidden_sizes[:-1])
    kept = TopLayerSkipped.inwards(None, weights)  # type: ignore[arg-type]
    return TopLayerSkipped(right(fewer, kept), weights)


def top_dropout_left_out(config: Any, weights: Weights) -> Model:
    """Build a language model that draws the top output's mask and does not apply it."""
    model = right(config, weights)
    compute = model.training.compute_loss_and_gradient
    model.training.compute_loss_and_gradient = functools.partial(_without_mask, compute)
    return model


def _without_mask(compute: Callable[..., Any], *arguments: Any, mask: Tensor) -> Any:
    return compute(*arguments, mask=torch.ones_like(mask))


def weight_drop_without_effect(config: Any, weights: Weights) -> Model:
    """Build a language model that draws the masks of recurrent weights, tells them, and computes without."""
    model = right(config, weights)
    model.network.stack.masks_by_parameter = lambda masks: {}
    return model


def redrawn(change: Callable[[Masks[Tensor]], object]) -> Mutant:
    """Return what builds a language model whose masks are changed after they are drawn, and tells them so."""

    def build(config: Any, weights: Weights) -> Model:
        model = right(config, weights)
        draw = model.training.dropout.draw

        def drawn(batch: int, steps: int) -> Any:
            masks = draw(batch, steps)
            change(masks)
            return masks

        model.training.dropout.draw = drawn
        return model

    return build


def masks_reused(config: Any, weights: Weights) -> Model:
    """Build a language model that draws the masks of its first window, uses them for ever, and tells so."""
    model = right(config, weights)
    model.training.dropout.draw = functools.cache(model.training.dropout.draw)
    return model


def same_for_all_layers(masks: Masks[Tensor]) -> None:
    """Make the masks of all layers that of the first."""
    for mask in masks.units[2:]:
        mask.copy_(masks.units[1][..., : mask.shape[-1]])


def same_for_all(axis: int) -> Callable[[Masks[Tensor]], None]:
    """Return what makes the masks of units the same for all time steps (axis 0) or rows (axis 1)."""

    def change(masks: Masks[Tensor]) -> None:
        for mask in masks.units:
            mask.copy_(mask.narrow(axis, 0, 1).clone().expand_as(mask))

    return change


def backward_cut(config: Any, weights: Weights) -> Model:
    """Build a classifier whose training step does not learn from the first time step of a sequence."""
    return BackwardCut(right(config, weights, model="block_fused"), weights)


def wrapped(kind: type[Wrapped]) -> Mutant:
    """Return what builds a wrapped right model."""
    return lambda config, weights: kind(right(config, weights), weights)


EVERY: dict[str, Mutant] = {
    "gates swapped": wrapped(GatesSwapped),
    "recurrence cut": recurrence_cut,
    "bias dropped": wrapped(BiasDropped),
    "last step dropped": wrapped(LastStepDropped),
    "wrong rate": wrapped(WrongRate),
    "never moves": wrapped(NeverMoves),
    "half of the batch": wrapped(HalfOfTheBatch),
    "old weights": wrapped(OldWeights),
}
LANGUAGE: dict[str, Mutant] = {
    "state not carried": wrapped(StateNotCarried),
    "clip forgotten": clip_forgotten,
    "small gradients stretched": clipped(lambda right, norm: right._replace(divisor=norm)),
    "small gradients dropped": clipped(
        lambda right, norm: right._replace(divisor=right.divisor / (norm > right.bound))
    ),
}
DROPPING: dict[str, Mutant] = {
    "top dropout left out": top_dropout_left_out,
    "top dropout not drawn": redrawn(lambda masks: masks.units[-1].fill_(1)),
}
REUSING: dict[str, Mutant] = {
    "masks reused": masks_reused,
    "one mask for all layers": redrawn(same_for_all_layers),
    "one mask for all rows": redrawn(same_for_all(1)),
}
EACH_STEP: dict[str, Mutant] = {"one mask for all time steps": redrawn(same_for_all(0))}
WEIGHT_DROP: dict[str, Mutant] = {"weight drop without effect": weight_drop_without_effect}
DEEP: dict[str, Mutant] = {"top layer skipped": top_layer_skipped}
LSTMS: dict[str, Mutant] = {"second bias trained": wrapped(SecondBiasTrained)}
CLASSIFIER: dict[str, Mutant] = {
    "every step is the first": wrapped(EveryStepIsTheFirst),
    "backward cut": backward_cut,
}
CLIPPED: dict[str, Mutant] = {"clip forgotten": clip_forgotten}
FORWARD: dict[str, Mutant] = {"wrong forward": wrapped(WrongForward)}


def of(task: Any, passes: Sequence[str]) -> dict[str, Mutant]:
    """Return what can be wrong with a task's model."""
    config = task.config
    found = dict(EVERY)
    if isinstance(config, Config):
        found |= LANGUAGE | (LSTMS if config.cell == cells.LSTM else {})
        # Without a layer of another width what is above it would not fit.
        found |= DEEP if config.num_layers > 1 and len({*config.hidden_sizes}) == 1 else {}
        found |= WEIGHT_DROP if config.recurrent_keep_prob < 1 else {}
        if min(config.unit_keep_probs) < 1:
            found |= DROPPING | REUSING | ({} if config.variational else EACH_STEP)
    else:
        found |= CLASSIFIER | LSTMS | (DEEP if len(config.hidden_sizes) > 1 else {})
        found |= CLIPPED if config.clip_value is not None else {}
    return found | (FORWARD if "forward" in passes else {})
