"""What a plain loop does not do: it is refused, because a rival that left it out in silence would be fast."""

import dataclasses

from ptb_lm.common.errors import UserError
from ptb_lm.model.config import Config
from ptb_lm.model.hyperparameter import flag_name

# What a plain loop follows, or what is no part of a step. Whatever else a configuration can ask for, today or
# later, must be as it is where nobody asks.
FOLLOWED = (
    "num_layers",
    "hidden_size",
    "embedding_size",
    "num_steps",
    "batch_size",
    "epochs",
    "decay_after",
    "lr_decay",
    "learning_rate",
    "max_grad_norm",
    "keep_prob",
    "init_scale",
    "average_epochs",
)


def check(config: Config, modules: str) -> None:
    """Refuse a configuration that a plain loop would not follow.

    Args:
        config: What is asked for.
        modules: Whose modules the loop is made of.

    Raises:
        UserError: It asks for more, and for what.
    """
    usual = Config()
    asked = [
        flag_name(field.name)
        for field in dataclasses.fields(config)
        if field.name not in FOLLOWED and getattr(config, field.name) != getattr(usual, field.name)
    ]
    if asked:
        raise UserError(f"the plain loop of {modules} has no {', '.join(asked)}")
