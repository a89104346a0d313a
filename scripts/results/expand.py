"""Entries of a TOML file that stand for several.

Each list in an entry's `for` is a choice; {NAME} in its texts stands for the value that was chosen.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def expand_entries(
    entries: Iterable[Mapping[str, Any]], shared: Mapping[str, list[Any]] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield an entry for each combination of what its `for` lists, the last name changing fastest.

    The values of a list are texts or numbers, or tables of several names that change together. A chosen
    value is a key of the entry too.

    Args:
        entries: The entries as they are written.
        shared: Lists by name; a text in place of a list is such a name.
    """
    for entry in entries:
        choices = {
            name: values if shared is None or not isinstance(values, str) else shared[values]
            for name, values in entry.get("for", {}).items()
        }
        for values in itertools.product(*choices.values()):
            chosen: dict[str, Any] = {}
            for name, value in zip(choices, values, strict=True):
                chosen |= value if isinstance(value, dict) else {name: value}
            whole = {**chosen, **{key: value for key, value in entry.items() if key != "for"}}
            yield {key: _fill(value, chosen) for key, value in whole.items()}


def _fill(value: Any, chosen: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        for name, text in chosen.items():
            value = value.replace(f"{{{name}}}", str(text))
    return value
