"""The errors that a command reports as one sentence instead of a traceback."""


class UserError(Exception):
    """Something the user can put right: a name, a value, a file. Commands exit with status 2."""


class OutOfMemoryError(UserError):
    """There is not enough memory, of the host or of a device."""


class DivergenceError(Exception):
    """Training produced a loss or a gradient that is not finite. Commands exit with status 1."""
