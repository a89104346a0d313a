"""docs/scaling.md: how long processes wait for each other, and what its tables are computed from."""

import re

import pytest
import scaling
from support import ROOT

from ptb_lm.model.timeouts import SECONDS

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def test_its_defaults_are_those_of_the_program() -> None:
    said = re.findall(r"`(PTB_LM_\w+)`\s+\(default:\s+(\d+)\s+seconds\)", PAGE)
    assert sorted((name, float(seconds)) for name, seconds in said) == sorted(SECONDS.items())


@pytest.mark.parametrize("flag", ["--ranks", "--gigabytes", "--step-milliseconds", "--faster"])
def test_a_number_that_is_not_above_0_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaling.main([flag, "0"])
    assert end.value.code == 2
    assert f"argument {flag}: must be a " in capsys.readouterr().err
