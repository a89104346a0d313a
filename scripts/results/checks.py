"""Second checks: a kept run's test perplexity, computed again by other models and the other framework."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptb_lm.common import host
from ptb_lm.common.errors import UserError
from ptb_lm.model import backend
from ptb_lm.model.choice import Choice
from ptb_lm.training import evaluation, run_data
from ptb_lm.training.run_directory import RunDirectory
from results import store

BY = ("torch/cudnn", "tensorflow/block_fused")  # what checks by default, each in fp32


def check(results: Path, run: Path, name: str, by: Sequence[str] = BY) -> list[dict[str, Any]]:
    """Compute the test perplexity of a run again, and keep what was found.

    The run's own model comes first, in the run's own precision.

    Args:
        results: The folder in which the run is kept.
        run: The run's folder, which has its weights.
        name: The run's id in results.
        by: FRAMEWORK/MODEL of each model that computes it in float32.

    Returns:
        A row of each model: `by`, `precision`, `engine`, `test_perplexity` and `commit`.

    Raises:
        UserError: The run has not ended or is not kept under that id, its data are gone or have changed, or a
            model is unknown.
    """
    directory = RunDirectory(run)
    config, result = directory.read_config(), directory.read_result()
    if result is None:
        raise UserError(f"the run in {run} has not ended: it has no test perplexity to check")
    if result["test_perplexity"] not in [row["test"] for row in store.rows(results, store.RUNS, name)]:
        raise UserError(f"{name} is not the run in {run}: keep it first")
    vocabulary = directory.read_vocabulary()
    weights = directory.read_weights(config, vocabulary)
    data = run_data.load_again(config, vocabulary)
    if difference := run_data.difference(config, data):
        raise UserError(difference)
    own = Choice.create(**{**config.choice.to_json(), "execution": None, "unroll": None})
    found = []
    for choice in (own, *(_choice(each, config.choice.seed) for each in by)):
        model = backend.build(config.hyperparameters, weights, choice)
        rows = evaluation.row_count("test", config.hyperparameters)
        model_name = f"{choice.framework}/{choice.model}"
        perplexity = evaluation.evaluate_perplexity(
            model, data.splits["test"], config.hyperparameters, batch_size=rows, description=model_name
        )
        found.append(
            {
                "id": name,
                "by": model_name,
                "precision": choice.precision,
                "engine": model.engine,
                "test_perplexity": evaluation.check_finite(perplexity, "the test split"),
                "commit": str(host.environment().get("commit") or ""),
            }
        )
    store.put(results, store.CHECKS, found, sort=["id"])
    return found


def _choice(name: str, seed: int) -> Choice:
    framework, slash, model = name.partition("/")
    if not slash:
        raise UserError(f"{name!r} is not FRAMEWORK/MODEL, for example torch/cudnn")
    return Choice.create(framework=framework, model=model, device="cpu", seed=seed)
