"""Wrong is never fast: by every suite, each kind of defect is refused before it is timed."""

import dataclasses
import functools
import math
from typing import Any

import mutants
import pytest
from support import AfterOtherStepsError, checked, checked_twice

from ptb_lm.bench import check
from ptb_lm.bench.check import bounds, problem
from ptb_lm.bench.suites import SUITES
from ptb_lm.bench.workloads import LanguageTask, Task


def small(task: Task) -> Task:
    """Return a task of the same kind in sizes for a test: its layers, directions, loss, lengths, dropout."""
    if task.multiply_adds < 1e7:
        return task
    if isinstance(task, LanguageTask):
        config = task.config
        sizes: dict[str, Any] = {"hidden_size": 9, "embedding_size": 7 if config.embedding_size else 0}
        # One mask for all time steps has few entries.
        sizes |= {"batch_size": 20, "hidden_size": 20} if config.variational else {"batch_size": 6}
        # As wide as each other where the task's own are.
        narrow = {size: 20 + 5 * rank for rank, size in enumerate(sorted(set(config.layer_sizes)))}
        sizes |= {"layer_sizes": tuple(narrow[size] for size in config.layer_sizes)}
        # The norm is of a sum over the steps, and some mutants do not clip it.
        sizes |= {"num_steps": 8, "max_grad_norm": config.max_grad_norm * 8 / config.num_steps}
        return dataclasses.replace(task, config=config.replace(**sizes), vocabulary_size=60)
    config = dataclasses.replace(
        task.config,
        input_size=min(task.config.input_size, 5),
        hidden_sizes=(6,) * len(task.config.hidden_sizes),
        classes=min(task.config.classes, 7),
    )
    return dataclasses.replace(
        task,
        config=config,
        batch_size=6,
        steps=12,
        shortest=task.shortest and 7,
        labels=min(task.labels, 3),
    )


# The most words and units: pytorch/examples' word_language_model.
LARGEST = next(each for each in SUITES["ptb"].workloads if each.name == "word_language_model")
# Workloads that are the same in these sizes are one.
KINDS: dict[tuple[Task, tuple[str, ...]], str] = {}
for suite, of in SUITES.items():
    for workload in of.workloads:
        KINDS.setdefault((small(workload.task), workload.passes), f"{suite} {workload.name}")
# Each suite refuses each kind of defect, in the first of its workloads where there can be one.
CASES: dict[tuple[Task, tuple[str, ...], str], str] = {}
for suite, of in SUITES.items():
    first = {
        wrong: (workload, small(workload.task))
        for workload in reversed(of.workloads)
        for wrong in mutants.of(small(workload.task), workload.passes)
    }
    for wrong, (workload, task) in first.items():
        CASES.setdefault((task, workload.passes, wrong), f"{suite} {workload.name}: {wrong}")


every_kind = pytest.mark.parametrize(
    ("task", "passes"), [pytest.param(*kind, id=name) for kind, name in KINDS.items()]
)


@every_kind
def test_what_is_right_passes_twice(task: Task, passes: tuple[str, ...]) -> None:
    """Another right model rounds otherwise: test_check.py has all of them, by each kind of task."""
    checked_twice(task, mutants.right, passes=passes)


@every_kind
def test_what_goes_wrong_after_its_first_steps_is_refused_then(task: Task, passes: tuple[str, ...]) -> None:
    stale = mutants.stale_after_a_comparison(task, mutants.right, passes=passes)
    with pytest.raises(AfterOtherStepsError, match=r"off by|dropout"):
        checked_twice(task, stale, passes=passes)


@pytest.mark.parametrize(
    ("task", "passes", "wrong"), [pytest.param(*of, id=name) for of, name in CASES.items()]
)
def test_what_is_wrong_is_refused(task: Task, passes: tuple[str, ...], wrong: str) -> None:
    with pytest.raises(check.WrongError, match=r"off by|dropout|does not move"):
        checked(task, mutants.of(task, passes)[wrong], passes=passes)


@pytest.mark.parametrize(
    "task", [pytest.param(of, id=name) for (of, _), name in KINDS.items() if isinstance(of, LanguageTask)]
)
def test_a_step_is_looked_at_whose_gradient_is_not_clipped(task: LanguageTask) -> None:
    assert "not clipped" in checked(task, mutants.right).what["steps"]
    for wrong in ("small gradients stretched", "small gradients dropped"):
        with pytest.raises(check.WrongError, match="step with a small gradient"):
            checked(task, mutants.LANGUAGE[wrong])


