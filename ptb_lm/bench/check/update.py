"""How far a training step moves the weights: by its rate and its gradient, which is clipped or is not.

Where gradients are compared they are far longer than the bound on their norm (problem.py), and in a training
many are shorter. So a step is done whose gradient is shorter: a model that clips all the same, or that moves
nothing then, has passed everything else. Which way it moves is not looked at here.

Shapes: B = batch, T = time steps.
"""

import math

import numpy as np

from ptb_lm.bench.check import problem
from ptb_lm.bench.check.bounds import Errors, WrongError
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.data.text import Ids
from ptb_lm.model.backend import Arrays, Backend

# The length that is looked for, as a part of the bound: not so short that rounding shows.
LEAST, WANTED, MOST = 0.1, 0.4, 0.8
TRIES = 12  # in float16 each may halve the loss scale


def copy_weights(model: Backend) -> Arrays:
    """Return the parameters as they are now: somebody's own program may export the memory that it trains."""
    return {name: np.array(value) for name, value in model.export_weights().items()}


def check_short_gradient(task: LanguageTask, model: Backend, errors: Errors, *, seed: int) -> bool:
    """Check a training step whose gradient is shorter than the bound on its norm.

    All targets are one word, and the softmax's bias for it decides how sure the model is of them: with it the
    gradient grows and shrinks. Where no bias makes it as short as is wanted, nothing is checked.

    Args:
        task: Task of the model.
        model: Model of the task's configuration.
        errors: Errors to add to.
        seed: Seed of weights and words.

    Returns:
        Whether it was checked.

    Raises:
        WrongError: The step does not move what it should, or no gradient is finite.
    """
    # So small that the logits are of order one, and that penalties on the output add little to the gradient.
    drawn = problem.language_weights(task, seed=seed)
    weights = {name: array / problem.LOGITS for name, array in drawn.items()}
    x_BT, y_BT = task.window(seed=seed)
    y_BT = np.zeros_like(y_BT)
    bias = math.log(task.vocabulary_size) + 1
    for _ in range(TRIES):
        weights["softmax.bias"] = np.zeros(task.vocabulary_size)
        weights["softmax.bias"][0] = bias
        model.load_weights(weights)
        _, loss = model.train_step(x_BT, y_BT, model.zero_state(task.batch_size), learning_rate=0.0)
        (measured,) = model.read([loss])
        part = measured.gradient_norm / task.config.max_grad_norm
        if LEAST < part < MOST:
            check_update(task, model, errors, x_BT, y_BT, what="with a small gradient")
            return True
        if 0 < part < math.inf:  # float16's may overflow
            bias += math.log(part / WANTED)
    if not math.isfinite(part):
        raise WrongError("the norm of its gradient is not finite, although the gradient is small")
    return False


def check_update(
    task: LanguageTask, model: Backend, errors: Errors, x_BT: Ids, y_BT: Ids, *, what: str
) -> None:
    """Check that a training step moves every tensor, and all together by their clipped gradient.

    Args:
        task: Task of the model.
        model: The model.
        errors: Errors to add to.
        x_BT: Words of the window.
        y_BT: The words after them.
        what: Description of the step, for people.

    Raises:
        WrongError: It does not.
    """
    clip = task.config.max_grad_norm
    rate = problem.UPDATES[-1] / clip  # so large that the weights' own rounding does not count
    before = copy_weights(model)
    _, loss = model.train_step(x_BT, y_BT, model.zero_state(task.batch_size), learning_rate=rate)
    (measured,) = model.read([loss])
    after = copy_weights(model)
    decayed = 1 - rate * task.weight_decay
    moved = {
        name: float(np.linalg.norm(decayed * before[name].astype(np.float64) - after[name]))
        for name in before
    }
    for name, distance in moved.items():
        if distance == 0:
            raise WrongError(f"its training step {what} does not move {name}")
    clipped = max(min(measured.gradient_norm, clip), np.finfo(np.float64).tiny)
    off = float(abs(math.hypot(*moved.values()) / rate - clipped) / clipped)
    errors.add(
        "norm", f"update of the weights in a training step {what}", off, beside="its gradient after clipping"
    )
