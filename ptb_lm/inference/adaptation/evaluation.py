"""`evaluate` with a model that adapts to the text: tune, score, print and store the result."""

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ptb_lm.common import cli, host, json_files
from ptb_lm.common.errors import DivergenceError, UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.inference.adaptation import Adaptation, AdaptationRequest, DynamicEvaluation, NeuralCache, tuning
from ptb_lm.inference.adaptation.adapted_scorer import AdaptedScorer, Perplexities
from ptb_lm.inference.adaptation.segment_model import SegmentModel
from ptb_lm.inference.evaluated_text import EvaluatedText
from ptb_lm.model.backend import Arrays
from ptb_lm.model.choice import Choice
from ptb_lm.torch_backend.runtime import Runtime
from ptb_lm.torch_backend.settings import convert_allocation_errors
from ptb_lm.training.evaluation import format_perplexity
from ptb_lm.training.run_config import RunConfig

RESULT = "result.json"
_PrintLine: TypeAlias = Callable[[str], None]


@convert_allocation_errors()
def evaluate(
    text: EvaluatedText,
    request: AdaptationRequest,
    *,
    run: RunConfig,
    weights: Arrays,
    run_result: Mapping[str, Any],
    device: str,
    command: str,
) -> None:
    """Tune if asked to, score, print the perplexity, and store the result if a folder is given.

    Args:
        text: The text to score, with the run's data where these are needed.
        request: The adaptation, and what is done with the result.
        run: The run's configuration.
        weights: The run's canonical parameters, in float32.
        run_result: The content of the run's result.json; empty if it has none.
        device: "auto", "cpu" or "cuda".
        command: The command line, for the record.

    Raises:
        UserError: There is a result already, also one that came meanwhile; the valid split is too short;
            there is no such device, or it has not enough memory.
        DivergenceError: The steps were too large, and the perplexity is not finite.
    """
    start = time.perf_counter()
    if request.out is not None:
        _check_free(request.out)
    runtime = Runtime(Choice.create(framework="torch", model="basic", precision="fp32", device=device))
    # What a file will hold too is not lost with the reader of a pipe: a tuning takes hours.
    print_line = cli.print_line if request.out is None else cli.try_print_line
    adaptation, trials, tuned_on = request.adaptation, tuning.Trials(), None
    with runtime.context():
        model = SegmentModel(run.hyperparameters, weights, device=runtime.device)
        train = text.ids[:0] if text.data is None else text.data.splits["train"]
        scorer = AdaptedScorer(model, train)
        if request.tune:
            adaptation, trials, tuned_on = _tune(scorer, text.data, request, print_line)
        for part in (adaptation.dynamic, adaptation.cache):
            if part is not None:
                print_line(f"{'chosen: ' if request.tune else ''}{_describe(part)}")
        perplexities = scorer.perplexities(text.ids, adaptation, description=text.name)
    if not math.isfinite(perplexities.adapted):
        advice = "; try a smaller rate" * (adaptation.dynamic is not None)
        raise DivergenceError(f"the adapted perplexity is not finite{advice}")
    _report(text, adaptation, perplexities, print_line)
    print_line(f"computed by torch on {runtime.device.type} in fp32")
    if request.out is None:
        return
    result = {
        "adapted_by": adaptation.name,
        "text": text.name,
        "tokens": len(text.ids) - 1,
        "adapted_perplexity": perplexities.adapted,
        "adapted_perplexity_without_cache": perplexities.without_cache
        and _finite(perplexities.without_cache),
        "unadapted_perplexity": _finite(perplexities.unadapted),
        **dataclasses.asdict(adaptation),
        "tuned_on": tuned_on,
        **_describe_trials(trials, adaptation),
        "run": run.to_json(),
        "run_command": run_result.get("command"),
        "run_commit": run_result.get("environment", {}).get("commit"),
        "command": command,
        "seconds": time.perf_counter() - start,
        "environment": {**host.environment(), **runtime.environment()},
    }
    _check_free(request.out)  # another result may have come meanwhile
    request.out.mkdir(parents=True, exist_ok=True)
    json_files.write(request.out / RESULT, result)
    print_line(f"written to {request.out / RESULT}")