# The bounds are the widest for long sequences and for many words. CTC of a thousand steps takes long.
LONG = {
    each.name: dataclasses.replace(
        small(each.task), batch_size=batch_size, steps=each.task.steps, shortest=each.task.shortest
    )
    for each in SUITES["acoustic"].workloads
    if (batch_size := {"4x320-CE-long": 6, "4x320-CTC-long": 2}.get(each.name))
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "mutant"),
    [
        pytest.param(task, mutant, id=f"{name}: {wrong}")
        for name, task in LONG.items()
        for wrong, mutant in mutants.of(task, ("train",)).items()
        # All that CTC has of its own is its loss. A recurrence that is cut is cut at every step.
        if wrong == "last step dropped" or (name == "4x320-CE-long" and wrong != "recurrence cut")
    ],
)
def test_what_is_wrong_is_refused_in_a_thousand_steps(task: Task, mutant: mutants.Mutant) -> None:
    with pytest.raises(check.WrongError, match="off by"):
        checked(task, mutant)


@pytest.mark.parametrize("wrong", sorted(mutants.of(small(LARGEST.task), LARGEST.passes)))
def test_what_is_wrong_is_refused_where_norms_may_be_summed_up_naively(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on the norm is that of the largest model, whose largest tensor has 50 million numbers."""
    task = small(LARGEST.task)
    of_the_largest = max(math.prod(shape) for shape in LARGEST.task.shapes.values())
    assert of_the_largest > 5e7
    with_sum = bounds.Bound.with_naive_sum
    monkeypatch.setattr(
        bounds.Bound, "with_naive_sum", lambda bound, elements: with_sum(bound, of_the_largest)
    )
    with pytest.raises(check.WrongError, match=r"off by|dropout|does not move"):
        checked(task, mutants.of(task, LARGEST.passes)[wrong], passes=LARGEST.passes)


# Of long windows the first update is shorter (problem.updates).
AWD = next(each.task for each in SUITES["awd"].workloads if each.name == "awd")
LONG_WINDOWS = dataclasses.replace(
    small(AWD), config=small(AWD).config.replace(num_steps=70, max_grad_norm=AWD.config.max_grad_norm)
)


@pytest.mark.parametrize("wrong", sorted(mutants.of(LONG_WINDOWS, ("train",))))
def test_what_is_wrong_is_refused_in_long_windows(wrong: str) -> None:
    assert problem.updates(LONG_WINDOWS.config.num_steps) < problem.UPDATES
    with pytest.raises(check.WrongError, match=r"off by|dropout|does not move"):
        checked(LONG_WINDOWS, mutants.of(LONG_WINDOWS, ("train",))[wrong])


# At its own size: what rounds in few words and units does not cancel out as it does there.
SMALL = next(each for each in SUITES["quick"].workloads if each.name == "small")
# With the vocabulary of the table in ptb_lm/bench/check/problem.py: most of a step of small is its softmax.
FEWER_WORDS = dataclasses.replace(SMALL.task, vocabulary_size=2000)


@pytest.mark.slow  # the reference computes in a process of its own
@pytest.mark.parametrize("task", [pytest.param(of.task, id=of.name) for of in SUITES["cells"].workloads])
def test_an_embedding_that_is_left_out_of_the_norm_is_missed(task: LanguageTask) -> None:
    """At this size: the more words there are, the wider is the bound on the norm (NAIVE_SUM)."""
    task = task.with_batch_size(4)
    checked(task, functools.partial(mutants.right, model="basic"))
    for of_told, off in ((False, "gradient of"), (True, "norm of the gradient")):
        with pytest.raises(check.WrongError, match=off):
            checked(task, mutants.embedding_left_out(of_told=of_told))


@pytest.mark.slow  # the reference computes in a process of its own
@pytest.mark.parametrize("model", ["basic", "block_fused", "cudnn"])
def test_what_is_right_passes_in_bfloat16(model: str) -> None:
    build = functools.partial(mutants.right, model=model, precision="bf16")
    checked(SMALL.task, build, precision="bf16", passes=SMALL.passes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", sorted(mutants.of(FEWER_WORDS, SMALL.passes).keys() - {"second bias trained"})
)
def test_what_is_wrong_is_refused_in_bfloat16(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among it what is off by less than bfloat16 rounds: weights that move by 5 % too much.

    A second bias that is trained changes the loss of the second step alone, and that by less.
    """
    monkeypatch.setattr(mutants, "right", functools.partial(mutants.right, precision="bf16"))
    mutant = mutants.of(FEWER_WORDS, SMALL.passes)[wrong]
    with pytest.raises(check.WrongError, match=r"off by|dropout|does not move"):
        checked(FEWER_WORDS, mutant, precision="bf16", passes=SMALL.passes)
