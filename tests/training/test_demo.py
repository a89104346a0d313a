"""The demo as a newcomer runs it, in its first two epochs: it ends near the best possible perplexity.

And not below it. A run keeps the weights that are best in validation: one more epoch can only help there.
"""

import json
import math
from pathlib import Path

import pytest

from ptb_lm.train import main

pytestmark = pytest.mark.slow

TEST_TOKENS = 24_997


def test_the_demo_comes_within_a_tenth_of_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["--data", "synthetic", "--config", "demo", "--epochs", "2", "--run-dir", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    test, bound = result["test_perplexity"], result["best_possible_perplexity"]
    assert test < 1.1 * bound
    # A model that saw no test text is better than the truth by t nats with probability exp(-t) at most.
    scored = TEST_TOKENS - 1
    assert scored * math.log(test) >= scored * math.log(bound) - math.log(1e9)
    printed = capsys.readouterr().out
    assert f"test perplexity {test:.2f}; the best any model can do is {bound:.2f}" in printed
