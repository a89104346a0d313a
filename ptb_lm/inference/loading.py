"""Load a trained model from a run: ptb_lm.load(RUN)."""

from pathlib import Path

from ptb_lm.inference.language_model import LanguageModel
from ptb_lm.model.choice import Choice
from ptb_lm.training import run_paths


def load(
    run: str | Path,
    *,
    framework: str | None = None,
    model: str | None = None,
    device: str | None = None,
    precision: str | None = None,
) -> LanguageModel:
    """Load a trained run, to score, predict, continue and compare text with it.

    For example, with the small run that the package holds:

        model = ptb_lm.load("demo")
        model.score("the judge sues the court").perplexity
        model.predict("these judges", k=5)
        print(*model.generate("the judge", seed=1))

    Any number of threads may use the model at once, and each gets the numbers that it would get alone. Where
    several read with `carry_state`, each takes a `copy.copy` of the model. After each call torch's settings
    are what they were; but without a C++ compiler, threads that torch started for the call go on taking
    denormal numbers for zero. The model can be pickled. A process that is forked after this one has loaded a
    model cannot compute, and says so: start it by "spawn" or "forkserver" of multiprocessing.

    Args:
        run: The run directory. "demo": the package's own run, unless a folder of this name is a run.
        framework: The framework that computes; None: that of the training. The numbers are the same.
        model: The way to compute the LSTM; None: that of the training.
        device: The device; None: that of the training.
        precision: The precision; None: float32, in which the weights are kept, whatever they were trained in.
            "auto": the fastest of the device.

    Returns:
        The model: score, perplexity, predict, generate, nearest, embeddings, to_torch; help(model) describes
        each.

    Raises:
        UserError: It is not a run directory, has no weights, or cannot be computed so here.
    """
    config, vocabulary, weights = run_paths.find(run).read_model()
    choice = Choice.create(
        framework=framework or config.choice.framework,
        model=model or config.choice.model,
        device=device or config.choice.device,
        precision=precision or "fp32",
        seed=config.choice.seed,
    )
    choice.check_cell(config.hyperparameters.cell, has_weights=True)
    return LanguageModel(config.hyperparameters, weights, choice, vocabulary, config.treatment, run)
