"""The learning rate, against the tutorial's numbers."""

import pytest

from ptb_lm.model.config import PRESETS
from ptb_lm.model.schedule import learning_rate


@pytest.mark.parametrize(
    ("preset", "epoch", "expected"),
    [
        ("small", 0, 1.0),
        ("small", 3, 1.0),
        ("small", 4, 0.5),
        ("small", 12, 0.5**9),
        ("medium", 5, 1.0),
        ("medium", 6, 0.8),
        ("medium", 38, 0.8**33),
        ("large", 13, 1.0),
        ("large", 54, 1.15**-41),
    ],
)
def test_the_tutorials_schedule(preset: str, epoch: int, expected: float) -> None:
    assert learning_rate(PRESETS[preset], epoch) == pytest.approx(expected, rel=1e-12)
