"""A language model is asked for two consecutive training steps, and for two windows scored where those count.

Dropout. What is timed is what is compared, as it stands, wherever that is possible:

- A configuration without dropout is compared as it is.
- This package's own models tell the masks of their next window (`next_masks`), and the reference computes
  with the same: no other graph is compiled, and a mask that is left out, or scaled wrongly, is an error like
  any.
- Of others, whose masks are drawn inside a framework's own operation (torch.nn.LSTM's between its layers, a
  Keras layer's), nobody knows them. What is timed is compared while its dropout is switched off, if it has
  `without_dropout`; otherwise a second model of the same shape, execution and precision with all keep
  probabilities 1 is. Besides, of what is timed the loss of training steps with dropout, at a learning rate
  of 0, must be that of the reference with masks of its own, as near as a mean over random masks can be, and
  a step at a real rate must move every tensor, and all of them together by what its gradient is after
  clipping. The first finds what is wrong in the computation, the second dropout that is missing, and steps
  that leave something out.

In all of these the gradient is clipped. So one more step is done, whose gradient is too short for that
(update.py).

The norm. A variant may sum up its norm as torch does, in float32 (bounds.py), and clips by what it found.
That norm is held to its own bound. All else is compared as it follows from it: gradients are read off the
weights by the variant's own norm, and the reference's second step begins as far from the first as the
variant's does (language_question.extrapolate). So no bound is wider for it.

A norm that leaves a tensor out is too small by half the tensor's part of its square. In float32 that shows
for each tensor of small and medium, but for medium's lowest bias if the variant tells this norm, too. The
parts of the gates' biases in the Mogrifier's lowest layer, and of the softmax's bias in AWD-LSTM, are too
small to show. In half precision only those of the larger tensors are not.

Shapes: B = batch, T = time steps, L = length of a row.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptb_lm.bench import rows
from ptb_lm.bench.check import dropout, expected, problem, update
from ptb_lm.bench.check.bounds import BOUNDS, CheckResult, Errors, WrongError
from ptb_lm.bench.check.language_question import LanguageQuestion, extrapolate
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.data import corpus
from ptb_lm.model import parameters
from ptb_lm.model.backend import Backend

OVERFLOWS = 12  # of float16, after each of which the loss is scaled by half as much


def check(
    task: LanguageTask,
    build: Callable[..., Any],
    model: Backend,
    *,
    precision: str,
    seed: int,
    passes: Collection[str] = ("train",),
    earlier: CheckResult | None = None,
) -> CheckResult:
    """Compare a language model with the reference; see ptb_lm.bench.check.check."""
    errors = _errors(task, precision)
    if not dropout.hides_masks(task, model):
        question = _question(task, passes, seed)
        first = _compare(model, question, errors)
        how = "the reference had the same masks" if task.config.has_dropout else "there is none"
    else:
        question = _question(dropout.without_dropout(task), passes, seed)
        without = getattr(model, "without_dropout", None)  # None if it cannot switch its dropout off
        if without:
            with without():
                first, how = _compare(model, question, errors), "it was switched off"
        elif not earlier:
            second = build(question.task.config, question.weights)
            first, how = _compare(second, question, errors), rows.SECOND_MODEL
            _compare(second, question, errors)  # its later steps, too: only `model` is compared again
        deviations, seconds = dropout.check_losses(task, model, errors, seed=seed)
        if earlier:
            update.check_short_gradient(task, model, errors, seed=seed)
            return earlier
        if not without:
            first = first._replace(seconds=seconds)
        how = (
            f"{how}; with it, the mean of {dropout.WINDOWS} losses is off by "
            f"{deviations:.1f} standard deviations; a step moves the weights by its gradient's norm"
        )
    unclipped = update.check_short_gradient(task, model, errors, seed=seed)
    return CheckResult(
        loss=first.loss / task.config.num_steps,
        first_step_seconds=first.seconds,
        errors={**errors.numbers(), "rows": task.batch_size, "distinct_rows": question.distinct},
        what={
            "steps": f"{problem.STEPS} training steps of {task.size}"
            + ("; one more, whose gradient is not clipped" if unclipped else ""),
            "precision": precision,
            "dropout": how,
        },
    )


def check_unknown_dropout(task: LanguageTask, model: Backend, *, precision: str, seed: int) -> None:
    """Check the dropout of a model that does not report its masks; see ptb_lm.bench.check."""
    if dropout.hides_masks(task, model):
        dropout.check_losses(task, model, _errors(task, precision), seed=seed)


def _errors(task: LanguageTask, precision: str) -> Errors:
    bound = (
        BOUNDS[precision]
        .for_targets(task.batch_size * task.config.num_steps)
        .for_steps(task.config.num_steps)
    )
    return Errors(bound.with_naive_sum(max(math.prod(shape) for shape in task.shapes.values())))


def _question(task: LanguageTask, passes: Collection[str], seed: int) -> LanguageQuestion:
    """Return the question, still without masks, which differ from row to row."""
    distinct = task.batch_size if task.config.has_dropout else problem.distinct_rows(task)
    return LanguageQuestion(task, distinct, (), "forward" in passes, seed)


class _Step(NamedTuple):
    """The observations of a training step of a variant."""

    loss: float  # of the gradient: summed over time, averaged over the batch
    norm: float
    seconds: float
    # Sketches of the weights before, as weight decay alone would leave them, less those after.
    updates: dict[str, NDArray[np.float64]]
    rounding: dict[str, float]  # the norm of that by which their own rounding can have changed the weights
    masks: dropout.KeepMasks | None


def _compare(model: Backend, question: LanguageQuestion, errors: Errors) -> _Step:
    """Compare all that a question asks for; return the first training step.

    Args:
        model: Model of the question's configuration, which reports its masks if that has dropout.
        question: Without masks.
        errors: Errors to add to.
    """
    config = question.task.config
    model.load_weights(question.weights)
    windows = list(corpus.windows(model.to_device(question.text), config.num_steps))
    scored = list(_score_windows(model, windows, config.batch_size)) if question.forward else []
    for _ in range(OVERFLOWS):
        steps = list(_train_windows(model, windows, question))
        if len(steps) == len(windows):
            break
        model.load_weights(question.weights)
    else:
        raise WrongError("its gradient overflows float16 at every loss scale that it tries")
    question = dataclasses.replace(question, masks=tuple(step.masks for step in steps if step.masks))
    dropout.check_masks(question.task, question.masks)
    answer = expected.answer(question)
    for index, loss in enumerate(scored):
        what = f"loss of window {index + 1}"
        errors.compare("loss", what, loss, answer[f"{index}.loss scored"])
    excess = 0.0  # by which the step before was too long, as a part of its length
    for index, step in enumerate(steps):
        wanted = extrapolate(answer, excess)
        norm = float(wanted[f"{index}.norm"])
        where = f"in training step {index + 1}"
        errors.compare("loss", f"loss {where}", step.loss, wanted[f"{index}.loss"])
        errors.compare("norm", f"norm of the gradient {where}", step.norm, norm)
        # What a step took of a weight is the rate times the gradient, clipped.
        own, right = (question.rates[index] * min(1.0, config.max_grad_norm / n) for n in (step.norm, norm))
        _compare_gradients(step, question, index, own, wanted, errors)
        excess = _length({name: update / right for name, update in step.updates.items()}, wanted, index) - 1
    return steps[0]


def _compare_gradients(
    step: _Step, question: LanguageQuestion, index: int, scale: float, wanted: expected.Answer, errors: Errors
) -> None:
    """Compare the gradient of every tensor, by which a step moved it times a scale."""
    where = f"in training step {index + 1}"
    found = {name: update / scale for name, update in step.updates.items()}
    rounding = {name: size / scale for name, size in step.rounding.items()}
    shapes = question.task.shapes
    biases = {name for name, shape in shapes.items() if not parameters.is_matrix(name, shape)}
    for name, error in expected.gradient_errors(wanted, f"{index}", found, rounding).items():
        errors.add("bias" if name in biases else "gradient", f"gradient of {name} {where}", error.whole)
    matrices = {name: gradient for name, gradient in found.items() if name not in biases}
    for name, error in expected.gradient_errors(wanted, f"{index}", matrices, rounding).items():
        errors.add("length", f"length of the gradient of {name} {where}", error.length)


def _length(images: Mapping[str, NDArray[np.float64]], wanted: expected.Answer, index: int) -> float:
    """Return how long all tensors together are along the gradient of a step, which has the length 1."""
    pairs = [(image, wanted[f"{index}.{name}"]) for name, image in images.items()]
    squares = sum(float(right @ right) for _, right in pairs)
    return sum(float(image @ right) for image, right in pairs) / squares


def _score_windows(model: Backend, windows: Sequence[Any], batch_size: int) -> Iterator[float]:
    """Yield the losses of windows one after the other, scored as the forward pass is timed."""
    state = model.zero_state(batch_size)
    for x_BT, y_BT in windows:
        state, loss = model.evaluate_step(x_BT, y_BT, state)
        yield model.read([loss])[0].nll / batch_size


def _train_windows(model: Backend, windows: Sequence[Any], question: LanguageQuestion) -> Iterator[_Step]:
    """Train on a question's windows on the device, one after the other.

    A step that moved nothing ends it: its gradient overflowed float16, and the next loss is scaled by less.
    """
    batch_size, steps = windows[0][0].shape
    state, before = model.zero_state(batch_size), update.copy_weights(model)
    for index, ((x_BT, y_BT), rate) in enumerate(zip(windows, question.rates, strict=True)):
        masks = model.next_masks(batch_size, steps) if question.task.config.has_dropout else None
        start = time.perf_counter()
        state, loss = model.train_step(x_BT, y_BT, state, learning_rate=rate)
        (measured,) = model.read([loss])
        if getattr(measured, "new_loss_scale", 0.0):  # users' own have none
            return
        seconds = time.perf_counter() - start
        after = update.copy_weights(model)
        decayed = 1 - rate * question.task.weight_decay
        updates = {
            name: expected.count_sketch(decayed * before[name].astype(np.float64) - after[name])
            for name in before
        }
        times = question.additions(index)
        rounding = {name: _rounding(before[name], after[name], times.get(name, 1)) for name in before}
        yield _Step(measured.nll / batch_size, measured.gradient_norm, seconds, updates, rounding, masks)
        before = after


def _rounding(before: NDArray[Any], after: NDArray[Any], times: Any) -> float:
    """Return the norm of what rounds in the weights that were moved: half a unit in the last place each time.

    Args:
        before: The weights.
        after: The weights after a step.
        times: Number of additions to each; their errors add up as the root of the number.
    """
    rounds = np.where(before != after, after * np.sqrt(times), 0)
    eps = np.finfo(after.dtype).eps
    if np.array_equal(after, after.astype(np.float32)):  # float32's, though a program export them as float64
        eps = max(eps, np.finfo(np.float32).eps)
    return float(eps / 2 * np.linalg.norm(rounds))
