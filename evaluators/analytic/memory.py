"""The peak memory of the fullest rank: states, activations of the micro-batches in flight, logits,
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.arrays import Flags, Rows, Sum
from frontrunner.evaluators.analytic.codes import KNOWN
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.operations import (
    AttentionCore,
    Elementwise,
    ExpertDispatch,
    Kept,
    Operation,
    Product,
)
from frontrunner.evaluators.analytic.parts import layer as layer_part
from frontrunner.evaluators.analytic.parts.setting import Setting
from frontrunner.evaluators.analytic.pricing import compiles_loss
from frontrunner.evaluators.analytic.workload import LayersByKind, Workload
from frontrunner.spaces.model.layer import Layer

PART_ERRORS: Mapping[str, float] = {
    "parameters": 0.05, "gradients": 0.05, "optimizer": 0.05, "activations": 0.1, "logits": 0.3,
    "working": 0.5,
}  # fmt: skip
CODE_ERROR = 0.06
"""Standard deviations, as shares of each part and of the whole. Assumed: states are counted, a
layer's moment is a share of what it keeps, and losses and allocators differ between versions.
What libraries take is off by `Machine.runtime_error`: a context takes 0.3 or over 1 GB, NCCL 0.7 or
1.6 GB at its first collective and 6 with three communicators (github.com/NVIDIA/nccl/issues/864).
"""
CACHED = 0.1
"""What torch's allocator keeps for later beside what tensors hold at most, as a share of it; off by
as much. It is returned before memory runs out, so it counts in a stated peak, and not in whether a
recipe fits. Without it eight models on A100 took 9.2 GB less of 80 on average, and 25 at most
(arXiv 2401.08156, abstract).
"""
WORKING_SHARE = 0.3
"""What a layer holds for a moment while it runs, as a share of what it keeps; fitted."""
MARGIN = 0.05
"""Share of a device's memory that a recipe should leave free; assumed."""
MemoryKind = Literal["allocated", "reserved", "device"]
"""What a stated peak counts: tensors, what torch's allocator reserves for them, or all that is used
on the device.
"""
FITTING = ("fits", "tight", "may not fit")
"""Verdicts on a peak of at most a device's memory. Tight is what leaves less than `MARGIN` free."""
TOO_LARGE = ("unlikely to fit", "does not fit")
"""Verdicts on a larger one. The doubtful ones have an end of the peak's interval on the other side
of the limit.
"""


def verdict(
    peak_bytes: float, memory_bytes: float, bounds_bytes: tuple[float, float] | None = None
) -> str:
    """Return one of `FITTING` or `TOO_LARGE`; without an interval the peak is known."""
    low, high = bounds_bytes or (peak_bytes, peak_bytes)
    if peak_bytes > memory_bytes:
        return TOO_LARGE[int(low > memory_bytes)]
    return FITTING[2 if high > memory_bytes else int(fit(peak_bytes, memory_bytes))]


def fit(peak_bytes: Rows | float, memory_bytes: Rows | float) -> npt.NDArray[np.intp]:
    """Return whether each peak fits on a device with so much memory (0), does so tightly (1) or
    does not (2).
    """
    held = np.add(
        np.less_equal(peak_bytes, (1 - MARGIN) * memory_bytes),
        np.less_equal(peak_bytes, memory_bytes),
        dtype=np.intp,
    )
    return 2 - held


def log_deviation(
    machine: Machine, work: Workload, peak: PeakMemory, kind: MemoryKind | None = None
) -> Rows:
    """Return the standard deviation of the logarithm of a peak of one kind; without, of what a
    device must hold.

    What sequence parallelism gathers is kept or not where that is an option of the code: half of it
    is a deviation.
    """
    off = {name: share * getattr(peak, name) for name, share in PART_ERRORS.items()}
    if kind in ("device", None):
        off["runtime"] = machine.runtime_error * peak.runtime
    off["cached"] = peak.cached(kind)
    if machine.code.activations.may_keep_gathered:
        layers = sum(work.layers.first[1:], start=work.layers.first[0])
        gathered = 2 * (1 - 1 / work.sequence_shards) * layers * micro_batches_held(work)
        off["gathered"] = 0.5 * gathered * work.tokens * work.model.hidden * work.bytes_per_value
    squares = sum((part**2 for part in off.values()), start=np.zeros(1)) / peak.of_kind(kind) ** 2
    between = (between_codes(machine, work, peak, kind) ** 2).sum(axis=1)
    deviation: Rows = np.sqrt(squares + CODE_ERROR**2 + between)
    return deviation


