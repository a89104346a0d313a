"""The workloads of the suites that model language: quick, ptb, executions, cells, scaling, peak, stacked-lm.

Sizes and protocols are those of the tables that a suite makes again; benchmarks/published has the figures.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from ptb_lm.bench.variants import Variant, name_variants
from ptb_lm.bench.workloads import LanguageTask, Workload
from ptb_lm.model import cells
from ptb_lm.model.config import Config
from ptb_lm.model.frameworks import FRAMEWORKS
from ptb_lm.model.presets import PRESETS, RECIPES

PTB_VOCABULARY = 10_000
PLAIN_TORCH = "plain-torch/cudnn"

# The models that both frameworks have.
MODELS = name_variants(
    {
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

# The loop that people write, and what they add to make it faster.
_PLAIN_TORCH = name_variants(
    {
        PLAIN_TORCH: "PyTorch modules, plain loop",
        f"{PLAIN_TORCH}/compile": "PyTorch modules, plain loop, torch.compile",
        f"{PLAIN_TORCH}-kept-memory": "PyTorch modules, plain loop, freed memory kept",
    }
)
_PLAIN_TENSORFLOW = Variant("plain-tensorflow/keras", "Keras layers, plain loop")
# Only for small: it has no dropout, and its 20 steps and two layers keep the compiler busy enough.
_WHOLE_STEP = Variant("outer-torch/cudnn/compile", "PyTorch cudnn, torch.compile of the whole step")
_XLA = Variant("tensorflow/basic/xla", "TensorFlow basic, XLA")


def _preset(name: str, *, variants: tuple[Variant, ...], baseline: str, **measured: Any) -> Workload:
    task = LanguageTask(config=PRESETS[name], vocabulary_size=PTB_VOCABULARY)
    return Workload(name=name, task=task, variants=variants, baseline=baseline, **measured)


_WORD_LANGUAGE_MODEL = Workload(
    # The 1500-unit model of pytorch/examples' word_language_model, on a vocabulary of 35,000.
    name="word_language_model",
    task=LanguageTask(
        config=PRESETS["large"].replace(max_grad_norm=0.25, learning_rate=20.0), vocabulary_size=35_000
    ),
    variants=name_variants(
        {
            "plain-torch/cudnn": "PyTorch modules, plain loop",
            "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
            "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
            "tensorflow/cudnn": "TensorFlow cudnn (on a CPU: Keras's loop)",
        }
    ),
    baseline=PLAIN_TORCH,
)

# What `python -m ptb_lm.train --config medium` trains: other masks, which plain loops do not have.
_MEDIUM_BY_DEFAULT = Workload(
    name="medium-default-recipe",
    task=LanguageTask(config=RECIPES["default"]["medium"], vocabulary_size=PTB_VOCABULARY),
    variants=MODELS,
    baseline="torch/basic",
)

PTB = (
    _preset(
        "small",
        variants=(*_PLAIN_TORCH, _PLAIN_TENSORFLOW, *MODELS, _WHOLE_STEP),
        baseline="torch/basic",
    ),
    _preset("medium", variants=(*_PLAIN_TORCH, _PLAIN_TENSORFLOW, *MODELS), baseline="torch/basic"),
    _MEDIUM_BY_DEFAULT,
    _preset("large", variants=(*_PLAIN_TORCH, *MODELS, _XLA), baseline="torch/basic"),
    _WORD_LANGUAGE_MODEL,
)

QUICK = (
    _preset(
        "small",
        variants=name_variants(
            {
                "plain-torch/cudnn": "PyTorch modules, plain loop",
                "torch/basic": "PyTorch basic",
                "torch/block": "PyTorch block (LSTMCell)",
                "torch/block_fused": "PyTorch block_fused",
                "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
                "tensorflow/block_fused": "TensorFlow block_fused (BlockLSTM)",
            }
        ),
        baseline=PLAIN_TORCH,
        minutes=4.5,  # and half a minute for what comes before and after
    ),
)


def _every_execution(framework: str) -> Iterator[Variant]:
    """Yield every model × execution × unroll of a framework, except "auto", which is one of the others."""
    row = FRAMEWORKS[framework]
    for model in row.models:
        options = row.options(model)
        for execution in options["execution"]:
            if execution == "auto":
                continue
            for unroll in options["unroll"]:
                # Eager has no graph to unroll into.
                if execution == "eager" and unroll != row.unrolls[0]:
                    continue
                parts = [framework, model, execution, unroll]
                if unroll == row.unrolls[0]:
                    parts.pop()
                    if execution == row.executions[0]:
                        parts.pop()
                name = "/".join(parts)
                yield Variant(name, name)


_EVERY = (
    *(Variant(plain.name, plain.name) for plain in (*_PLAIN_TORCH, _PLAIN_TENSORFLOW)),
    *_every_execution("torch"),
    *_every_execution("tensorflow"),
)
EXECUTIONS = tuple(
    dataclasses.replace(
        _preset(name, variants=_EVERY, baseline=PLAIN_TORCH), measured_twice="torch/cudnn/eager"
    )
    for name in ("small", "medium")
)


def _cell_workload(cell: str) -> Workload:
    """Return small with another cell, by all that compute it."""
    small = _preset("small", variants=(), baseline="torch/basic")
    computed = cells.CELLS[cell].layers.items()
    names = [f"{framework}/{model}" for framework, models in computed for model in models]
    clock = LanguageTask.clock if cell == cells.LSTM else LanguageTask.clock.replace("LSTM", cell)
    return dataclasses.replace(
        small,
        name="small" if cell == cells.LSTM else f"small-{cell}",
        task=LanguageTask(
            config=PRESETS["small"].replace(cell=cell), vocabulary_size=PTB_VOCABULARY, clock=clock
        ),
        variants=tuple(Variant(name, name) for name in names if not name.endswith("/persistent")),
        measured_twice="torch/basic",  # which computes every cell
    )


CELLS = tuple(map(_cell_workload, cells.CELLS))

_TORCH = ("basic", "block", "block_fused", "cudnn")


def _shared_by(name: str, processes: tuple[int, ...], *, batch_size: int | None = None) -> Workload:
    """Return a preset as each number of processes trains it; another batch has another name."""
    frameworks = {1: "torch", **{count: f"torch-{count}-processes" for count in processes}}
    labels = {
        f"{framework}/{model}": f"{model}, {count} process{'es' * (count > 1)}"
        for model in _TORCH
        for count, framework in frameworks.items()
    }
    workload = _preset(name, variants=name_variants(labels), baseline="torch/cudnn")
    if batch_size is None:
        return workload
    task = LanguageTask(config=PRESETS[name].replace(batch_size=batch_size), vocabulary_size=PTB_VOCABULARY)
    return dataclasses.replace(workload, name=f"{name}-batch-{batch_size}", task=task)


# Strong scaling: the preset's batch of 20 is shared. With the larger batches each process has 20 rows.
SCALING = tuple(
    workload
    for name in ("small", "medium")
    for workload in (
        _shared_by(name, (2, 4)),
        _shared_by(name, (2,), batch_size=40),
        _shared_by(name, (4,), batch_size=80),
    )
)

_STACKED = Workload(
    name="3x256",
    task=LanguageTask(
        config=Config(num_layers=3, hidden_size=256, embedding_size=128, num_steps=50, batch_size=128),
        vocabulary_size=10_001,
        unit="sequences",
    ),
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
)
STACKED = (_STACKED,)

_PEAK_VARIANTS = name_variants(
    {
        "plain-torch/cudnn@tf32": "PyTorch modules, plain loop",
        "plain-torch/cudnn@bf16": "PyTorch modules, plain loop",
        "torch/cudnn/eager@fp32": "PyTorch cudnn, eager",
        "torch/cudnn/graph@fp32": "PyTorch cudnn, CUDA graph",
        "torch/cudnn/graph@tf32": "PyTorch cudnn, CUDA graph",
        "torch/cudnn/graph@bf16": "PyTorch cudnn, CUDA graph",
        "torch/cudnn/graph@fp16": "PyTorch cudnn, CUDA graph",
        "torch/persistent/graph@fp16": "PyTorch persistent, CUDA graph",
        "torch/block_fused/graph@tf32": "PyTorch block_fused, CUDA graph",
        "tensorflow/cudnn": "TensorFlow cudnn (CudnnRNNV3)",
    }
)


def _peak(workload: Workload) -> Workload:
    """Return a workload with the fastest variants that there are, and the plain loop in TF32."""
    assert isinstance(workload.task, LanguageTask)
    return dataclasses.replace(
        workload,
        task=dataclasses.replace(workload.task, unit="words"),
        variants=_PEAK_VARIANTS,
        baseline="plain-torch/cudnn@tf32",
        measured_twice="torch/cudnn/graph@tf32",
        passes=("train",),
        warm_up_steps=10,
        needs_cuda="the suite peak compares what only a CUDA device has: TF32 and CUDA graphs",
    )


PEAK = (
    *(_peak(_preset(name, variants=(), baseline="")) for name in ("medium", "large")),
    # By another name than stacked-lm's, whose published figures are of sequences.
    dataclasses.replace(_peak(_STACKED), name="3x256-words"),
)
