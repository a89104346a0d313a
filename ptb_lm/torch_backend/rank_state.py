"""What each rank has for itself, and is saved with a run's state: a random stream, and what its rows carry.

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
SEED_BITS = 32  # of a seed, the lowest, that torch's generator of a CPU reads
# What torch saves of a GPU's generator: the seed and the offset, 8 bytes each. Offsets are multiples of 4.
OF_A_GPU, OFFSETS = 16, 4


def seed(seed: int, ranks: Ranks = SINGLE_PROCESS) -> int:
    """Return the seed of a rank's stream, from that of the run.

    One process alone has the run's own, unless that has more bits than torch's generator of a CPU reads.
    """
    if ranks.size == 1 and seed < 2**SEED_BITS:
        return seed
    return _derived(f"{seed}".encode(), ranks)


def of_all(carried: Arrays, generator: torch.Generator, ranks: Ranks) -> Arrays:
    """Return what the rows of all ranks carry, each [L, B, H] as `carried` is, and their streams."""
    stream = generator.get_state().numpy()
    if ranks.size == 1:
        return {**carried, GENERATOR: stream}
    everywhere: Sequence[Arrays] = ranks.gather({**carried, GENERATOR: stream})
    return {
        **{name: np.concatenate([there[name] for there in everywhere], axis=1) for name in carried},
        GENERATOR: np.stack([there[GENERATOR] for there in everywhere]),
    }


def exported(state: State, names: Sequence[str], dtype: torch.dtype) -> Arrays:
    """Return what this rank's rows carry, by the names of its parts, each [L, B, H]."""
    return {
        name: torch.stack(parts).to("cpu", dtype).numpy()
        for name, parts in zip(names, zip(*state, strict=True), strict=True)
    }


def restored(
    arrays: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    zero_state: Callable[[int], State],
    ranks: Ranks,
) -> State:
    """Return what this rank's rows carry, from what was saved for the rows of all ranks.

    Args:
        arrays: Among others the parts, each [L, B, H], B the rows of all ranks.
        names: Of the parts.
        zero_state: Returns a state for a number of rows, to be written into.
        ranks: This rank and the others.
    """
    mine = ranks.share(arrays[names[0]].shape[1])
    saved = [torch.from_numpy(arrays[name][:, mine].copy()) for name in names]
    state = zero_state(saved[0].shape[1])
    for layer, saved_layer in zip(state, zip(*saved, strict=True), strict=True):
        for part_BH, saved_BH in zip(layer, saved_layer, strict=True):
            part_BH.copy_(saved_BH)
    return state


def load(generator: torch.Generator, saved: NDArray[Any], ranks: Ranks) -> None:
    """Go on with the stream that this rank saved.

    If it was another number of ranks, or if they were saved on a CPU and this is a GPU or the other way
    round, begin a stream of its own. It depends on those that were saved, so that no masks of before come
    again.

    Raises:
        UserError: They are of no generator of torch.
    """
    of_ranks = saved[None] if saved.ndim == 1 else saved
    try:
        state = torch.from_numpy(of_ranks[ranks.rank % len(of_ranks)].copy())
        elsewhere = _is_of_the_other_kind(state, generator.device)
        if not elsewhere:
            generator.set_state(state)
    except (RuntimeError, TypeError) as error:
        raise UserError(f"the random stream of dropout was not saved by torch ({error})") from None
    if elsewhere or len(of_ranks) != ranks.size:
        generator.manual_seed(_derived(np.ascontiguousarray(saved).tobytes(), ranks))


def _is_of_the_other_kind(state: Tensor, device: torch.device) -> bool:
    """Return whether a generator's state was saved on a GPU and this device is a CPU, or the other way round.

    Args:
        state: [bytes]; it may be damaged, and is then of no kind.
        device: The one that goes on.
    """
    if state.dtype != torch.uint8 or state.ndim != 1:
        return False
    if device.type == "cpu":
        return len(state) == OF_A_GPU and int(state[8:].view(torch.int64)) % OFFSETS == 0
    try:
        torch.Generator().set_state(state)
    except RuntimeError:
        return False
    return True


def _derived(origin: bytes, ranks: Ranks) -> int:
    digest = hashlib.sha256(origin + f" {ranks.rank} of {ranks.size}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
