"""A trained model as a torch file: TorchScript, or a program of torch.export."""

import io
import json
import warnings
from collections.abc import Sequence

import torch

from ptb_lm.inference.torch_module import PlainLanguageModel
from ptb_lm.torch_backend.base import enough_memory

VOCABULARY = "vocabulary.json"  # the extra file that both formats hold


def torchscript(module: PlainLanguageModel, words: Sequence[str]) -> bytes:
    """Return what torch.jit.load reads, also in C++: for any batch and any number of steps."""
    content = io.BytesIO()
    with warnings.catch_warnings():
        # torch advises torch.export instead, which fixes the number of steps.
        warnings.filterwarnings("ignore", r"`torch\.jit\.")
        torch.jit.save(torch.jit.script(module), content, _extra_files={VOCABULARY: json.dumps(list(words))})
    return content.getvalue()


@enough_memory()
def program(module: PlainLanguageModel, words: Sequence[str], *, steps: int) -> bytes:
    """Return what torch.export.load reads, for any batch; torch.export fixes an LSTM's number of steps.

    Raises:
        OutOfMemoryError: There is not enough memory for a window of so many steps.
    """
    content = io.BytesIO()
    if not module.softmax.weight.is_contiguous():  # torch.export writes whole tensors, and views of such
        module.softmax.weight = torch.nn.Parameter(module.softmax.weight.detach().contiguous())
    batch_size = 2  # any but 1, which torch.export would take for a constant
    words_BT = torch.zeros(batch_size, steps, dtype=torch.int64)
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings():
        # It finds the LSTM's list of its own weights, which is no buffer.
        warnings.filterwarnings("ignore", message="The tensor attributes self.lstm._flat_weights")
        exported = torch.export.export(
            module,
            (words_BT, module.zero_state(batch_size)),
            dynamic_shapes=({0: batch}, ({1: batch}, {1: batch})),
        )
    torch.export.save(exported, content, extra_files={VOCABULARY: json.dumps(list(words))})
    return content.getvalue()
