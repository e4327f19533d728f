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
from frontrunner.spaces.model import Model


def operations(layer: Model, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the feed-forward block."""
    yield setting.block_input()
    yield from recomputed_as("dense", _block(layer, setting))


def _block(layer: Model, setting: Setting) -> Iterator[Operation]:
    work = setting.work
    width = layer.ffn_hidden / work.degrees.tensor
    yield from products(layer, setting, width)
    is_tiled = setting.tiles_feed_forward
    values = work.tokens * width
    yield Elementwise(
        kernel=activation_kernel(layer),
        values=values,
        kept_values=np.where(is_tiled, 0.0, values),
        saved_bytes=np.where(setting.keeps_8_bit_inputs & ~is_tiled, values, 0.0),
    )
    again: Rows | float = 0.0
    if setting.code.products.reduces_gate_twice and is_gated(layer):
        again = np.where(work.choices.sequence_parallel, 0.0, 1.0)
    yield TensorReduction(bytes=setting.block_result_bytes(), more_backward=again)


def products(layer: Model, setting: Setting, width: Rows) -> Iterator[Product]:
    """Yield the linear layers on a rank that has `width` of the hidden values of each token."""
    work = setting.work
    is_tiled = setting.tiles_feed_forward
    first = (width, width) if is_gated(layer) else (width,)
    yield Product(
        rows=work.tokens,
        inputs=layer.hidden,
        outputs=first,
        repeated=is_tiled,
        dropped_by_alternate=(False, True)[: len(first)],
    )
    yield Product(
        rows=work.tokens,
        inputs=width,
        outputs=(layer.hidden,),
        repeated=is_tiled,
        is_last=True,
        dropped_by_alternate=(not is_gated(layer),),
    )


def weights(layer: Model, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the matrices."""
    return layer.ffn_matrices * layer.hidden * layer.ffn_hidden / work.degrees.tensor


def is_gated(layer: Model) -> bool:
    """Return whether the activation has a gate, and so a matrix of its own."""
    return layer.ffn_matrices == 3


def activation_kernel(layer: Model) -> ElementwiseKernel:
    """Return the kernel of the activation."""
    if not is_gated(layer):
        return "gelu"
    return "clamped gate" if layer.activation == "swiglu_clamped" else "gate"
