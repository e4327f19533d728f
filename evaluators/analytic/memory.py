"""The peak memory of the fullest rank: states, activations of the micro-batches in flight, logits,
the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.software import KNOWN
from frontrunner.evaluators.analytic.workload import Flags, Parts, Rows, Workload, number

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
    if machine.software.may_keep_gathered:
        gathered = 2 * (1 - 1 / work.sequence_shards) * work.layers_first * micro_batches_held(work)
        off["gathered"] = 0.5 * gathered * work.tokens * work.hidden * work.bytes_per_value
    squares = sum((each**2 for each in off.values()), start=np.zeros(1)) / peak.of_kind(kind) ** 2
    between = (between_codes(machine, work, peak, kind) ** 2).sum(axis=1)
    found: Rows = np.sqrt(squares + CODE_ERROR**2 + between)
    return found


def between_codes(
    machine: Machine, work: Workload, peak: PeakMemory, kind: MemoryKind | None = None
) -> Rows:
    """Return how far the logarithms of peaks move with the known codes that an unknown one may be,
    a column for each.

    A column is a deviation of its own: together they are as far off as one code is on average.
    Others are 0.
    """
    software, found = machine.software, np.zeros((len(peak.total), len(KNOWN)))
    places = {code.name: place for place, code in enumerate(KNOWN)}
    for one in software.stands_for:
        other = peak_memory(replace(machine, software=one), work).of_kind(kind)
        found[:, places[one.name]] = (
            np.log(other / peak.of_kind(kind)) / len(software.stands_for) ** 0.5
        )
    return found


def runtime_bytes(machine: Machine, work: Workload, activations: Rows | float) -> Rows:
    """Return what context, libraries, communicators and the allocator take beside what is
    allocated.
    """
    libraries = machine.runtime_bytes + machine.communicator_bytes * communicators(machine, work)
    return libraries + machine.software.fragmentation * activations


def communicators(machine: Machine, work: Workload) -> Rows:
    """Return a rank's communicators: one for each kind of group, and one for all ranks if there are
    several kinds.

    Code that sends between pipeline ranks one message at a time has one more with each neighbor
    (pytorch, `ProcessGroupNCCL.cpp`, `getKeySendRecv`).
    """
    ranks = work.pipeline_parallel
    kinds = (work.copies > 1) + 1.0 * (work.tensor_parallel > 1) + (ranks > 1)
    return (
        kinds + (kinds > 1) + (np.minimum(ranks - 1, 2) if machine.software.sends_singly else 0.0)
    )


@dataclass(frozen=True, kw_only=True)
class PeakMemory(Parts):
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
    totals = np.stack(np.broadcast_arrays(*(rank.total for rank in candidates)))
    totals[1] = np.where(work.head_on_first & (work.pipeline_parallel == 1), 0.0, totals[1])
    totals[2] = np.where(work.head_on_first, 0.0, totals[2])
    fullest = np.argmax(totals, axis=0)
    names = [field.name for field in fields(PeakMemory)]
    columns = (
        [np.broadcast_to(getattr(rank, name), fullest.shape) for rank in candidates]
        for name in names
    )
    return PeakMemory(
        **{name: np.choose(fullest, ranks) for name, ranks in zip(names, columns, strict=True)}
    )


def memory_of_ranks(machine: Machine, work: Workload) -> tuple[PeakMemory, PeakMemory, PeakMemory]:
    """Return the ranks with the embedding, after it (with the layers of the fullest between) and
    with the head.
    """
    ahead, after, behind = (
        micro_batches_held(work, rank) for rank in (0.0, 1.0, work.pipeline_parallel - 1)
    )
    alone = work.head_on_first
    none, no_head, one = np.zeros(1), np.zeros(1, dtype=np.bool_), np.ones(1)
    return (
        _rank(machine, work, "first", in_flight=ahead, has_head=alone, has_embedding=one),
        _rank(machine, work, "middle", in_flight=after, has_head=no_head, has_embedding=none),
        _rank(machine, work, "last", in_flight=behind, has_head=~alone, has_embedding=none),
    )


def head_parameters(work: Workload, *, beside_embedding: Rows) -> Rows:
    """Return the parameters that come with the head: its table, and the projections of MTP layers.

    These need the embedding, too, of which a rank that has it not holds a copy. A tied head is the
    embedding.
    """
    table, further = work.vocabulary * work.hidden, work.mtp_layers > 0
    apart = np.where(beside_embedding > 0, 0.0, 1.0)
    count = np.where(work.tied_embeddings, apart, 1.0 + apart * further)
    return count * table + work.mtp_layers * 2 * work.hidden**2


def memory_of_each(
    machine: Machine,
    work: Workload,
    layers: Rows,
    dense: Rows,
    *,
    in_flight: Rows,
    ends: tuple[int, int],
) -> PeakMemory:
    """Return the peak of every rank of one recipe's pipeline, which hold so many layers and
    micro-batches in flight.

    `dense` of the layers have no experts; `ends` are the ranks with the embedding and with the
    head.
    """
    first, last = np.eye(len(layers))[list(ends)]
    held = replace(work, layers_middle=layers, dense_middle=dense)
    return _rank(
        machine, held, "middle", in_flight=in_flight, has_head=last > 0, has_embedding=first
    )


def micro_batches_held(work: Workload, rank: Rows | float = 0.0) -> Rows:
    """Return the most micro-batches of which a pipeline rank holds activations at once.

    Rank r of p holds p - r under 1F1B (arXiv 2104.04473, section 2.2.1), all under GPipe. With v
    virtual stages it runs n (v - 1) + 2 (p - 1 - r) + 1 chunks ahead, where micro-batches go
    through them in rounds of n. Schedules that split the backward pass hold p on every rank, until
    the gradients of the weights are there; DualPipeV a chunk more, and ZBV fewer where so few
    micro-batches end its first phase.
    """
    m, p, v = work.accumulation, work.pipeline_parallel, work.virtual_stages
    in_round = m // np.maximum(m // p, 1)
    looped = (in_round * (v - 1) + 2 * (p - 1 - rank) + 1) / v
    bent = np.where(work.dual_pipeline, p + 1 / v, np.minimum(p, (m + 1 + rank) / v))
    split = np.where(work.head_on_first, bent, (in_round * (v - 1) + p) / v)
    held = np.where(work.split_backward, split, np.where(v > 1, looped, p - rank))
    found: Rows = np.where(work.keeps_all, m, np.minimum(m, np.maximum(held, 1.0)))
    return found


def _rank(
    machine: Machine,
    work: Workload,
    place: str,
    *,
    in_flight: Rows,
    has_head: Flags,
    has_embedding: Rows,
) -> PeakMemory:
    software, size = machine.software, work.bytes_per_value
    others: Rows
    layers, dense = getattr(work, f"layers_{place}"), getattr(work, f"dense_{place}")
    others = layers * 2 * work.hidden / work.tensor_parallel
    tables = has_embedding * work.vocabulary * work.hidden
    tables = tables + has_head * head_parameters(work, beside_embedding=has_embedding)
    others = others + tables / (work.tensor_parallel if software.splits_tables else 1.0)
    count = work.over_layers(layers, dense, lambda of: of.layer_share) + others

    def over(degree: Rows) -> Rows:
        if work.expert_ranks.max() == 1:
            return count
        return work.over_layers(layers, dense, lambda of: of.layer_share_over(degree)) + others

    whole, kept = layer_activations(machine, work)
    all_kept = layers * kept
    if work.dense_layers.any():
        all_kept = all_kept + dense * (layer_activations(machine, work.without_experts)[1] - kept)
    inputs = np.where(work.pipeline_parallel > 1, in_flight * boundary_bytes(work), 0.0)
    # One layer's are on their way to the host, or back, while another one runs.
    activations = np.where(work.activation_offload, inputs + kept, in_flight * all_kept)
    if software.receives_apart:  # the first stage no activations, the last no gradients
        waiting = np.maximum(
            work.accumulation - in_flight, 0.0
        )  # those in flight are what layers keep
        received = (work.virtual_stages - has_embedding) * waiting
        received = received + (work.virtual_stages - has_head) * work.accumulation
        activations = activations + np.where(
            work.pipeline_parallel > 1, received * boundary_bytes(work), 0.0
        )
    if work.mtp_layers.any():  # of each, its two norms' inputs, and what they make of them, joined
        joined = (
            np.where(has_head & ~work.recompute_full, 4.0, 0.0)
            * work.mtp_layers
            * boundary_bytes(work)
        )
        activations = activations + in_flight * joined
    logits = (
        work.tokens * work.vocabulary / (work.tensor_parallel if software.sharded_logits else 1.0)
    )
    if software.keeps_outputs:  # those of micro-batches in flight are among their activations
        later = (
            np.maximum(work.accumulation - in_flight, 0.0)
            * work.virtual_stages
            * boundary_bytes(work)
        )
        outputs = np.where(has_head, work.accumulation * logits * size, later)
        activations = activations + np.where(work.pipeline_parallel > 1, outputs, 0.0)
    # By rows, in 16 bits, fused or compiled in one piece, the loss holds the logit and its
    # gradient, and no fp32 copy.
    by_rows = (work.tensor_parallel == 1) | (not software.sharded_logits)
    by_rows = by_rows & (logits / work.loss_chunks > 2**24) & software.widens_logits_by_rows
    narrow = software.fuses_loss(work) | by_rows | (software.cross_entropy != "eager")
    each = np.where(narrow, 2 * size, software.bytes_per_logit) + np.where(
        work.capped_logits, size, 0.0
    )
    loss = (1 + work.mtp_layers) * logits * each / work.loss_chunks
    # The head's product has its input and its input's gradient as whole sequences beside the
    # logits' gradient.
    sequences = np.where(work.sequence_shards > 1, 2 * work.tokens * work.hidden * size, 0.0)
    loss = np.where(has_head, loss + sequences + _gathered_logits(machine, work), 0.0)
    # In fp32 the trained parameters are those of the computation, unless these are gathered copies.
    apart = (size < 4) | (work.sharding_optimizer > work.sharding_parameters)
    each = 2 * work.bytes_per_optimizer_state + np.where(apart, 4.0, 0.0)
    states = over(work.sharding_optimizer) * each / work.sharding_optimizer
    # Where a layer runs again its activations are whole for a moment, in addition to what all
    # layers keep.
    again = work.recompute_full | work.recompute_selective | work.activation_offload
    parameters = _computed_with(machine, work, over(work.sharding_parameters), has_head)
    return PeakMemory(
        parameters=parameters,
        gradients=_gradients(
            machine,
            work,
            over(work.sharding_gradients),
            in_flight=in_flight,
            freed=all_kept + loss,
            has_head=has_head,
        ),
        optimizer=np.where(work.optimizer_on_host, 0.0, states),
        activations=activations,
        logits=loss,
        # The head is through when the last layer runs backward.
        working=np.maximum(
            np.where(again, 1.0, WORKING_SHARE) * whole + _gathered(machine, work) - loss, 0.0
        ),
        runtime=runtime_bytes(machine, work, activations),
    )


def _gathered(machine: Machine, work: Workload) -> Rows:
    """Return the bytes of whole sequences while a layer runs backward: a product's input, if not
    kept, and gradient.
    """
    whole = work.tokens * work.hidden * work.bytes_per_value
    return np.where(
        work.sequence_shards > 1, whole * (1.0 if machine.software.keeps_gathered else 2.0), 0.0
    )


def _gathered_logits(machine: Machine, work: Workload) -> Rows:
    """Return the bytes of logits that tensor-parallel ranks gather whole: the collective's result,
    and its pieces.
    """
    gathers = (
        (work.tensor_parallel > 1)
        & machine.software.splits_tables
        & (not machine.software.sharded_logits)
    )
    return np.where(gathers, 2 * work.bytes_per_value * work.tokens * work.vocabulary, 0.0)


def _computed_with(machine: Machine, work: Workload, count: Rows, has_head: Flags) -> Rows:
    """Return the bytes of parameters in the computation's type, of a rank that holds `count` before
    sharding.
    """
    gathered = machine.software.gathered_layers * work.layer_share
    if machine.software.reduces_tables_apart:  # the head's table, and the last layer
        head = work.vocabulary * work.hidden / work.tensor_parallel + work.layer_share
        gathered = np.where(has_head, np.maximum(gathered, head), gathered)
    p, o = work.sharding_parameters, work.sharding_optimizer
    shards = np.where((o > p) | (not machine.software.shards_only_masters), count / p, 0.0)
    shards = shards + np.where(work.secondary_partition > 1, count / work.secondary_partition, 0.0)
    shards = np.where(work.parameters_on_host, 0.0, shards)
    held = np.where((p > 1) | work.parameters_on_host, gathered + shards, count)
    # What arrives in int8 is there once more, and in fp16, before it is converted: a layer at a
    # time.
    arriving = np.where(work.quantized_weights, 3.0 * np.minimum(work.layer_share, count), 0.0)
    if (
        machine.software.transformer_engine and not machine.software.gathers_in_8_bits
    ):  # copies in both layouts
        arriving = arriving + np.where(work.fp8 > 0, 2.0 * np.minimum(held, count), 0.0)
    return np.minimum(held, count) * work.bytes_per_value + arriving


def _gradients(
    machine: Machine, work: Workload, count: Rows, *, in_flight: Rows, freed: Rows, has_head: Flags
) -> Rows:
    """Return the bytes of gradients at the peak, with the buffers that reduce them.

    Where they appear with a step's first backward pass, and all micro-batches are `in_flight`
    before it, the peak is before that pass, or after it, when the gradients are there and one
    micro-batch's `freed` bytes are gone.
    """
    # Gradients that are reduced at each micro-batch go to an optimizer on the host.
    whole = count * machine.gradient_bytes(work.bytes_per_value)
    leave = work.parameters_on_host | (work.optimizer_on_host & (work.sharding_gradients > 1))
    held = np.where(leave, 0.0, whole / work.sharding_gradients)
    reducing = _reducing(machine, work, count, has_head)
    reducing = reducing + np.where(work.copies > 1, machine.software.reducer_bytes * count, 0.0)
    if not machine.software.gradients_appear:
        return held + reducing
    shards = np.maximum(
        work.sharding_gradients, np.where(work.copies > 1, work.sharding_optimizer, 1.0)
    )
    later = np.where(work.accumulation == 1, np.minimum(whole / shards, held), held) + reducing
    return np.where(work.accumulation <= in_flight, np.maximum(later - freed, 0.0), held + reducing)


def _reducing(machine: Machine, work: Workload, count: Rows, has_head: Flags) -> Rows:
    """Return what gradients need beyond those that are kept while they are reduced: a layer's, a
    bucket, or a head's.

    A head's table is a layer of its own, whose 16-bit gradient and fp32 copy are there while all
    activations still are; tied, it is reduced with the embedding, after they went, and waits in
    fp32 where it is reduced each time. `count` are the rank's parameters before sharding. Reduced
    once a step, in a pipeline after its last micro-batch, they find the activations gone, which
    took more.
    """
    once, each = machine.software.reduce_bytes
    held = np.where(work.sharding_gradients > 1, each, once) * work.layer_share
    if machine.software.reduces_tables_apart:
        table = work.vocabulary * work.hidden / work.tensor_parallel
        tied = np.where(work.sharding_gradients > 1, 4.0, 0.0)
        table = table * np.where(work.tied_embeddings, tied, 4.0 + work.bytes_per_value)
        held = np.where(has_head, np.maximum(held, table), held)
    bucket = 4 * np.minimum(machine.software.bucket_elements, count)
    held = np.where(work.sharding_parameters == 1, np.maximum(held, bucket), held)
    is_later = (work.pipeline_parallel > 1) & (work.sharding_gradients == 1)
    held = np.where((work.copies > 1) & ~is_later, held, 0.0)
    # A bucket of whole gradients is there twice while it is filled, at every micro-batch.
    whole = 4 * np.minimum(machine.software.whole_bucket_elements, count)
    return np.where((work.copies > 1) & (work.sharding_optimizer == 1) & (whole > 0), whole, held)


def boundary_bytes(work: Workload) -> Rows:
    """Return the bytes of a layer's input, of one micro-batch on one rank."""
    return work.tokens * work.bytes_per_value * work.hidden / work.sequence_shards


