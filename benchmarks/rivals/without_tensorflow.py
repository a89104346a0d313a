r"""TensorFlow's `block_fused` without one of its optimisations: what each of them is worth, alone.

    python -m ptb_lm.bench run ptb --workloads medium --variants tensorflow/block_fused \
        'without-*' --add without-own-softmax=benchmarks.rivals.without_tensorflow:own_softmax ...

Each function builds the model with one thing as TensorFlow's own operations do it. As in without.py.
"""

import ptb_lm.tf_backend  # noqa: F401  (TensorFlow, quietly, after Triton)

# isort: split
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from benchmarks.rivals import replace
from ptb_lm.common import host
from ptb_lm.model.choice import Choice
from ptb_lm.model.config import Config
from ptb_lm.tf_backend import backend, block_ops, loss, network

Weights = Mapping[str, NDArray[Any]]


def own_softmax(config: Config, weights: Weights, **chosen: Any) -> backend.TensorFlowBackend:
    """Return the model with TensorFlow's operation for the cross-entropy and its gradient."""

    class OneOperation:
        def __init__(self, logits_NV: tf.Tensor, targets_N: tf.Tensor) -> None:
            self.nll_N, self._d_NV = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(
                features=logits_NV, labels=targets_N
            )

        def gradient(self, scale: float) -> tuple[tf.Tensor, tf.Tensor]:
            return self._d_NV, tf.constant([[scale]], self._d_NV.dtype)

    for module in (loss, network):
        replace(module, "SoftmaxCrossEntropy", OneOperation)
    return _block_fused(config, weights, **chosen)


def own_gradient(config: Config, weights: Weights, **chosen: Any) -> backend.TensorFlowBackend:
    """Return the model with TensorFlow's operation for the gradient of BlockLSTMV2."""

    def one_operation(
        x_TBI: tf.Tensor,
        h_BH: tf.Tensor,
        c_BH: tf.Tensor,
        weight: tf.Tensor,
        after: Any,
        d_h_TBH: tf.Tensor,
        d_c_TBH: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        zeros_H = tf.zeros([h_BH.shape[1]], h_BH.dtype)
        before = tf.raw_ops.BlockLSTMGradV2(
            seq_len_max=tf.shape(x_TBI, out_type=tf.int64)[0],
            x=x_TBI,
            cs_prev=c_BH,
            h_prev=h_BH,
            w=weight,
            wci=zeros_H,
            wcf=zeros_H,
            wco=zeros_H,
            b=tf.zeros([4 * h_BH.shape[1]], h_BH.dtype),
            **after._asdict(),
            cs_grad=d_c_TBH,
            h_grad=d_h_TBH,
            use_peephole=False,
        )
        return before.x_grad, before.h_prev_grad, before.cs_prev_grad, before.w_grad, before.b_grad

    replace(block_ops, "sequence_gradient", one_operation)
    return _block_fused(config, weights, **chosen)


def kept_memory(config: Config, weights: Weights, **chosen: Any) -> backend.TensorFlowBackend:
    """Return the model in a process that gives freed memory back."""
    replace(host, "keep_freed_memory", lambda: None)
    return _block_fused(config, weights, **chosen)


def _block_fused(config: Config, weights: Weights, **chosen: Any) -> backend.TensorFlowBackend:
    chosen = {**chosen, "model": "block_fused", "execution": "graph"}
    return backend.build(config, weights, Choice.create(framework="tensorflow", **chosen))
