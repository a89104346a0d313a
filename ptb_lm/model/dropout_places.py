"""The places of dropout in a language model, for all backends: its masks' shapes, probabilities and order.

A mask is 0 where something is dropped and 1 / keep_prob where it is kept (inverted dropout), so that nothing
is scaled in evaluation. All masks are drawn anew for each window.

Shapes: B = batch, T = time steps, E = embedding width, H = hidden units, L = layers, V = vocabulary.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from ptb_lm.model.config import Config

Mask = TypeVar("Mask")
Other = TypeVar("Other")


class MaskSpec(NamedTuple):
    """The shape of a mask, and the probability that it keeps an element."""

    shape: tuple[int, ...]
    keep_prob: float


class Masks(NamedTuple, Generic[Mask]):
    """A window's masks, or their specifications.

    Attributes:
        weights: Masks of parameters by canonical name: [V, 1] for `embedding`, so that all occurrences of a
            word share their fate; for each layer's recurrent kernel, [H, 4H] in an LSTM. A parameter without
            dropout has none.
        units: L + 1 masks: of the embedding's output [T, B, E] and of each layer's [T, B, H]; [1, B, ...] if
            they hold for all time steps. Empty if no units are dropped.
    """

    weights: Mapping[str, Mask]
    units: Sequence[Mask]

    def map(self, function: Callable[[Mask], Other]) -> "Masks[Other]":
        """Return the results of a function of each mask, called in the order in which masks are drawn."""
        weights = {name: function(mask) for name, mask in self.weights.items()}
        return Masks(weights, [function(mask) for mask in self.units])


def mask_specs(config: Config, vocabulary_size: int, *, batch: int, steps: int) -> Masks[MaskSpec]:
    """Return the shape and keep probability of each of a window's masks.

    They are drawn in this order: weights, then units, each as they stand.
    """
    weights: dict[str, MaskSpec] = {}
    if config.embedding_keep_prob < 1:
        weights["embedding"] = MaskSpec((vocabulary_size, 1), config.embedding_keep_prob)
    if config.recurrent_keep_prob < 1:
        for layer, hidden in enumerate(config.hidden_sizes):
            shape = config.cell_declaration.shapes(hidden, hidden)["recurrent_kernel"]
            weights[f"{config.cell}.{layer}.recurrent_kernel"] = MaskSpec(shape, config.recurrent_keep_prob)
    units: list[MaskSpec] = []
    if min(config.unit_keep_probs) < 1:
        widths, masks = (config.embedding_width, *config.hidden_sizes), 1 if config.variational else steps
        units = [
            MaskSpec((masks, batch, width), keep_prob)
            for width, keep_prob in zip(widths, config.unit_keep_probs, strict=True)
        ]
    return Masks(weights, units)


def hash_to_seed(origin: bytes, place: str) -> int:
    """Return a seed of 63 bits for one of several random streams.

    Args:
        origin: The seed of them all, or the saved streams that they follow.
        place: The stream's place among them.
    """
    digest = hashlib.sha256(origin + f" {place}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
