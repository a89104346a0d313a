"""The workloads of five suites.

rivals: small and medium, by the loops that people write in three frameworks. awd: AWD-LSTM as it was
published, and awd-2x650: a smaller one; but all windows have one length, whoever computes them. mogrifier:
medium with the Mogrifier and with the LSTM. coverage: a program against itself, in little time
(studies/coverage.py).
"""

from ptb_lm.bench.language_workloads import PLAIN_TORCH, PTB_VOCABULARY
from ptb_lm.bench.variants import Variant, name_variants
from ptb_lm.bench.workloads import LanguageTask, Workload
from ptb_lm.model.presets import PRESETS

_VARIANTS = name_variants(
    {
        PLAIN_TORCH: "the plain loop in PyTorch",
        "plain-tensorflow/keras": "the plain loop in Keras",
        "plain-jax/scan": "the plain loop in JAX",
        "plain-jax/scan@bf16": "the plain loop in JAX",
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

_AWD = PRESETS["awd"].replace(vary_num_steps=False)
_AWD_VARIANTS = {
    "plain-awd/cudnn": "the plain loop of AWD-LSTM",
    "plain-awd/cudnn@bf16": "the plain loop of AWD-LSTM",
    "torch/block_fused": "PyTorch block_fused",
    "torch/block_fused@bf16": "PyTorch block_fused",
    "torch/cudnn": "PyTorch cudnn (nn.LSTM)",
    "torch/cudnn@bf16": "PyTorch cudnn (nn.LSTM)",
}
AWD = (
    Workload(
        name="awd",
        task=LanguageTask(config=_AWD, vocabulary_size=PTB_VOCABULARY),
        variants=name_variants(_AWD_VARIANTS),
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
        variants=name_variants(
            {
                **_AWD_VARIANTS,
                "plain-awd/cudnn-kept-memory@bf16": "the plain loop of AWD-LSTM, freed memory kept",
            }
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
        variants=name_variants(
            {
                "torch/basic": "PyTorch basic",
                "torch/block_fused": "PyTorch block_fused",
                "torch/block_fused@bf16": "PyTorch block_fused",
            }
        ),
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
        variants=(Variant("torch/cudnn", "PyTorch cudnn (nn.LSTM)"),),
        baseline="torch/cudnn",
        min_seconds=0.2,
    ),
)
