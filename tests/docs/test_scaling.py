"""docs/scaling.md: how long processes wait for each other."""

import re

from support import ROOT

from ptb_lm.model.patience import SECONDS

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_its_defaults_are_those_of_the_program() -> None:
    said = re.findall(r"`(PTB_LM_\w+)`\s+\(default:\s+(\d+)\s+seconds\)", PAGE)
    assert sorted((name, float(seconds)) for name, seconds in said) == sorted(SECONDS.items())
