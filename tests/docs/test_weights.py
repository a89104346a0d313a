"""docs/weights.md: its NumPy reproduces the test perplexity, and its table is the tensors of a run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import runs
from support import ROOT

from ptb_lm.training import tensors

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "weights.md").read_text(encoding="utf-8")
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(
    "flags", [["--embedding-size", "5"], ["--tie-weights", "--num-layers", "3"]], ids=["untied", "tied"]
)
def test_its_numpy_reproduces_the_test_perplexity(flags: list[str], data: Path, tmp_path: Path) -> None:
    """At a rate at which the LSTM's biases and the recurrence count."""
    run = runs.train_run(data, tmp_path / "run", *flags, "--init-scale", "0.5")
    script = tmp_path / "perplexity.py"
    script.write_text(CODE, encoding="utf-8")
    command = [sys.executable, str(script), str(run), str(data / "test.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = float(done.stdout.removeprefix("perplexity "))
    assert found == pytest.approx(runs.result(run)["test_perplexity"], rel=2e-5)


def test_its_table_names_the_tensors(data: Path, tmp_path: Path) -> None:
    run = runs.train_run(data, tmp_path / "run", "--epochs", "1")
    weights, metadata = tensors.load(run / "weights.safetensors")
    named = set(re.findall(r"`((?:embedding|lstm|softmax)\S*)`", PAGE)) - {"embedding_size"}
    shown = {re.sub(r"\.\d\.", ".0.", name) for name in named}
    assert {re.sub(r"\.\d\.", ".0.", name) for name in weights} == shown
    assert {"config", "best", "vocabulary_sha256"} <= metadata.keys()
