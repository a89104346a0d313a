"""What a run goes on from, and how it lies in one file of tensors: by a prefix for each kind of array."""

from typing import NamedTuple

from ptb_lm.model.backend import Arrays
from ptb_lm.training.progress import Progress


class SavedState(NamedTuple):
    """The newest training state."""

    weights: Arrays  # by canonical name
    training: Arrays  # the backend's other arrays
    progress: Progress
    averages: Arrays  # of the weights, by canonical name; none if none are kept, or not yet

    def arrays(self) -> Arrays:
        """Return all arrays, as `of` takes them."""
        kinds = {"weights": self.weights, "training": self.training, "averages": self.averages}
        return {f"{kind}.{name}": array for kind, arrays in kinds.items() for name, array in arrays.items()}


def of(arrays: Arrays, progress: Progress) -> SavedState:
    """Return the state whose arrays are these."""
    weights, training, averages = (
        {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}
        for kind in ("weights.", "training.", "averages.")
    )
    return SavedState(weights, training, progress, averages)
