"""The suites: a table's worth of workloads each."""

from typing import NamedTuple

from ptb_lm.bench import classifier_workloads, language_workloads
from ptb_lm.bench.workloads import Workload


class Suite(NamedTuple):
    """A table's worth of workloads."""

    description: str
    workloads: tuple[Workload, ...]


SUITES: dict[str, Suite] = {
    "quick": Suite("small, in some three minutes on a laptop", (language_workloads.QUICK,)),
    "ptb": Suite(
        "words per second of the tutorial's configurations, and of pytorch/examples' language model",
        language_workloads.PTB,
    ),
    "executions": Suite(
        "every model × execution of both frameworks, on small and medium", language_workloads.EXECUTIONS
    ),
    "stacked-lm": Suite(
        "TensorFlow and PyTorch, eager and compiled, three ways to write a cell",
        (language_workloads.STACKED,),
    ),
    "peak": Suite(
        "the fastest on a CUDA device: CUDA graphs and lower precisions against a plain loop in TF32",
        language_workloads.PEAK,
    ),
    "acoustic": Suite(
        "speech-sized sequence classification, with cross-entropy and CTC", classifier_workloads.ACOUSTIC
    ),
    "template": Suite(
        "the example that classifies sequences of different lengths", (classifier_workloads.TURNING_POINTS,)
    ),
    "semantics": Suite(
        "one call of three layers against three calls of one", (classifier_workloads.THREE_LAYERS,)
    ),
}
DEFAULT_SUITE = "quick"