def between_codes(
    machine: Machine, work: Workload, peak: PeakMemory, kind: MemoryKind | None = None
) -> Rows:
    """Return how far the logarithms of peaks move with the known codes that an unknown one may be,
    a column for each.

    A column is a deviation of its own: together they are as far off as one code is on average.
    Others are 0.
    """
    possible = machine.code.stands_for
    logarithms = np.zeros((len(peak.total), len(KNOWN)))
    places = {code.name: place for place, code in enumerate(KNOWN)}
    for code in possible:
        other = peak_memory(replace(machine, code=code), work).of_kind(kind)
        off = np.log(other / peak.of_kind(kind))
        logarithms[:, places[code.name]] = off / len(possible) ** 0.5
    return logarithms


def runtime_bytes(machine: Machine, work: Workload, activations: Rows | float) -> Rows:
    """Return what context, libraries, communicators and the allocator take beside what is
    allocated.
    """
    libraries = machine.runtime_bytes + machine.communicator_bytes * communicators(machine, work)
    return libraries + machine.code.activations.fragmentation * activations


def communicators(machine: Machine, work: Workload) -> Rows:
    """Return a rank's communicators: one for each kind of group, and one for all ranks if there are
    several kinds.

    Code that sends between pipeline ranks one message at a time has one more with each neighbor
    (pytorch, `ProcessGroupNCCL.cpp`, `getKeySendRecv`).
    """
    ranks = work.degrees.pipeline
    kinds = (work.degrees.copies > 1) + 1.0 * (work.degrees.tensor > 1) + (ranks > 1)
    neighbors = np.minimum(ranks - 1, 2) if machine.code.pipeline.sends_singly else 0.0
    return kinds + (kinds > 1) + neighbors


@dataclass(frozen=True, kw_only=True)
class PeakMemory(Sum):
    """Bytes on the fullest rank by what they hold.

    `optimizer` includes fp32 parameters next to lower precision, `working` is what a layer needs
    while it runs, `runtime` device context, libraries and what the allocator loses.
    """

    parameters: Rows
    gradients: Rows
    optimizer: Rows
    activations: Rows
    logits: Rows
    working: Rows
    runtime: Rows

    @property
    def allocated(self) -> Rows:
        """What tensors hold, as torch's `max_memory_allocated`."""
        return self.total - self.runtime

    def cached(self, kind: MemoryKind | None) -> Rows:
        """Return what the allocator keeps for later, of what one kind of measurement states."""
        return CACHED * self.allocated * (kind in ("reserved", "device"))

    def of_kind(self, kind: MemoryKind | None) -> Rows:
        """Return the peak as one kind of measurement states it; without, what a device must
        hold.
        """
        return (self.total if kind in ("device", None) else self.allocated) + self.cached(kind)


def peak_memory(machine: Machine, work: Workload) -> PeakMemory:
    """Return the fullest of the rank with the embedding, the one after it, and the rank with the
    head.
    """
    candidates = memory_of_ranks(machine, work)
    has_both = work.schedule.head_on_first
    totals = np.stack(np.broadcast_arrays(*(rank.total for rank in candidates)))
    totals[1] = np.where(has_both & (work.degrees.pipeline == 1), 0.0, totals[1])
    totals[2] = np.where(has_both, 0.0, totals[2])
    fullest = np.argmax(totals, axis=0)
    names = [field.name for field in fields(PeakMemory)]
    columns = (
        [np.broadcast_to(getattr(rank, name), fullest.shape) for rank in candidates]
        for name in names
    )
    return PeakMemory(
        **{name: np.choose(fullest, ranks) for name, ranks in zip(names, columns, strict=True)}
    )


@dataclass(frozen=True, kw_only=True)
class _Rank:
    """What a pipeline rank holds: layers of each kind, micro-batches in flight, and tables."""

    layers: LayersByKind
    in_flight: Rows
    has_embedding: Flags
    has_head: Flags


