"""The time of an optimizer step: the pipeline's ranks and bubble, the replicas' traffic, the
optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np

from frontrunner.evaluators.analytic import bubbles, communication, pricing, replicas
from frontrunner.evaluators.analytic.arrays import Rows, Sum, number
from frontrunner.evaluators.analytic.layer_time import LayerTime, layer_time
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import fullest_parameters, layer_memory
from frontrunner.evaluators.analytic.parts import layer as layer_part
from frontrunner.evaluators.analytic.pricing import Passes
from frontrunner.evaluators.analytic.workload import LayersByKind, Workload


@dataclass(frozen=True, kw_only=True)
class StepTime(Sum):
    """Seconds of one optimizer step by what the slowest pipeline rank spends them on, waits beyond
    what overlaps.
    """

    compute: Rows
    recompute: Rows
    tensor_parallel: Rows
    context_parallel: Rows
    expert_parallel: Rows
    pipeline_transfer: Rows
    bubble: Rows
    data_parallel: Rows
    host_transfer: Rows
    optimizer: Rows


TRAFFIC = (
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "pipeline_transfer",
    "data_parallel",
)


LAYER_PARTS = tuple(part.name for part in fields(LayerTime))


@dataclass(frozen=True, kw_only=True)
class _Times:
    """Seconds of one micro-batch: of a layer of each kind, of the embedding, and of the head."""

    kinds: tuple[LayerTime, ...]
    embedding: Passes
    head: Passes

    @classmethod
    def of(cls, machine: Machine, work: Workload) -> _Times:
        return cls(
            kinds=tuple(layer_time(machine, work, layer) for _, layer in work.model.kinds),
            embedding=pricing.embedding_s(machine, work),
            head=pricing.head_s(machine, work),
        )

    def of_layers(self, layers: Sequence[Rows | float], part: Callable[[LayerTime], Rows]) -> Rows:
        """Return the seconds of a part of so many layers of each kind."""
        times = [count * part(kind) for count, kind in zip(layers, self.kinds, strict=True)]
        return sum(times[1:], start=times[0])

    def of_ranks(self, work: Workload) -> tuple[Rows, Rows, Rows]:
        """Return the seconds of the ranks with the embedding, the fullest between, with the
        head.
        """
        total = attrgetter("total")
        has_both = work.schedule.head_on_first
        first = self.of_layers(work.layers.first, total) + self.embedding.total
        first = first + np.where(has_both, self.head.total, 0.0)
        last = self.of_layers(work.layers.last, total) + self.head.total
        between = self.of_layers(work.layers.middle, total)
        return first, between, np.where(has_both, 0.0, last)


def step_time(machine: Machine, work: Workload) -> StepTime:
    """Return the step time of each recipe: micro-batches at the slowest rank's pace, and the
    bubble.
    """
    times = _Times.of(machine, work)
    first, between, last = times.of_ranks(work)
    slowest = np.maximum(np.maximum(first, last), between)
    layers = _layers_of_slowest(work, is_first=slowest == first, is_last=slowest == last)
    parts = {name: times.of_layers(layers, attrgetter(name)) for name in LAYER_PARTS}
    transfer = communication.pipeline_transfer_s(machine, work)
    through = times.of_layers(work.all_layers, attrgetter("total"))
    through = through + times.head.total + times.embedding.total
    through = through + transfer * (work.degrees.pipeline - 1)
    repeated = work.schedule.accumulation
    exposed = work.schedule.virtual_stages * exposed_transfers(machine, work)
    parameters = fullest_parameters(machine, work)
    passes = (parts["forward"], parts["backward"])
    experts, updated = _experts_and_updated(work, parameters, layers)
    waits = parts["tensor_parallel"] + parts["context_parallel"] + parts["expert_parallel"]
    return StepTime(
        compute=repeated * (slowest - parts["recompute"] - waits),
        recompute=repeated * parts["recompute"],
        tensor_parallel=repeated * parts["tensor_parallel"],
        context_parallel=repeated * parts["context_parallel"],
        expert_parallel=repeated * parts["expert_parallel"],
        pipeline_transfer=repeated * transfer * exposed,
        bubble=bubbles.bubble_s(
            work, slowest=slowest, through=through, left=_left_of_bubble(work, times.kinds[-1])
        ),
        data_parallel=replicas.replica_waits(
            machine, work, parameters, *passes, experts=experts
        ).per_step(work),
        host_transfer=replicas.host_transfer_s(
            machine,
            work,
            parameters,
            activation_bytes=_kept_bytes(machine, work, layers),
            passes=passes,
        ),
        optimizer=pricing.optimizer_s(machine, work, updated),
    )


def _layers_of_slowest(work: Workload, *, is_first: Rows, is_last: Rows) -> LayersByKind:
    """Return the layers of the rank that takes longest."""
    ranks = zip(work.layers.first, work.layers.middle, work.layers.last, strict=True)
    return tuple(
        np.where(is_last, last, np.where(is_first, first, middle)) for first, middle, last in ranks
    )


def _experts_and_updated(
    work: Workload, parameters: Rows, layers: LayersByKind
) -> tuple[Rows, Rows]:
    """Return a rank's parameters of experts, before any sharding, and those that it updates."""
    shards = work.sharding.optimizer
    kinds = layer_part.weights_of_kinds(work)
    experts, spread = np.zeros(1), np.zeros(1)
    for count, weights in zip(layers, kinds, strict=True):
        experts = experts + count * weights.experts_sharded(work, number(1))
        spread = spread + count * weights.experts_sharded(work, shards)
    return experts, (parameters - experts + spread) / shards


