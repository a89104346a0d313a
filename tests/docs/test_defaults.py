"""The numbers that the pages have of the code: they are its own."""

import dataclasses
import re
from collections.abc import Iterator

from support import ROOT

from ptb_lm import play
from ptb_lm.inference import batches
from ptb_lm.inference.adaptation import growing_grid
from ptb_lm.inference.adaptation.settings import Cache, Dynamic

ADAPTATION = (ROOT / "docs" / "adaptation.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def settings() -> Iterator[tuple[str, str]]:
    """Yield the flag of each setting of a model that adapts, and its default."""
    for kind, defaults in (("dynamic", Dynamic()), ("cache", Cache())):
        for each in dataclasses.fields(defaults):
            value = getattr(defaults, each.name)
            yield f"--{kind}-{each.name}", value if isinstance(value, str) else f"{value:g}"


def test_adaptation_s_table_has_every_setting_and_its_default() -> None:
    table = re.findall(r"^\| `(--[\w-]+)` \| (\S+) \|", ADAPTATION, re.MULTILINE)
    assert table == list(settings())


def test_adaptation_says_when_tuning_ends() -> None:
    assert f"or after {growing_grid.FURTHER} more values." in ADAPTATION


def test_the_tutorial_says_what_score_and_play_do() -> None:
    assert f"At most {batches.WINDOW_SENTENCES:,} sentences are read at a time" in TUTORIAL
    assert f"another port than {play.PORT}." in TUTORIAL
