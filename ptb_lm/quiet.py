"""Keeping start-up notices off the terminal."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def held_back_stderr() -> Iterator[None]:
    """Hold back what the body writes to file descriptor 2, and show it only if the body fails.

    TensorFlow's libraries write notices while they are loaded, before they read TF_CPP_MIN_LOG_LEVEL
    (https://github.com/tensorflow/tensorflow/issues/100442).
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as notices:
        os.dup2(notices.fileno(), 2)
        try:
            yield
        except BaseException:
            notices.seek(0)
            os.write(terminal, notices.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
