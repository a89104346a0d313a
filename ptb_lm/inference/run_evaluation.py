"""Evaluation of a trained run on a text or a split: what computes it, and its perplexity."""

import argparse
import contextlib
import functools
import math

import numpy as np
from numpy.typing import NDArray

from ptb_lm.common import cli
from ptb_lm.common.errors import UserError
from ptb_lm.data import corpus
from ptb_lm.data.vocabulary import UNK
from ptb_lm.inference import evaluated_text, loading
from ptb_lm.inference.adaptation import AdaptationRequest
from ptb_lm.inference.reader import score_in_pieces, tokens_per_call
from ptb_lm.inference.scoring import perplexity
from ptb_lm.model import backend, fastest
from ptb_lm.model.rules import SAFE_PRECISION
from ptb_lm.training import evaluation, run_folders
from ptb_lm.training.evaluation import format_perplexity
from ptb_lm.training.run_config import RunConfig


def evaluate(arguments: argparse.Namespace, request: AdaptationRequest | None, *, command: str) -> None:
    """Score a text or a split, and print the perplexity.

    Args:
        arguments: Flags from ptb_lm.evaluate's parser.
        request: Adaptation of the model to the text; None: it stays as it is.
        command: Command line, for the record.

    Raises:
        UserError: It is no run, or it cannot be scored so; the text is missing or too short.
        DivergenceError: The perplexity is not finite.
    """
    needs_data = request is not None and request.needs_corpus
    if arguments.text is not None and arguments.data is not None and not needs_data:
        raise UserError(
            "--data (the place of the run's splits) would change nothing with --text FILE; leave it out"
        )
    directory = run_folders.find(arguments.run)
    run, vocabulary, weights = directory.read_model()
    text = evaluated_text.load(arguments, run, vocabulary, needs_data=needs_data)
    batch_size = 1 if request else evaluation.row_count(text.split, run.hyperparameters)
    corpus.check_evaluation(text.ids, batch_size=batch_size, split=text.name)
    if request is not None:
        # It computes in torch, which scoring by another framework does not import.
        import ptb_lm.torch_backend  # noqa: F401 - before torch, for which it sets a variable
        from ptb_lm.inference.adaptation import evaluation as adapted_evaluation

        adapted_evaluation.evaluate(
            text,
            request,
            run=run,
            weights=weights,
            run_result=directory.read_result() or {},
            device=arguments.device or run.choice.device,
            command=command,
        )
        return
    decision = choose(arguments, run)
    choice = decision.choice
    if choice.execution in ("compile", "jit") and batch_size != run.hyperparameters.batch_size:
        raise UserError(
            f"--execution {choice.execution} would change nothing: it is for windows of the training's "
            f"{run.hyperparameters.batch_size} rows, and {text.name} is scored as one row"
        )
    if (choice.framework, choice.execution) == ("torch", "graph"):
        raise UserError("--execution graph would change nothing: only a training step is a CUDA graph")
    if decision.reason:
        cli.print_line(decision.reason)
    model = backend.build(run.hyperparameters, weights, choice)
    notes, unknown = list[str](), 0
    if text.is_unknown is None:
        found = evaluation.evaluate_perplexity(
            model, text.ids, run.hyperparameters, batch_size=batch_size, description=text.name
        )
    else:
        # The default of a split, or less where the vocabulary is very large.
        config = run.hyperparameters
        window = min(config.batch_size * config.num_steps, tokens_per_call(config, len(vocabulary)))
        found, notes = _text_perplexity(model, text, text.is_unknown, window=window)
        unknown = int((text.ids[1:] == vocabulary.unknown).sum())
    found = evaluation.check_finite(found, text.name)
    tokens = len(text.ids) // batch_size * batch_size - batch_size
    unknown_words = f", {unknown:,} of them {UNK}" if unknown else ""
    token_count = f"{tokens:,} token{'s' * (tokens != 1)} scored{unknown_words}"
    cli.print_line(
        "\n".join([f"{text.name} perplexity {format_perplexity(found, digits=4)} ({token_count})", *notes])
    )
    cli.print_line(f"computed by {choice.framework} {choice.model} in {choice.precision}: {model.engine}")


def _text_perplexity(
    model: backend.Backend, text: evaluated_text.EvaluatedText, is_unknown: NDArray[np.bool_], *, window: int
) -> tuple[float, list[str]]:
    """Score a text as one row.

    Args:
        model: The model.
        text: The text.
        is_unknown: Flags: true of a word that the vocabulary lacks.
        window: The number of words that are scored at once.

    Returns:
        (perplexity, sentences on how it was read and on the perplexity without unknown words).
    """
    x_1N, y_1N = text.ids[None, :-1], text.ids[None, 1:]
    with cli.progress_bar(math.ceil(y_1N.size / window), text.name) as bar:
        _, (log_p_N,) = score_in_pieces(
            model, x_1N, y_1N, model.zero_state(1), max_tokens=window, on_piece=bar.update
        )
    known_N = log_p_N[~is_unknown]
    without = format_perplexity(perplexity(math.fsum(known_N), len(known_N)), digits=4)
    notes = [
        text.note,
        *[f"without the unknown words the perplexity is {without}"] * bool(is_unknown.any()),
        f"{cli.command_name('score')} RUN FILE scores each line independently",
    ]
    return perplexity(math.fsum(log_p_N), len(log_p_N)), notes


def choose(arguments: argparse.Namespace, run: RunConfig) -> fastest.Decision:
    """Return the choices for scoring: the flags', the precision of the training, and the fastest model.

    The weights are always stored in float32. If this machine lacks the run's precision, or is slow in it
    because it converts to another one, they are scored in fp32, and a sentence says so.

    Args:
        arguments: Flags from ptb_lm.evaluate's parser.
        run: Configuration of the run.

    Raises:
        UserError: The run cannot be computed so.
    """
    choose_by = functools.partial(
        loading.choose,
        run,
        framework=arguments.framework,
        model=arguments.model,
        execution=arguments.execution,
        device=arguments.device,
    )
    if arguments.precision:
        return fastest.Decision(choice=choose_by(precision=arguments.precision))
    trained_in, is_slow = run.choice.precision, False
    with contextlib.suppress(UserError):  # no model has it here: then float32, or its refusal
        chosen = choose_by(precision=trained_in)
        if chosen.can_have(trained_in):
            is_slow = fastest.is_slow(trained_in, chosen)
            if not is_slow:
                return fastest.Decision(choice=chosen)
    why = f"is slow here; --precision {trained_in} uses it" if is_slow else "is not supported here"
    return fastest.Decision(
        choice=choose_by(precision=SAFE_PRECISION),
        reason=f"scored in {SAFE_PRECISION}: {trained_in}, in which the run was trained, {why}",
    )
