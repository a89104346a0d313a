"""Sentences about a benchmark, which templates/ hold."""

import re
from typing import Any

import jinja2

from ptb_lm.bench.reporting import formats
from ptb_lm.bench.variants import original


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
    "names": formats.join_names,
    "original": original,
    **{
        name: getattr(formats, name)
        for name in ("bound_percent", "percent", "quantity", "ratio", "significant", "times")
    },
}


def write_items(template: str, **data: Any) -> list[str]:
    """Return the items of a list that a template makes of some data, a line each."""
    written = _TEMPLATES.get_template(template).render(data)
    _, *items = re.split("^-", written, flags=re.MULTILINE)
    return [_one_line(item).strip() for item in items]
