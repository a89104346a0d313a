"""The title of a report, in words, and the meaning of each name in its tables."""

from collections.abc import Iterable, Iterator, Sequence

from ptb_lm.bench.findings import Group, distinct
from ptb_lm.bench.reporting.formats import join_names
from ptb_lm.bench.variants import TITLES, program
from ptb_lm.model.frameworks import FRAMEWORKS, MODELS

_PRECISIONS = {"fp32": "float32", "tf32": "TF32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_AGAIN = "measured a second time, to show what the machine does by itself (an A/A test)"
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def title(groups: Sequence[Group]) -> str:
    """Return what was compared: workloads, devices, frameworks, precisions and programs."""
    results = [result for group in groups for result in group.measured_results]
    if not results:
        return "Nothing was measured"
    workloads = distinct(group.workload for group in groups if group.measured_results)
    works = [row.work for result in results for row in result.blocks if row.work]
    devices = distinct(work.device.partition(":")[0] for work in works)
    precisions = _in_order({work.precision for work in works}, _PRECISIONS)
    pairs = [program(result.variant) for result in results]
    frameworks = distinct(framework for framework, _ in pairs)
    own = [TITLES[name] for name in FRAMEWORKS if name in frameworks]
    programs = _in_order({model for framework, model in pairs if framework in FRAMEWORKS}, MODELS)
    programs += distinct(TITLES.get(name, name) for name in frameworks if name not in FRAMEWORKS)
    where = [
        f"{join_names(workloads)} on {join_names([_DEVICES.get(each, each) for each in devices])}",
        *([join_names(own)] if own not in ([], ["torch"]) else []),
        join_names(list(map(precision, precisions))),
    ]
    return f"{', '.join(where)}: {join_names(programs)}"


def _in_order(names: set[str], known: Iterable[str]) -> list[str]:
    """Return names in the order of those that are known, others last."""
    return [*(name for name in known if name in names), *sorted(names - {*known})]


def precision(name: str) -> str:
    """Return the name of a precision for people."""
    return _PRECISIONS.get(name, name)


def legend(group: Group) -> Iterator[str]:
    """Yield what the names in a group's table stand for, a line a program."""
    programs: dict[str, list[str]] = {}
    for result in group.measured_results:
        label = result.blocks[0].label
        if result.is_repetition:
            programs.setdefault(_AGAIN, []).append(label)
        elif result.description:
            programs.setdefault(result.description, []).append(label)
    for description, labels in programs.items():
        yield f"{join_names(distinct(labels))}: {description}"
