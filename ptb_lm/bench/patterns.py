"""Which variants a pattern selects: torch/* those of such a name, torch/*@bf16 the same in bfloat16."""

import fnmatch
from collections.abc import Mapping, Sequence

from ptb_lm.bench import names
from ptb_lm.bench.variants import Variant
from ptb_lm.model.backend import PRECISIONS, Framework


def select(pattern: str, variants: Sequence[Variant], registry: Mapping[str, Framework]) -> list[Variant]:
    """Return the variants that a pattern selects.

    A variant that is named itself is kept in a precision that its framework lacks: its row will say so. What
    a wildcard matches is left out there.

    Args:
        pattern: A name, perhaps with wildcards; with @PRECISION it selects these variants at that precision.
        variants: Who there is.
        registry: Their frameworks.
    """
    found = {variant.name: variant for variant in variants if fnmatch.fnmatch(variant.name, pattern)}
    base, _, precision = pattern.partition("@")
    if precision in PRECISIONS:
        for variant in variants:
            matches = fnmatch.fnmatch(variant.base, base) and variant.offers(precision, registry)
            if matches or variant.base == base:
                found.setdefault(f"{variant.base}@{precision}", variant.at(precision))
    return list(found.values())


def nothing(pattern: str, variants: Sequence[Variant]) -> str:
    """Say why a pattern selects nothing: what there is in its place."""
    base, _, precision = pattern.partition("@")
    if precision in PRECISIONS and any(fnmatch.fnmatch(variant.base, base) for variant in variants):
        return f"none of {base} computes in {precision}"
    return instead_of(pattern, variants)


def instead_of(name: str, variants: Sequence[Variant]) -> str:
    """Return what there is in place of a name."""
    known = list(dict.fromkeys(variant.name for variant in variants))
    others = f"; precisions are {', '.join(PRECISIONS)}" if name.partition("@")[2].isalnum() else ""
    return f"{names.instead_of(name, known)}{others}"