def layer_activations(machine: Machine, work: Workload) -> tuple[Rows, Rows]:
    """Return the bytes that one layer holds of a micro-batch while it runs, and what it keeps until
    its backward pass.

    As in arXiv 2205.05198, section 4.1: sequence parallelism splits what lies between the blocks,
    tensor parallelism what lies inside. Selective recompute that keeps products keeps their
    outputs; those of the blocks' last products are as wide as the model on every tensor-parallel
    rank. The project's own keeps all-to-alls of experts as well. Context parallelism keeps
    attention's outcome twice.
    """
    ways, size, software = work.tensor_parallel, work.bytes_per_value, machine.software
    shards = work.sequence_shards
    gathered = 2 * size * work.hidden / (1.0 if software.keeps_gathered else shards)
    copied = np.where(
        work.compile | (work.micro_batch_seqs < software.copies_attention_from), 0.0, 1.0
    )
    packed = (
        np.where(work.rotary, work.q_hidden + work.kv_hidden, 0.0) if software.keeps_packed else 0.0
    )
    mixed = work.mixed_hidden
    exchanged = np.where(work.context_parallel > 1, mixed, 0.0)
    # Padded values, and what attention makes of them, are as wide as the queries.
    padded = 2 * (work.q_hidden - mixed) if software.pads_values else 0.0
    inside = size * (
        work.q_hidden + 2 * work.kv_hidden + mixed + copied * mixed + padded + packed + exchanged
    )
    latent = work.query_rank + work.key_value_rank
    # Tiled, the feed-forward part keeps nothing.
    if (
        software.transformer_engine
    ):  # of norms' outputs, of the gated value; attention's outcome is kept in 16 bits too
        inside = inside + np.where(
            work.fp8 > 0, work.q_hidden - work.ffn_hidden * work.experts_per_token, 0.0
        )
        gathered = gathered - np.where(work.fp8 > 0, gathered / 2, 0.0)
    tiled = replace(work, ffn_hidden=np.where(work.feed_forward_tiles > 1, 0.0, work.ffn_hidden))
    scores = work.heads * work.sequence_length * software.score_bytes(work, 2)
    scores = np.where(work.fused_attention, 0.0, scores)
    # A latent vector is kept by the product that takes it; what its norm keeps is counted with
    # other norms.
    whole = (
        software.elementwise_bytes(tiled, 2) + gathered + size * latent + (inside + scores) / ways
    )
    whole = work.tokens * whole
    boundary = boundary_bytes(work)
    each, up = work.experts_per_token, work.ffn_matrices - 1
    made = np.where(
        work.key_value_rank > 0, work.latent_outputs, work.q_hidden + 2 * work.kv_hidden
    )
    attended = work.q_hidden if software.pads_values else mixed
    outputs = made + attended + (each + work.shared_experts) * up * work.ffn_hidden
    # Experts have the rows of a rank's own positions, with those of the ranks that share their
    # matrices.
    rows = np.where(work.experts > 0, each * work.expert_tensor_parallel / shards, 1.0)
    # Compiled, not the last product's, which nothing needs.
    last = np.where(work.compile, 1.0, 1.0 + rows + (work.shared_experts > 0)) * work.hidden
    if (
        software.selective == "products" and not software.dispatches_once
    ):  # and what experts and their ranks are sent
        sent = 2 * each / shards * (work.expert_parallel > 1) + 2 * rows * (
            work.expert_tensor_parallel > 1
        )
        last = last + np.where(work.experts > 0, sent, 0.0) * work.hidden
    if (
        software.selective == "alternate"
    ):  # without keys, attention's projection, and a gate's second product
        dense = work.experts == 0
        spared = (
            np.where(work.key_value_rank > 0, 0.0, work.kv_hidden)
            + dense * (up - 1) * work.ffn_hidden
        )
        outputs = outputs - spared
        last = last - np.where(dense & (up == 1) & ~work.compile, 2.0, 1.0) * work.hidden
    products = boundary + work.tokens * size * (last + latent + work.rotary_width + outputs / ways)
    selective = np.where(
        software.keeps_products(work), products, whole - work.tokens * scores / ways
    )
    return whole, np.where(
        work.recompute_full, boundary, np.where(work.recompute_selective, selective, whole)
    )