def _kept_bytes(machine: Machine, work: Workload, layers: LayersByKind) -> Rows:
    """Return what so many layers keep of a micro-batch, where the host holds it."""
    if not work.states.uses_host:
        return np.zeros(1)
    kept = np.zeros(1)
    for count, (_, layer) in zip(layers, work.model.kinds, strict=True):
        kept = kept + count * layer_memory(machine, work, layer).kept
    return kept


def exposed_transfers(machine: Machine, work: Workload) -> Rows:
    """Return the ratio of what a pass waits for the transfer before it to what the transfer takes.

    It is twice as much where a rank does not send while it receives.
    """
    exposed = number(2.0 if machine.code.pipeline.sends_in_turn else 1.0)
    if not machine.code.pipeline.overlaps_interleaved:
        return exposed
    is_interleaved = work.schedule.virtual_stages > 1
    return np.where(is_interleaved, communication.LEAST_EXPOSED, 1.0) * exposed


@dataclass(frozen=True, kw_only=True)
class PassTime(Sum):
    """Seconds of one micro-batch's pass through each stage, by what they are spent on."""

    compute: Rows
    recompute: Rows
    tensor_parallel: Rows
    context_parallel: Rows
    expert_parallel: Rows


def stage_passes(machine: Machine, work: Workload, layers: LayersByKind) -> dict[str, PassTime]:
    """Return one recipe's forward passes (F), backward passes for inputs (I) and for weights (W),
    by stage.

    A stage has so many `layers` of each kind; the first has the embedding, the last the head. Half
    of the waits are the forward pass's. A backward pass that is not split is I and W together.
    """
    times = _Times.of(machine, work)
    parts = {name: times.of_layers(layers, attrgetter(name)) for name in LAYER_PARTS}
    stages = len(layers[0])
    is_first, is_last = np.eye(stages)[[0, -1]]
    forward = is_first * times.embedding.forward + is_last * times.head.forward
    backward = is_first * times.embedding.backward + is_last * times.head.backward
    forward, backward = forward + parts["forward"], backward + parts["backward"]
    share = np.where(work.schedule.split_backward, pricing.WEIGHTS_SHARE, 0.0)
    weights = share * backward
    nothing = np.zeros(stages)
    waits = {name: parts[name] / 2 for name in TRAFFIC[:3]}
    return {
        "F": PassTime(compute=forward, recompute=nothing, **waits),
        "I": PassTime(compute=backward - weights, recompute=parts["recompute"], **waits),
        "W": PassTime(compute=weights, recompute=nothing, **dict.fromkeys(waits, nothing)),
    }


def busy_of_ranks(machine: Machine, work: Workload) -> tuple[Rows, Rows, Rows]:
    """Return the seconds of a step in which each of these ranks computes, or communicates within
    its layers.
    """
    first, between, last = _Times.of(machine, work).of_ranks(work)
    repeated = work.schedule.accumulation
    return repeated * first, repeated * between, repeated * last


def _left_of_bubble(work: Workload, layer: LayerTime) -> Rows:
    """Return the share of the bubble that gradients of weights do not fill; 1 where they are not
    computed apart.
    """
    if not work.schedule.split_backward.any():
        return number(1)
    between = layer.waits / 2
    weights = pricing.WEIGHTS_SHARE * layer.backward
    parts = {
        "forward": layer.forward + between,
        "backward": layer.backward - weights + layer.recompute + between,
        "weights": weights,
    }
    left = bubbles.share_left(
        work.degrees.pipeline,
        work.schedule.accumulation,
        parts,
        is_v_shaped=work.schedule.head_on_first,
        is_dual=work.schedule.dual_pipeline,
    )
    return np.where(work.schedule.split_backward, left, 1.0)
