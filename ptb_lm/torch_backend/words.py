"""Words on their way to a device: once for a whole split, or window by window.

Shapes: B = batch, L = length of a row, T = time steps.
"""

import numpy as np
import torch
from torch import Tensor

from ptb_lm.data.corpus import Words
from ptb_lm.data.text import Ids


def placed(rows_BL: Ids, device: torch.device) -> Tensor:
    """Return rows [B, L] on a device, laid out so that a window's words in time-major order are a view."""
    return torch.from_numpy(rows_BL.T.astype(np.int64, order="C")).to(device).T


def time_major(ids_BT: Words, device: torch.device) -> Tensor:
    """Return a window's words on a device, contiguous [T, B]; of placed rows nothing is copied."""
    if isinstance(ids_BT, Tensor):
        return ids_BT.T
    assert isinstance(ids_BT, np.ndarray)
    return torch.from_numpy(ids_BT.T.astype(np.int64, order="C")).to(device, non_blocking=True)
