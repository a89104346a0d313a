"""The gate: a variant is compared with the NumPy reference before the clock starts. Wrong is never fast.

The model that is compared is the one that is timed afterwards, in its execution and precision and at the
workload's own batch size, steps, widths and vocabulary: the loss of two consecutive training steps, the norm
of the gradient, and the gradient of every tensor, which is read off the change of the weights in a step. And
a language model's step moves the weights by a gradient that is too short to be clipped.
After the warm-up it is compared once more: a program may do its first steps otherwise than the later ones, as
one does that captures a graph after some.

problem.py draws the weights and the data; expected.py has the reference's answer, kept in a cache;
language_question.py has the question about a language model, and language.py puts it to one; dropout.py looks
at masks; update.py looks at how far a step goes; bounds.py says how far off a variant may be.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

from ptb_lm.bench.check import language
from ptb_lm.bench.check.bounds import CheckResult, WrongError, check_shapes
from ptb_lm.bench.workloads import LanguageTask, Task

__all__ = ["CheckResult", "WrongError", "check", "check_shapes", "check_unknown_dropout"]


@functools.singledispatch
def check(
    task: Task,
    build: Callable[..., Any],
    model: Any,
    *,
    precision: str,
    seed: int,
    passes: Collection[str] = ("train",),
    earlier: CheckResult | None = None,
) -> CheckResult:
    """Compare a variant with the reference.

    Args:
        task: Task of the variant.
        build: Function that builds the variant from a configuration and canonical weights, if a second model
            is needed.
        model: Model that will be timed, of the task's configuration. Afterwards its weights and its
            optimiser's state are those of the comparison.
        precision: Name in bounds.BOUNDS.
        seed: Seed of weights and data.
        passes: Passes that will be timed. A forward pass is compared only if it is among them.
        earlier: Result of the first comparison of this model; None: this is the first. The model has done
            other steps since and was restarted: it draws the same masks again, so that the reference's stored
            answer holds. It is compared once more, and nothing else is built.

    Returns:
        The largest errors, and a description of the comparison.

    Raises:
        WrongError: An error exceeds its bound; the message says which.
    """
    raise NotImplementedError(type(task))


@functools.singledispatch
def check_unknown_dropout(task: Task, model: Any, *, precision: str, seed: int) -> None:
    """Check the dropout of a model whose first losses do not tell of it, as it does not report its masks.

    Afterwards its weights are those of the comparison. A task without such dropout needs no check.

    Args:
        task: Task of the model.
        model: Model that will be timed.
        precision: Name in bounds.BOUNDS.
        seed: Seed of weights and data.

    Raises:
        WrongError: Its dropout is not the configuration's.
    """


check.register(LanguageTask)(language.check)
check_unknown_dropout.register(LanguageTask)(language.check_unknown_dropout)
