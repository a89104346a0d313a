"""The suites: which workloads are done by which variants.

Sizes and protocols are those of the tables that a suite makes again; published.py has the figures.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ptb_lm.bench.variants import Variant, every
from ptb_lm.bench.workloads import ClassifierTask, LanguageTask, Workload
from ptb_lm.classifier import ClassifierConfig
from ptb_lm.config import PRESETS, Config

PTB_VOCABULARY = 10_000


class Suite(NamedTuple):
    """A table's worth of workloads."""

    description: str
    workloads: tuple[Workload, ...]


def _named(table: Mapping[str, str]) -> tuple[Variant, ...]:
    return tuple(Variant(name, label) for name, label in table.items())


_MODELS = _named(
    {
        "plain-torch/cudnn": "PyTorch modules, plain loop",
        "torch/basic": "PyTorch basic",
        "torch/block": "PyTorch block (LSTMCell)",
        "torch/block_fused": "PyTorch block_fused",
        "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
        "tensorflow/basic": "TensorFlow basic",
        "tensorflow/block": "TensorFlow block (LSTMBlockCell)",
        "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
        "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
    }
)


def _ptb(preset: str, *, variants: tuple[Variant, ...] = _MODELS, baseline: str = "torch/basic") -> Workload:
    task = LanguageTask(config=PRESETS[preset], vocabulary_size=PTB_VOCABULARY)
    return Workload(name=preset, task=task, variants=variants, baseline=baseline)


_WORD_LANGUAGE_MODEL = Workload(
    # The 1500-unit model of pytorch/examples' word_language_model, on a vocabulary of 35,000.
    name="word_language_model",
    task=LanguageTask(
        config=PRESETS["large"].replace(max_grad_norm=0.25, learning_rate=20.0), vocabulary_size=35_000
    ),
    variants=_named(
        {
            "plain-torch/cudnn": "PyTorch modules, plain loop",
            "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
            "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
            "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
        }
    ),
    baseline="plain-torch/cudnn",
)

_STACKED = Workload(
    name="3x256",
    task=LanguageTask(
        config=Config(num_layers=3, hidden_size=256, embedding_size=128, num_steps=50, batch_size=128),
        vocabulary_size=10_001,
        unit="sequences",
    ),
    variants=_named(
        {
            "tensorflow/basic/eager": "TF Eager, fine-grained cell",
            "tensorflow/basic": "TF Graph, fine-grained cell",
            "tensorflow/basic/graph/loop": "TF Graph while-loop, fine-grained cell",
            "torch/basic": "PyTorch, fine-grained cell",
            "torch/basic/jit": "PyTorch JIT, fine-grained cell (a layer each)",
            "torch/basic/compile": "torch.compile, fine-grained cell (a layer each)",
            "tensorflow/block/eager": "TF Eager, static LSTM cell",
            "tensorflow/block": "TF Graph, static LSTM cell",
            "tensorflow/block/graph/loop": "TF Graph while-loop, static LSTM cell",
            "torch/block": "PyTorch, static LSTM cell",
            "torch/block/jit": "PyTorch JIT, static LSTM cell (a layer each)",
            "torch/block/compile": "torch.compile, static LSTM cell (a layer each)",
            "tensorflow/block_fused": "TF Graph, BlockLSTM",
            "tensorflow/cudnn/eager": "TF Eager, monolithic (on a CPU: Keras's loop)",
            "tensorflow/cudnn": "TF Graph, monolithic (on a CPU: Keras's loop)",
            "tensorflow/cudnn/graph/loop": "TF Graph while-loop, monolithic",
            "torch/block_fused": "PyTorch, block_fused",
            "torch/cudnn": "PyTorch, monolithic (on a CPU: oneDNN)",
            "torch/cudnn/jit": "PyTorch JIT, monolithic",
            "torch/cudnn/compile": "torch.compile, monolithic",
        }
    ),
    baseline="torch/basic",
    passes=("forward", "train"),
    # 60 batches: 10 to warm up, 50 timed.
    steps=10,
    warm_up=10,
)

_ACOUSTIC_VARIANTS = {
    "torch/basic": "PyTorch LSTMCell-basic",
    "torch/block": "PyTorch LSTMCell-fused",
    "torch/block_fused": "PyTorch block_fused",
    "torch/cudnn": "PyTorch cuDNNLSTM (on a CPU: oneDNN)",
    "tensorflow/basic/graph/loop": "TensorFlow LSTMCell",
    "tensorflow/block/graph/loop": "TensorFlow LSTMBlockCell",
    "tensorflow/block_fused": "TensorFlow LSTMBlockFusedCell",
    "tensorflow/cudnn": "TensorFlow cuDNNLSTM (on a CPU: Keras's loop)",
}
_ONE_LAYER_VARIANTS = {
    **_ACOUSTIC_VARIANTS,
    "keras-tensorflow/lstm": "Keras/TensorFlow LSTM",
    "keras-tensorflow/cudnn": "Keras/TensorFlow cuDNNLSTM",
    "keras-jax/lstm": "Keras/JAX LSTM",
    "keras-jax/cudnn": "Keras/JAX cuDNNLSTM",
    "keras-torch/lstm": "Keras/torch LSTM",
    "keras-torch/cudnn": "Keras/torch LSTM, its faster path",
    "pytensor/scan": "PyTensor scan (Theano's heir)",
}


