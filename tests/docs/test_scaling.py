"""scripts/scaling.py, which computes what several devices send and would gain."""

import pytest
import scaling


@pytest.mark.parametrize("flag", ["--ranks", "--gigabytes", "--step-milliseconds", "--faster"])
def test_a_number_that_is_not_above_0_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaling.main([flag, "0"])
    assert end.value.code == 2
    assert f"argument {flag}: must be a " in capsys.readouterr().err
