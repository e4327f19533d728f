"""Grouped attention: groups of heads share keys and values (GQA, arXiv 2305.13245)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.kernels import Operation as Kernel
from frontrunner.evaluators.analytic.operations import (
    Attention,
    ContextExchange,
    Elementwise,
    HostWork,
    Kept,
    Operation,
    Product,
    TensorReduction,
)
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model import Model

UNFUSED_HOST_SHARE = 0.2
"""Of the host's work per layer, what softmax adds where it is not one kernel: four kernels beside
15 forward and four beside 29 backward, with the forward pass run twice.
"""
LAYER_KERNELS = 44, 88
"""Kernels of a layer without experts that the host starts in Megatron-core's forward and backward
passes.
"""
ROTATION_KERNELS = 26, 16
"""Kernels of eager rotations of queries and keys beyond those of fused ones: cosine and sine,
scaled and converted, a half negated and joined, two products, a sum and what is not rotated joined;
backward products, sums and joins.
"""


def operations(layer: Model, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the attention block."""
    work = setting.work
    ways, tokens, hidden = work.degrees.tensor, work.tokens, work.model.hidden
    queries, keys = layer.q_hidden, keys_width(layer, work)
    yield setting.block_input()
    yield Product(
        rows=tokens,
        inputs=hidden,
        outputs=(queries / ways, keys / ways, keys / ways),
        dropped_by_alternate=(False, True, False),
    )
    if layer.qk_norm:
        yield Elementwise(kernel="norm", values=tokens * (queries + keys) / ways)
    rotated = queries + keys if layer.positions == "rotary" else None
    yield from core(
        layer, setting, queries=queries, keys=keys, values=keys, mixed=queries, rotated=rotated
    )


def weights(layer: Model, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the attention matrices."""
    keys = keys_width(layer, work)
    return layer.hidden * (2 * layer.q_hidden + 2 * keys) / work.degrees.tensor


def keys_width(layer: Model, work: Workload) -> Rows:
    """Return the width of all keys; where ranks are more than heads of keys, each has one whole."""
    return np.maximum(layer.kv_heads, work.degrees.tensor) * layer.head_dim


def lacks_fused_softmax(layer: Model, setting: Setting) -> Flags:
    """Return the recipes with a number of heads on which the code's fused softmax does not run."""
    work = setting.work
    heads = work.schedule.micro_batch_seqs * layer.heads / work.degrees.tensor
    odd: Flags = heads % setting.code.kernels.fused_softmax_heads != 0
    return odd & (not work.fused_attention)


def core(
    layer: Model,
    setting: Setting,
    *,
    queries: float,
    keys: Rows,
    values: Rows,
    mixed: float,
    rotated: float | Rows | None,
) -> Iterator[Operation]:
    """Yield what any attention does after its first products: rotation, scores, softmax, the
    product with the values, the output projection and the sum over tensor-parallel ranks.

    `queries`, `keys` and `values` are widths of all heads together; a head's result has the width
    of its values, `mixed` together. `rotated` is the rotated width of queries and keys.
    """
    work, code = setting.work, setting.code
    ways, tokens, size = work.degrees.tensor, work.tokens, work.bytes_per_value
    average = (keys + values) / 2
    yield Elementwise(kernel="reshape", values=tokens * (queries + average) / ways)
    if rotated is not None:
        kernel: Kernel = "rotary" if is_plain_rotation(layer) else "other rotary"
        yield Elementwise(kernel=kernel, values=tokens * rotated / ways)
    if not is_plain_rotation(layer):
        is_eager = float(code.kernels.fused_rotary_is_plain)
        yield HostWork(
            forward_share=is_eager * ROTATION_KERNELS[0] / LAYER_KERNELS[0],
            backward_share=is_eager * ROTATION_KERNELS[1] / LAYER_KERNELS[1],
        )
    yield from _exchange(layer, setting, queries=queries, average=average, mixed=mixed)
    yield from _kept(layer, setting, queries=queries, average=average, mixed=mixed)
    is_padded = code.activations.pads_values
    eager_softmax = lacks_fused_softmax(layer, setting)
    yield Attention(
        pairs=tokens * work.sequence_length / ways,
        attended_share=work.model.attended(work.sequence_length) / work.sequence_length,
        query_width=queries,
        value_width=queries if is_padded else mixed,
        heads=layer.heads,
        eager_softmax=eager_softmax,
        result_values=tokens * (queries if is_padded else mixed) / ways,
    )
    yield HostWork(factor=np.where(eager_softmax, 1 + UNFUSED_HOST_SHARE, 1.0))
    if not work.fused_attention:
        scores = tokens * layer.heads * work.sequence_length / ways
        kept_bytes = code.kernels.score_bytes(eager=eager_softmax)[2] * size / 2
        yield Kept(bytes=scores * kept_bytes, are_scores=True)
    yield Product(
        rows=tokens,
        inputs=mixed / ways,
        outputs=(work.model.hidden,),
        dropped_by_alternate=(True,),
    )
    yield TensorReduction(bytes=setting.block_result_bytes())


def is_stretched(layer: Model) -> bool:
    """Return whether rotations also scale queries and keys, as YaRN's do (arXiv 2309.00071, section
    3.4).
    """
    return layer.rotary_scaling is not None and layer.rotary_scaling.kind == "yarn"


def is_plain_rotation(layer: Model) -> bool:
    """Return whether a fused rotation serves the layer, whatever the code."""
    return layer.key_value_rank is None and not is_stretched(layer)


def _exchange(
    layer: Model, setting: Setting, *, queries: float, average: Rows, mixed: float
) -> Iterator[Operation]:
    work = setting.work
    ways, context = work.degrees.tensor, work.degrees.context
    if not (context > 1).any():
        return
    # At least one head of keys for each of the ranks that share a sequence.
    keys = np.maximum(average / ways, context * queries / layer.heads)
    bytes_of_width = work.tokens * work.bytes_per_value
    yield ContextExchange(
        inward_bytes=bytes_of_width * (queries / ways + 2 * keys),
        outward_bytes=bytes_of_width * mixed / ways,
    )
    yield HostWork(collectives=np.where(context > 1, 2.0, 0.0))


def _kept(
    layer: Model, setting: Setting, *, queries: float, average: Rows, mixed: float
) -> Iterator[Kept]:
    """Yield queries, keys, values and what attention makes of them."""
    work, kept = setting.work, setting.code.activations
    ways, tokens, size = work.degrees.tensor, work.tokens, work.bytes_per_value
    width = queries + 2 * average + mixed
    if kept.pads_values:  # to the width of the queries, and so is what attention makes of them
        width = width + 2 * (queries - mixed)
    if kept.keeps_packed_qkv and layer.positions == "rotary":
        width = width + queries + average
    copies = ~work.choices.compile & (work.schedule.micro_batch_seqs >= kept.copies_attention_from)
    exchanged = work.degrees.context > 1  # what arrives is a copy
    width = width + mixed * copies + mixed * exchanged
    yield Kept(bytes=tokens * size * width / ways)
    # The result stays in 16 bits beside the copy that the output projection keeps.
    yield Kept(bytes=np.where(setting.keeps_8_bit_inputs, tokens * queries / ways, 0.0))
