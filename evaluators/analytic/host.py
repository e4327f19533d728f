"""The host's memory: what recipes keep there, and what its link and its processors cost a step.

No measurement has judged these times; `trust.unjudged` says so wherever they count.
"""

from __future__ import annotations

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import layer_activations, micro_batches_ahead
from frontrunner.evaluators.analytic.workload import Rows, Workload

HOST_ADAM_S_PER_PARAMETER = 1.4e-9
"""torch's Adam on a whole host, two Xeon 8168: 1.39 s for 1e9 parameters (arXiv 2101.06840, table 4)."""
LEAST_SHOWN = 0.05
"""Share of what moves beside computation that nothing hides, as between replicas."""


def uses_host(work: Workload) -> bool:
    """Whether any row keeps something in the host's memory."""
    return bool(work.activations_on_host.any() or work.optimizer_on_host.any())


def host_transfer_s(
    machine: Machine, work: Workload, parameters: Rows, *, layers: Rows, passes: tuple[Rows, Rows]
) -> Rows:
    """Time of a step that a rank of `layers` layers and `parameters` parameters waits for the host's link.

    `passes` are its forward and backward time of one micro-batch. What layers keep is sent and fetched by the stream
    that computes (trainer/host_memory.py): nothing hides it. Parameters are fetched for each use ahead of it, and
    gradients leave when they are reduced; a share of the computation hides both, as it hides collectives.
    """
    if not uses_host(work):
        return np.zeros(1)
    _, kept = layer_activations(machine, work)
    activations = np.where(work.activations_on_host, 2 * layers * kept, 0.0) / machine.host_bytes_per_s
    fetched = 2 * parameters / work.sharding_parameters * parameter_bytes_on_host(machine, work)
    reduces_each = (work.sharding_gradients > 1) | work.gradient_sync_each | work.parameters_on_host
    gradients = parameters / work.sharding_gradients * machine.gradient_bytes(work.bytes_per_value)
    each = np.where(work.parameters_on_host, fetched, 0.0) + np.where(reduces_each, gradients, 0.0)
    updated = parameters / work.sharding_optimizer * work.bytes_per_value
    once = np.where(reduces_each, 0.0, gradients) + np.where(work.parameters_on_host, 0.0, updated)
    each_s, once_s = (moved / machine.host_bytes_per_s for moved in (each, once))
    beside = np.where(work.parameters_on_host, machine.software.gradient_overlap, 0.0) * (passes[0] + passes[1])
    states = work.accumulation * np.maximum(each_s - beside, LEAST_SHOWN * each_s) + once_s
    return work.accumulation * activations + np.where(work.optimizer_on_host, states, 0.0)


def host_optimizer_s(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """AdamW on the host's processors, which a node's ranks share, for a rank that updates `parameters`."""
    devices = work.tensor_parallel * work.pipeline_parallel * work.copies
    return parameters * np.minimum(machine.devices_per_node, devices) * HOST_ADAM_S_PER_PARAMETER


def parameter_bytes_on_host(machine: Machine, work: Workload) -> Rows:
    """Bytes a parameter takes where it is fetched from: the fp32 parameters where these are the only copy."""
    alone = machine.software.shards_only_masters
    return np.full_like(work.bytes_per_value, 4.0) if alone else work.bytes_per_value


def host_memory(machine: Machine, work: Workload, parameters: Rows) -> Rows:
    """Bytes that a rank of `parameters` parameters keeps in the host's memory, as the first pipeline rank does."""
    if not uses_host(work):
        return np.zeros(1)
    _, kept = layer_activations(machine, work)
    activations = micro_batches_ahead(work) * work.layers_first * kept
    states = parameters / work.sharding_optimizer * (2 * work.bytes_per_optimizer_state + 4.0)
    gradients = parameters / work.sharding_gradients * machine.gradient_bytes(work.bytes_per_value)
    copies = np.where(work.parameters_on_host, parameters / work.sharding_parameters * work.bytes_per_value, 0.0)
    if machine.software.shards_only_masters:
        copies = np.zeros(1)
    return np.where(work.activations_on_host, activations, 0.0) + np.where(
        work.optimizer_on_host, states + gradients + copies, 0.0
    )
