"""The facts about the library under Keras that the classifier needs, because Keras does not tell them."""

from typing import Any, Protocol


class Library(Protocol):
    """JAX, torch or TensorFlow."""

    name: str
    unroll: str  # how Keras's loop over time enters the graph
    cudnn_masks: bool  # whether Keras uses cuDNN for sequences of different lengths
    hoists_on_cpu: bool  # whether Keras, where it would use cuDNN, multiplies all inputs before its loop

    def has_gpu(self) -> bool:
        """Tell whether there is a CUDA device."""

    def compute_in_ieee_float32(self) -> None:
        """Have a GPU multiply in float32, where its default is to round to TF32."""

    def peak_memory(self) -> int:
        """Return the peak of the bytes taken on the GPU since it was last asked for, if it can be told."""

    def environment(self, *, gpu: bool) -> dict[str, Any]:
        """Return the version, the threads, and of a GPU its name and libraries."""