def memory_of_ranks(machine: Machine, work: Workload) -> tuple[PeakMemory, PeakMemory, PeakMemory]:
    """Return the ranks with the embedding, after it (with the layers of the fullest between) and
    with the head.
    """
    has_both, layers = work.schedule.head_on_first, work.layers
    no, yes = np.array([False]), np.array([True])
    ranks = (
        (layers.first, 0.0, yes, has_both),
        (layers.middle, 1.0, no, no),
        (layers.last, work.degrees.pipeline - 1, no, ~has_both),
    )
    kinds = _kinds(machine, work)
    first, middle, last = (
        _memory_of(
            machine,
            work,
            kinds,
            _Rank(
                layers=of_rank,
                in_flight=micro_batches_held(work, number),
                has_embedding=has_embedding,
                has_head=has_head,
            ),
        )
        for of_rank, number, has_embedding, has_head in ranks
    )
    return first, middle, last


def memory_of_each(
    machine: Machine,
    work: Workload,
    layers: LayersByKind,
    *,
    in_flight: Rows,
    ends: tuple[int, int],
) -> PeakMemory:
    """Return the peak of every rank of one recipe's pipeline, which hold so many layers of each
    kind, and micro-batches in flight.

    `ends` are the ranks with the embedding and with the head.
    """
    is_first, is_last = np.eye(len(layers[0]), dtype=bool)[list(ends)]
    rank = _Rank(layers=layers, in_flight=in_flight, has_embedding=is_first, has_head=is_last)
    return _memory_of(machine, work, _kinds(machine, work), rank)


def head_parameters(work: Workload, *, has_embedding: Flags) -> Rows:
    """Return the parameters that come with the head: its table, and the projections of layers of
    multi-token prediction.

    These need the embedding, too, of which a rank that has it not holds a copy. A tied head is the
    embedding.
    """
    model = work.model
    table = work.vocabulary * model.hidden
    copy = np.where(has_embedding, 0.0, 1.0)
    tables = copy if model.head.tied else 1.0 + copy * (model.prediction.layers > 0)
    return tables * table + model.prediction.layers * model.prediction.projection_parameters


def micro_batches_held(work: Workload, rank: Rows | float = 0.0) -> Rows:
    """Return the most micro-batches of which a pipeline rank holds activations at once.

    Rank r of p holds p - r under 1F1B (arXiv 2104.04473, section 2.2.1), all under GPipe. With v
    virtual stages it runs n (v - 1) + 2 (p - 1 - r) + 1 chunks ahead, where micro-batches go
    through them in rounds of n. Schedules that split the backward pass hold p on every rank, until
    the gradients of the weights are there; DualPipeV a chunk more, and ZBV fewer where so few
    micro-batches end its first phase.
    """
    schedule = work.schedule
    m, p, v = schedule.accumulation, work.degrees.pipeline, schedule.virtual_stages
    in_round = m // np.maximum(m // p, 1)
    looped = (in_round * (v - 1) + 2 * (p - 1 - rank) + 1) / v
    bent = np.where(schedule.dual_pipeline, p + 1 / v, np.minimum(p, (m + 1 + rank) / v))
    split = np.where(schedule.head_on_first, bent, (in_round * (v - 1) + p) / v)
    held = np.where(schedule.split_backward, split, np.where(v > 1, looped, p - rank))
    return np.where(schedule.keeps_all, m, np.minimum(m, np.maximum(held, 1.0)))


class LayerMemory(NamedTuple):
    """Bytes of one layer and micro-batch: what it holds while it runs, and what it keeps until its
    backward pass.
    """

    whole: Rows
    kept: Rows


