"""Second checks: the test perplexity of a kept run, computed again by other models and the other framework.

RUN/checks.json has them. A table in results/README.md shows them. The weights are in the run's own folder,
because results/ holds none.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ptb_lm import host
from ptb_lm.data.text import Ids
from ptb_lm.errors import UserError
from ptb_lm.files import atomic_write
from ptb_lm.model import backend
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.program import command_name
from ptb_lm.results.markdown import table
from ptb_lm.results.runs import Run
from ptb_lm.training import run_data, scoring
from ptb_lm.training.run_directory import RunDirectory

FILE = "checks.json"
BY = ("torch/cudnn", "tensorflow/block_fused")  # what checks by default, each in fp32


@dataclass(frozen=True, kw_only=True)
class Check:
    """A test perplexity that was computed again.

    Attributes:
        by: FRAMEWORK/MODEL.
        precision: What it computed in.
        engine: What computed it, as the backend says.
        test_perplexity: What it found.
        commit: Of the code; "" if unknown.
    """

    by: str
    precision: str
    engine: str
    test_perplexity: float
    commit: str


def check(run: Path, kept: Path, by: Sequence[str] = BY) -> list[Check]:
    """Compute the test perplexity of a run again, and write what was found into its folder in results.

    The run's own model is asked first, in the run's own precision.

    Args:
        run: The run's folder, which has its weights.
        kept: Its folder in results.
        by: FRAMEWORK/MODEL of each model that computes it in float32.

    Raises:
        UserError: The run has not ended, `kept` is of another run, the run's data are gone or have changed,
            or a model is unknown.
    """
    directory = RunDirectory(run)
    config, result = directory.read_config(), directory.read_result()
    if result is None:
        raise UserError(f"the run in {run} has not ended: it has no test perplexity to check")
    if RunDirectory(kept).read_result() != result:
        raise UserError(f"{kept} does not hold the run in {run}: keep it first")
    vocabulary = directory.read_vocabulary()
    weights = directory.read_weights(config, vocabulary)
    data = run_data.load_with_its_words(config, vocabulary)
    if difference := run_data.difference(config, data):
        raise UserError(difference)
    ids = data.splits["test"]
    own = Choice.of(**{**config.choice.to_json(), "execution": None, "unroll": None})
    choices = (own, *(_choice(each, config.choice.seed) for each in by))
    found = [_checked(choice, config.hyperparameters, weights, ids) for choice in choices]
    atomic_write(kept / FILE, json.dumps([asdict(each) for each in found], indent=2) + "\n")
    return found


def _checked(choice: Choice, config: Config, weights: Arrays, ids: Ids) -> Check:
    """Return the test perplexity of some weights, as a model computes it."""
    model = backend.build(config, weights, choice)
    name = f"{choice.framework}/{choice.model}"
    rows = scoring.batch_size("test", config)
    perplexity = scoring.perplexity(model, ids, config, batch_size=rows, description=name)
    return Check(
        by=name,
        precision=choice.precision,
        engine=model.engine,
        test_perplexity=scoring.checked(perplexity, "the test split"),
        commit=str(host.environment().get("commit") or ""),
    )


def _choice(name: str, seed: int) -> Choice:
    framework, slash, model = name.partition("/")
    if not slash:
        raise UserError(f"{name!r} is not FRAMEWORK/MODEL, for example torch/cudnn")
    return Choice.of(framework=framework, model=model, device="cpu", seed=seed)


def read(folder: Path) -> list[Check]:
    """Return the checks of a kept run; none if there is no file of them.

    Raises:
        UserError: The file is not what `check` writes.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        return [Check(**{**each, "test_perplexity": float(each["test_perplexity"])}) for each in found]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not what {command_name('results')} check writes") from None


def markdown(found: Sequence[Run]) -> str:
    """Return the table: a row for each check of each run."""
    rows = []
    for run in found:
        for each in read(run.folder):
            recorded = run.result["test_perplexity"]
            rows.append(
                [
                    f"[{run.folder.name}]({run.folder.name}/{FILE})",
                    f"{recorded:.6f}",
                    f"{each.by}, {each.precision}",
                    f"{each.test_perplexity:.6f}",
                    f"{each.test_perplexity / recorded - 1:+.1e}",
                ]
            )
    return table(("run", "test, as it ended:", "computed again by", "test:", "relative difference:"), rows)
