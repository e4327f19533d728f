"""Workloads, machines and a schedule's clock for tests of the analytic model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from frontrunner.evaluators.analytic.arrays import Rows, number
from frontrunner.evaluators.analytic.codes import MEGATRON_GPT
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.replicas import replica_waits
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe

A100 = Cluster(
    name="test",
    device="a100-80gb",
    backend="cuda",
    nodes=8,
    devices_per_node=8,
    memory_gib_per_device=80,
    memory_gb_per_s=2039,
    peak_tflops=ByPrecision(bf16=312, fp16=312),
    matmul_share=0.86,
    compute_units=108,
    links=Links(node_gb_per_s=300, nic_gb_per_s=25, nics_per_node=8),
)
GPT_22B = Model.from_keys(
    name="gpt-22b", layers=48, hidden=6144, heads=64, kv_heads=64, ffn_hidden=24576,
    vocabulary=51200,
    tied_embeddings=True, attention="math",
)  # fmt: skip
PROBLEM = Problem(
    model=GPT_22B, cluster=A100, sequence_length=2048,
    global_batch=GlobalBatch(minimum=64, maximum=64),
    precision="fp16",
)  # fmt: skip


def recipe(**changes: Any) -> Recipe:
    """64 devices: tensor 8, data 8, micro-batch 4 x 2, unless changed."""
    return Recipe(
        **(
            {"devices": 64, "tensor_parallel": 8, "micro_batch_seqs": 4, "accumulation": 2}
            | changes
        )
    )


def problem_with(**changes: Any) -> Problem:
    """Return `PROBLEM` with changes of its model."""
    return replace(PROBLEM, model=GPT_22B.with_keys(**changes))


def work(*recipes: Recipe, problem: Problem = PROBLEM) -> Workload:
    """Return the recipes as arrays."""
    return Workload.of(recipes, problem)


def machine(cluster: Cluster = A100, code: TrainingCode = MEGATRON_GPT) -> Machine:
    """Return the machine of a cluster in fp16."""
    return Machine.of(cluster, "fp16", code)


def with_code(base: Machine, **changes: Any) -> Machine:
    """Return the machine with changes of its training code, named as in `TrainingCode.changed`."""
    return replace(base, code=base.code.changed(**changes))


def without_losses(base: Machine) -> Machine:
    """Return the machine with products at its full rate, which no tile, sum or start slows."""
    ideal = {"tile_waves": 0.0, "reduction_depth": 0.0, "kernel_s": 0.0}
    return replace(base, efficiencies=replace(base.efficiencies, **ideal))


def without_latency(base: Machine) -> Machine:
    """Return the machine with messages that take no time to start."""
    names = (
        "kernel_s",
        "node_latency_s",
        "network_latency_s",
        "ring_node_hop_s",
        "ring_network_hop_s",
    )
    return replace(base, efficiencies=replace(base.efficiencies, **dict.fromkeys(names, 0.0)))


def replica_waits_s(
    base: Machine, rows: Workload, parameters: float, *, forward: float = 0, backward: float = 0
) -> Rows:
    """Return how long a rank of so many parameters waits for its replicas in a step, where a
    micro-batch's passes take `forward` and `backward` seconds.
    """
    passes = (number(forward), number(backward))
    return replica_waits(base, rows, number(parameters), *passes).per_step(rows)


def makespan(
    orders: list[list[tuple[str, int]]], forward: list[float], backward: list[float]
) -> float:
    """Return when the last of a pipeline's ranks is done; each runs its ("F" | "B", micro-batch) in
    the given order.

    A forward pass waits for the rank before, a backward pass for the rank after and for its own
    forward pass.
    """
    done: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * len(orders)
    waiting = [list(order) for order in orders]
    while any(waiting):
        for rank, left in enumerate(waiting):
            while left:
                kind, batch = left[0]
                last = rank == len(orders) - 1
                needs = [("F", rank - 1, batch)] if kind == "F" and rank else []
                if kind == "B":
                    needs = [("F", rank, batch)] + ([] if last else [("B", rank + 1, batch)])
                if any(need not in done for need in needs):
                    break
                cost = forward[rank] if kind == "F" else backward[rank]
                clock[rank] = max([clock[rank], *(done[need] for need in needs)]) + cost
                done[kind, rank, batch] = clock[rank]
                left.pop(0)
    return max(clock)


def one_f_one_b(ranks: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """Return the orders of 1F1B (PipeDream-flush): rank r of p runs p - r forward passes ahead,
    then a backward and a forward pass in turn.
    """
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, micro_batches)
        order = [("F", batch) for batch in range(ahead)]
        for batch in range(micro_batches):
            order.append(("B", batch))
            if ahead + batch < micro_batches:
                order.append(("F", ahead + batch))
        orders.append(order)
    return orders


def gpipe(ranks: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """Return the orders of GPipe: all forward passes, then all backward passes."""
    passes = [(kind, batch) for kind in "FB" for batch in range(micro_batches)]
    return [list(passes) for _ in range(ranks)]