def layer_memory(machine: Machine, work: Workload, layer: Layer) -> LayerMemory:
    """Return the bytes of one kind of layer, from the tensors that its operations keep.

    As in arXiv 2205.05198, section 4.1: sequence parallelism splits what lies between the blocks,
    tensor parallelism what lies inside. Fully recomputed, a layer keeps its input.
    """
    operations = list(layer_part.operations(layer, Setting(work=work, code=machine.code)))
    whole, scores, dropped = np.zeros(1), np.zeros(1), np.zeros(1)
    for operation in operations:
        match operation:
            case Kept():
                kept = operation.bytes
                scores = scores + (kept if "attention" in operation.dropped_by else 0.0)
                gone = np.where(work.recompute.again(operation.dropped_by), kept, 0.0)
            case Elementwise():
                kept = _kept_bytes(machine, work, operation)
                gone = _dropped_bytes(work, operation, kept)
            case _:
                continue
        whole, dropped = whole + kept, dropped + gone
    policy = machine.code.activations
    if policy.keeps_products(fused_attention=work.fused_attention):
        selective = work.boundary_bytes + _products_of(machine, work, operations)
    else:
        selective = whole - scores
    kept = np.where(work.recompute.selective, selective, whole - dropped)
    return LayerMemory(whole, np.where(work.recompute.full, work.boundary_bytes, kept))


def _kept_bytes(machine: Machine, work: Workload, operation: Elementwise) -> Rows:
    """Return the bytes that an elementwise kernel keeps."""
    compiled, eager = machine.code.kernels.bytes_of(operation.kernel)
    bytes_per_value = np.where(work.choices.compile, compiled.kept, eager.kept)
    return bytes_per_value * work.bytes_per_value / 2 * _kept_values(operation) - (
        operation.saved_bytes
    )


def _kept_values(operation: Elementwise) -> Rows:
    return operation.values if operation.kept_values is None else operation.kept_values


def _dropped_bytes(work: Workload, operation: Elementwise, kept: Rows) -> Rows:
    """Return what of `kept` bytes the recomputation of named parts drops: all, or the result."""
    result = work.bytes_per_value * _kept_values(operation) - operation.saved_bytes
    is_again = work.recompute.again(operation.again) & operation.drops_result
    return np.where(
        work.recompute.again(operation.dropped_by), kept, np.where(is_again, result, 0.0)
    )


def _products_of(machine: Machine, work: Workload, operations: Sequence[Operation]) -> Rows:
    """Return the bytes that selective recompute of all but products and attention keeps, besides a
    layer's input.
    """
    is_alternate = machine.code.activations.selective == "alternate"
    values = np.zeros(1)
    for operation in operations:
        match operation:
            case Product():
                kept = np.zeros(1)
                dropped = operation.dropped_by_alternate or (False,) * len(operation.outputs)
                for output, is_dropped in zip(operation.values, dropped, strict=True):
                    kept = kept + (0.0 if is_alternate and is_dropped else output)
                needless = work.choices.compile & operation.is_last
                values = values + np.where(needless, 0.0, kept)
            case AttentionCore():
                values = values + operation.result_values
            case ExpertDispatch():
                values = values + operation.received_values
    return values * work.bytes_per_value


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Weights and activations of one kind of layer."""

    weights: layer_part.LayerWeights
    memory: LayerMemory


def _kinds(machine: Machine, work: Workload) -> list[_Kind]:
    return [
        _Kind(weights=layer_part.weights(layer, work), memory=layer_memory(machine, work, layer))
        for _, layer in work.model.kinds
    ]


def _memory_of(machine: Machine, work: Workload, kinds: Sequence[_Kind], rank: _Rank) -> PeakMemory:
    """Return the peak of one rank. The last kind is that of the layer which is at work then."""
    states, sharding, at_work = work.states, work.sharding, kinds[-1]
    kept = _over(rank.layers, [kind.memory.kept for kind in kinds])
    activations = _activations(machine, work, rank, kept, at_work.memory.kept)
    freed = np.where(states.activation_offload, at_work.memory.kept, kept)
    loss = np.where(rank.has_head, _loss_bytes(machine, work), 0.0)
    # In fp32 the trained parameters are those of the computation, unless these are gathered copies.
    has_masters = (work.bytes_per_value < 4) | (sharding.optimizer > sharding.parameters)
    has_masters = has_masters | (
        machine.code.replicas.holds_only_masters & (sharding.parameters > 1)
    )
    state_bytes = 2 * states.bytes_per_optimizer_state + np.where(has_masters, 4.0, 0.0)
    counts = _ParameterCounts(
        parameters=_parameters(machine, work, kinds, rank, sharding.parameters),
        gradients=_parameters(machine, work, kinds, rank, sharding.gradients),
        optimizer=_parameters(machine, work, kinds, rank, sharding.optimizer),
        layer=at_work.weights.on_rank(work),
    )
    optimizer = counts.optimizer * state_bytes / sharding.optimizer
    # Where a layer runs again its activations are whole for a moment, in addition to what all
    # layers keep.
    again = work.recompute.full | work.recompute.selective | states.activation_offload
    working = np.where(again, 1.0, WORKING_SHARE) * at_work.memory.whole
    # Of recomputed parts it is what they dropped that is there again.
    dropped = at_work.memory.whole - at_work.memory.kept
    is_partial = work.recompute.any_part & ~again
    working = np.where(is_partial, np.maximum(working, dropped), working)
    # The head is through when the last layer runs backward.
    working = np.maximum(working + _gathered(machine, work) - loss, 0.0)
    return PeakMemory(
        parameters=_computed_with(machine, work, counts, rank),
        gradients=_gradients(machine, work, counts, rank, freed=freed + loss),
        optimizer=np.where(states.optimizer_on_host, 0.0, optimizer),
        activations=activations,
        logits=loss,
        working=working,
        runtime=runtime_bytes(machine, work, activations),
    )


@dataclass(frozen=True, kw_only=True)
class _ParameterCounts:
    """Parameters of a rank before sharding: all of them, counted for each kind of sharding, and
    those of one layer.
    """

    parameters: Rows
    gradients: Rows
    optimizer: Rows
    layer: Rows


def _over(layers: LayersByKind, values: Sequence[Rows]) -> Rows:
    """Return the sum of a value over layers of each kind."""
    sums = [count * value for count, value in zip(layers, values, strict=True)]
    return sum(sums[1:], start=sums[0])


def _parameters(
    machine: Machine, work: Workload, kinds: Sequence[_Kind], rank: _Rank, degree: Rows
) -> Rows:
    """Return a rank's parameters, times `degree`, where they are sharded over so many copies."""
    hidden, ways = work.model.hidden, work.degrees.tensor
    tables = np.where(rank.has_embedding, work.vocabulary * hidden, 0.0)
    head = head_parameters(work, has_embedding=rank.has_embedding)
    tables = tables + np.where(rank.has_head, head, 0.0)
    if machine.code.loss.splits_tables:
        tables = tables / ways
    norms = sum(rank.layers[1:], start=rank.layers[0]) * 2 * hidden / ways
    matrices = [kind.weights.sharded(work, degree) for kind in kinds]
    return _over(rank.layers, matrices) + norms + tables


