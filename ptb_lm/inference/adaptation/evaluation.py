"""`evaluate` with a model that adapts to the text: tune, score, print and store the result."""

import dataclasses
import math
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from ptb_lm.common import cli, host
from ptb_lm.common.errors import DivergenceError, UserError
from ptb_lm.data.corpus import Corpus
from ptb_lm.data.text import Ids
from ptb_lm.inference.adaptation.flags import Request
from ptb_lm.inference.adaptation.scoring import AdaptedScorer, Perplexities, Trial
from ptb_lm.inference.adaptation.segment_model import SegmentModel
from ptb_lm.inference.adaptation.settings import Adaptation
from ptb_lm.model.backend import Arrays
from ptb_lm.torch_backend import gpu
from ptb_lm.torch_backend.base import enough_memory
from ptb_lm.torch_backend.settings import flushed_denormals
from ptb_lm.training import json_files
from ptb_lm.training.run_config import RunConfig

RESULT = "result.json"
_Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is scored, and by which trained model.

    Attributes:
        run: The run's configuration.
        weights: Its canonical parameters, in float32.
        ids: The text to score.
        name: What the text is called: a split, or a file.
        note: How a text is read, to say so; "" for a split.
        corpus: Where the train and the valid split come from; None where neither is needed.
        recorded: What the run's result.json says; empty if it has none.
        device: "auto", "cpu" or "cuda".
    """

    run: RunConfig
    weights: Arrays
    ids: Ids
    name: str
    note: str
    corpus: Corpus | None
    recorded: dict[str, Any]
    device: str


def needs_corpus(request: Request) -> bool:
    """Return whether the run's data are needed for any text: to tune, or for the rule rms."""
    dynamic = request.adaptation.dynamic
    return request.tune or (dynamic is not None and dynamic.rule == "rms")


@enough_memory()
@flushed_denormals()
def evaluate(subject: Subject, request: Request, *, command: str) -> None:
    """Tune if asked to, score, print the perplexity, and store the result if a folder is given.

    Raises:
        UserError: There is a result already, the valid split is too short, there is no such device, or it has
            not enough memory.
        DivergenceError: The steps were too large, and the perplexity is not finite.
    """
    started = time.perf_counter()
    if request.out is not None:
        _check_free(request.out)
    device = gpu.select_device(subject.device)
    model = SegmentModel(subject.run.hyperparameters, subject.weights, device=device)
    train = subject.ids[:0] if subject.corpus is None else subject.corpus.splits["train"]
    scorer = AdaptedScorer(model, train)
    # What a file will hold too is not lost with the reader of a pipe: a tuning takes hours.
    say = cli.say if request.out is None else cli.remark
    tuning = _tuned(scorer, subject.corpus, request, say) if request.tune else _Tuning(request.adaptation)
    for part in (tuning.chosen.dynamic, tuning.chosen.cache):
        if part is not None:
            say(f"{'chosen: ' if request.tune else ''}{_described(part)}")
    found = scorer.perplexities(subject.ids, tuning.chosen, description=subject.name)
    if not math.isfinite(found.adapted):
        raise DivergenceError("the adapted perplexity is not finite; try a smaller rate")
    _report(subject, tuning.chosen, found, say)
    say(f"computed by torch on {device.type} in fp32")
    if request.out is None:
        return
    result = {
        "adapted_by": tuning.chosen.name,
        "text": subject.name,
        "tokens": len(subject.ids) - 1,
        "adapted_perplexity": found.adapted,
        "adapted_perplexity_without_cache": found.without_cache,
        "unadapted_perplexity": _finite(found.unadapted),
        **dataclasses.asdict(tuning.chosen),
        **_trials(tuning),
        "run": subject.run.to_json(),
        "run_command": subject.recorded.get("command"),
        "run_commit": subject.recorded.get("environment", {}).get("commit"),
        "command": command,
        "seconds": time.perf_counter() - started,
        "environment": {**host.environment(), **_torch_environment(device)},
    }
    request.out.mkdir(parents=True, exist_ok=True)
    json_files.write(request.out / RESULT, result)
    say(f"written to {request.out / RESULT}")


class _Tuning(NamedTuple):
    """What was chosen: by trials on some text, or by the flags alone."""

    chosen: Adaptation
    trials: Sequence[Trial] = ()
    text: str | None = None


def _tuned(scorer: AdaptedScorer, corpus: Corpus | None, request: Request, say: _Say) -> _Tuning:
    """Choose the settings on the valid split, and say so."""
    assert corpus is not None
    whole = corpus.splits["valid"]
    valid = whole[: request.tune_words] if request.tune_words else whole
    if len(valid) < 2:
        raise UserError("the valid split has 1 token, but tuning needs at least 2")
    text = "valid" if len(valid) == len(whole) else f"the first {len(valid):,} words of valid"
    say(f"tuning on {text}; perplexities are adapted to the text by {request.adaptation.name}")
    chosen, trials = scorer.tune(
        valid, request.adaptation, held=request.held, tell=lambda trial: say(_line(trial))
    )
    if min(trials, key=lambda trial: trial.perplexity).settings is None:  # the first trial: also of equals
        say("none of them is better than not adapting")
    return _Tuning(chosen, trials, text)


def _report(subject: Subject, chosen: Adaptation, found: Perplexities, say: _Say) -> None:
    tokens = len(subject.ids) - 1
    say(
        f"{subject.name} perplexity {found.adapted:.4f}, adapted to the text by {chosen.name} "
        f"({tokens:,} token{'s' * (tokens != 1)} scored, each before the model adapts to it)"
    )
    if found.without_cache is not None:
        say(f"by dynamic evaluation alone it is {found.without_cache:.4f}")
    say(f"not adapted it is {found.unadapted:.4f}")
    if subject.note:
        say(subject.note)


def _trials(tuning: _Tuning) -> dict[str, Any]:
    """Return the part of the result that says how the settings were chosen."""
    # The cache is tuned last, upon the best steps. What did not adapt may have been better than all.
    last = tuning.chosen.cache or tuning.chosen.dynamic
    there = (trial.perplexity for trial in tuning.trials if trial.settings == last)
    return {
        "tuned_on": tuning.text,
        "adapted_perplexity_there": _finite(next(there, math.inf)),
        "trials": [
            {
                "settings": None if trial.settings is None else _one(trial.settings),
                "perplexity": _finite(trial.perplexity),
            }
            for trial in tuning.trials
        ],
    }


def _check_free(out: Path) -> None:
    """Check before the work that a result can be written to a folder, which must have none yet."""
    for name in ("config.json", RESULT):
        if (out / name).exists():
            raise UserError(f"--out {out} holds {name} already; nothing is overwritten")
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"--out {out}: {there} is a file, not a folder; give another name")
    with tempfile.TemporaryFile(dir=there):
        pass


def _line(trial: Trial) -> str:
    what = "not adapted" if trial.settings is None else _described(trial.settings)
    return f"  {trial.perplexity:8.3f}  {what}"


def _described(settings: Any) -> str:
    kind = type(settings).__name__.lower()
    return f"{'dynamic evaluation' if kind == 'dynamic' else 'cache'}: {settings}"


def _finite(perplexity: float) -> float | None:
    return perplexity if math.isfinite(perplexity) else None  # JSON has no infinity


def _one(settings: Any) -> dict[str, Any]:
    return {"kind": type(settings).__name__.lower(), **dataclasses.asdict(settings)}


def _torch_environment(device: torch.device) -> dict[str, Any]:
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else f"cpu ({platform.machine()})"
    return {"torch": torch.__version__, "threads": torch.get_num_threads(), "device": name}
