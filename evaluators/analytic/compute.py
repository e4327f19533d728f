"""How long a device computes: matrix products, attention, memory-bound operations, head and
optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.communication import ring_s
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.workload import FP8_SCALINGS, Flags, Parts, Rows, Workload

TILE = 128.0
"""Rows and columns of the result that one compute unit works on at a time, as in the common GEMM
kernels.
"""
FUSED_BACKWARD_FLOPS = 2.5
"""A fused attention's backward FLOPs over its forward ones: five products for two (arXiv
2307.08691, section 3.1).
"""
ACCUMULATING = 0.494 / 0.4805 - 1
"""How much slower products are that add to fp32 sums: mean shares of the peak of 288 products on
B200, and of 226 that do (github.com/MooreThreads/SimuMax, configs/system/b200_bf16_ceperm.json).
"""
WEIGHTS_SHARE = 0.5
"""Of a layer's backward pass, what the gradients of its weights take; exact for products, assumed
for attention.
"""

CASTS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "torchao, compiled": {"tensorwise": (6, 8), "rowwise": (8, 10), "mxfp8": (6, 6)},
    "torchao": {"tensorwise": (66, 66), "rowwise": (66, 66), "mxfp8": (6, 6)},
    "transformer-engine": {
        "delayed": (4, 4),
        "tensorwise": (6, 6),
        "blockwise": (4, 4),
        "mxfp8": (4, 4),
    },
}
"""Bytes moved to scale a value of an input or gradient, and of a weight, to 8 bits for both
products that use it.