def _activations(
    machine: Machine, work: Workload, rank: _Rank, kept: Rows, kept_by_one: Rows
) -> Rows:
    """Return the bytes of activations, of a rank whose layers keep `kept` of a micro-batch."""
    policy, boundary, in_flight = machine.code.pipeline, work.boundary_bytes, rank.in_flight
    is_pipeline = work.degrees.pipeline > 1
    inputs = np.where(is_pipeline, in_flight * boundary, 0.0)
    # One layer's are on their way to the host, or back, while another one runs.
    activations = np.where(work.states.activation_offload, inputs + kept_by_one, in_flight * kept)
    accumulation, chunks = work.schedule.accumulation, work.schedule.virtual_stages
    waiting = np.maximum(accumulation - in_flight, 0.0)  # those in flight are what layers keep
    if policy.receives_apart:  # the first stage no activations, the last no gradients
        received = (chunks - rank.has_embedding) * waiting
        received = received + (chunks - rank.has_head) * accumulation
        activations = activations + np.where(is_pipeline, received * boundary, 0.0)
    if further := work.model.prediction.layers:
        # Each keeps the inputs of its two norms, and their results, joined.
        joined = np.where(rank.has_head & ~work.recompute.full, 4.0, 0.0)
        activations = activations + in_flight * joined * further * boundary
    if policy.keeps_outputs:  # those of micro-batches in flight are among their activations
        logits = accumulation * _logits(machine, work) * work.bytes_per_value
        outputs = np.where(rank.has_head, logits, waiting * chunks * boundary)
        activations = activations + np.where(is_pipeline, outputs, 0.0)
    return activations


def _logits(machine: Machine, work: Workload) -> Rows:
    """Return the logits of a micro-batch on one rank."""
    ways = work.degrees.tensor if machine.code.loss.shards_logits else 1.0
    return work.tokens * work.vocabulary / ways


