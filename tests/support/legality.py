"""A problem on 16 devices, and recipes for it whose rules are tested."""

from __future__ import annotations

import math
from typing import Any

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding

MODEL = Model.from_keys(
    name="toy",
    layers=12,
    hidden=192,
    heads=24,
    kv_heads=4,
    ffn_hidden=768,
    vocabulary=257,
    vocabulary_multiple=24,
)
CLUSTER = Cluster(
    name="c", device="d", backend="cuda", nodes=4, devices_per_node=4, memory_gib_per_device=1.0
)
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=128,
    global_batch=GlobalBatch(minimum=64, maximum=64),
    precision="fp32",
)
ZERO_1, ZERO_2, ZERO_3 = (Sharding.named(name, 2) for name in ("zero-1", "zero-2", "zero-3"))
PIPELINE = {"tensor_parallel": 2, "pipeline_parallel": 4, "micro_batch_seqs": 4, "accumulation": 8}
"""Over 16 devices: 2 replicas of 4 x 8 sequences, 4 stages."""


def recipe(**choices: Any) -> Recipe:
    """A recipe on 16 devices whose batch fits the problem unless the choices say otherwise."""
    chosen = {"devices": 16, "micro_batch_seqs": 1, **choices}
    if "accumulation" not in chosen:
        degrees = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        devices_per_replica = math.prod(chosen.get(degree, 1) for degree in degrees)
        chosen["accumulation"] = 64 // (
            chosen["micro_batch_seqs"] * (chosen["devices"] // devices_per_replica)
        )
    if "schedule" not in chosen and chosen.get("pipeline_parallel", 1) > 1:
        chosen["schedule"] = "1f1b"
    return Recipe(**chosen)
