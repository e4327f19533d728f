"""Multi-head latent attention: keys, values and mostly queries are made from latent vectors (arXiv
2405.04434, section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.operations import (
    Elementwise,
    HostWork,
    Kept,
    Operation,
    Product,
)
from frontrunner.evaluators.analytic.parts import attention
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model import Model

LATENT_KERNELS = 16, 16
"""Kernels that the host starts beyond those of grouped attention, forward and backward: products
and norms of latent vectors, splits, and joins with the rotated part.
"""


def operations(layer: Model, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the attention block.

    Every tensor-parallel rank computes the latent vectors and the one rotated key that all heads
    share. The ranks split the heads of what is made from them.
    """
    work = setting.work
    ways, tokens, size, hidden = (
        work.degrees.tensor,
        work.tokens,
        work.bytes_per_value,
        work.model.hidden,
    )
    rank, query_rank = layer.key_value_rank or 0, layer.query_rank or 0
    yield setting.block_input()
    if query_rank:
        yield Product(rows=tokens, inputs=hidden, outputs=(query_rank,))
    yield Product(rows=tokens, inputs=query_rank or hidden, outputs=(layer.q_hidden / ways,))
    yield Product(rows=tokens, inputs=hidden, outputs=(rank + layer.rotary_width,))
    yield Product(rows=tokens, inputs=rank, outputs=(_keys_and_values_width(layer, work) / ways,))
    yield Elementwise(kernel="norm", values=tokens * float(query_rank + rank))
    # The products that take the latent vectors keep them.
    yield Kept(bytes=tokens * size * (query_rank + rank))
    first, second = attention.LAYER_KERNELS
    yield HostWork(
        forward_share=LATENT_KERNELS[0] / first, backward_share=LATENT_KERNELS[1] / second
    )
    heads = np.maximum(layer.kv_heads, ways)
    yield from attention.core(
        layer,
        setting,
        queries=layer.q_hidden,
        keys=heads * layer.head_dim,
        values=heads * layer.value_dim,
        mixed=layer.mixed_hidden,
        rotated=(layer.heads + 1) * layer.rotary_width if layer.positions == "rotary" else None,
    )


def weights(layer: Model, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the attention matrices; those down to the
    latent vectors are whole on each rank.
    """
    rank, query_rank = layer.key_value_rank or 0, layer.query_rank or 0
    down = layer.hidden * (query_rank + rank + layer.rotary_width)
    up = (query_rank or layer.hidden) * layer.q_hidden
    up += layer.mixed_hidden * layer.hidden
    keys_and_values = rank * _keys_and_values_width(layer, work)
    return down + (up + keys_and_values) / work.degrees.tensor


def _keys_and_values_width(layer: Model, work: Workload) -> Rows:
    """Return the width of all keys, without their rotated part, and of all values."""
    heads = np.maximum(layer.kv_heads, work.degrees.tensor)
    return heads * (layer.head_dim + layer.value_dim) - layer.heads * layer.rotary_width
