"""Numbers, labels and names as people read them; the title of a report; and the sentences of templates/."""

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jinja2

from ptb_lm.bench.intervals import LogMean
from ptb_lm.bench.results import ResultGroup, distinct, group_by_key
from ptb_lm.bench.variants import TITLES, Variant, original
from ptb_lm.model.frameworks import FRAMEWORKS, MODELS
from ptb_lm.pages.document import NOTHING

SAME = "~"  # stands behind a ratio whose interval holds 1
UNDERESTIMATED = "limit underestimated"
_PRECISIONS = {"fp32": "float32", "tf32": "TF32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}
_AGAIN = "measured a second time, to show what the machine does by itself (an A/A test)"
_DEVICES = {"cpu": "CPU", "cuda": "GPU"}


def significant(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, and thousands set apart."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def times(value: float) -> str:
    """Return a ratio: two decimals, more if it is small."""
    return significant(value, 2) if value < 0.1 else f"{value:,.2f}"


def ratio(value: LogMean, *, between: str = "–") -> str:
    """Return a ratio with its interval, if it has one, whose ends have a dash or a word between them."""
    known = "" if value.interval is None else f" ({interval(value, between=between)})"
    return f"{times(value.estimate)}{known}"


def marked_ratio(value: LogMean | None) -> str:
    """Return a ratio with its interval, and SAME behind it where that shows no difference."""
    if value is None:
        return NOTHING
    return f"{ratio(value)}{SAME if value.differs is False else ''}"


def rate(value: LogMean) -> str:
    """Return items a second with their interval, if it is known."""
    ends = "" if value.interval is None else f" ({'–'.join(significant(each, 4) for each in value.interval)})"
    return f"{significant(value.estimate, 4)}{ends}"


def interval(value: LogMean | None, *, between: str = "–") -> str:
    """Return the interval of a ratio, if it has one, with a dash or a word between its ends."""
    if value is None or value.interval is None:
        return NOTHING
    return between.join(map(end, value.interval))


def end(value: float) -> str:
    """Return an end of a ratio's interval: with so many decimals that it is on the right side of 1."""
    decimals = 2
    while round(value, decimals) == 1 and not math.isclose(value, 1):
        decimals += 1
    return times(value) if decimals == 2 else f"{value:.{decimals}f}"


def percent(fraction: float) -> str:
    """Return a fraction in percent: a decimal, more if it is small."""
    return f"{significant(100 * fraction, 2) if fraction < 0.01 else f'{100 * fraction:,.1f}'} %"


def bound_percent(fraction: float, *, up: bool) -> str:
    """Return a bound in percent, rounded so that it stays one: a lower one down, an upper one up."""
    step = 0.001 if fraction >= 0.01 or fraction == 0 else 10.0 ** (math.floor(math.log10(fraction)) - 1)
    # What is a whole number of steps but for its rounding stays as it is.
    steps = math.ceil(fraction / step - 1e-6) if up else math.floor(fraction / step + 1e-6)
    return percent(step * steps)


def limit_percent(fraction: float) -> str:
    """Return a fraction of the machine's limit in percent; what is above 1 says that it was none."""
    return percent(fraction) if fraction <= 1 else UNDERESTIMATED


def join_names(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def quantity(count: float, unit: str) -> str:
    """Return a number of bytes or the like, with a prefix: "1.23 GB"."""
    exponent = min(4, int(math.log10(count)) // 3) if count >= 1 else 0
    return f"{significant(count / 1000**exponent)} {('', 'k', 'M', 'G', 'T')[exponent]}{unit}"


def wrap(text: str, width: int, *, indent: int = 0) -> list[str]:
    """Return the lines of a text in a terminal; those after the first are indented."""
    return textwrap.wrap(text, max(width, 20), subsequent_indent=" " * indent, break_on_hyphens=False)


def title(groups: Sequence[ResultGroup]) -> str:
    """Return what was compared: workloads, devices, frameworks, precisions and programs."""
    results = [result for group in groups for result in group.measured_results]
    if not results:
        return "Nothing was measured"
    workloads = distinct(group.workload for group in groups if group.measured_results)
    works = [row.work for result in results for row in result.blocks]
    devices = distinct(work.device.partition(":")[0] for work in works)
    precisions = in_order({work.precision for work in works}, _PRECISIONS)
    pairs = [Variant(result.variant).program for result in results]
    frameworks = distinct(framework for framework, _ in pairs)
    own = [TITLES.get(name, name) for name in FRAMEWORKS if name in frameworks]
    programs = in_order({model for framework, model in pairs if framework in FRAMEWORKS}, MODELS)
    programs += distinct(TITLES.get(name, name) for name in frameworks if name not in FRAMEWORKS)
    where = [
        f"{join_names(workloads)} on {join_names([_DEVICES.get(each, each) for each in devices])}",
        *([join_names(own)] if own not in ([], ["torch"]) else []),
        join_names(list(map(precision, precisions))),
    ]
    return f"{', '.join(where)}: {join_names(programs)}"


def in_order(names: set[str], known: Iterable[str]) -> list[str]:
    """Return names in the order of those that are known, others last."""
    return sorted(names, key=lambda name: place(name, known))


def place(name: str, known: Iterable[str]) -> tuple[int, str]:
    """Return what sorts a name among others: those that are known are first, in their order."""
    places = {each: index for index, each in enumerate(known)}
    return places.get(name, len(places)), name


def precision(name: str) -> str:
    """Return the name of a precision for people."""
    return _PRECISIONS.get(name, name)


def legend(group: ResultGroup) -> Iterator[str]:
    """Yield what the names in a group's table stand for, a line a program."""
    programs = group_by_key(
        (_AGAIN if result.is_repetition else result.description, result.blocks[0].label)
        for result in group.measured_results
    )
    for description, labels in programs.items():
        if description:
            yield f"{join_names(distinct(labels))}: {description}"


def notes(group: ResultGroup) -> Iterator[str]:
    """Yield what was cut, failed or is special in results with figures, after the labels of these."""
    measured = group.measured_results
    noted = group_by_key((note, result.label) for result in measured for note in result.notes)
    for note, labels in noted.items():
        everyone = len(labels) == len(measured) > 1
        yield f"{'all' if everyone else ', '.join(labels)}: {note}"


def _one_line(value: object) -> str:
    return re.sub(r"\s+", " ", str(value))


_TEMPLATES = jinja2.Environment(  # noqa: S701 - of Markdown
    loader=jinja2.PackageLoader(__package__),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    finalize=_one_line,
)
_TEMPLATES.filters |= {
    "names": join_names,
    "original": original,
    **{each.__name__: each for each in (bound_percent, percent, quantity, ratio, significant, times)},
}


def write_items(template: str, **data: Any) -> list[str]:
    """Return the items of a list that a template makes of some data, a line each."""
    written = _TEMPLATES.get_template(template).render(data)
    _, *items = re.split("^-", written, flags=re.MULTILINE)
    return [_one_line(item).strip() for item in items]
