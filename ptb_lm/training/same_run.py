"""Whether a run that exists is the one that the flags of a new run would make."""

from collections.abc import Iterator

from ptb_lm.data.corpus import PENN_TREEBANK_SHA256
from ptb_lm.data.preparation import PTB, effective_settings
from ptb_lm.training.run_config import PLACES, RunConfig


def differences(there: RunConfig, here: RunConfig) -> list[str]:
    """Return what sets a run apart from the one that flags would make, with both values.

    Its device, the place of its text and its epochs do not count.

    Args:
        there: The run's configuration.
        here: That of the flags, with the digests of the text and of the weights to start from.
    """
    found = there.differences(here, allowed=(*PLACES, "epochs"))
    words = [*_of_preparation(there, here), *_of_weights(there, here)]
    # Prepared otherwise, or with another vocabulary, any text has another digest.
    return [*found, *(words or _of_text(there, here))]


def _of_preparation(there: RunConfig, here: RunConfig) -> Iterator[str]:
    theirs, ours = effective_settings(there.preparation), effective_settings(here.preparation)
    for name, value in theirs.items():
        if value != ours[name]:
            yield f"{name} {value!r} there, {ours[name]!r} here"


def _of_weights(there: RunConfig, here: RunConfig) -> Iterator[str]:
    theirs, ours = (
        run.init_from and (run.init_from.weights_sha256, run.init_from.new_words) for run in (there, here)
    )
    if theirs != ours:
        yield f"init_from {_start(there)} there, {_start(here)} here"


def _start(run: RunConfig) -> str:
    start = run.init_from
    if start is None:
        return "none"
    return f"{start.run} (SHA-256 {start.weights_sha256[:12]}…, {start.new_words:,} new words)"


def _of_text(there: RunConfig, here: RunConfig) -> Iterator[str]:
    theirs, ours = _digest(there), _digest(here)
    if theirs and ours:
        same = theirs == ours
    else:  # A synthetic corpus has no digest, nor has ptb with another run's words.
        one_is_other_text = here.data == PTB and there.source != here.source
        same = there.data == here.data and not one_is_other_text
    if not same:
        yield f"data {_place(there)} there, {_place(here)} here"


def _digest(run: RunConfig) -> str | None:
    if run.source:
        return run.source.sha256
    # With another run's words it would be another.
    return PENN_TREEBANK_SHA256 if run.data == PTB and run.init_from is None else None


def _place(run: RunConfig) -> str:
    return f"{run.source.path} (SHA-256 {run.source.sha256[:12]}…)" if run.source else run.data
