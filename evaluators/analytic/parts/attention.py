"""Grouped attention: groups of heads share keys and values (GQA, arXiv 2305.13245).

`after_projections` has what every kind of attention does once it has queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows
from frontrunner.evaluators.analytic.kernels import ElementwiseKernel
from frontrunner.evaluators.analytic.operations import (
    NONE,
    AttentionCore,
    ContextExchange,
    Elementwise,
    HostWork,
    Kept,
    Operation,
    Parts,
    Product,
    TensorReduction,
)
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.model.attention import Attention, GroupedAttention, LatentAttention

UNFUSED_HOST_SHARE = 0.2
"""What an unfused softmax adds to the host's work for a layer: four kernels beside 15 in the
forward pass and four beside 29 in the backward pass, where the forward pass is run twice.
"""
LAYER_KERNELS = 44, 88
"""Kernels that the host starts for a layer without experts, forward and backward, in Megatron-core.
"""
ROTATION_KERNELS = 26, 16
"""Kernels that an eager rotation of queries and keys starts beyond a fused one, forward and
backward. Forward: cosine and sine, each scaled and converted; a half negated and joined; two
products and a sum; a join with the part that is not rotated. Backward: products, sums and joins.
"""


@dataclass(frozen=True, kw_only=True)
class HeadWidths:
    """Widths of queries, keys, values and attention's result, of all heads together.

    All tensor-parallel ranks together have these; each has its share. Where there are more ranks
    than heads of keys, each rank has one whole head.
    """

    queries: int
    keys: Rows
    values: Rows
    result: int
    rotated: int | Rows | None
    """Rotated part of queries and keys; None without rotary positions."""
    made_again: Parts = NONE
    """Named parts whose recomputation makes queries, keys and values again."""

    @property
    def keys_or_values(self) -> Rows:
        """Mean width of keys and values."""
        return (self.keys + self.values) / 2


def operations(part: GroupedAttention, setting: Setting) -> Iterator[Operation]:
    """Yield the operations of the attention block."""
    work = setting.work
    ranks, tokens = work.degrees.tensor, work.tokens
    queries, keys = part.q_hidden, keys_width(part, work)
    yield setting.block_input()
    yield Product(
        rows=tokens,
        inputs=part.hidden,
        outputs=(queries / ranks, keys / ranks, keys / ranks),
        dropped_by_alternate=(False, True, False),
    )
    if part.qk_norm:
        yield Elementwise(kernel="norm", values=tokens * (queries + keys) / ranks)
    yield from after_projections(
        part,
        setting,
        HeadWidths(
            queries=queries,
            keys=keys,
            values=keys,
            result=queries,
            rotated=queries + keys if part.rotary is not None else None,
        ),
    )


def weights(part: GroupedAttention, work: Workload) -> Rows:
    """Return a tensor-parallel rank's parameters of the attention matrices."""
    width = 2 * part.q_hidden + 2 * keys_width(part, work)
    return part.hidden * width / work.degrees.tensor


def keys_width(part: GroupedAttention, work: Workload) -> Rows:
    """Return the width of all heads of keys; a rank has at least one whole head."""
    return np.maximum(part.kv_heads, work.degrees.tensor) * part.head_dim


def after_projections(part: Attention, setting: Setting, widths: HeadWidths) -> Iterator[Operation]:
    """Yield what follows the products that make queries, keys and values: rotation, scores, softmax
    and the product with the values, the output projection, and the sum over tensor-parallel ranks.
    """
    work = setting.work
    ranks, tokens = work.degrees.tensor, work.tokens
    yield Elementwise(
        kernel="reshape",
        values=tokens * (widths.queries + widths.keys_or_values) / ranks,
        again=widths.made_again,
    )
    yield from _rotation(part, setting, widths)
    yield from _context_exchange(part, setting, widths)
    yield from _kept_tensors(part, setting, widths)
    yield from _scores(part, setting, widths)
    yield Product(
        rows=tokens,
        inputs=widths.result / ranks,
        outputs=(part.hidden,),
        dropped_by_alternate=(True,),
    )
    yield TensorReduction(bytes=setting.block_result_bytes())