def _loss_bytes(machine: Machine, work: Workload) -> Rows:
    """Return the bytes of logits and loss at the peak, of the rank with the head."""
    policy, size, ways = machine.code.loss, work.bytes_per_value, work.degrees.tensor
    logits, chunks = _logits(machine, work), work.choices.loss_chunks
    # By rows, in 16 bits, fused or compiled in one piece, the loss holds the logit and its
    # gradient, and no fp32 copy.
    by_rows = (ways == 1) | (not policy.shards_logits)
    by_rows = by_rows & (logits / chunks > 2**24) & policy.widens_by_rows
    is_narrow = compiles_loss(machine, work) | by_rows
    is_narrow = is_narrow | (machine.code.kernels.cross_entropy != "eager")
    capped = 0.0 if work.model.head.softcap is None else size
    bytes_per_logit = np.where(is_narrow, 2 * size, policy.bytes_per_logit) + capped
    loss = (1 + work.model.prediction.layers) * logits * bytes_per_logit / chunks
    # The head's product has its input and its input's gradient as whole sequences beside the
    # logits' gradient.
    sequences = 2 * work.tokens * work.model.hidden * size
    loss = loss + np.where(work.sequence_shards > 1, sequences, 0.0)
    if policy.splits_tables and not policy.shards_logits:
        # The result of gathering the logits, and its pieces.
        gathered = 2 * size * work.tokens * work.vocabulary
        loss = loss + np.where(ways > 1, gathered, 0.0)
    return loss


def _gathered(machine: Machine, work: Workload) -> Rows:
    """Return the bytes of whole sequences while a layer runs backward: a product's input, if not
    kept, and gradient.
    """
    whole = work.tokens * work.model.hidden * work.bytes_per_value
    tensors = 1.0 if machine.code.activations.keeps_gathered else 2.0
    return np.where(work.sequence_shards > 1, whole * tensors, 0.0)


def _computed_with(machine: Machine, work: Workload, counts: _ParameterCounts, rank: _Rank) -> Rows:
    """Return the bytes of parameters in the computation's type."""
    policy, sharding, count = machine.code.replicas, work.sharding, counts.parameters
    on_host = work.states.parameters_on_host
    gathered = policy.gathered_layers * counts.layer
    if policy.reduces_tables_apart:  # the head's table, and the last layer
        head = work.vocabulary * work.model.hidden / work.degrees.tensor + counts.layer
        gathered = np.where(rank.has_head, np.maximum(gathered, head), gathered)
    p, near = sharding.parameters, sharding.secondary_partition
    has_shards = (sharding.optimizer > p) | (not policy.holds_only_masters)
    shards = np.where(has_shards, count / p, 0.0) + np.where(near > 1, count / near, 0.0)
    shards = np.where(on_host, 0.0, shards)
    held = np.minimum(np.where((p > 1) | on_host, gathered + shards, count), count)
    # What arrives in int8 is there once more, and in fp16, before it is converted: a layer at a
    # time.
    layer = np.minimum(counts.layer, count)
    arriving = np.where(sharding.quantized_weights, 3.0 * layer, 0.0)
    products = machine.code.products
    if products.transformer_engine and not products.gathers_in_8_bits:  # copies in both layouts
        arriving = arriving + np.where(work.choices.fp8 > 0, 2.0 * held, 0.0)
    return held * work.bytes_per_value + arriving


def _gradients(
    machine: Machine, work: Workload, counts: _ParameterCounts, rank: _Rank, *, freed: Rows
) -> Rows:
    """Return the bytes of gradients at the peak, with the buffers that reduce them.

    Where they appear with a step's first backward pass, and all micro-batches are in flight before
    it, the peak is before that pass, or after it, when the gradients are there and one
    micro-batch's `freed` bytes are gone.
    """
    # Gradients that are reduced at each micro-batch go to an optimizer on the host.
    code, states, sharding = machine.code, work.states, work.sharding
    has_copies = work.degrees.copies > 1
    whole = counts.gradients * code.gradient_bytes(work.bytes_per_value)
    leave = states.parameters_on_host | (states.optimizer_on_host & (sharding.gradients > 1))
    held = np.where(leave, 0.0, whole / sharding.gradients)
    buckets = code.replicas.bucket_bytes * counts.gradients
    reducing = _reducing(machine, work, counts, rank) + np.where(has_copies, buckets, 0.0)
    if not code.gradients.appear_in_backward:
        return held + reducing
    shards = np.maximum(sharding.gradients, np.where(has_copies, sharding.optimizer, 1.0))
    accumulation = work.schedule.accumulation
    later = np.where(accumulation == 1, np.minimum(whole / shards, held), held) + reducing
    is_after = accumulation <= rank.in_flight
    return np.where(is_after, np.maximum(later - freed, 0.0), held + reducing)