def fullest_parameters(machine: Machine, work: Workload) -> Rows:
    """Return the parameters of the rank that holds most, before any sharding over replicas."""
    ways = work.tensor_parallel if machine.software.splits_tables else number(1)
    table = work.vocabulary * work.hidden / ways
    beside, apart = (
        head_parameters(work, beside_embedding=number(place)) / ways for place in (1, 0)
    )
    first, middle, last = (
        work.over_layers(
            getattr(work, f"layers_{place}"),
            getattr(work, f"dense_{place}"),
            lambda of: of.layer_share,
        )
        for place in ("first", "middle", "last")
    )
    first = first + table + np.where(work.head_on_first, beside, 0.0)
    return np.maximum(np.maximum(first, np.where(work.head_on_first, 0.0, last + apart)), middle)


def host_memory(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Return the bytes that a rank of `parameters` parameters keeps in the host's memory; the first
    in a pipeline.
    """
    if not work.uses_host:
        return np.zeros(1)
    _, kept = layer_activations(machine, work)
    activations = micro_batches_held(work) * work.layers_first * kept
    states = parameters / work.sharding_optimizer * (2 * work.bytes_per_optimizer_state + 4.0)
    gradients = parameters / work.sharding_gradients * machine.gradient_bytes(work.bytes_per_value)
    copies = np.where(
        work.parameters_on_host, parameters / work.sharding_parameters * work.bytes_per_value, 0.0
    )
    if machine.software.shards_only_masters:
        copies = np.zeros(1)
    of_states = np.where(work.optimizer_on_host, states + gradients + copies, 0.0)
    return np.where(work.activation_offload, activations, 0.0) + of_states
