"""The windows of each epoch of a run: where they begin and end in a row of the training text.

They have --num-steps time steps each, or, with --vary-num-steps, random lengths as in AWD-LSTM (Merity et
al., "Regularizing and Optimizing LSTM Language Models", 2018; salesforce/awd-lstm-lm, main.py). The lengths
depend on the seed and the epoch alone, so that a resumed run has the windows of one that never stopped.
"""

from collections.abc import Iterator
from functools import cache, lru_cache

import numpy as np

from ptb_lm.data import corpus
from ptb_lm.data.corpus import Corpus, TokenArray
from ptb_lm.model.config import SHORTEST_WINDOW, Config
from ptb_lm.training import evaluation

SHARE_OF_HALVES = 0.05  # of windows whose length is drawn around half of --num-steps
DEVIATION = 5.0  # standard deviation of the lengths, in time steps
SHORTEST_REST = 2  # targets that are a window of their own at the end of the rows


class WindowPlan:
    """The windows of a run's epochs.

    Attributes:
        usual_steps: Training steps of an epoch; with random lengths about as many.

    Args:
        data: Text of the run.
        config: Hyper-parameters of the run.
        seed: Seed of the run.

    Raises:
        UserError: A split is too short for a window, or for a target in each row.
    """

    def __init__(self, data: Corpus, config: Config, *, seed: int) -> None:
        for split in ("valid", "test"):
            rows = evaluation.row_count(split, config)
            corpus.check_evaluation(data.splits[split], batch_size=rows, split=split)
        train, self._config, self._seed = data.splits["train"], config, seed
        self.usual_steps = corpus.count_windows(
            train, batch_size=config.batch_size, num_steps=config.num_steps
        )
        self._targets = len(train) // config.batch_size - 1  # of a row
        self._bounds = lru_cache(maxsize=1)(self._compute_bounds)
        self._steps = cache(lambda epoch: len(self._bounds(epoch)) - 1)

    def windows(
        self, rows_BL: TokenArray, epoch: int, *, start: int = 0
    ) -> Iterator[tuple[TokenArray, TokenArray]]:
        """Return the windows (x_BT, y_BT) of an epoch in their order; y is x shifted by one.

        Args:
            rows_BL: Rows of the training text, as `corpus.rows` cuts them.
            epoch: Number of the epoch, from 0.
            start: Number of the first window, to go on where an earlier pass stopped.
        """
        return corpus.cut_windows(rows_BL, self._bounds(epoch)[start:])

    def steps(self, epoch: int) -> int:
        """Return the training steps of an epoch, counted from 0."""
        return self._steps(epoch)

    def steps_before(self, epoch: int) -> int:
        """Return the training steps of all epochs before this one."""
        return sum(map(self.steps, range(epoch)))

    def tokens(self, epoch: int, steps: int) -> int:
        """Return the targets of the first steps of an epoch, in all rows of the batch."""
        return self._config.batch_size * self._bounds(epoch)[steps]

    def _compute_bounds(self, epoch: int) -> list[int]:
        """Return the position in a row where each window begins, and where the last one ends."""
        num_steps = self._config.num_steps
        if not self._config.vary_num_steps:
            return [step * num_steps for step in range(self.usual_steps + 1)]
        rng, bounds = np.random.default_rng((self._seed, epoch)), [0]
        while len(bounds) == 1 or self._targets - bounds[-1] >= SHORTEST_REST:
            mean = num_steps / 2 if rng.random() < SHARE_OF_HALVES else num_steps
            length = max(SHORTEST_WINDOW, int(rng.normal(mean, DEVIATION)))
            bounds.append(min(bounds[-1] + length, self._targets))
        return bounds
