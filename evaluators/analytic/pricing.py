"""Seconds that a device computes: prices of operations, of embedding and head, and of the
optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from frontrunner.evaluators.analytic.arrays import Flags, Rows, Sum
from frontrunner.evaluators.analytic.communication import ring_s
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.operations import (
    AttentionCore,
    Elementwise,
    MemoryPass,
    Operation,
    Product,
    Timed,
)
from frontrunner.evaluators.analytic.workload import FP8_SCALINGS, Workload

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
EXPERT_START_S = 5e-6
"""What each expert's matrix product takes beyond its arithmetic: of 0 to 10 us this agrees best, 10
% off on average, with 108 products of 128 to 10,000 rows on B200 (github.com/MooreThreads/SimuMax,
configs/system/b200_bf16_ceperm.json).
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
class Passes(Sum):
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


def nothing() -> Passes:
    """Return passes that take no time."""
    return Passes(forward=np.zeros(1), backward=np.zeros(1))


def matmul_s(
    machine: Machine,
    m: Rows | float,
    n: Rows | float,
    k: Rows | float,
    bytes_per_value: Rows | float,
    products: Rows | float = 1.0,
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


def linear(machine: Machine, product: Product, bytes_per_value: float) -> Passes:
    """Return the time of a product: forward, and backward for the input's and for the weight's
    gradient.
    """
    rows, inputs, outputs = product.rows, product.inputs, product.width
    size, count = bytes_per_value, product.count
    return Passes(
        forward=matmul_s(machine, rows, outputs, inputs, size, count),
        backward=matmul_s(machine, rows, inputs, outputs, size, count)
        + matmul_s(machine, inputs, outputs, rows, size, count),
    )


def priced(
    machine: Machine, work: Workload, operations: Sequence[Operation], kind: type[Timed]
) -> Passes:
    """Return the time of a layer's operations of one kind."""
    time = nothing()
    for operation in operations:
        if isinstance(operation, kind):
            time = time + price(machine, work, operation)
    return time


def price(machine: Machine, work: Workload, operation: Timed) -> Passes:
    """Return the time of one operation."""
    match operation:
        case Product():
            return product_s(machine, work, operation)
        case AttentionCore():
            return attention_s(machine, work, operation)
        case Elementwise():
            return elementwise_s(machine, work, operation)
        case MemoryPass():
            return Passes(
                forward=operation.forward_bytes / machine.memory_bytes_per_s,
                backward=operation.backward_bytes / machine.memory_bytes_per_s,
            )


def repeated_s(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Rows:
    """Return the time of what the backward pass runs forward once more, whatever is recomputed."""
    time = np.zeros(1)
    for operation in operations:
        if isinstance(operation, Product | MemoryPass) and np.any(operation.repeated):
            again = price(machine, work, operation).forward
            time = time + np.where(operation.repeated, again, 0.0)
    return time


def recomputed_parts_s(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Rows:
    """Return the time of the operations that run again because a named part is recomputed."""
    time = np.zeros(1)
    if not work.recompute.any_part.any():
        return time
    for operation in operations:
        if isinstance(operation, Timed):
            is_again = work.recompute.again(operation.again)
            again = price(machine, work, operation).forward
            if isinstance(operation, Elementwise):
                again = again + machine.efficiencies.kernel_s
            time = time + np.where(is_again, again, 0.0)
    return time


def product_s(machine: Machine, work: Workload, product: Product) -> Passes:
    """Return the time of one product, casts to 8 bits included."""
    size = work.bytes_per_value
    if product.is_wide:
        return linear(machine.in_fp32, product, max(size, 4.0))
    time = linear(machine, product, size)
    is_narrow = work.choices.fp8 > 0
    if not product.may_be_narrow or not is_narrow.any():
        return time
    narrow = linear(machine.in_8_bits, product, size) + _casts_s(machine, work, product)
    return time.where(is_narrow, narrow)


def _casts_s(machine: Machine, work: Workload, product: Product) -> Passes:
    """Return the passes over memory that scale a product's factors to 8 bits.

    Uncompiled, torchao casts an input for each of its uses. Transformer Engine casts weights once a
    step.
    """
    is_engine = machine.code.products.transformer_engine
    kinds = ["torchao, compiled", "torchao"]
    if is_engine:
        kinds = ["transformer-engine"]
    scalings = work.choices.fp8.astype(np.intp)
    tables = [np.array([CASTS[kind].get(name, (0, 0)) for name in FP8_SCALINGS]) for kind in kinds]
    bytes_of = [table[scalings].T for table in tables]
    is_apart = ~(work.choices.compile | is_engine)
    values, weights = (np.where(is_apart, bytes_of[-1][at], bytes_of[0][at]) for at in (0, 1))
    if is_engine:
        weights = weights / work.schedule.accumulation
    rows = product.rows * product.count
    uses = 1 + (len(product.outputs) - 1) * is_apart
    matrix = product.count * product.inputs * product.width
    moved = [rows * product.inputs * uses, rows * product.width]
    forward, backward = (
        (values * cast + weights * matrix / 2) / machine.memory_bytes_per_s for cast in moved
    )
    return Passes(forward=forward, backward=backward)


def attention_s(machine: Machine, work: Workload, attention: AttentionCore) -> Passes:
    """Return the time of attention: one kernel (arXiv 2307.08691), or one each for scores, softmax
    and the product with the values.
    """
    eff = machine.efficiencies
    flops = 2 * attention.pairs * (attention.query_width + attention.value_width)
    if work.fused_attention:
        rate = machine.matmul_flops * machine.attention_speed
        causal = attention.attended_share * flops / 2 / rate
        return Passes(
            forward=causal / eff.fused_attention_forward,
            backward=FUSED_BACKWARD_FLOPS * causal / eff.fused_attention_backward,
        )
    bytes_of = machine.code.kernels.score_bytes(eager=attention.eager_softmax)
    scores = eff.scores * attention.pairs * attention.heads * work.bytes_per_value / 2
    score_s = scores / machine.memory_bytes_per_s
    product = flops / machine.matmul_flops
    return Passes(
        forward=product + score_s * bytes_of.forward + 3 * eff.kernel_s,
        backward=2 * product + score_s * bytes_of.backward + 5 * eff.kernel_s,
    )


def starts_s(machine: Machine, work: Workload) -> Passes:
    """Return the time to start a layer's elementwise kernels; compiled, half as many (assumed)."""
    starts = np.where(work.choices.compile, 4.0, 8.0) * machine.efficiencies.kernel_s
    return Passes(forward=starts, backward=2 * starts)


def elementwise_s(machine: Machine, work: Workload, operation: Elementwise) -> Passes:
    """Return the time of one kernel over bandwidth, without its start."""
    compiled, eager = machine.code.kernels.bytes_of(operation.kernel)
    is_compiled = work.choices.compile
    moved_values = machine.efficiencies.elementwise * operation.values
    value_s = moved_values * work.bytes_per_value / 2 / machine.memory_bytes_per_s
    return Passes(
        forward=value_s * np.where(is_compiled, compiled.forward, eager.forward),
        backward=value_s * np.where(is_compiled, compiled.backward, eager.backward),
    )


def accumulation_s(machine: Machine, work: Workload, parameters: Rows, products: Passes) -> Rows:
    """Return the time to add the gradients of a layer's parameters to their sums, which its
    `products` may do.
    """
    size, code = work.bytes_per_value, machine.code
    summed = 2 * parameters * code.gradient_bytes(size) / machine.memory_bytes_per_s
    if code.products.fuses_accumulation:
        # Products for the gradients of weights read and write the sums while they compute.
        weights = WEIGHTS_SHARE * products.backward
        return np.maximum(summed - weights, ACCUMULATING * weights)
    added = summed + parameters * size / machine.memory_bytes_per_s
    return np.where(work.schedule.accumulation > 1, added, 0.0)


def dropped_products_s(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Rows:
    """Return the time to compute again what code that keeps every second product drops, in 16
    bits.
    """
    time = np.zeros(1)
    for product in operations:
        if not isinstance(product, Product):
            continue
        for output, is_dropped in zip(product.outputs, product.dropped_by_alternate, strict=False):
            if is_dropped:
                size = work.bytes_per_value
                time = time + matmul_s(machine, product.rows, output, product.inputs, size)
    return time


def head_s(machine: Machine, work: Workload) -> Passes:
    """Return the output projection and the loss; in pieces, both run forward once more.

    The loss converts logits to fp32; fused, or compiled in one piece, it reads them twice and
    writes their gradient. Where they are not sharded, those of the whole vocabulary are gathered:
    twice copied and read for the accuracy, 12 bytes, and backward the gradient of the chosen ones
    is a matrix of its own, 8. Each layer of multi-token prediction runs both once more, after a
    projection of its own.
    """
    policy, model, size = machine.code.loss, work.model, work.bytes_per_value
    ways = work.degrees.tensor
    share = work.vocabulary / (ways if policy.splits_tables else 1.0)
    projection = linear(
        machine, Product(rows=work.tokens, inputs=model.hidden, outputs=(share,)), size
    )
    logits = work.tokens * (share if policy.shards_logits else work.vocabulary)
    is_fused = compiles_loss(machine, work) | (machine.code.kernels.cross_entropy == "fused")
    wide = np.where(is_fused, size, 16.0)
    logit_s = logits / machine.memory_bytes_per_s
    gathered, again = np.zeros(1), np.zeros(1)
    if policy.splits_tables and not policy.shards_logits:
        gathered = ring_s(
            machine, logits * size, group=ways, stride=work.degrees.strides["tp"], passes=1
        )
        gathered = gathered + np.where(ways > 1, 12.0, 4.0) * logit_s
        again = 8.0 * logit_s
    capped = 0.0 if model.head.softcap is None else size  # divided, tanh, multiplied
    forward = projection.forward + (size + wide + 6 * capped) * logit_s + gathered
    backward = projection.backward + (size + np.minimum(wide, 12.0) + 7 * capped) * logit_s + again
    backward = backward + np.where(work.choices.loss_chunks > 1, forward, 0.0)
    if not model.prediction.layers:
        return Passes(forward=forward, backward=backward)
    joined = linear(
        machine,
        Product(rows=work.tokens, inputs=2 * model.hidden, outputs=(model.hidden / ways,)),
        size,
    )
    return Passes(
        forward=forward + model.prediction.layers * (forward + joined.forward),
        backward=backward + model.prediction.layers * (backward + joined.backward),
    )


def compiles_loss(machine: Machine, work: Workload) -> Flags:
    """Return the recipes whose loss is compiled in one piece."""
    in_one_piece: Flags = work.choices.compile & (work.choices.loss_chunks == 1)
    return in_one_piece & machine.code.kernels.compiles_loss


def embedding_s(machine: Machine, work: Workload) -> Passes:
    """Return the token table's rows read and written forward, and added to its gradient
    backward.
    """
    values = work.tokens * work.model.hidden * work.bytes_per_value / machine.memory_bytes_per_s
    return Passes(forward=3 * values, backward=5 * values)


def optimizer_s(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Return the time of AdamW over a rank's share of `parameters`, on the device or on the node's
    shared host.
    """
    size = work.bytes_per_value
    states = 2 * 2 * work.states.bytes_per_optimizer_state + 2 * 4.0
    moved = 4 * machine.code.gradient_bytes(size) + states + (2.0 if size < 4 else 0.0)
    on_device = parameters * moved / machine.memory_bytes_per_s
    devices = np.minimum(machine.devices_per_node, work.degrees.devices)
    on_host = parameters * devices * HOST_ADAM_S_PER_PARAMETER
    return np.where(work.states.optimizer_on_host, on_host, on_device)
