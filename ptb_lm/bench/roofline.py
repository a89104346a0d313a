"""How fast a step of a language model could be on a machine, by an estimate of its work: its roofline.

    seconds = max(FLOPs / GEMM rate, bytes of the products / copy rate) + bytes of the update / copy rate

The rates are measured on the machine, the multiplication's in the variant's precision. Bytes are those of the
W trained weights that every step uses; a number that is computed with has u bytes, one that is kept k.

| | products | update |
|---|--:|--:|
| forward | W u | 0 |
| train | 2 W u | W (u + 2 k), and W u where u is not k |

The products read each weight once, as if it stayed in a cache for its other uses, and, in training, write its
gradient once. The update reads the gradient, reads and writes what is kept, as if a cache held neither, and
copies it to what is computed with where that is something else.

An embedding that is not the softmax's kernel, and does not decay, is not in W: of it a window uses few rows.
The update has a time of its own, because no weight may move before the norm of all gradients is known, which
needs all products. Activations and logits are left out, which may stay on the chip, and so is that the time
steps wait for each other: a small model stays far from its roofline on a large GPU.
"""

from typing import Annotated

import msgspec

# Bytes of a number that is computed with, and of one that is kept (ptb_lm.torch_backend.precision).
BYTES = {"fp32": (4, 4), "tf32": (4, 4), "bf16": (2, 4), "fp16": (2, 4), "fp64": (8, 8)}


class Traffic(msgspec.Struct, frozen=True):
    """Bytes that a step must move between the device and its memory."""

    products: Annotated[int, msgspec.Meta(ge=0)]
    update: Annotated[int, msgspec.Meta(ge=0)]


def traffic(weights: int, pass_name: str, precision: str) -> Traffic:
    """Return the bytes that a step must move.

    Args:
        weights: W, the number of weights that every step uses.
        pass_name: "forward" or "train".
        precision: A name in BYTES.
    """
    operand, master = BYTES[precision]
    if pass_name == "forward":
        return Traffic(products=weights * operand, update=0)
    copy = operand if operand != master else 0
    return Traffic(products=2 * weights * operand, update=weights * (operand + 2 * master + copy))


def seconds(flops: float, bytes_moved: Traffic, *, gemm_gflops: float, copy_gbytes: float) -> float:
    """Return the seconds of a step at its roofline.

    Args:
        flops: Floating-point operations of the step's products.
        bytes_moved: The bytes that the step must move.
        gemm_gflops: The machine's matrix multiplication, in GFLOP/s.
        copy_gbytes: The machine's copying, read and written, in GB/s.
    """
    products = max(flops / gemm_gflops, bytes_moved.products / copy_gbytes)
    return (products + bytes_moved.update / copy_gbytes) / 1e9