def _reducing(machine: Machine, work: Workload, counts: _ParameterCounts, rank: _Rank) -> Rows:
    """Return what gradients need beyond those that are kept while they are reduced: a layer's, a
    bucket, or a head's.

    A head's table is a layer of its own, whose 16-bit gradient and fp32 copy are there while all
    activations still are; tied, it is reduced with the embedding, after they went, and waits in
    fp32 where it is reduced each time. Reduced once a step, in a pipeline after its last
    micro-batch, they find the activations gone, which took more.
    """
    policy, sharding = machine.code.replicas, work.sharding
    has_copies, reduces_each = work.degrees.copies > 1, sharding.gradients > 1
    bytes_each = np.where(reduces_each, policy.reduce_bytes_each, policy.reduce_bytes_once)
    held = bytes_each * counts.layer
    if policy.reduces_tables_apart:
        table = work.vocabulary * work.model.hidden / work.degrees.tensor
        tied = np.where(reduces_each, 4.0, 0.0)
        own = 4.0 + work.bytes_per_value
        table = table * (tied if work.model.head.tied else own)
        held = np.where(rank.has_head, np.maximum(held, table), held)
    bucket = 4 * np.minimum(policy.bucket_elements, counts.gradients)
    held = np.where(sharding.parameters == 1, np.maximum(held, bucket), held)
    is_later = (work.degrees.pipeline > 1) & (sharding.gradients == 1)
    held = np.where(has_copies & ~is_later, held, 0.0)
    # A bucket of whole gradients is there twice while it is filled, at every micro-batch.
    whole = 4 * np.minimum(policy.whole_bucket_elements, counts.gradients)
    return np.where(has_copies & (sharding.optimizer == 1) & (whole > 0), whole, held)


def fullest_parameters(machine: Machine, work: Workload) -> Rows:
    """Return the parameters of the rank that holds most, before any sharding over replicas."""
    ways = work.degrees.tensor if machine.code.loss.splits_tables else 1.0
    table = work.vocabulary * work.model.hidden / ways
    beside, apart = (
        head_parameters(work, has_embedding=np.array([is_first])) / ways
        for is_first in (True, False)
    )
    matrices = [weights.on_rank(work) for weights in layer_part.weights_of_kinds(work)]
    layers, has_both = work.layers, work.schedule.head_on_first
    first = _over(layers.first, matrices) + table + np.where(has_both, beside, 0.0)
    middle = _over(layers.middle, matrices)
    last = np.where(has_both, 0.0, _over(layers.last, matrices) + apart)
    return np.maximum(np.maximum(first, last), middle)


def host_memory(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Return the bytes that a rank of `parameters` parameters keeps in the host's memory; the first
    in a pipeline.
    """
    states, sharding = work.states, work.sharding
    if not states.uses_host:
        return np.zeros(1)
    kept = [layer_memory(machine, work, layer).kept for _, layer in work.model.kinds]
    activations = micro_batches_held(work) * _over(work.layers.first, kept)
    state_bytes = 2 * states.bytes_per_optimizer_state + 4.0
    gradient_bytes = machine.code.gradient_bytes(work.bytes_per_value)
    of_states = parameters / sharding.optimizer * state_bytes
    of_states = of_states + parameters / sharding.gradients * gradient_bytes
    if not machine.code.replicas.holds_only_masters:
        copies = parameters / sharding.parameters * work.bytes_per_value
        of_states = of_states + np.where(states.parameters_on_host, copies, 0.0)
    of_states = np.where(states.optimizer_on_host, of_states, 0.0)
    return np.where(states.activation_offload, activations, 0.0) + of_states
