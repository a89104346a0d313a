"""A classifier is asked for its gradient, and for steps of Adam.

Adam's steps are of one size whatever the gradient's, so that its tensors cannot be read off them: they come
from `loss_and_gradients`, which runs the same layers in the same execution. What the timed step itself makes
of every weight is compared as well: a sign that is wrong, a second step that counts as a first, a gradient
that is not clipped.

That step may be another program than the one that returns gradients (in Keras it is another network). So the
gradients of both steps are asked for, and what the timed steps made of the weights is compared with what Adam
makes of these. Where gradients are large that is sharp: of both steps together an update shows how the two
gradients compare, and one that lacks a part of the sequence differs in it.

Each of two steps begins at the same weights, because a step of Adam goes far, and turns around where rounding
turns a sign: after it, nobody foresees a deep network over 1000 steps to more than one per cent. The loss
after both is compared as closely as that allows, so that a step which computes with the weights of before is
seen. No classifier of a suite has dropout.

Shapes: B = batch, T = time steps.
"""

import inspect
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sequence_classifier
from numpy.typing import NDArray
from sequence_classifier import Batch, Classifier, reference
from typing_extensions import override

from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench import check
from ptb_lm.bench.check import expected, problem
from ptb_lm.bench.check.bounds import BOUNDS, CTC, CheckResult, Errors
from ptb_lm.bench.check.expected import Answer, Question, count_sketch
from ptb_lm.model import reference_updates

STEPS = 2


