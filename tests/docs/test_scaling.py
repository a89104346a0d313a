"""scripts/scaling.py, which computes what several devices send and would gain."""

import pytest
import scaling

from ptb_lm.model.presets import SMALL


@pytest.mark.parametrize(("rows", "embedding"), [(True, 3 * 6 * (4 * 5 + 8)), (False, 1.5 * 4 * 9 * 5)])
def test_what_four_ranks_send_is_as_computed_by_hand(rows: bool, embedding: float) -> None:
    """Of each sum a rank sends one and a half times its bytes; rows of six words go to three others."""
    config = SMALL.replace(hidden_size=5, batch_size=8, num_steps=3)
    sent = scaling.count_sent(config, 4, number=4, rows=rows, words=9)
    assert sent == (1.5 * 4 * (5 * 9 + 9), 1.5 * 4 * 2 * (10 * 20 + 20), embedding)


@pytest.mark.parametrize(("softmax", "waited"), [(2e9, (2 - 1) + 4 + 0.5), (0.5e9, 4 + 0.5)])
def test_only_the_softmax_travels_meanwhile(softmax: float, waited: float) -> None:
    """For a third of a step of three seconds, at a gigabyte a second; the layers' gradient is waited for."""
    what = scaling.Sent(softmax, layers=4e9, embedding=0.5e9)
    found = scaling.gain(SMALL, 4, what, step=3, gigabytes=1)
    assert found == pytest.approx(4 * 3 / (3 + waited), rel=1e-12)


@pytest.mark.parametrize("flag", ["--ranks", "--gigabytes", "--step-milliseconds", "--faster"])
def test_a_number_that_is_not_above_0_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        scaling.main([flag, "0"])
    assert end.value.code == 2
    assert f"argument {flag}: must be a " in capsys.readouterr().err
