"""Measurements that are no suite: profiles, disturbances and the reliability of the benchmark's numbers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ptb_lm.bench.language_workloads import PTB_VOCABULARY
from ptb_lm.bench.run.timed_steps import LanguageSteps
from ptb_lm.bench.variants import Variant
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.common.files import atomic_write
from ptb_lm.model.presets import RECIPES


def prepare(variant: str, *, recipe: str, config: str, device: str, precision: str) -> LanguageSteps:
    """Return the steps of a preset's training on random words of Penn Treebank's frequencies.

    Args:
        variant: Name of a variant of the benchmark.
        recipe: Name in RECIPES.
        config: Name of the preset.
        device: "auto", "cpu" or "cuda".
        precision: Precision, if the variant's name gives none.

    Raises:
        UserError: There is no such variant here, and why.
    """
    # A benchmark's windows have one length.
    task = LanguageTask(
        config=RECIPES[recipe][config].replace(vary_num_steps=False), vocabulary_size=PTB_VOCABULARY
    )
    build = Variant(variant).builder(task.registry, device=device, precision=precision, seed=1)
    return LanguageSteps(task, build, seed=1)


def write_rows(out: Path | None, rows: Iterable[Mapping[str, Any]], **texts: str) -> None:
    """Write the rows of a study and its texts into a folder.

    Args:
        out: The folder, which is made; None: nothing is written.
        rows: The lines of rows.jsonl; the first has the command, the versions and the machine.
        texts: The content of other files by their names, in which "_" stands for the dot.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / "rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for name, text in texts.items():
            atomic_write(out / name.replace("_", "."), text)
