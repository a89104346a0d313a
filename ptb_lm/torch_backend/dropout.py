"""Inverted dropout in torch, with its own random stream.

Its own stream makes the masks the same for every layer implementation, and a run resumable. Masks are drawn
on the device, by nothing that waits for it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, Place, places
from ptb_lm.torch_backend import cpu

# A rarer unit would be kept at a rate that 16 bits miss by more than a thousandth.
LEAST_BY_WORDS = 0.01

Dropout = Callable[[Tensor], Tensor]


class InvertedDropout:
    """Dropout with a fresh mask at each call.

    Args:
        keep_prob: Probability that a unit is kept; kept units are divided by it.
        device: Where the masks are drawn.
        seed: Of the stream.
    """

    def __init__(self, keep_prob: float, *, device: torch.device, seed: int) -> None:
        self.keep_prob = keep_prob
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x with a fresh mask applied."""
        if self.keep_prob == 1:
            return x
        return x * _drawn(Place(tuple(x.shape), self.keep_prob), self.generator, x.dtype)


class WindowDropout:
    """Draws a language model's masks, window by window.

    Args:
        config: The hyper-parameters.
        vocabulary_size: V.
        device: Where the masks are drawn.
        dtype: Of the masks.
        seed: Of the stream.
    """

    def __init__(
        self, config: Config, vocabulary_size: int, *, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)

    def draw(self, batch: int, steps: int) -> Masks[Tensor]:
        """Return the next window's masks; see ptb_lm.model.dropout_places.

        Args:
            batch: B.
            steps: T.
        """
        drawn = places(self.config, self.vocabulary_size, batch=batch, steps=steps)
        return Masks(
            {name: _drawn(place, self.generator, self.dtype) for name, place in drawn.weights.items()},
            [_drawn(place, self.generator, self.dtype) for place in drawn.units],
        )

    def next_kept(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that the next window's masks will keep, without advancing the random stream."""
        state = self.generator.get_state()
        masks = self.draw(batch, steps)
        self.generator.set_state(state)
        return Masks(
            {name: (mask != 0).cpu().numpy() for name, mask in masks.weights.items()},
            [(mask != 0).cpu().numpy() for mask in masks.units],
        )


def no_dropout(x: Tensor) -> Tensor:
    """Return x unchanged; evaluation uses this."""
    return x


def one_after_another(masks: Sequence[Tensor]) -> Dropout:
    """Return a function that applies one mask per call; without masks it changes nothing."""
    if not masks:
        return no_dropout
    remaining = iter(masks)
    return lambda x: x * next(remaining)


@contextlib.contextmanager
def multiplied(factors: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Multiply parameters by factors inside this context. After it they have their old values, to the bit.

    In place, so that every layer computes with its weights as they lie, cuDNN's too, whatever runs it.
    """
    kept = {parameter: parameter.detach().clone() for parameter in factors}
    with torch.no_grad():
        for parameter, factor in factors.items():
            parameter.mul_(factor)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)


def _drawn(place: Place, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return a mask: 0 with probability 1 - keep_prob, else 1 / keep_prob."""
    mask = torch.empty(place.shape, device=generator.device, dtype=dtype)
    if generator.device.type != "cpu" or place.keep_prob < LEAST_BY_WORDS:
        return mask.bernoulli_(place.keep_prob, generator=generator).div_(place.keep_prob)
    # bernoulli_ draws in double precision, one number after the other. Here a random word serves four units,
    # 16 bits for each: the probability is right to 2^-17.
    words = torch.empty(-(-mask.numel() // 4), device="cpu", dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    most = round(place.keep_prob * 2**16) - 1
    random = words.view(torch.uint16)[: mask.numel()].view(mask.shape)
    if (kernels := cpu.find_kernels(mask)) is not None:
        kernels.mask(mask, random, most, mask.new_ones(()).div_(place.keep_prob).item())
        return mask
    # Of such words torch can compare signed ones alone.
    kept = (random.view(torch.int16) ^ -(2**15)) <= most - 2**15
    return mask.copy_(kept).div_(place.keep_prob)
