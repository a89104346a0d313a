"""Plain loops that people write without this package, to compare with. A loop refuses what it lacks."""

import dataclasses
from collections.abc import Collection

from ptb_lm.common.errors import UserError
from ptb_lm.common.flags import flag_name
from ptb_lm.model.config import Config

# Hyper-parameters that a plain loop follows, and those that are no part of a step. All others, today's and
# later ones, must have their default: a rival that ignored one in silence would be fast.
SUPPORTED_FIELDS = (
    "num_layers",
    "hidden_size",
    "embedding_size",
    "num_steps",
    "batch_size",
    "epochs",
    "decay_after",
    "lr_decay",
    "learning_rate",
    "schedule",
    "max_grad_norm",
    "keep_prob",
    "init_scale",
    "layer_init_scale",
    "average_epochs",
    "average_after_stall",
)


def check_config(config: Config, modules: str, *, more: Collection[str] = ()) -> None:
    """Refuse a configuration that a plain loop would not follow.

    Args:
        config: Hyper-parameters.
        modules: Name of the modules that the loop is made of.
        more: Hyper-parameters that it follows beside SUPPORTED_FIELDS.

    Raises:
        UserError: The configuration needs more than the loop does; the message says what.
    """
    usual = Config()
    ignored = [
        flag_name(field.name)
        for field in dataclasses.fields(config)
        if field.name not in (*SUPPORTED_FIELDS, *more)
        and getattr(config, field.name) != getattr(usual, field.name)
    ]
    if ignored:
        raise UserError(f"the plain loop of {modules} has no {', '.join(ignored)}")
