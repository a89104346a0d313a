"""Metrics of a run: within an epoch, at the end of an epoch, and in its result."""

from ptb_lm.model.config import Config
from ptb_lm.training.evaluation import perplexity_of
from ptb_lm.training.progress import Progress
from ptb_lm.training.schemas import JsonObject

# TensorBoard tag -> column of metrics.jsonl, which may be missing.
EPOCH_SCALARS = {
    "perplexity/train": "train_perplexity",
    "perplexity/valid": "valid_perplexity",
    "perplexity/valid_unaveraged": "unaveraged_valid_perplexity",
    "learning_rate": "learning_rate",
    "words_per_second": "words_per_second",
    "gradient_norm": "gradient_norm",
}
# TensorBoard tag -> key of result.json.
RESULT_SCALARS = {
    "perplexity/test": "test_perplexity",
    "perplexity/test_of_last_epoch": "final_test_perplexity",
}


def point(before: Progress, now: Progress, config: Config, *, rate: float) -> dict[str, float]:
    """Return TensorBoard's values of the steps between two moments of an epoch, by tag.

    Args:
        before: Progress at the first moment.
        now: Progress at the second; a step at least lies between.
        config: The hyper-parameters.
        rate: The learning rate.
    """
    steps = now.step - before.step
    tokens = steps * config.batch_size * config.num_steps
    nll = now.nll - before.nll
    values = {
        "step/loss": nll / tokens,
        "step/perplexity": perplexity_of(nll, tokens),
        "step/gradient_norm": (now.gradient_norms - before.gradient_norms) / steps,
        "step/learning_rate": rate,
    }
    seconds = now.clocked_seconds - before.clocked_seconds
    if seconds > 0:  # the first step of a process is not clocked
        values["step/words_per_second"] = (now.clocked_tokens - before.clocked_tokens) / seconds
    return values


def epoch_scalars(row: JsonObject) -> dict[str, float]:
    """Return TensorBoard's values of an epoch's row, by tag."""
    return {tag: row[column] for tag, column in EPOCH_SCALARS.items() if column in row}


def result_scalars(result: JsonObject) -> dict[str, float]:
    """Return TensorBoard's values of a result, by tag."""
    return {tag: result[key] for tag, key in RESULT_SCALARS.items()}


def epoch_row(
    progress: Progress, config: Config, *, valid_perplexity: float, unaveraged_valid_perplexity: float
) -> JsonObject:
    """Return the row of metrics.jsonl of an epoch whose training steps are all done.

    Args:
        progress: Progress of the run.
        config: The hyper-parameters.
        valid_perplexity: Perplexity of the kept weights: of their moving average if there is one.
        unaveraged_valid_perplexity: Perplexity of the weights. It has a column only in a run that averages
            them.
    """
    average_only = {"unaveraged_valid_perplexity": unaveraged_valid_perplexity}
    return {
        "epoch": progress.epoch + 1,
        "learning_rate": config.learning_rate_in(progress.epoch),
        "train_perplexity": progress.train_perplexity(config.batch_size * config.num_steps),
        "valid_perplexity": valid_perplexity,
        **(average_only if config.average_epochs else {}),
        "words_per_second": progress.words_per_second,
        "seconds": progress.clocked_seconds,
        "gradient_norm": progress.gradient_norms / progress.step,
    }


def epoch_line(row: JsonObject, config: Config) -> str:
    """Return an epoch's row as a line for people."""
    return (
        f"epoch {row['epoch']:>2}/{config.epochs}  lr {row['learning_rate']:.4g}  perplexity: "
        f"train {row['train_perplexity']:.2f}, valid {row['valid_perplexity']:.2f}  "
        f"{row['words_per_second']:,.0f} words/s"
    )


def result(
    progress: Progress,
    *,
    test_perplexity: float,
    final_test_perplexity: float,
    best_possible_perplexity: float | None,
    parameters: int,
    engine: str,
    seconds: float,
) -> JsonObject:
    """Return the values of result.json.

    Args:
        progress: Progress of the run, which has ended.
        test_perplexity: Perplexity of the best epoch's weights.
        final_test_perplexity: Perplexity of the last epoch's weights, as the tutorial has it.
        best_possible_perplexity: Least perplexity that any model can reach on the test split,
            where it is known.
        parameters: Number of parameters.
        engine: Name of the engine that computed the LSTM.
        seconds: Training time of all processes that worked on the run.
    """
    rows = progress.rows
    tokens = sum(row["words_per_second"] * row["seconds"] for row in rows)
    return {
        "test_perplexity": test_perplexity,
        "valid_perplexity": progress.best_perplexity,
        "final_test_perplexity": final_test_perplexity,
        "final_valid_perplexity": rows[-1]["valid_perplexity"],
        "best_possible_perplexity": best_possible_perplexity,
        "best_epoch": progress.best_epoch,
        "epochs": progress.epoch,
        "words_per_second": tokens / max(sum(row["seconds"] for row in rows), 1e-9),
        "parameters": parameters,
        "engine": engine,
        "seconds": seconds,
        "command": " && ".join(progress.commands),
        "environment": progress.environments[-1],
        "earlier_environments": progress.environments[:-1],
    }
