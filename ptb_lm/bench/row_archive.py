"""A benchmark in one small file, NAME.jsonl.gz: a header with what its rows share, then a lean line a row.

The header is {"shared": ...}: the facts that all rows have, with the same values; a fact that is an object is
divided in the same way. Header and lean row together are the row again.
"""

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common.errors import UserError

SUFFIX = ".jsonl.gz"


def pack(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the file of some rows; the same rows give the same bytes by the same version of zlib."""
    shared = _find_shared(rows)
    lines = [{"shared": shared}, *(_drop_shared(row, shared) for row in rows)]
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    return gzip.compress(text.encode(errors="backslashreplace"), mtime=0)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file.

    Raises:
        UserError: It cannot be read, is damaged or cut off, or is not what `pack` writes.
    """
    try:
        header, *lean = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
        return [_merge(header["shared"], row) for row in lean]
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, ValueError, LookupError, TypeError, AttributeError, zlib.error):
        raise UserError(f"{path} is damaged, or is not a benchmark") from None


def _find_shared(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts that all objects have, with values that JSON writes alike: 1 is not 1.0 or true."""
    found: dict[str, Any] = {}
    for key in values[0] if values else ():
        facts = [value.get(key, ...) for value in values]
        if ... not in facts and len({json.dumps(fact, sort_keys=True) for fact in facts}) == 1:
            found[key] = facts[0]
        elif all(isinstance(fact, dict) for fact in facts) and (part := _find_shared(facts)):
            found[key] = part
    return found


def _drop_shared(value: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an object has beyond the facts that it shares."""
    return {
        key: _drop_shared(fact, shared[key]) if isinstance(fact, dict) and key in shared else fact
        for key, fact in value.items()
        if key not in shared or fact != shared[key]
    }


def _merge(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return shared facts and an object's own as one object."""
    both = {
        key: _merge(shared[key], fact) if isinstance(fact, dict) and key in shared else fact
        for key, fact in own.items()
    }
    return {**shared, **both}
