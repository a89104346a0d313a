"""What a process of its own asks of a model without one optimisation, which changes that process for good."""

from ptb_lm.bench import check as gate
from ptb_lm.bench import registries, variants
from ptb_lm.bench.workloads import LanguageTask
from ptb_lm.model import parameters
from ptb_lm.model.config import Config


def check(what: str) -> None:
    """Compare the model that `MODULE:FUNCTION` builds with the reference, and train a step with dropout.

    Raises:
        WrongError: It computes something else.
    """
    task = LanguageTask(config=Config(hidden_size=7, keep_prob=0.5), vocabulary_size=50)
    variant = variants.add(f"mine={what}")
    build = variant.builder(registries.LANGUAGE_MODELS, device="cpu", precision="fp32", seed=1)
    gate.check(task, build, precision="fp32", seed=3)
    model = build(task.config, parameters.initial(task.config, 50, seed=1))
    x_BT, y_BT = task.window(seed=1)
    model.train_step(x_BT, y_BT, model.zero_state(20), learning_rate=0.5)
