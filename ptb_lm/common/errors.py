"""The errors that a command reports as one sentence instead of a traceback."""

from ptb_lm.common.program import checkout


def how_to_install(extra: str) -> str:
    """Return the clause that tells how to install an extra of this package, which is on no index."""
    if checkout():
        return f"install it in the checkout with: pip install -e '.[{extra}]'"
    return f"install it with: pip install 'ptb-lm[{extra}]'"  # pip finds ptb-lm installed


class UserError(Exception):
    """Something that the user can correct: a name, a value, a file. Commands exit with status 2."""


class LineError(UserError):
    """A line of a text is refused: "line N: ...". A command adds the name of the file.

    Args:
        number: The number of the line, from 1.
        problem: Words for what is wrong with the line.
    """

    def __init__(self, number: int, problem: str) -> None:
        super().__init__(number, problem)  # all that it is made of: it may go to another process
        self.number, self.problem = number, problem

    def __str__(self) -> str:
        return f"line {self.number}: {self.problem}"


class OutOfMemoryError(UserError):
    """There is not enough memory, of the host or of a device.

    Args:
        numbers: A clause: how much is needed and how much there is (ptb_lm.common.host); "" if unknown.
    """

    def __init__(self, numbers: str = "") -> None:
        super().__init__(numbers)  # all that it is made of: it may go to another process
        self.numbers = numbers

    def __str__(self) -> str:
        numbers = self.numbers and f" ({self.numbers})"
        return (
            f"there is not enough memory for a model and windows of this size{numbers}; use fewer hidden "
            "units, layers, rows per batch or time steps"
        )


class DivergenceError(Exception):
    """A training, or a trained model, gives numbers that are not finite. Commands exit with status 1."""


class LostRankError(Exception):
    """Another process of the training has ended. Commands exit with status 1.

    Attributes:
        speaker: True if this process tells the user.
    """

    def __init__(self, problem: str, *, speaker: bool) -> None:
        super().__init__(problem)
        self.speaker = speaker
