"""The gate: a variant is compared with the NumPy reference before the clock starts. Wrong is never fast.

What is compared is the object that is timed afterwards, in its execution and precision and at the workload's
own batch size, steps, widths and vocabulary: the loss of two consecutive training steps, the norm of the
gradient, and the gradient of every tensor, which is read off what a step has made of the weights. After the
warm-up it is compared once more: a program may do its first steps otherwise than the later ones, as one does
that captures a graph after some.

problem.py draws the weights and the data; expected.py has the reference's answer, kept in a cache;
language.py and classification.py put the question to a variant; bounds.py says how far off it may be.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from numpy.typing import NDArray

from ptb_lm.bench.check import classification, language
from ptb_lm.bench.check.bounds import Checked, WrongError
from ptb_lm.bench.workloads import LanguageTask, Task

__all__ = ["Build", "Checked", "WrongError", "check", "check_again"]

Build = Callable[[Any, Mapping[str, NDArray[Any]]], Any]


def check(
    task: Task,
    build: Build,
    *,
    precision: str,
    seed: int,
    passes: Collection[str] = ("train",),
    model: Any = None,
) -> Checked:
    """Compare what a variant computes with the reference.

    Args:
        task: What the variant is to do.
        build: Builds the variant, from a configuration and canonical weights.
        precision: A name in bounds.BOUNDS.
        seed: Of weights and data.
        passes: Those that will be timed: a forward pass is compared where it will be.
        model: What will be timed, as `build` built it of the task's configuration. Afterwards its weights and
            its optimiser's state are those of the comparison. None: it is built here.

    Returns:
        What was compared, and the errors that were found.

    Raises:
        WrongError: An error exceeds its bound, and which.
    """
    if isinstance(task, LanguageTask):
        return language.check(task, build, model, passes=passes, precision=precision, seed=seed)
    return classification.check(task, build, model, passes=passes, precision=precision, seed=seed)


def check_again(
    task: Task,
    model: Any,
    checked: Checked,
    *,
    precision: str,
    seed: int,
    passes: Collection[str] = ("train",),
) -> None:
    """Compare a model that has passed `check` once more, after other steps; nothing else is built.

    Args:
        task: What it is to do.
        model: What is timed.
        checked: What `check` returned.
        precision: As `check` had it.
        seed: As `check` had it.
        passes: As `check` had them.

    Raises:
        WrongError: An error exceeds its bound, and which.
    """
    if isinstance(task, LanguageTask):
        language.check_again(task, model, checked.begun, passes=passes, precision=precision, seed=seed)
    else:
        classification.check_again(task, model, passes=passes, precision=precision, seed=seed)
