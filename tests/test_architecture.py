"""The walls of the house: who imports whom."""

import subprocess
import sys
from pathlib import Path

import ptb_lm

PACKAGE = Path(ptb_lm.__file__).parent
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
# What computes with a framework, and may import it when it is imported itself.
OF_A_FRAMEWORK = (
    "ptb_lm.torch_backend",
    "ptb_lm.tf_backend",
    "ptb_lm.bench.rivals",
    "ptb_lm.inference.torch_module",
    "ptb_lm.classifier.on_torch",
    "ptb_lm.classifier.on_tensorflow",
    "ptb_lm.classifier.tensorflow_",
)


def test_no_framework_is_imported_before_it_is_used() -> None:
    modules = [name for name in MODULES if not name.startswith(OF_A_FRAMEWORK)]
    assert "ptb_lm.training.trainer" in modules
    code = (
        f"import sys; {'; '.join(f'import {name}' for name in modules)}; "
        "print([name for name in ('torch', 'tensorflow', 'keras', 'jax', 'pytensor') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