@dataclass(frozen=True)
class ClassifierQuestion(Question):
    """The question: a gradient, and steps of Adam, each on a batch of its own.

    Attributes:
        task: The classifier.
        distinct: Number of distinct rows of the batch.
        seed: Seed of weights and data.
    """

    task: ClassifierTask
    distinct: int
    seed: int

    @property
    @override
    def multiply_adds(self) -> float:
        return self.task.multiply_adds * self.distinct / self.task.batch_size

    @cached_property
    def weights(self) -> problem.Weights:
        """The weights to begin with."""
        logits = problem.LOGITS_OF_CTC if self.task.config.loss == "ctc" else problem.LOGITS
        return problem.weights(self.task.shapes, steps=self.task.steps, seed=self.seed, logits=logits)

    @cached_property
    def batches(self) -> tuple[Batch, ...]:
        """The batch of each step: of one batch twice, a step of Adam would be the same twice."""
        return tuple(
            distinct_batch(self.task, distinct=self.distinct, seed=self.seed + step) for step in range(STEPS)
        )

    @override
    def facts(self) -> Iterable[bytes]:
        yield from super().facts()
        for module in (sequence_classifier, reference):
            yield inspect.getsource(module).encode()

    @override
    def arrays(self) -> Iterable[NDArray[Any]]:
        parts = (part for batch in self.batches for part in batch)
        return [*self.weights.values(), *(part for part in parts if part is not None)]

    @override
    def answer(self) -> Answer:
        config, answer = self.task.config, Answer()
        weights: Mapping[str, NDArray[np.floating]] = self.weights
        adam = reference_updates.adam_zero_state(weights)
        batches = [self._distinct(batch) for batch in self.batches]
        for step, batch in enumerate(batches):
            loss, gradients = reference.loss_and_gradients(config, weights, batch)
            after, adam = reference_updates.adam(
                weights, gradients, adam, learning_rate=config.learning_rate, clip_value=config.clip_value
            )
            answer[f"{step}.loss"] = np.array(loss)
            answer |= expected.gradients(
                f"update {step}", {name: weights[name] - after[name] for name in weights}
            )
            answer |= expected.gradients(f"gradient {step}", gradients)
        loss, _ = reference.loss_and_gradients(config, after, batches[0])
        return answer | {"loss after": np.array(loss)}

    def _distinct(self, batch: Batch) -> Batch:
        """Return the distinct rows alone: copies add nothing to a mean."""
        x_BTI, labels, lengths_B = batch
        cut = slice(None, None, self.task.batch_size // self.distinct)
        return Batch(x_BTI[cut], labels[cut], None if lengths_B is None else lengths_B[cut])


def distinct_batch(task: ClassifierTask, *, distinct: int, seed: int) -> Batch:
    """Return a batch with a number of distinct rows, and copies of them.

    The longest row is among the distinct ones, from two on the shortest, too, and the others lie between.
    Padding is NaN, which must not count.
    """
    drawn, copies = task.batch(seed=seed), problem.copy_indices(task, distinct)
    lengths_B = drawn.lengths_B
    if lengths_B is not None:
        drawn.x_BTI[np.arange(task.steps) >= lengths_B[:, None]] = np.nan
        by_length = np.argsort(-lengths_B, kind="stable")
        chosen = by_length[np.linspace(0, task.batch_size - 1, distinct).round().astype(int)]
        copies = np.sort(chosen)[copies]
        lengths_B = lengths_B[copies]
    return Batch(drawn.x_BTI[copies], drawn.labels[copies], lengths_B)


@check.check.register(ClassifierTask)
def check_classifier(
    task: ClassifierTask,
    build: Callable[..., Any],
    model: Classifier,
    *,
    precision: str,
    seed: int,
    passes: Collection[str] = ("train",),
    earlier: CheckResult | None = None,
) -> CheckResult:
    """Compare a classifier with the reference; see ptb_lm.bench.check.check."""
    errors = _errors(task, precision)
    question = ClassifierQuestion(task, problem.distinct_rows(task), seed)
    loss, seconds = _compare(model, question, errors, passes)
    return CheckResult(
        loss=loss,
        first_step_seconds=seconds,
        errors={**errors.numbers(), "rows": task.batch_size, "distinct_rows": question.distinct},
        what={
            "steps": f"{STEPS} gradients and {STEPS + 1} training steps of {task.size}",
            "precision": precision,
            "dropout": "there is none",
        },
    )


def _errors(task: ClassifierTask, precision: str) -> Errors:
    bound = BOUNDS[precision].for_steps(task.steps)
    if task.config.loss == "ctc":
        bound = bound._replace(gradient=CTC * bound.gradient, bias=CTC * bound.bias)
    return Errors(bound)


def _compare(
    model: Classifier, question: ClassifierQuestion, errors: Errors, passes: Collection[str]
) -> tuple[float, float]:
    """Compare all that a question asks for; return loss and seconds of the first training step."""
    model.load_weights(question.weights)
    model.reset_optimizer()
    answer = expected.answer(question)
    gradients = _compare_gradients(model, question, answer, errors)
    if "forward" in passes:
        (loss,) = model.read([model.forward_step(question.batches[0])])
        errors.compare("loss", "loss in a forward step", loss, answer["0.loss"])
    return _compare_updates(model, question, answer, gradients, errors)


def _compare_gradients(
    model: Classifier, question: ClassifierQuestion, answer: Answer, errors: Errors
) -> Sequence[Mapping[str, NDArray[np.floating]]]:
    """Compare the loss and the gradient of each step's batch, and return the gradients."""
    every = []
    for step, batch in enumerate(question.batches):
        where = f"of batch {step + 1}"
        loss, gradients = model.loss_and_gradients(batch)
        errors.compare("loss", f"loss {where}", loss, answer[f"{step}.loss"])
        images = {name: count_sketch(gradient) for name, gradient in gradients.items()}
        for name, error in expected.gradient_errors(answer, f"gradient {step}", images).items():
            kind = "bias" if gradients[name].ndim == 1 else "gradient"
            errors.add(kind, f"gradient of {name} {where}", error.whole)
        every.append(gradients)
    return every


def _compare_updates(
    model: Classifier,
    question: ClassifierQuestion,
    answer: Answer,
    gradients: Sequence[Mapping[str, NDArray[np.floating]]],
    errors: Errors,
) -> tuple[float, float]:
    """Compare what each training step makes of every weight, and the loss after both.

    Args:
        model: Model that is timed.
        question: Question to the reference.
        answer: Answer of the reference.
        gradients: Gradients of the model, for each step.
        errors: Errors to add to.

    Returns:
        (loss, seconds): of the first training step.
    """
    losses, seconds = [], []
    for step, batch in enumerate(question.batches):
        model.load_weights(question.weights)
        before = model.export_weights()
        where = f"in training step {step + 1}"
        start = time.perf_counter()
        (trained,) = model.read([model.train_step(batch)])
        seconds.append(time.perf_counter() - start)
        losses.append(trained)
        errors.compare("loss", f"loss {where}", trained, answer[f"{step}.loss"])
        after = model.export_weights()
        images = {}
        for name in before:
            moved = before[name].astype(np.float64) - after[name]
            images[name] = count_sketch(moved)
            off = _adam_error(question.task, moved, [each[name] for each in gradients[: step + 1]])
            errors.add("adam", f"update of {name} {where}", off, beside="what Adam makes of its gradients")
        for name, error in expected.gradient_errors(answer, f"update {step}", images).items():
            errors.add("update", f"update of {name} {where}", error.whole)
            sizes = [np.linalg.norm(image) for image in (images[name], answer[f"update {step}.{name}"])]
            errors.compare("size", f"size of the update of {name} {where}", *sizes)
    (trained,) = model.read([model.train_step(question.batches[0])])
    fallen, wanted = (answer["0.loss"] - after for after in (trained, answer["loss after"]))
    errors.compare("moved", f"change of the loss in {STEPS} training steps", fallen, wanted)
    return losses[0], seconds[0]


def _adam_error(
    task: ClassifierTask, moved: NDArray[np.float64], gradients: Sequence[NDArray[np.floating]]
) -> float:
    """Return the error of the last of some steps of Adam, where the gradients of a tensor are large.

    It is the root of the mean square, by the rate: a step of Adam moves a weight by about as much.

    Args:
        task: Tells the rate and the clipping.
        moved: Decrease of the weights by the last step.
        gradients: Gradients of each step, from the first on.
    """
    config = task.config
    weights: Mapping[str, NDArray[np.floating]] = {"": np.zeros_like(moved)}
    after, adam = weights, reference_updates.adam_zero_state(weights)
    for gradient in gradients:  # each step began at the same weights
        after, adam = reference_updates.adam(
            weights,
            {"": gradient.astype(np.float64)},
            adam,
            learning_rate=config.learning_rate,
            clip_value=config.clip_value,
        )
    size = np.max(np.abs(gradients), axis=0)
    large = size >= np.median(size)
    off = moved[large] + after[""][large]
    return float(np.sqrt(np.mean(off**2)) / config.learning_rate)
