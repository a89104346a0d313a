"""The workloads of two suites.

rivals: small and medium, by the loops that people write in three frameworks. coverage: a program against
itself, in little time (studies/coverage.py).
"""

from ptb_lm.bench.language_workloads import PLAIN_TORCH, PTB_VOCABULARY
from ptb_lm.bench.variants import Variant, name_variants
from ptb_lm.bench.workloads import LanguageTask, Workload
from ptb_lm.model.config import PRESETS

_VARIANTS = name_variants(
    {
        PLAIN_TORCH: "PyTorch modules, plain loop",
        "plain-tensorflow/keras": "Keras layers, plain loop",
        "plain-jax/scan": "JAX scan, plain loop",
        "plain-jax/scan@bf16": "JAX scan, plain loop",
        "torch/block_fused": "PyTorch block_fused",
        "torch/block_fused@bf16": "PyTorch block_fused",
    }
)
RIVALS = tuple(
    Workload(
        name=name,
        task=LanguageTask(config=PRESETS[name], vocabulary_size=PTB_VOCABULARY),
        variants=_VARIANTS,
        baseline=PLAIN_TORCH,
        measured_twice="torch/block_fused",
    )
    for name in ("small", "medium")
)

COVERAGE = (
    Workload(
        name="small-2000-words",
        task=LanguageTask(config=PRESETS["small"], vocabulary_size=2_000),
        variants=(Variant("torch/cudnn", "PyTorch cudnn (nn.LSTM)"),),
        baseline="torch/cudnn",
        seconds=0.2,
    ),
)