def _tune(
    scorer: AdaptedScorer, corpus: Corpus | None, request: AdaptationRequest, print_line: _PrintLine
) -> tuple[Adaptation, tuning.Trials, str]:
    """Choose the settings on the valid split and print them; return them, all trials, and the text's name."""
    assert corpus is not None
    whole = corpus.splits["valid"]
    valid = whole[: request.tune_words]
    if len(valid) < 2:
        raise UserError("the valid split has 1 token, but tuning needs at least 2")
    text = "valid" if len(valid) == len(whole) else f"the first {len(valid):,} words of valid"
    print_line(f"tuning on {text}; perplexities are adapted to the text by {request.adaptation.name}")
    adaptation, trials = tuning.tune(
        scorer,
        valid,
        request.adaptation,
        fixed=request.fixed,
        on_trial=lambda settings, perplexity: print_line(f"  {perplexity:8.3f}  {_describe(settings)}"),
    )
    dynamic, cache = adaptation.dynamic, adaptation.cache
    for what, part, other, than in (
        ("dynamic evaluation", dynamic, None, "not adapting"),
        ("a cache", cache, dynamic, "dynamic evaluation alone" if dynamic else "not adapting"),
        ("both", cache if dynamic else None, None, "not adapting"),
    ):
        if part is not None and not trials[part] < trials[other]:
            print_line(f"no setting of {what} was better than {than}")
    return adaptation, trials, text


def _report(
    text: EvaluatedText, adaptation: Adaptation, perplexities: Perplexities, print_line: _PrintLine
) -> None:
    tokens = len(text.ids) - 1
    print_line(
        f"{text.name} perplexity {format_perplexity(perplexities.adapted, digits=4)}, adapted to the text by "
        f"{adaptation.name} ({tokens:,} token{'s' * (tokens != 1)} scored, each before the model adapts to "
        "it)"
    )
    if perplexities.without_cache is not None:
        print_line(
            f"by dynamic evaluation alone it is {format_perplexity(perplexities.without_cache, digits=4)}"
        )
    print_line(f"not adapted it is {format_perplexity(perplexities.unadapted, digits=4)}")
    if text.note:
        print_line(text.note)


def _describe_trials(trials: tuning.Trials, adaptation: Adaptation) -> dict[str, Any]:
    """Return the part of the result that says how the settings were chosen."""
    # The trial of the chosen settings: the cache's if there is one, since it is tuned last. It need not be
    # the best trial: the unadapted model may be.
    last = adaptation.cache or adaptation.dynamic
    return {
        "adapted_perplexity_there": _finite(trials.get(last, math.inf)),
        "trials": [
            {
                "settings": settings and {"kind": settings.kind, **dataclasses.asdict(settings)},
                "perplexity": _finite(perplexity),
            }
            for settings, perplexity in trials.items()
        ],
    }


def _check_free(out: Path) -> None:
    """Check that a result can be written to a folder, which must have none yet."""
    for name in ("config.json", RESULT):
        if (out / name).exists():
            raise UserError(f"--out {out} holds {name} already; choose another folder")
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out {out}: {there} is a file, not a folder; give another name")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:  # which names the temporary file
        raise OSError(error.errno, error.strerror, str(there)) from None


def _describe(settings: DynamicEvaluation | NeuralCache | None) -> str:
    if settings is None:
        return "not adapted"
    return f"{'dynamic evaluation' if isinstance(settings, DynamicEvaluation) else 'cache'}: {settings}"


def _finite(perplexity: float) -> float | None:
    return perplexity if math.isfinite(perplexity) else None  # JSON has no infinity
