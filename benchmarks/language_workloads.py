"""The workloads of six suites.

stacked-lm: a table that others published (published/), whose rates are of sequences. rivals: small and
medium, by the loops that people write in three frameworks. awd: AWD-LSTM as it was published, and awd-2x650:
a smaller one; but all windows have one length, whoever computes them. mogrifier: medium with the Mogrifier
and with the LSTM. coverage: a program against itself, in little time (studies/coverage.py).
"""

from dataclasses import replace

from ptb_lm.bench.language_workloads import (
    PLAIN_TENSORFLOW,
    PLAIN_TORCH,
    PTB_VOCABULARY,
    STACKED_TASK,
    labelled,
)
from ptb_lm.bench.variants import Variant, name_variants
from ptb_lm.bench.workloads import LanguageTask, Workload
from ptb_lm.model.presets import PRESETS

STACKED = (
    Workload(
        name="3x256",
        task=replace(STACKED_TASK, unit="sequences"),
        variants=name_variants(
            {
                "tensorflow/basic/eager": "TF Eager, fine-grained cell",
                "tensorflow/basic": "TF Graph, fine-grained cell",
                "tensorflow/basic/graph/loop": "TF Graph while-loop, fine-grained cell",
                "torch/basic/eager": "PyTorch, fine-grained cell",
                "torch/basic/jit": "PyTorch JIT, fine-grained cell (a layer each)",
                "outer-torch/basic/jit": "PyTorch JIT on outer scope, fine-grained cell",
                "torch/basic/compile": "torch.compile, fine-grained cell (a layer each)",
                "tensorflow/block/eager": "TF Eager, static LSTM cell",
                "tensorflow/block": "TF Graph, static LSTM cell",
                "tensorflow/block/graph/loop": "TF Graph while-loop, static LSTM cell",
                "torch/block/eager": "PyTorch, static LSTM cell",
                "torch/block/jit": "PyTorch JIT, static LSTM cell (a layer each)",
                "outer-torch/block/jit": "PyTorch JIT on outer scope, static LSTM cell",
                "torch/block/compile": "torch.compile, static LSTM cell (a layer each)",
                "tensorflow/block_fused": "TF Graph, BlockLSTM",
                "tensorflow/cudnn/eager": "TF Eager, monolithic (on a CPU: Keras's loop)",
                "tensorflow/cudnn": "TF Graph, monolithic (on a CPU: Keras's loop)",
                "tensorflow/cudnn/graph/loop": "TF Graph while-loop, monolithic",
                "torch/block_fused/eager": "PyTorch, block_fused",
                "torch/cudnn/eager": "PyTorch, monolithic (on a CPU: oneDNN)",
                "torch/cudnn/jit": "PyTorch JIT, monolithic",
                "torch/cudnn/compile": "torch.compile, monolithic (a layer each)",
            }
        ),
        baseline="torch/basic/eager",
        measured_twice="torch/cudnn/eager",
        passes=("forward", "train"),
        # Blocks of at least 5 steps, after 10 to warm up.
        min_steps=5,
        warm_up_steps=10,
    ),
)

_BLOCK_FUSED = labelled("torch/block_fused", "torch/block_fused@bf16")
_RIVALS = (
    *labelled(PLAIN_TORCH, PLAIN_TENSORFLOW),
    *(Variant(name, "the plain loop in JAX") for name in ("plain-jax/scan", "plain-jax/scan@bf16")),
    *_BLOCK_FUSED,
)
RIVALS = tuple(
    Workload(
        name=name,
        task=LanguageTask(config=PRESETS[name], vocabulary_size=PTB_VOCABULARY),
        variants=_RIVALS,
        baseline=PLAIN_TORCH,
        measured_twice="torch/block_fused",
    )
    for name in ("small", "medium")
)

_AWD = PRESETS["awd"].replace(vary_num_steps=False)
_AWD_VARIANTS = (
    *(Variant(name, "the plain loop of AWD-LSTM") for name in ("plain-awd/cudnn", "plain-awd/cudnn@bf16")),
    *_BLOCK_FUSED,
    *labelled("torch/cudnn", "torch/cudnn@bf16"),
)
AWD = (
    Workload(
        name="awd",
        task=LanguageTask(config=_AWD, vocabulary_size=PTB_VOCABULARY),
        variants=_AWD_VARIANTS,
        baseline="plain-awd/cudnn",
        measured_twice="torch/block_fused",
        # On two cores a step takes a second or two. Two rounds of a step in each process take ten minutes.
        minutes=None,
        min_steps=1,
        needs_native_precision=True,
    ),
)
AWD_2X650 = (
    Workload(
        name="awd-2x650",
        task=LanguageTask(
            config=_AWD.replace(num_layers=2, layer_sizes=(), hidden_size=650), vocabulary_size=PTB_VOCABULARY
        ),
        variants=(
            *_AWD_VARIANTS,
            Variant("plain-awd/cudnn-kept-memory@bf16", "the plain loop of AWD-LSTM, freed memory kept"),
        ),
        baseline="plain-awd/cudnn",
        measured_twice="torch/block_fused",
        needs_native_precision=True,
    ),
)

MOGRIFIER = tuple(
    Workload(
        name=name,
        task=LanguageTask(config=config, vocabulary_size=PTB_VOCABULARY),
        variants=(*labelled("torch/basic"), *_BLOCK_FUSED),
        baseline="torch/basic",
        measured_twice="torch/block_fused@bf16",
    )
    for name, config in (
        ("medium", PRESETS["medium"]),
        ("medium-mogrifier_lstm", PRESETS["medium"].replace(cell="mogrifier_lstm")),
        (
            "medium-mogrifier_lstm-rank-84",
            PRESETS["medium"].replace(cell="mogrifier_lstm", mogrifier_rank=84),
        ),
    )
)

COVERAGE = (
    Workload(
        name="small-2000-words",
        task=LanguageTask(config=PRESETS["small"], vocabulary_size=2_000),
        variants=labelled("torch/cudnn"),
        baseline="torch/cudnn",
        min_seconds=0.2,
    ),
)