Compiled, as torchao counts kernels that are not fused with others
(torchao/testing/training/roofline_utils.py); else each of two casts takes an absolute value (4),
its maximum (2), a copy in fp32 (6), the scaled one (8), a clamped one (8) and the result (5)
(float8/float8_utils.py, `tensor_to_amax`; float8_training_tensor.py), except those to blocks,
kernels of their own (prototype/mx_formats/kernels.py). Transformer Engine reads a value and writes
both layouts (4), and before that, but with factors of earlier steps or of blocks, the maximum (2)
(its documentation, "Low precision training").
"""

HOST_ADAM_S_PER_PARAMETER = 0.22e-9
"""A fused Adam on a whole host, two Xeon 8168: 0.22 s for 1e9 parameters (arXiv 2101.06840, table
4).
"""


@dataclass(frozen=True, kw_only=True)
class Passes(Parts):
    """Seconds of one micro-batch's forward and backward pass through a part of the model, on one
    rank.
    """

    forward: Rows
    backward: Rows

    def __add__(self, other: Passes) -> Passes:
        return Passes(forward=self.forward + other.forward, backward=self.backward + other.backward)

    def where(self, chosen: Flags, other: Passes) -> Passes:
        """Return these passes, and in chosen rows the others."""
        return Passes(
            forward=np.where(chosen, other.forward, self.forward),
            backward=np.where(chosen, other.backward, self.backward),
        )


EXPERT_START_S = 5e-6
"""What each expert's matrix product takes beyond its arithmetic: of 0 to 10 us this agrees best, 10
% off on average, with 108 products of 128 to 10,000 rows on B200 (github.com/MooreThreads/SimuMax,
configs/system/b200_bf16_ceperm.json).
"""


def matmul_s(
    machine: Machine, m: Rows, n: Rows, k: Rows, bytes_per_value: Rows, products: Rows | float = 1.0
) -> Rows:
    """Return the time of [m, k] x [k, n], or of several such `products`.

    2 m n k FLOPs at the reached rate, slowed by the last wave of tiles (at most one wave's loss)
    and by short sums; or the time to move the matrices, whichever is longer; and the start of the
    kernel, or of each expert's product.
    """
    eff = machine.efficiencies
    waves = np.maximum(products * m * n / (TILE * TILE * machine.compute_units), 1.0)
    slowed = (1 + eff.tile_waves / waves) * (1 + eff.reduction_depth / k)
    arithmetic = 2 * products * m * n * k / machine.matmul_flops * slowed
    moved = (m * k + k * n) * machine.factor_bytes_share + m * n
    traffic = products * moved * bytes_per_value / machine.memory_bytes_per_s
    return np.maximum(arithmetic, traffic) + eff.kernel_s + (products - 1) * EXPERT_START_S


def linear(
    machine: Machine, tokens: Rows, inputs: Rows, outputs: Rows, bytes_per_value: Rows
) -> Passes:
    """Return a linear layer over `tokens`: forward, and backward for the input's and for the
    weight's gradient.
    """
    return Passes(
        forward=matmul_s(machine, tokens, outputs, inputs, bytes_per_value),
        backward=matmul_s(machine, tokens, inputs, outputs, bytes_per_value)
        + matmul_s(machine, inputs, outputs, tokens, bytes_per_value),
    )


def layer(machine: Machine, work: Workload) -> Passes:
    """Return one transformer layer without communication, on one tensor-parallel rank, with
    gradients summed.
    """
    projections, feed_forward = _projections(machine, work), _feed_forward(machine, work)
    if (work.fp8 > 0).any():
        narrow, casts = machine.in_8_bits, _casts(machine, work)
        projections = projections.where(work.fp8 > 0, _projections(narrow, work) + casts[0])
        in_8_bits = (work.fp8 > 0) & machine.software.has_feed_forward_in_8_bits(work)
        feed_forward = feed_forward.where(in_8_bits, _feed_forward(narrow, work) + casts[1])
    # Tiled, the feed-forward part runs forward once more.
    again = np.where(work.feed_forward_tiles > 1, feed_forward.forward, 0.0)
    products = projections + feed_forward
    done = products + _attention(machine, work) + _elementwise(machine, work)
    kept = (
        2
        * work.layer_share
        * machine.gradient_bytes(work.bytes_per_value)
        / machine.memory_bytes_per_s
    )
    if machine.software.fuses_accumulation:
        # Products for the gradients of weights read and write the sums while they compute.
        weights = WEIGHTS_SHARE * products.backward
        adding = np.maximum(kept - weights, ACCUMULATING * weights)
    else:
        added = kept + work.layer_share * work.bytes_per_value / machine.memory_bytes_per_s
        adding = np.where(work.accumulation > 1, added, 0.0)
    return Passes(forward=done.forward, backward=done.backward + again + adding)


def _projections(machine: Machine, work: Workload) -> Passes:
    """Return the products that make queries, keys and values, and that of attention's outcome."""
    hidden, ways, size = work.hidden, work.tensor_parallel, work.bytes_per_value
    output = linear(machine, work.tokens, work.mixed_hidden / ways, hidden, size)
    found = linear(machine, work.tokens, hidden, (work.q_hidden + 2 * work.kv_hidden) / ways, size)
    if work.key_value_rank.any():
        # By way of latent vectors, those of queries too unless these come of the layer's input.
        has_rank, rank = work.query_rank > 0, np.maximum(work.key_value_rank, 1.0)
        queries = linear(
            machine,
            work.tokens,
            np.where(has_rank, work.query_rank, hidden),
            work.q_hidden / ways,
            size,
        )
        down = linear(machine, work.tokens, hidden, np.maximum(work.query_rank, 1.0), size)
        queries = queries.where(has_rank, queries + down)
        latent = linear(machine, work.tokens, hidden, rank + work.rotary_width, size)
        latent = latent + linear(
            machine, work.tokens, rank, (work.latent_outputs - work.q_hidden) / ways, size
        )
        found = found.where(work.key_value_rank > 0, queries + latent)
    return found + output


def _casts(machine: Machine, work: Workload) -> tuple[Passes, Passes]:
    """Return the passes over memory that scale factors to 8 bits: those of the projections, of the
    feed-forward part.

    Uncompiled, torchao casts an input for each of its uses. Transformer Engine casts weights once a
    step.
    """
    ways, up, engine = (
        work.tensor_parallel,
        work.ffn_matrices - 1,
        machine.software.transformer_engine,
    )
    apart = np.where(work.compile | engine, 0.0, 1.0)
    kinds = (
        [CASTS["transformer-engine"]] if engine else [CASTS["torchao, compiled"], CASTS["torchao"]]
    )
    tables = (np.array([kind.get(name, (0.0, 0.0)) for name in FP8_SCALINGS]) for kind in kinds)
    found = [table[work.fp8.astype(np.intp)].T for table in tables]
    values, weights = (np.where(apart > 0, found[-1][of], found[0][of]) for of in (0, 1))
    weights = weights / (work.accumulation if engine else 1.0)
    qkv, tokens = work.q_hidden + 2 * work.kv_hidden, work.tokens
    rows = tokens * np.where(work.experts > 0, work.experts_per_token / work.sequence_shards, 1.0)
    width = work.ffn_hidden / np.where(work.experts > 0, 1.0, ways)
    inputs = (
        tokens * ((1 + 2 * apart) * work.hidden + work.q_hidden / ways),
        rows * ((1 + (up - 1) * apart) * work.hidden + width),
    )
    gradients = tokens * (qkv / ways + work.hidden), rows * (up * width + work.hidden)
    matrices = (
        work.hidden * (qkv + work.q_hidden) / ways,
        work.held_experts * work.hidden * (up + 1) * width,
    )
    each = tuple(
        Passes(
            forward=(values * one + weights * matrix / 2) / machine.memory_bytes_per_s,
            backward=(values * back + weights * matrix / 2) / machine.memory_bytes_per_s,
        )
        for one, back, matrix in zip(inputs, gradients, matrices, strict=True)
    )
    return each[0], each[1]


def _feed_forward(machine: Machine, work: Workload) -> Passes:
    """Return the feed-forward part's products; with experts, and the router.

    The fullest rank's tokens are `experts_per_token` times its own, whoever's they are, times
    `rank_imbalance`, evenly over its experts; each one's are padded to whole tiles. Ranks that
    share each expert's matrices have those of all.
    """
    size, up = work.bytes_per_value, work.ffn_matrices - 1
    width = work.ffn_hidden / work.tensor_parallel
    dense = linear(machine, work.tokens, work.hidden, up * width, size)
    dense = dense + linear(machine, work.tokens, width, work.hidden, size)
    if not (work.experts > 0).any():
        return dense
    held = work.held_experts
    own = work.tokens / work.sequence_shards
    ways = work.expert_tensor_parallel
    most = own * work.experts_per_token * machine.rank_imbalance(work)
    each = np.ceil(most * ways / held / TILE) * TILE
    part = work.ffn_hidden / ways
    products = [
        Passes(
            forward=matmul_s(machine, each, outputs, inputs, size, held),
            backward=matmul_s(machine, each, inputs, outputs, size, held)
            + matmul_s(machine, inputs, outputs, each, size, held),
        )
        for inputs, outputs in ((work.hidden, up * part), (part, work.hidden))
    ]
    found = products[0] + products[1] + _router(machine, work, own)
    if work.shared_experts.any():
        width = width * np.maximum(work.shared_experts, 1.0)
        shared = linear(machine, work.tokens, work.hidden, up * width, size)
        shared = shared + linear(machine, work.tokens, width, work.hidden, size)
        found = found.where(work.shared_experts > 0, found + shared)
    return Passes(
        forward=np.where(work.experts > 0, found.forward, dense.forward),
        backward=np.where(work.experts > 0, found.backward, dense.backward),
    )


def _router(machine: Machine, work: Workload, tokens: Rows) -> Passes:
    """Return a router's product, with the conversions of its tokens and their gradient where it is
    in fp32.
    """
    size, experts = work.bytes_per_value, np.maximum(work.experts, 1.0)
    if not machine.software.widens_router:
        return linear(machine, tokens, work.hidden, experts, size)
    converted = np.where(size < 4, (size + 4.0) * tokens * work.hidden, 0.0)
    converted = converted / machine.memory_bytes_per_s
    product = linear(machine.in_fp32, tokens, work.hidden, experts, np.maximum(size, 4.0))
    return product + Passes(forward=converted, backward=2 * converted)


def recompute_s(machine: Machine, work: Workload, forward: Rows) -> Rows:
    """Return what one layer computes a second time, of a forward pass that takes `forward`."""
    keeps = machine.software.keeps_products(work)
    again = np.where(keeps, _elementwise(machine, work).forward, _attention(machine, work).forward)
    if (
        machine.software.selective == "alternate"
    ):  # keys, attention's output, and a gate's second product
        ways, hidden, size = work.tensor_parallel, work.hidden, work.bytes_per_value
        widths = (
            work.kv_hidden / ways,
            work.q_hidden / ways,
            np.where(work.experts > 0, 1.0, work.ffn_hidden / ways),
        )
        again = sum(
            (linear(machine, work.tokens, hidden, width, size).forward for width in widths),
            start=again,
        )
    selective = np.where(work.recompute_selective, again, 0.0)
    return np.where(work.recompute_full, forward, selective)


def _attention(machine: Machine, work: Workload) -> Passes:
    """Return scores, softmax and their product with the values: fused (arXiv 2307.08691), or one
    kernel each.
    """
    eff = machine.efficiencies
    pairs = work.tokens * work.sequence_length / work.tensor_parallel
    flops = (
        2
        * pairs
        * (work.q_hidden + (work.q_hidden if machine.software.pads_values else work.mixed_hidden))
    )
    causal = work.attended_share * flops / 2 / (machine.matmul_flops * machine.attention_speed)
    moved = (machine.software.score_bytes(work, of) for of in (0, 1))
    once, back = (
        eff.scores * pairs * work.heads * each / machine.memory_bytes_per_s for each in moved
    )
    product = flops / machine.matmul_flops
    return Passes(
        forward=np.where(
            work.fused_attention,
            causal / eff.fused_attention_forward,
            product + once + 3 * eff.kernel_s,
        ),
        backward=np.where(
            work.fused_attention,
            FUSED_BACKWARD_FLOPS * causal / eff.fused_attention_backward,
            2 * product + back + 5 * eff.kernel_s,
        ),
    )


def _elementwise(machine: Machine, work: Workload) -> Passes:
    """Return norms, residuals, rotation and activation over bandwidth; compiled, half the kernels
    start (assumed).
    """
    eff, software = machine.efficiencies, machine.software
    starts = np.where(work.compile, 4.0, 8.0) * eff.kernel_s
    each_s = eff.elementwise * work.tokens / machine.memory_bytes_per_s
    imbalance = machine.rank_imbalance(work)
    forward, backward = (each_s * software.elementwise_bytes(work, of, imbalance) for of in (0, 1))
    return Passes(forward=forward + starts, backward=backward + 2 * starts)


def head(machine: Machine, work: Workload) -> Passes:
    """Return the output projection and the loss; in pieces, both run forward once more.

    The loss converts logits to fp32; fused, or compiled in one piece, it reads them twice and
    writes their gradient. Where they are not sharded, those of the whole vocabulary are gathered:
    twice copied and read for the accuracy, 12 bytes, and backward the gradient of the chosen ones
    is a matrix of its own, 8. Each MTP layer runs both once more, after a projection of its own.
    """
    share = work.vocabulary / (work.tensor_parallel if machine.software.splits_tables else 1.0)
    projection = linear(machine, work.tokens, work.hidden, share, work.bytes_per_value)
    logits = work.tokens * (share if machine.software.sharded_logits else work.vocabulary)
    fused = machine.software.fuses_loss(work) | (machine.software.cross_entropy == "fused")
    wide = np.where(fused, work.bytes_per_value, 16.0)
    each_s = logits / machine.memory_bytes_per_s
    gathered = again = np.zeros(1)
    if machine.software.splits_tables and not machine.software.sharded_logits:
        message = logits * work.bytes_per_value
        gathered = ring_s(
            machine, message, group=work.tensor_parallel, stride=work.strides["tp"], passes=1
        )
        gathered, again = (
            gathered + np.where(work.tensor_parallel > 1, 12.0, 4.0) * each_s,
            8.0 * each_s,
        )
    capped = np.where(work.capped_logits, work.bytes_per_value, 0.0)  # divided, tanh, multiplied
    forward = projection.forward + (work.bytes_per_value + wide + 6 * capped) * each_s + gathered
    backward = work.bytes_per_value + np.minimum(wide, 12.0) + 7 * capped
    backward = (
        projection.backward
        + backward * each_s
        + again
        + np.where(work.loss_chunks > 1, forward, 0.0)
    )
    if not work.mtp_layers.any():
        return Passes(forward=forward, backward=backward)
    joined = linear(
        machine,
        work.tokens,
        2 * work.hidden,
        work.hidden / work.tensor_parallel,
        work.bytes_per_value,
    )
    return Passes(
        forward=forward + work.mtp_layers * (forward + joined.forward),
        backward=backward + work.mtp_layers * (backward + joined.backward),
    )


def embedding(machine: Machine, work: Workload) -> Passes:
    """Return the token table's rows read and written forward, and added to its gradient
    backward.
    """
    values = work.tokens * work.hidden * work.bytes_per_value / machine.memory_bytes_per_s
    return Passes(forward=3 * values, backward=5 * values)


def optimizer_s(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Return the time of AdamW over a rank's share of `parameters`, on the device or on the node's
    shared host.
    """
    states = 2 * 2 * work.bytes_per_optimizer_state + 2 * 4.0
    moved = (
        4 * machine.gradient_bytes(work.bytes_per_value)
        + states
        + np.where(work.bytes_per_value < 4, 2.0, 0.0)
    )
    on_device = parameters * moved / machine.memory_bytes_per_s
    devices = work.tensor_parallel * work.pipeline_parallel * work.copies
    on_host = parameters * np.minimum(machine.devices_per_node, devices) * HOST_ADAM_S_PER_PARAMETER
    return np.where(work.optimizer_on_host, on_host, on_device)
