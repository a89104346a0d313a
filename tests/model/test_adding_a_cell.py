"""The walk of CONTRIBUTING.md that adds a cell: its code is taken from the page, and trained."""

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import runs
from support import ROOT, installed, numeric_gradient, random_weights, random_windows
from training_steps import VOCABULARY, assert_steps_equal_the_reference, build

from ptb_lm import evaluate, train
from ptb_lm.model import cells, reference
from ptb_lm.model.config import Config

pytestmark = pytest.mark.slow

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
# The first line of each block of code says where it belongs. Other blocks add a hyper-parameter.
FOUND = re.findall(r"```python\n# ([^\n]+)\n(.*?)```", PAGE, flags=re.DOTALL)
BLOCKS = {place: code for place, code in FOUND if "elman" in code.lower()}
PLACES = ("ptb_lm/model/cells", "ptb_lm/torch_backend", "ptb_lm/tf_backend")
ROW = BLOCKS["in CELLS, ptb_lm/model/cells/__init__.py"]
BLOCKS = {path: code for path, code in BLOCKS.items() if path.endswith("/elman.py")}


@pytest.fixture(scope="module", autouse=True)
def elman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write the page's files, where the packages find them, and add its row to the table."""
    folder = tmp_path_factory.mktemp("added")
    with pytest.MonkeyPatch.context() as patch:
        for path, code in BLOCKS.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(code, encoding="utf-8")
        for place in PLACES:
            if place == "ptb_lm/tf_backend" and not find_spec("tensorflow"):
                continue
            package = importlib.import_module(place.replace("/", "."))
            patch.setattr(package, "__path__", [*package.__path__, str(folder / place)])
            name = f"{package.__name__}.elman"
            patch.delitem(sys.modules, name, raising=False)
        for name, row in eval(f"{{{ROW}}}", {"CellRow": cells.CellRow}).items():
            patch.setitem(cells.CELLS, name, row)
        yield
    for place in PLACES:
        sys.modules.pop(f"{place.replace('/', '.')}.elman", None)


@pytest.fixture
def config(tiny_config: Config) -> Config:
    return tiny_config.replace(cell="elman", max_grad_norm=3.0)


def test_the_page_has_a_file_for_each_place() -> None:
    assert sorted(BLOCKS) == sorted(f"{place}/elman.py" for place in PLACES)


def test_its_gradients_equal_finite_differences(config: Config) -> None:
    weights = random_weights(config, VOCABULARY, seed=1)
    ((x_BT, y_BT),) = random_windows(config, VOCABULARY, 1, seed=2)
    rng = np.random.default_rng(3)
    state = [(rng.uniform(-1, 1, (3, 7)),) for _ in range(2)]
    _, gradients, _ = reference.loss_and_gradients(weights, x_BT, y_BT, state)

    def loss() -> float:
        return reference.loss_and_gradients(weights, x_BT, y_BT, state)[0]

    for name in ("elman.0.kernel", "elman.0.recurrent_kernel", "elman.1.bias"):
        numeric = numeric_gradient(loss, weights[name])
        np.testing.assert_allclose(gradients[name], numeric, rtol=0, atol=1e-8, err_msg=name)


@pytest.mark.parametrize(
    ("framework", "execution"),
    [("torch", None), ("torch", "jit"), pytest.param("tensorflow", None, marks=installed("tensorflow"))],
)
def test_every_training_step_equals_the_reference(
    framework: str, execution: str | None, config: Config
) -> None:
    built = build(config, framework=framework, model="basic", execution=execution, precision="fp64")
    assert "basic elman" in built.engine
    windows = random_windows(config, VOCABULARY, 8, seed=2)
    assert_steps_equal_the_reference(built, windows, bound=1e-11, rate=0.2)
    assert "c" not in built.export_training_state(built.zero_state(3))


def test_train_resume_and_evaluate_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = runs.write_corpus(tmp_path / "data")
    flags = ["--cell", "elman", "--model", "basic", "--average-epochs", "1", "--recurrent-keep-prob", "0.9"]
    whole = runs.train_run(data, tmp_path / "whole", *flags)
    parts = runs.train_run(data, tmp_path / "parts", *flags, "--epochs", "1")
    assert train.main(["--resume", str(parts), "--epochs", "2"]) == 0
    assert runs.result(parts)["test_perplexity"] == runs.result(whole)["test_perplexity"]
    capsys.readouterr()
    assert evaluate.main([str(whole)]) == 0
    assert f"{runs.result(whole)['test_perplexity']:.4f}" in capsys.readouterr().out
    problem = runs.refusal(capsys, evaluate, whole, "--model", "cudnn")
    assert re.search("cudnn .*elman.* --model basic", problem)
