"""How long processes that train together wait for one that is silent. An ended one is noticed at once."""

import argparse
import os
from datetime import timedelta

from ptb_lm import cli
from ptb_lm.errors import UserError

# Variables of the environment, and the seconds where they are not set.
STEP = "PTB_LM_STEP_TIMEOUT"  # in a training step, after the first
ELSEWHERE = "PTB_LM_RANK_TIMEOUT"  # while a process imports, reads, compiles, or writes to a slow disk
SECONDS = {STEP: 45.0, ELSEWHERE: 300.0}
MOST_SECONDS = 1e6  # timeouts of torch overflow with many more


def timeout(variable: str) -> timedelta:
    """Return how long to wait, as the environment says or as usual.

    Args:
        variable: STEP or ELSEWHERE.

    Raises:
        UserError: The environment says something else than a number of seconds.
    """
    given = os.environ.get(variable)
    if not given:
        return timedelta(seconds=SECONDS[variable])
    try:
        return timedelta(seconds=min(cli.positive(given), MOST_SECONDS))
    except argparse.ArgumentTypeError as error:
        raise UserError(f"{variable} {error}") from None