def _acoustic(
    name: str,
    variants: Mapping[str, str],
    *,
    layers: int,
    batch: int,
    steps: int,
    ctc: bool = False,
) -> Workload:
    """Return a workload of Braun's framework comparison: 320 units, 123 features, Adam at 1e-3."""
    config = ClassifierConfig(
        input_size=123,
        hidden_sizes=(320,) * layers,
        bidirectional=layers > 1,
        classes=59 if ctc else 10,
        loss="ctc" if ctc else "cross_entropy",
    )
    task = ClassifierTask(
        config=config,
        batch_size=batch,
        steps=steps,
        shortest=500 if ctc else None,
        labels=100 if ctc else 1,
    )
    # 500 runs, of which 100 warm up.
    return Workload(
        name=name, task=task, variants=_named(variants), baseline="torch/basic", steps=80, warm_up=100
    )


_THREE_LAYERS = Workload(
    name="3x1024",
    task=ClassifierTask(
        config=ClassifierConfig(input_size=1024, hidden_sizes=(1024,) * 3, classes=10),
        batch_size=128,
        steps=8,
    ),
    variants=_named(
        {
            "torch/cudnn": "three calls of one layer",
            "one-call-torch/cudnn": "one call of three layers",
        }
    ),
    baseline="torch/cudnn",
    passes=("forward", "train"),
)

_TURNING_POINTS = Workload(
    # The batches of examples/sequence_classification.py.
    name="turning-points",
    task=ClassifierTask(
        config=ClassifierConfig(
            input_size=2, hidden_sizes=(16,) * 2, classes=2, learning_rate=0.01, clip_value=0.1
        ),
        batch_size=50,
        steps=30,
        shortest=10,
    ),
    variants=tuple(variant for variant in _MODELS if variant.name != "plain-torch/cudnn"),
    baseline="torch/basic",
    passes=("forward", "train"),
    steps=20,
    warm_up=10,
)

_QUICK = _named(
    {
        "plain-torch/cudnn": "PyTorch modules, plain loop",
        "torch/basic": "PyTorch basic",
        "torch/block": "PyTorch block (LSTMCell)",
        "torch/block_fused": "PyTorch block_fused",
        "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
        "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
    }
)
_EVERY = (
    Variant("plain-torch/cudnn", "plain-torch/cudnn"),
    *every("torch"),
    *every("tensorflow"),
)

SUITES: dict[str, Suite] = {
    "quick": Suite(
        "small, in two to three minutes on a laptop",
        (
            Workload(
                name="small",
                task=LanguageTask(config=PRESETS["small"], vocabulary_size=PTB_VOCABULARY),
                variants=_QUICK,
                baseline="plain-torch/cudnn",
                # A process each round: its interval covers what differs between processes.
                rounds_a_process=1,
            ),
        ),
    ),
    "ptb": Suite(
        "words per second of the tutorial's configurations, and of pytorch/examples' language model",
        (_ptb("small"), _ptb("medium"), _ptb("large"), _WORD_LANGUAGE_MODEL),
    ),
    "executions": Suite(
        "every model × execution of both frameworks, on small and medium",
        tuple(_ptb(name, variants=_EVERY, baseline="plain-torch/cudnn") for name in ("small", "medium")),
    ),
    "stacked-lm": Suite(
        "TensorFlow and PyTorch, eager and compiled, three ways to write a cell", (_STACKED,)
    ),
    "acoustic": Suite(
        "speech-sized sequence classification, with cross-entropy and CTC",
        (
            _acoustic("1x320-CE-short", _ONE_LAYER_VARIANTS, layers=1, batch=64, steps=100),
            _acoustic("1x320-CE-long", _ONE_LAYER_VARIANTS, layers=1, batch=32, steps=1000),
            _acoustic("4x320-CE-long", _ACOUSTIC_VARIANTS, layers=4, batch=32, steps=1000),
            _acoustic("4x320-CTC-long", _ACOUSTIC_VARIANTS, layers=4, batch=32, steps=1000, ctc=True),
        ),
    ),
    "template": Suite("the example that classifies sequences of different lengths", (_TURNING_POINTS,)),
    "semantics": Suite("one call of three layers against three calls of one", (_THREE_LAYERS,)),
}
DEFAULT_SUITE = "quick"
