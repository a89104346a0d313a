"""Whether a language model's loss is right at the workload's own size: compared with the NumPy reference.

The gradients are compared on a cut (parity.py). What goes wrong with size alone, another kernel for wide
layers or an index that overflows, shows in the loss of a whole window. The reference only runs forward, in
float32 but for float64's variants.

Shapes: B = batch, T = time steps, H = hidden units, V = vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptb_lm.bench import parity
from ptb_lm.bench.bounds import BOUNDS
from ptb_lm.bench.parity import Build, WrongError
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.data.text import Ids
from ptb_lm.model import reference, reference_stack
from ptb_lm.model.backend import Backend

# What the reference does in some ten seconds on two slow cores. Of a larger window some rows are compared.
MULTIPLY_ADDS = 1e11
# Logits so far apart that the loss hangs on each output of the top layer.
LOGITS = 8.0


def check(task: LanguageTask, build: Build, *, precision: str, seed: int) -> dict[str, float]:
    """Compare the loss of a window of the workload's size with the reference's.

    The window is less its last step, because one of another shape than training's is not compiled anew.

    Args:
        task: What the variant is to do.
        build: Builds the variant, from a configuration and canonical weights.
        precision: A name in BOUNDS.
        seed: Of weights and words.

    Returns:
        whole_loss_error: relative; whole_rows: of how many of the window's rows.

    Raises:
        WrongError: It exceeds the precision's bound.
    """
    rows = max(1, min(task.batch_size, int(task.batch_size * MULTIPLY_ADDS / task.multiply_adds)))
    dtype = np.float64 if precision == "fp64" else np.float32
    weights = parity.random_weights(task.shapes, seed, dtype)
    weights["softmax.kernel"] *= LOGITS
    x_BT, y_BT = (ids_BT[:rows, :-1] for ids_BT in task.window(seed=seed))
    backend: Backend = build(task.config, weights)
    _, loss = backend.evaluate_step(x_BT, y_BT, backend.zero_state(rows))
    expected = _loss(weights, x_BT, y_BT)
    error, bound = abs(backend.read([loss])[0].nll - expected) / expected, BOUNDS[precision].whole
    if not error <= bound:  # NaN is wrong, too
        raise WrongError(
            f"its loss at the workload's size is off by {error:.1e} from the NumPy reference's, more than "
            f"{bound:.0e}"
        )
    return {"whole_loss_error": error, "whole_rows": rows}


def _loss(weights: Mapping[str, NDArray[Any]], x_BT: Ids, y_BT: Ids) -> float:
    """Return the negative log likelihood of the window, in nats, from the zero state."""
    state = reference_stack.stack_zero_state(weights, len(x_BT))
    output_TBH, _, _ = reference_stack.stack_forward(weights, weights["embedding"][x_BT.T], state)
    loss = 0.0
    for output_BH, y_B in zip(output_TBH, y_BT.T, strict=True):  # all logits at once would take a gigabyte
        log_p_BV = reference.log_softmax(output_BH @ weights["softmax.kernel"] + weights["softmax.bias"])
        loss -= float(np.take_along_axis(log_p_BV, y_B[:, None], axis=1).sum(dtype=np.float64))
    return loss
