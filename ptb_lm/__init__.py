"""The reference workbench for word-level LSTM language models on Penn Treebank.

`ptb_lm.load(RUN)` returns a trained model (ptb_lm.inference.language_model).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptb_lm.inference.language_model import load as load

    __version__: str


def __getattr__(name: str) -> Any:
    """Find `load` and the version when they are asked for: NumPy would take longer than all of --help."""
    if name == "load":
        from ptb_lm.inference.language_model import load

        return load
    if name == "__version__":
        from ptb_lm.version import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
