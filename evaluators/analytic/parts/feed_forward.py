"""Dense feed-forward: two linear layers with an activation between them; three if it has a gate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.kernels import ElementwiseKernel
from frontrunner.evaluators.analytic.operations import (
    Elementwise,
    Operation,
    Product,
    TensorReduction,
    recomputed_as,
)
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model.feed_forward import DenseFeedForward, FeedForward


def operations(part: DenseFeedForward, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the feed-forward block."""
    yield setting.block_input()
    yield from recomputed_as("dense", _block(part, setting))


def _block(part: DenseFeedForward, setting: Setting) -> Iterator[Operation]:
    work = setting.work
    width = part.ffn_hidden / work.degrees.tensor
    yield from products(part, setting, width)
    is_tiled = setting.tiles_feed_forward
    values = work.tokens * width
    yield Elementwise(
        kernel=activation_kernel(part),
        values=values,
        kept_values=np.where(is_tiled, 0.0, values),
        saved_bytes=np.where(setting.keeps_8_bit_inputs & ~is_tiled, values, 0.0),
    )
    again: Rows | float = 0.0
    if setting.code.products.reduces_gate_twice and part.is_gated:
        again = np.where(work.choices.sequence_parallel, 0.0, 1.0)
    yield TensorReduction(bytes=setting.block_result_bytes(), more_backward=again)


def products(part: FeedForward, setting: Setting, width: Rows) -> Iterator[Product]:
    """Yield the linear layers on a rank that has `width` of the hidden values of each token."""
    work = setting.work
    is_tiled = setting.tiles_feed_forward
    first = (width, width) if part.is_gated else (width,)
    yield Product(
        rows=work.tokens,
        inputs=part.hidden,
        outputs=first,
        repeated=is_tiled,
        dropped_by_alternate=(False, True)[: len(first)],
    )
    yield Product(
        rows=work.tokens,
        inputs=width,
        outputs=(part.hidden,),
        repeated=is_tiled,
        is_last=True,
        dropped_by_alternate=(not part.is_gated,),
    )


def weights(part: DenseFeedForward, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the matrices."""
    return part.matrices * part.hidden * part.ffn_hidden / work.degrees.tensor


def activation_kernel(part: FeedForward) -> ElementwiseKernel:
    """Return the kernel of the activation."""
    if not part.is_gated:
        return "gelu"
    return "clamped gate" if part.activation == "swiglu_clamped" else "gate"
