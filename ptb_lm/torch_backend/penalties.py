"""The gradients of AR and TAR with respect to the top layer's output.

Both penalties are those of Merity et al., "Revisiting Activation Regularization for Language RNNs", 2017.

Shapes: T = time steps, B = batch, H = hidden units.
"""

from torch import Tensor


def add_activation_gradient(
    d_output_TBH: Tensor, output_TBH: Tensor, scale: float, *, fraction: Tensor | None
) -> None:
    """Add the gradient of AR: of the scale times B times T times the mean square of the output; in place.

    Args:
        d_output_TBH: Gradient to add to.
        output_TBH: Top layer's output after its dropout.
        scale: Factor of the loss, as in `SoftmaxLayer.loss_and_gradients`, times that of the penalty.
        fraction: A power of two that multiplies the scale, [], on the device; None: 1.
    """
    gradient_TBH = output_TBH * (2 * scale / output_TBH.shape[2])
    d_output_TBH += gradient_TBH if fraction is None else gradient_TBH.mul_(fraction)


def add_slowness_gradient(
    d_output_TBH: Tensor, output_TBH: Tensor, scale: float, *, fraction: Tensor | None
) -> None:
    """Add the gradient of TAR: of the scale times B times T times the mean square of the output's changes.

    A window of one step has none.

    Args:
        d_output_TBH: Gradient to add to, in place.
        output_TBH: Top layer's output before its dropout.
        scale: Factor of the loss, as in `SoftmaxLayer.loss_and_gradients`, times that of the penalty.
        fraction: A power of two that multiplies the scale, [], on the device; None: 1.
    """
    steps, _, width = output_TBH.shape
    gradient = output_TBH.diff(dim=0).mul_(2 * scale / width * steps / max(steps - 1, 1))
    if fraction is not None:
        gradient.mul_(fraction)
    d_output_TBH[1:] += gradient
    d_output_TBH[:-1] -= gradient
