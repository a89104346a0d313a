"""How long processes that train together wait for one that is silent. An ended one is noticed at once."""

from datetime import timedelta

from ptb_lm.common import cli

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
    seconds = cli.from_environment(variable, cli.positive, SECONDS[variable])
    return timedelta(seconds=min(seconds, MOST_SECONDS))
