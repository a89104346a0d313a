"""The weights and the data of a comparison, chosen so that every mistake shows.

At a training run's initial weights nothing would: with every LSTM weight zeroed, the loss of small moves by
2e-5 of itself. Here gates, state and outputs are of order one whatever the widths, biases too; forget gates
remember for one step to a whole window; and logits lie far apart, so that the loss hangs on every output.

The loss of small's window (2 x 200 units, 20 x 20 steps, a vocabulary of 2,000, float64) moves by:

| what is wrong | loss | least of the tensors' gradients |
|---|--:|--:|
| input and forget gate swapped | 5.9e-3 | 59 % |
| no recurrence: its kernels zero | 1.8e-2 | 49 % |
| no biases | 3.2e-1 | 88 % |
| the top layer skipped | 8.7e-2 | 91 % |
| the state not carried (next window) | 1.1e-1 | |
| the first word of each row another | 1.2e-3 | 2 % |

Without the longer memory of the forget gates the last two are 2.8e-2 and 2.8e-4.

Shapes: B = batch, T = time steps, H = a layer's hidden units.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ptb_lm.bench.workloads import LanguageTask, Task
from ptb_lm.model import parameters
from ptb_lm.model.cells.cell import MemoryGates
from ptb_lm.model.config import Config

Weights = dict[str, NDArray[np.float64]]

# How far apart logits lie: their standard deviation, for a top output of order one.
LOGITS = 8.0
# The same for CTC, which adds up logarithms of probabilities over all steps. The rounding of such a sum is a
# relative error of the probability. Of 1000 steps of logits 8 apart CTC's own gradient in float32, by torch
# or TensorFlow, is off by 2e-3 to 1e-2 of its norm, and 1 apart by 5e-4 to 3e-3. Each step counts even so.
LOGITS_OF_CTC = 1.0
# How far each step moves the weights: the norm of all, where the gradient is clipped. The first is short:
# after a first step of 20, bfloat16's rounding error showed ten times as large in the second gradient. The
# second is long, so that the rounding of the weights does not show in a gradient that is read off them.
UPDATES = (1.0, 20.0)
STEPS = len(UPDATES)
# Time steps of the longest window whose second step can be foreseen after such a first update. In AWD-LSTM's
# three layers, over 70 steps, bfloat16 rounds 4 % of a gradient. Where it moved the weights by 1, float32
# finds a second gradient that is off by 24 to 27 %, by 0.5 by 12 to 14 %, and by 0.25 by 7 %.
LONGEST_FORESEEN = 50
SHORTER = 0.25  # the first update of longer windows, as a part of that of others
# Multiply-adds of a forward pass that the reference is asked for: some seconds on a core. Of a larger task
# some rows are distinct, and the others copies of them: the variant computes them all, at its own batch size,
# and loss and gradients, which are means over the rows, are those of the distinct ones.
MULTIPLY_ADDS = 1e10
# Distinct ones, of a batch of an even size: a variant that mixes rows up must not go unnoticed.
LEAST_ROWS = 2


def updates(steps: int) -> tuple[float, ...]:
    """Return how far each training step on windows of so many time steps moves the weights; see UPDATES."""
    first, *others = UPDATES
    return (first if steps <= LONGEST_FORESEEN else SHORTER * first, *others)


def language_weights(task: LanguageTask, *, seed: int) -> Weights:
    """Draw the weights of a language model; see `weights`."""
    keep = {name: _keep_prob(name, task.config) for name in task.shapes}
    return weights(task.shapes, steps=task.config.num_steps, seed=seed, keep=keep)


def _keep_prob(name: str, config: Config) -> float:
    """Return how probably dropout keeps a product of a matrix: by the mask of its input, or by its own."""
    if name.endswith(".recurrent_kernel"):
        return config.recurrent_keep_prob
    words = config.embedding_keep_prob if name.endswith(".0.kernel") else 1.0
    layer = int(name.split(".")[1]) if parameters.owner(name) else config.num_layers
    return config.unit_keep_probs[layer] * words


def weights(
    shapes: parameters.Shapes,
    *,
    steps: int,
    seed: int,
    logits: float = LOGITS,
    keep: Mapping[str, float] | None = None,
) -> Weights:
    """Draw weights, float64, in values that float32 holds: the variant and the reference start from the same.

    Args:
        shapes: Shapes by canonical name.
        steps: Time steps, T.
        seed: Seed of the draw.
        logits: Standard deviation of the logits.
        keep: Probability that dropout keeps a product of each matrix, by name. A product that is kept is
            scaled by 1 / keep. A sum's variance grows by as much, so the weights are smaller by the root.
            Otherwise gates saturate, and the recurrence, close to chaos, multiplies the errors of half
            precision.
    """
    rng, drawn = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        is_matrix = parameters.is_matrix(name, shape) and name != "embedding"
        scale = 1 / math.sqrt(shape[-2]) if is_matrix else 1.0
        if name in ("softmax.kernel", "dense.kernel"):
            scale *= logits
        if name == "embedding" and "softmax.kernel" not in shapes:  # it is the softmax's kernel as well
            scale = logits / math.sqrt(shape[1])
        if keep and (name.endswith("kernel") or (name == "embedding" and "softmax.kernel" not in shapes)):
            scale *= math.sqrt(keep[name])
        array = rng.normal(0, scale, shape)
        cell = parameters.owner(name)
        if cell and cell.memory_gates and name.endswith(f".{cell.memory_gates.bias}"):
            _remember(array, cell.memory_gates, steps=steps, rng=rng)
        drawn[name] = array.astype(np.float32).astype(np.float64)
    if "embedding" in drawn and "softmax.kernel" in drawn:
        for name, array in drawn.items():
            if name.endswith(".0.kernel"):  # what multiplies x has another name in some cells
                _lengthen_gradient(drawn["embedding"], array)
    return drawn


def _lengthen_gradient(embedding_VE: NDArray[np.float64], kernel: NDArray[np.float64]) -> None:
    """Make the embedding's gradient about as long as that of the kernel that reads it, [E, ...].

    Every other unit of the embedding is smaller, and the kernel's row for it larger, by the same power of
    two: their product is the same to the bit, and the gradient of these units longer. The kernel's is as long
    as before in the other rows. Without that the embedding's part of the norm is below the bounds of small
    and medium, so a norm that leaves it out would pass (tests/mutants.py, embedding_left_out).
    """
    factor = 2.0 ** round(math.log2(embedding_VE.shape[1]) / 2)
    embedding_VE[:, ::2] /= factor
    kernel[::2] *= factor


def _remember(
    bias: NDArray[np.float64], memory_gates: MemoryGates, *, steps: int, rng: np.random.Generator
) -> None:
    """Move a bias so that its units remember for 1 to T steps.

    As in Tallec and Ollivier, "Can recurrent neural networks warp time?", 2018, section 2. Input gates are
    narrower by the root of it, so that a sum of that many random inputs stays of order one. Without that four
    layers are chaotic over 1000 steps: of a rounding in float32 a gradient is off by 1 %. With it the first
    step still moves the last output, by 2 %.
    """
    gates = bias.reshape(memory_gates.gates, -1)  # a view
    times = np.log(rng.uniform(1, max(steps, 2), gates.shape[1]))
    gates[memory_gates.forget] += times
    gates[memory_gates.input] -= times / 2


def distinct_rows(task: Task) -> int:
    """Return how many rows of the batch differ from each other; there are as many copies of each."""
    affordable = max(LEAST_ROWS, int(MULTIPLY_ADDS * task.batch_size / task.multiply_adds))
    most = min(affordable, task.batch_size)
    return max(rows for rows in range(1, most + 1) if not task.batch_size % rows)


def copy_indices(task: Task, distinct: int) -> NDArray[np.integer]:
    """Return the index of the distinct row for each row of the batch: copies lie side by side.

    So the mean over a part of the batch, its first half for example, is not the mean over all of it.
    """
    return np.arange(task.batch_size) * distinct // task.batch_size
