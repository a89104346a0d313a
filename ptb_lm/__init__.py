"""The reference workbench for word-level LSTM language models on Penn Treebank.

`ptb_lm.load` returns a trained model, which scores, predicts, continues and compares text:

    model = ptb_lm.load("demo")  # the small run that the package holds; or the folder of a run of yours
    model.score("the judge sues the court").perplexity

`python -m ptb_lm` lists the commands.
"""

import sys

__all__ = ["load"]  # __getattr__ returns it

TYPE_CHECKING = False  # typing's own is not imported: a Ctrl-C meanwhile would be a traceback
if TYPE_CHECKING:
    from typing import Any

    from ptb_lm.inference.loading import load

    __version__: str


def _is_our_command() -> bool:
    """Return whether this process is a command of this package, and no program that imports it."""
    name = "".join(sys.argv[:1])
    # Python's name for a module to run, while it looks for it. The module's own name is the word in front of
    # the arguments, perhaps as -mptb_lm.train.
    if name == "-m":
        word = "".join(sys.orig_argv[-len(sys.argv) :][:1])
        module = word.partition("m")[2] if word.startswith("-") else word
        return f"{module}.".startswith("ptb_lm.")
    return name.endswith("/ptb-lm")


if _is_our_command():
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it without a word, until one can be said

    from ptb_lm.common import signals, streams

    streams.prepare()
    signals.handle_from_start()


def __getattr__(name: str) -> "Any":
    """Import `load` and the version only when they are used: importing NumPy takes longer than --help."""
    if name == "load":
        from ptb_lm.inference.loading import load

        return load
    if name == "__version__":
        from ptb_lm.common.program import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what there is for users; help() shows no more."""
    return [*__all__, "__version__"]
