"""A problem and a space of a few hundred recipes, for tests of the guided search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from frontrunner.search.guided.prior import Prior
from frontrunner.spaces.cluster import ByPrecision, Cluster, Links
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import Space

MODEL = Model.from_keys(
    name="m", layers=16, hidden=2048, heads=16, kv_heads=16, ffn_hidden=8192, vocabulary=32000
)
CLUSTER = Cluster(
    name="c", device="a100-80gb", backend="cuda", nodes=2, devices_per_node=8,
    memory_gib_per_device=24,
    memory_gb_per_s=2039, peak_tflops=ByPrecision(bf16=312), matmul_share=0.86, compute_units=108,
    links=Links(node_gb_per_s=300, nic_gb_per_s=25, nics_per_node=8),
)  # fmt: skip
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=2048,
    global_batch=GlobalBatch(minimum=64, maximum=64),
)
SPACE = Space(
    tensor_parallel=(1, 2, 4, 8),
    pipeline_parallel=(1, 2, 4),
    micro_batch_seqs=(1, 2, 4, 8),
    sharding=("none", "zero-1", "zero-3"),
    recompute=("none", "selective", "full"),
)


def reversed_prior(prior: Prior) -> Prior:
    """Return the same speeds in the opposite order, the slowest for the fastest recipe."""
    order = np.argsort(prior.log_speed, kind="stable")
    turned = np.empty_like(prior.log_speed)
    turned[order] = prior.log_speed[order[::-1]]
    return replace(prior, log_speed=turned)
