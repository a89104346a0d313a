"""The learning rate as a pure function of the epoch."""

from ptb_lm.model.config import Config


def learning_rate(config: Config, epoch: int) -> float:
    """Return the learning rate of an epoch, counted from 0.

    Constant for the first `decay_after` epochs, then multiplied by `lr_decay` once an epoch (the schedule
    of TensorFlow's ptb_word_lm tutorial).
    """
    return config.learning_rate * config.lr_decay ** max(epoch + 1 - config.decay_after, 0)