def lacks_fused_softmax(part: Attention, setting: Setting) -> Flags:
    """Return the recipes whose unfused attention has a number of heads on which the code's fused
    softmax does not run.
    """
    work = setting.work
    if work.fused_attention:
        return np.array([False])
    heads_of_rank = work.schedule.micro_batch_seqs * part.heads / work.degrees.tensor
    lacks: Flags = heads_of_rank % setting.code.kernels.fused_softmax_heads != 0
    return lacks


def _rotation(part: Attention, setting: Setting, widths: HeadWidths) -> Iterator[Operation]:
    work = setting.work
    # Fused rotations may serve neither YaRN's, which scale as well, nor latent attention's.
    is_stretched = part.rotary is not None and part.rotary.is_stretched
    is_plain = not isinstance(part, LatentAttention) and not is_stretched
    kernel: ElementwiseKernel = "rotary" if is_plain else "other rotary"
    if widths.rotated is not None:
        yield Elementwise(
            kernel=kernel,
            values=work.tokens * widths.rotated / work.degrees.tensor,
            again=widths.made_again,
        )
    if not is_plain and setting.code.kernels.fused_rotary_is_plain:
        yield HostWork(
            forward_share=ROTATION_KERNELS[0] / LAYER_KERNELS[0],
            backward_share=ROTATION_KERNELS[1] / LAYER_KERNELS[1],
        )


def _scores(part: Attention, setting: Setting, widths: HeadWidths) -> Iterator[Operation]:
    """Yield scores, softmax and the product with the values, and what they keep."""
    work, code = setting.work, setting.code
    ranks, tokens = work.degrees.tensor, work.tokens
    is_eager = lacks_fused_softmax(part, setting)
    # Some kernels need values as wide as the queries, and return as wide a result.
    value_width = widths.queries if code.activations.pads_values else widths.result
    pairs = tokens * work.sequence_length / ranks
    yield AttentionCore(
        pairs=pairs,
        attended_share=work.attended_share,
        query_width=widths.queries,
        value_width=value_width,
        heads=part.heads,
        eager_softmax=is_eager,
        result_values=tokens * value_width / ranks,
        again=frozenset({"attention"}),
    )
    yield HostWork(factor=np.where(is_eager, 1 + UNFUSED_HOST_SHARE, 1.0))
    if not work.fused_attention:
        bytes_of_score = code.kernels.score_bytes(eager=is_eager).kept * work.bytes_per_value / 2
        yield Kept(bytes=pairs * part.heads * bytes_of_score, dropped_by=frozenset({"attention"}))


def _context_exchange(part: Attention, setting: Setting, widths: HeadWidths) -> Iterator[Operation]:
    work = setting.work
    ranks, context = work.degrees.tensor, work.degrees.context
    if not (context > 1).any():
        return
    # At least one head of keys for each of the ranks that share a sequence.
    whole_heads = context * widths.queries / part.heads
    keys = np.maximum(widths.keys_or_values / ranks, whole_heads)
    bytes_of_width = work.tokens * work.bytes_per_value
    yield ContextExchange(
        inward_bytes=bytes_of_width * (widths.queries / ranks + 2 * keys),
        outward_bytes=bytes_of_width * widths.result / ranks,
    )
    yield HostWork(collectives=np.where(context > 1, 2.0, 0.0))


def _kept_tensors(part: Attention, setting: Setting, widths: HeadWidths) -> Iterator[Kept]:
    """Yield queries, keys and values, and attention's result."""
    work, policy = setting.work, setting.code.activations
    bytes_of_width = work.tokens * work.bytes_per_value / work.degrees.tensor
    made = widths.queries + 2 * widths.keys_or_values
    result = widths.result
    if policy.pads_values:
        made = made + widths.queries - widths.result
        result = widths.queries
    if policy.keeps_packed_qkv and part.rotary is not None:
        made = made + widths.queries + widths.keys_or_values
    yield Kept(bytes=bytes_of_width * made, dropped_by=widths.made_again)
    is_copied = ~work.choices.compile & (
        work.schedule.micro_batch_seqs >= policy.copies_attention_from
    )
    # Context parallelism's exchange back makes a copy, too.
    copies = widths.result * is_copied + widths.result * (work.degrees.context > 1)
    yield Kept(bytes=bytes_of_width * (result + copies))
    # The result stays in 16 bits beside the 8-bit copy that the output projection keeps.
    narrow = work.tokens * widths.result / work.degrees.tensor
    yield Kept(bytes=np.where(setting.keeps_8_bit_inputs, narrow, 0.0))
