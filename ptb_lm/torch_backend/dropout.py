"""Inverted dropout in torch: masks, and their random stream.

Dropout has its own random stream. So the masks are the same for every layer implementation, and a run is
resumable. Masks are drawn on the device, by nothing that waits for it.

Shapes: B = batch, T = time steps, V = vocabulary, R = ranks.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config
from ptb_lm.model.dropout_places import Masks, MaskSpec, hash_to_seed, mask_specs
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend import cpu

GENERATOR = "torch.generator"  # in a run's state: [bytes] of one process, [R, bytes] of several
SEED_BITS = 32  # the lowest of a seed, which are all that torch's generator of a CPU reads
# The saved state of a GPU's generator: the seed and the offset, 8 bytes each. Offsets are multiples of 4.
GPU_STATE_BYTES, GPU_OFFSET_MULTIPLE = 16, 4

# Smallest keep probability that is drawn with 16 random bits: they are right to 2**-17, less than a
# thousandth of it.
MIN_KEEP_PROB_OF_16_BITS = 0.01


class WindowDropout:
    """The masks of a language model, drawn window by window.

    Args:
        config: Hyper-parameters.
        vocabulary_size: V.
        device: Device on which the masks are drawn.
        dtype: Type of the masks.
        seed: Seed of the stream.
    """

    def __init__(
        self, config: Config, vocabulary_size: int, *, device: torch.device, dtype: torch.dtype, seed: int
    ) -> None:
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.dtype = dtype
        self.generator = torch.Generator(device)
        self.generator.manual_seed(seed)
        self._specs: dict[tuple[int, int], Masks[MaskSpec]] = {}

    def draw(self, batch: int, steps: int) -> Masks[Tensor]:
        """Return the next window's masks; see ptb_lm.model.dropout_places.

        Args:
            batch: B.
            steps: T.
        """
        if (batch, steps) not in self._specs:
            self._specs[batch, steps] = mask_specs(
                self.config, self.vocabulary_size, batch=batch, steps=steps
            )
        return self._specs[batch, steps].map(lambda spec: draw_mask(spec, self.generator, self.dtype))

    def preview(self, batch: int, steps: int) -> Masks[NDArray[np.bool_]]:
        """Return the parts that the next window's masks will keep, without advancing the random stream."""
        state = self.generator.get_state()
        masks = self.draw(batch, steps)
        self.generator.set_state(state)
        return masks.map(lambda mask: (mask != 0).cpu().numpy())


@contextlib.contextmanager
def mask_weights(masks: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Multiply parameters by masks inside this context. After it they have their old values, to the bit.

    In place, so that every layer computes with its weights as they lie, cuDNN's too, whatever runs it.
    """
    kept = {parameter: parameter.detach().clone() for parameter in masks}
    for parameter, mask in masks.items():
        parameter.detach().mul_(mask)
    try:
        yield
    finally:
        for parameter, value in kept.items():
            parameter.detach().copy_(value)


def draw_mask(spec: MaskSpec, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Return a mask: 0 with probability 1 - keep_prob, else 1 / keep_prob, as `dtype` rounds it."""
    mask = torch.empty(spec.shape, device=generator.device, dtype=dtype)
    if generator.device.type != "cpu" or spec.keep_prob < MIN_KEEP_PROB_OF_16_BITS:
        return mask.bernoulli_(spec.keep_prob, generator=generator).div_(spec.keep_prob)
    # bernoulli_ draws in double precision, one number after the other. Here a random word serves four units,
    # 16 bits for each: the probability is right to 2^-17.
    words = torch.empty(-(-mask.numel() // 4), device="cpu", dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    largest_kept = round(spec.keep_prob * 2**16) - 1
    random = words.view(torch.uint16)[: mask.numel()].view(mask.shape)
    if (kernels := cpu.find_kernels(mask)) is not None:
        kernels.mask(mask, random, largest_kept, mask.new_ones(()).div_(spec.keep_prob).item())
        return mask
    # torch can compare signed words alone.
    kept = (random.view(torch.int16) ^ -(2**15)) <= largest_kept - 2**15
    return mask.copy_(kept).div_(spec.keep_prob)


def derive_seed(seed: int, ranks: Ranks = SINGLE_PROCESS) -> int:
    """Return the seed of a rank's stream, from the seed of the run.

    One process alone uses the run's seed, unless that has more bits than torch's generator of a CPU reads.
    """
    if ranks.size == 1 and seed < 2**SEED_BITS:
        return seed
    return hash_to_seed(f"{seed}".encode(), f"{ranks.rank} of {ranks.size}")


def restore_generator(generator: torch.Generator, streams: NDArray[Any], ranks: Ranks) -> None:
    """Continue the stream that this rank saved.

    If the number of ranks was another one, or if the streams were saved on a CPU and this is a GPU or the
    other way round, begin a new stream. It depends on the saved streams, so that no earlier masks come again.

    Raises:
        UserError: The saved arrays are states of no generator of torch.
    """
    by_rank = streams[None] if streams.ndim == 1 else streams
    try:
        state = torch.from_numpy(by_rank[ranks.rank % max(1, len(by_rank))].copy())
        from_other_device = is_from_other_device(state, generator.device)
        if not from_other_device:
            generator.set_state(state)
    except (RuntimeError, TypeError, IndexError) as error:
        raise UserError(f"the random stream of dropout was not saved by torch ({error})") from None
    if from_other_device or len(by_rank) != ranks.size:
        origin = np.ascontiguousarray(streams).tobytes()
        generator.manual_seed(hash_to_seed(origin, f"{ranks.rank} of {ranks.size}"))


def is_from_other_device(state: Tensor, device: torch.device) -> bool:
    """Return whether a generator's state was saved on a GPU and this device is a CPU, or the other way round.

    Args:
        state: The generator's state, [bytes]; False if it is damaged.
        device: The device of the generator that continues.
    """
    if state.dtype != torch.uint8 or state.ndim != 1:
        return False
    if device.type == "cpu":
        return len(state) == GPU_STATE_BYTES and int(state[8:].view(torch.int64)) % GPU_OFFSET_MULTIPLE == 0
    try:
        torch.Generator().set_state(state)
    except RuntimeError:
        return False
    return True
