"""Sequence classifiers: the language model's LSTM stacks, used for other data than language.

contract.py says what one is and builds it; reference.py is the oracle; on_torch.py and on_tensorflow.py
compute it with the language model's own layers.
"""

from ptb_lm.classifier.contract import (
    CLASSIFIERS,
    LOSSES,
    Batch,
    Classifier,
    ClassifierConfig,
    Scores,
    build,
    check_labels,
    check_lengths,
    initial,
    shapes,
)

__all__ = [
    "CLASSIFIERS",
    "LOSSES",
    "Batch",
    "Classifier",
    "ClassifierConfig",
    "Scores",
    "build",
    "check_labels",
    "check_lengths",
    "initial",
    "shapes",
]
