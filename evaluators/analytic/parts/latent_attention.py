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
from frontrunner.spaces.model.attention import LatentAttention

LATENT_KERNELS = 16, 16
"""Kernels that the host starts beyond those of grouped attention, forward and backward: products
and norms of latent vectors, splits, and joins with the rotated part.
"""


def operations(part: LatentAttention, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the attention block.

    Every tensor-parallel rank computes the latent vectors, and the one rotated key that all heads
    share, for all of its tokens. The ranks split the heads that are made from them.
    """
    work = setting.work
    ranks, tokens, hidden = work.degrees.tensor, work.tokens, part.hidden
    key_value_latent, query_latent = part.key_value_rank, part.query_rank or 0
    is_made_again = frozenset({"latents"})
    yield setting.block_input()
    # Down to the latent vectors, and the shared rotated key.
    if query_latent:
        yield Product(rows=tokens, inputs=hidden, outputs=(query_latent,))
    yield Product(rows=tokens, inputs=hidden, outputs=(key_value_latent + part.rotary.width,))
    latent_values = tokens * float(query_latent + key_value_latent)
    yield Elementwise(kernel="norm", values=latent_values)
    yield Kept(bytes=latent_values * work.bytes_per_value)  # inputs of the next products
    # Up to the heads.
    yield Product(
        rows=tokens,
        inputs=query_latent or hidden,
        outputs=(part.q_hidden / ranks,),
        again=is_made_again,
    )
    yield Product(
        rows=tokens,
        inputs=key_value_latent,
        outputs=(_up_width(part, work) / ranks,),
        again=is_made_again,
    )
    yield HostWork(
        forward_share=LATENT_KERNELS[0] / attention.LAYER_KERNELS[0],
        backward_share=LATENT_KERNELS[1] / attention.LAYER_KERNELS[1],
    )
    heads = np.maximum(part.kv_heads, ranks)
    rotated = (part.heads + ranks) * part.rotary.width  # of queries, and each rank's shared key
    yield from attention.after_projections(
        part,
        setting,
        attention.HeadWidths(
            queries=part.q_hidden,
            keys=heads * part.head_dim,
            values=heads * part.value_dim,
            result=part.mixed_hidden,
            rotated=rotated,
            made_again=is_made_again,
        ),
    )


def weights(part: LatentAttention, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the attention matrices.

    The matrices down to the latent vectors are whole on each rank; the ranks split the others.
    """
    key_value_latent, query_latent = part.key_value_rank, part.query_rank or 0
    whole = part.hidden * (query_latent + key_value_latent + part.rotary.width)
    queries = (query_latent or part.hidden) * part.q_hidden
    keys_and_values = key_value_latent * _up_width(part, work)
    output = part.mixed_hidden * part.hidden
    return whole + (queries + keys_and_values + output) / work.degrees.tensor


def _up_width(part: LatentAttention, work: Workload) -> Rows:
    """Return the width of all heads of keys, without their rotated part, and of values."""
    heads = np.maximum(part.kv_heads, work.degrees.tensor)
    return heads * (part.head_dim + part.value_dim) - part.heads * part.rotary.width
