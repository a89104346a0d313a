"""The numbers that the pages have of the code: they are its own."""

import dataclasses
import re
from collections.abc import Iterator

from support import ROOT

from ptb_lm import train
from ptb_lm.common import flags
from ptb_lm.inference.adaptation import DynamicEvaluation, NeuralCache

ADAPTATION = (ROOT / "docs" / "adaptation.md").read_text(encoding="utf-8")


def settings() -> Iterator[tuple[str, str]]:
    """Yield the flag of each setting of a model that adapts, and its default."""
    for kind, defaults in (("dynamic", DynamicEvaluation()), ("cache", NeuralCache())):
        for each in dataclasses.fields(defaults):
            value = getattr(defaults, each.name)
            yield f"--{kind}-{each.name}", value if isinstance(value, str) else f"{value:g}"


def test_configurations_names_every_flag_of_another_program_and_ours_exist() -> None:
    page = (ROOT / "docs" / "configurations.md").read_text(encoding="utf-8")
    theirs = {
        flag
        for row in re.findall(r"^\| (`--[^|]+) \|", page, re.MULTILINE)
        for flag in re.findall(r"--\w+", row)
    }
    assert set(flags.FOREIGN_FLAGS) <= theirs
    known = {flag for action in train._parser()._actions for flag in action.option_strings}
    assert all({*re.split("[ ,]", ours)} & known for ours in flags.FOREIGN_FLAGS.values())


def test_adaptation_s_table_has_every_setting_and_its_default() -> None:
    table = re.findall(r"^\| `(--[\w-]+)` \| (\S+) \|", ADAPTATION, re.MULTILINE)
    assert table == list(settings())
