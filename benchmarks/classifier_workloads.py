"""The workloads of the suites that classify sequences: acoustic, semantics, template.

Sizes and protocols are those of the tables that a suite makes again; benchmarks/published has the figures.
"""

from collections.abc import Mapping

from sequence_classifier import ClassifierConfig

import benchmarks.classifier_check  # noqa: F401 - it registers the check of a ClassifierTask
from benchmarks.classifier_task import ClassifierTask
from ptb_lm.bench.language_workloads import MODELS
from ptb_lm.bench.variants import name_variants
from ptb_lm.bench.workloads import Workload

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
# oneDNN takes no sequences of different lengths.
_CTC_VARIANTS = {**_ACOUSTIC_VARIANTS, "torch/cudnn": "PyTorch cuDNNLSTM (on a CPU: ATen's loop)"}
_ONE_LAYER_VARIANTS = {
    **_ACOUSTIC_VARIANTS,
    "keras-tensorflow/lstm": "Keras/TensorFlow LSTM",
    "keras-tensorflow/cudnn": "Keras/TensorFlow cuDNNLSTM",
    "keras-jax/lstm": "Keras/JAX LSTM",
    "keras-jax/cudnn": "Keras/JAX cuDNNLSTM",
    "keras-torch/lstm": "Keras/torch LSTM",
    "keras-torch/cudnn": "Keras/torch LSTM, a loop after one product (on a GPU: cuDNN)",
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
    return Workload(
        name=name,
        task=task,
        variants=name_variants(variants),
        baseline="torch/basic",
        min_steps=40,
        warm_up_steps=100,  # 500 runs, of which 100 warm up, the others in ten rounds
        # On a CPU torch.nn.LSTM takes more than a minute for a step of sequences of different lengths.
        measured_twice="torch/block_fused" if ctc else "torch/cudnn",
    )


def _three_layers(name: str, *sizes: int) -> Workload:
    """Return a workload of the thread on cuDNN's use: three layers, a call each or one for all."""
    return Workload(
        name=name,
        task=ClassifierTask(
            config=ClassifierConfig(input_size=1024, hidden_sizes=sizes, classes=10),
            batch_size=128,
            steps=8,
        ),
        variants=name_variants(
            {
                "torch/cudnn": "three calls of one layer",
                "one-call-torch/cudnn": "one call of three layers",
                "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
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
    variants=MODELS,
    baseline="torch/basic",
    passes=("forward", "train"),
    min_steps=10,
    warm_up_steps=10,
)

ACOUSTIC = (
    _acoustic("1x320-CE-short", _ONE_LAYER_VARIANTS, layers=1, batch=64, steps=100),
    _acoustic("1x320-CE-long", _ONE_LAYER_VARIANTS, layers=1, batch=32, steps=1000),
    _acoustic("4x320-CE-long", _ACOUSTIC_VARIANTS, layers=4, batch=32, steps=1000),
    _acoustic("4x320-CTC-long", _CTC_VARIANTS, layers=4, batch=32, steps=1000, ctc=True),
)
TEMPLATE = (_TURNING_POINTS,)
SEMANTICS = (
    _three_layers("3x1024", 1024, 1024, 1024),
    # Which one call cannot do; by TensorFlow its author found it the faster of the two.
    _three_layers("1024-1024-512", 1024, 1024, 512),
)
