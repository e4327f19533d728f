"""Multi-head latent attention (arXiv 2405.04434, section 2.1): keys and values of all heads are
made from one latent vector per token, and queries from another one or from the layer's input.
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

    Every tensor-parallel rank computes the latent vectors, and the one rotated key that all heads
    share, for all of its tokens. The ranks split the heads that are made from them.
    """
    work = setting.work
    ranks, tokens, hidden = work.degrees.tensor, work.tokens, layer.hidden
    key_value_latent, query_latent = layer.key_value_rank or 0, layer.query_rank or 0
    is_made_again = frozenset({"latents"})
    yield setting.block_input()
    # Down to the latent vectors, and the shared rotated key.
    if query_latent:
        yield Product(rows=tokens, inputs=hidden, outputs=(query_latent,))
    yield Product(rows=tokens, inputs=hidden, outputs=(key_value_latent + layer.rotary_width,))
    latent_values = tokens * float(query_latent + key_value_latent)
    yield Elementwise(kernel="norm", values=latent_values)
    yield Kept(bytes=latent_values * work.bytes_per_value)  # inputs of the next products
    # Up to the heads.
    yield Product(
        rows=tokens,
        inputs=query_latent or hidden,
        outputs=(layer.q_hidden / ranks,),
        again=is_made_again,
    )
    yield Product(
        rows=tokens,
        inputs=key_value_latent,
        outputs=(_up_width(layer, work) / ranks,),
        again=is_made_again,
    )
    yield HostWork(
        forward_share=LATENT_KERNELS[0] / attention.LAYER_KERNELS[0],
        backward_share=LATENT_KERNELS[1] / attention.LAYER_KERNELS[1],
    )
    heads = np.maximum(layer.kv_heads, ranks)
    rotated = (layer.heads + ranks) * layer.rotary_width  # of queries, and each rank's shared key
    yield from attention.after_projections(
        layer,
        setting,
        attention.HeadWidths(
            queries=layer.q_hidden,
            keys=heads * layer.head_dim,
            values=heads * layer.value_dim,
            result=layer.mixed_hidden,
            rotated=rotated if layer.positions == "rotary" else None,
            made_again=is_made_again,
        ),
    )


def weights(layer: Model, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the attention matrices.

    The matrices down to the latent vectors are whole on each rank; the ranks split the others.
    """
    key_value_latent, query_latent = layer.key_value_rank or 0, layer.query_rank or 0
    whole = layer.hidden * (query_latent + key_value_latent + layer.rotary_width)
    queries = (query_latent or layer.hidden) * layer.q_hidden
    keys_and_values = key_value_latent * _up_width(layer, work)
    output = layer.mixed_hidden * layer.hidden
    return whole + (queries + keys_and_values + output) / work.degrees.tensor


def _up_width(layer: Model, work: Workload) -> Rows:
    """Return the width of all heads of keys, without their rotated part, and of values."""
    heads = np.maximum(layer.kv_heads, work.degrees.tensor)
    return heads * (layer.head_dim + layer.value_dim) - layer.heads * layer.rotary_width
