"""Context parallelism by all-to-all: what its ranks exchange around attention (arXiv 2309.14509, decision 9)."""

from __future__ import annotations

import numpy as np

from frontrunner.evaluators.analytic.machine import Machine, all_to_all_s
from frontrunner.evaluators.analytic.workload import Rows, Workload


def exchanges_s(machine: Machine, work: Workload) -> Rows:
    """Time of one layer's all-to-alls for one micro-batch, on one rank; 0 without context parallelism.

    Query, key and value go in one message and the outcome in another, both again backward, and forward once more under
    full recompute; selective recompute keeps what was received. Context ranks are neighbours of each other's
    tensor-parallel ranks.
    """
    if not (work.context_parallel > 1).any():
        return np.zeros(1)
    query = work.hidden / work.tensor_parallel
    inwards = work.tokens * work.bytes_per_value * (query + 2 * sent_kv_width(work))
    outwards = work.tokens * work.bytes_per_value * query
    group, stride = work.context_parallel, work.copy_stride
    once = all_to_all_s(machine, inwards, group=group, stride=stride)
    once = once + all_to_all_s(machine, outwards, group=group, stride=stride)
    return np.where(work.recompute_full, 3.0, 2.0) * once


def sent_kv_width(work: Workload) -> Rows:
    """Values of a token's keys that a rank sends, and of its values: a head at least, and one for each context rank."""
    head = work.hidden / work.heads
    held = np.maximum(work.kv_hidden / work.tensor_parallel, head)
    return np.where(work.context_parallel > 1, np.maximum(held, work.context_parallel * head), held)
