"""Workloads, machines and a schedule's clock for tests of the analytic model."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from frontrunner.evaluators.analytic.codes import MEGATRON_GPT, Software
from frontrunner.evaluators.analytic.machine import Machine
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


def work(*recipes: Recipe, problem: Problem = PROBLEM, **columns: float | bool) -> Workload:
    """The recipes as arrays, with some columns the same for all of them."""
    arrays = {name: np.array([value]) for name, value in columns.items()}
    unknown = arrays.keys() - {field.name for field in fields(Workload)}
    if unknown:
        raise ValueError(f"no columns {unknown}")
    return replace(Workload.of(recipes, problem), **arrays)


def machine(cluster: Cluster = A100, software: Software = MEGATRON_GPT) -> Machine:
    return Machine.of(cluster, "fp16", software)


def without_latency(found: Machine) -> Machine:
    """The machine with messages that take no time to start."""
    names = (
        "kernel_s",
        "node_latency_s",
        "network_latency_s",
        "ring_node_hop_s",
        "ring_network_hop_s",
    )
    return replace(found, efficiencies=replace(found.efficiencies, **dict.fromkeys(names, 0.0)))


def makespan(
    orders: list[list[tuple[str, int]]], forward: list[float], backward: list[float]
) -> float:
    """When the last of the pipeline's ranks is done, each running its ("F" | "B", micro-batch) in
    the order given.

    A forward pass waits for the rank before, a backward pass for the rank after and for its own
    forward pass.
    """
    done: dict[tuple[str, int, int], float] = {}
    clock = [0.0] * len(orders)
    waiting = [list(order) for order in orders]
    while any(waiting):
        for rank, left in enumerate(waiting):
            while left:
                kind, number = left[0]
                last = rank == len(orders) - 1
                needs = [("F", rank - 1, number)] if kind == "F" and rank else []
                if kind == "B":
                    needs = [("F", rank, number)] + ([] if last else [("B", rank + 1, number)])
                if any(need not in done for need in needs):
                    break
                cost = forward[rank] if kind == "F" else backward[rank]
                clock[rank] = max([clock[rank], *(done[need] for need in needs)]) + cost
                done[kind, rank, number] = clock[rank]
                left.pop(0)
    return max(clock)


def one_f_one_b(ranks: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """The order of 1F1B (PipeDream-flush): rank r runs p - r forward passes ahead, then one of each
    in turn.
    """
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, micro_batches)
        order = [("F", number) for number in range(ahead)]
        for number in range(micro_batches):
            order.append(("B", number))
            if ahead + number < micro_batches:
                order.append(("F", ahead + number))
        orders.append(order)
    return orders


def gpipe(ranks: int, micro_batches: int) -> list[list[tuple[str, int]]]:
    """All forward passes, then all backward passes."""
    passes = [(kind, number) for kind in "FB" for number in range(micro_batches)]
    return [list(passes) for _ in range(ranks)]
