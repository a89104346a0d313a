"""The parts of a run's state that each rank has for itself: its random stream and its rows' carried state.

Shapes: L = layers, B = batch, H = hidden units, R = ranks.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ptb_lm.common.errors import UserError
from ptb_lm.model.backend import Arrays
from ptb_lm.model.ranks import SINGLE_PROCESS, Ranks
from ptb_lm.torch_backend.stack import State

GENERATOR = "torch.generator"  # in a run's state: [bytes] of one process, [R, bytes] of several
SEED_BITS = 32  # the lowest of a seed, which are all that torch's generator of a CPU reads
# The saved state of a GPU's generator: the seed and the offset, 8 bytes each. Offsets are multiples of 4.
GPU_STATE_BYTES, GPU_OFFSET_MULTIPLE = 16, 4


def derive_seed(seed: int, ranks: Ranks = SINGLE_PROCESS) -> int:
    """Return the seed of a rank's stream, from the seed of the run.

    One process alone uses the run's seed, unless that has more bits than torch's generator of a CPU reads.
    """
    if ranks.size == 1 and seed < 2**SEED_BITS:
        return seed
    return _hash_to_seed(f"{seed}".encode(), ranks)


def gather_state(carried: Arrays, generator: torch.Generator, ranks: Ranks) -> Arrays:
    """Return the carried state of all ranks' rows, [L, B, H] as `carried` is, and the ranks' streams."""
    stream = generator.get_state().numpy()
    if ranks.size == 1:
        return {**carried, GENERATOR: stream}
    everywhere: Sequence[Arrays] = ranks.gather({**carried, GENERATOR: stream})
    return {
        **{name: np.concatenate([there[name] for there in everywhere], axis=1) for name in carried},
        GENERATOR: np.stack([there[GENERATOR] for there in everywhere]),
    }


def export_carried(state: State, names: Sequence[str], dtype: torch.dtype) -> Arrays:
    """Return the carried state of this rank's rows by the names of its parts, each [L, B, H]."""
    return {
        name: torch.stack(parts).to("cpu", dtype).numpy()
        for name, parts in zip(names, zip(*state, strict=True), strict=True)
    }


def restore_carried(
    arrays: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    zero_state: Callable[[int], State],
    ranks: Ranks,
) -> State:
    """Return the carried state of this rank's rows, from the saved state of the rows of all ranks.

    Args:
        arrays: Saved arrays; among them the parts, each [L, B, H], where B are the rows of all ranks.
        names: The names of the parts.
        zero_state: Function that returns a state for a number of rows, to be written into.
        ranks: The processes that train together.
    """
    mine = ranks.share(arrays[names[0]].shape[1])
    parts = [torch.from_numpy(arrays[name][:, mine].copy()) for name in names]
    state = zero_state(parts[0].shape[1])
    for layer, saved_layer in zip(state, zip(*parts, strict=True), strict=True):
        for part_BH, saved_BH in zip(layer, saved_layer, strict=True):
            part_BH.copy_(saved_BH)
    return state


def restore_generator(generator: torch.Generator, streams: NDArray[Any], ranks: Ranks) -> None:
    """Continue the stream that this rank saved.

    If the number of ranks was another one, or if the streams were saved on a CPU and this is a GPU or the
    other way round, begin a new stream. It depends on the saved streams, so that no earlier masks come again.

    Raises:
        UserError: The saved arrays are states of no generator of torch.
    """
    by_rank = streams[None] if streams.ndim == 1 else streams
    try:
        state = torch.from_numpy(by_rank[ranks.rank % len(by_rank)].copy())
        from_other_device = _is_from_other_device(state, generator.device)
        if not from_other_device:
            generator.set_state(state)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"the random stream of dropout was not saved by torch ({error})") from None
    if from_other_device or len(by_rank) != ranks.size:
        generator.manual_seed(_hash_to_seed(np.ascontiguousarray(streams).tobytes(), ranks))


def _is_from_other_device(state: Tensor, device: torch.device) -> bool:
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


def _hash_to_seed(origin: bytes, ranks: Ranks) -> int:
    digest = hashlib.sha256(origin + f" {ranks.rank} of {ranks.size}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
