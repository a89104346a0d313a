"""Answers one question in a process of its own: python -m ptb_lm.bench.check, spoken to by pickles."""

import pickle
import sys

from ptb_lm.bench.check.apart import OUT_OF_MEMORY


def main() -> int:
    """Read a question on stdin and write its answer on stdout; return the exit status."""
    question = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    try:
        answered = question.answer()
    except MemoryError:
        return OUT_OF_MEMORY
    pickle.dump(answered, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
