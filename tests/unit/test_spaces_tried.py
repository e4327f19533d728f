"""What was tried against one process: refused where it was wrong or raised, legal where it
agreed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.problem import GlobalBatch
from frontrunner.spaces.sharding import Sharding
from support.legality import PIPELINE, PROBLEM, ZERO_1, ZERO_2, ZERO_3, recipe

TRIED_AND_WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # Found by comparing with one process: silently wrong, at full speed.
    "zero-3 under interleaved-zero-bubble": (
        {
            **PIPELINE,
            "schedule": "interleaved-zero-bubble",
            "virtual_stages": 2,
            "sharding": ZERO_3,
        },
        "split-backward-resharding",
        "wrong gradients",
    ),
    "zero-3 under zbv": (
        {**PIPELINE, "schedule": "zbv", "virtual_stages": 2, "sharding": ZERO_3},
        "split-backward-resharding",
        "wrong gradients",
    ),
    "zero-3 under dualpipev": (
        {**PIPELINE, "schedule": "dualpipev", "virtual_stages": 2, "sharding": ZERO_3},
        "split-backward-resharding",
        "wrong gradients",
    ),
    "hybrid sharding under zbv": (
        {
            "pipeline_parallel": 4,
            "accumulation": 16,
            "schedule": "zbv",
            "virtual_stages": 2,
            "sharding": Sharding.named("hybrid-2", 4),
        },
        "split-backward-resharding",
        "wrong gradients",
    ),
    "DistributedDataParallel under tensor and pipeline parallelism": (
        {**PIPELINE, "replication": "ddp"},
        "ddp-pipeline",
        "scales them by the 8 micro-batches",
    ),
    "DistributedDataParallel with ZeRO-1 under tensor and pipeline parallelism": (
        {**PIPELINE, "replication": "ddp", "sharding": ZERO_1},
        "ddp-sharding",
        "whole replicas",
    ),
    # Found to raise.
    "DistributedDataParallel under gpipe": (
        {**PIPELINE, "schedule": "gpipe", "replication": "ddp"},
        "ddp-pipeline",
        "scales them by the 8 micro-batches",
    ),
    "DistributedDataParallel with two stages a rank": (
        {**PIPELINE, "schedule": "interleaved-1f1b", "virtual_stages": 2, "replication": "ddp"},
        "ddp-pipeline",
        "wrong gradients",
    ),
    "DistributedDataParallel under tensor parallelism": (
        {"tensor_parallel": 2, "replication": "ddp"},
        "ddp-tensor",
        "cannot broadcast tensor-parallel parameters",
    ),
    "selective recompute under zbv": (
        {**PIPELINE, "schedule": "zbv", "virtual_stages": 2, "recompute": "selective"},
        "split-backward-selective",
        "zbv has two",
    ),
    "selective recompute under dualpipev": (
        {**PIPELINE, "schedule": "dualpipev", "virtual_stages": 2, "recompute": "selective"},
        "split-backward-selective",
        "dualpipev has two",
    ),
    "1f1b with fewer micro-batches than stages": (
        {**PIPELINE, "micro_batch_seqs": 16, "accumulation": 2},
        "micro-batches",
        "2 micro-batches; 1f1b over 4 stages needs 4",
    ),
    "dualpipev with fewer micro-batches than twice its ranks": (
        {
            **PIPELINE,
            "micro_batch_seqs": 8,
            "accumulation": 4,
            "schedule": "dualpipev",
            "virtual_stages": 2,
        },
        "micro-batches",
        "4 micro-batches; dualpipev over 8 stages needs 8",
    ),
    "tensor parallelism that does not divide the heads": (
        {"tensor_parallel": 16},
        "tensor-parallel-divides",
        "heads 24",
    ),
    "sharded gradients under zbv": (
        {**PIPELINE, "schedule": "zbv", "virtual_stages": 2, "sharding": ZERO_2},
        "split-backward-gradients",
        "cannot be sharded at each micro-batch",
    ),
}


@pytest.mark.parametrize("case", TRIED_AND_WRONG)
def test_what_torch_does_wrongly_or_not_at_all_is_refused(case: str) -> None:
    choices, code, words = TRIED_AND_WRONG[case]
    reason = why_illegal(recipe(**choices), PROBLEM)
    assert reason is not None
    assert reason.code == code
    assert words in reason.text


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "interleaved-zero-bubble"])
@pytest.mark.parametrize("micro_batches", [2, 3, 4, 5, 6, 7])
def test_interleaved_schedules_run_in_equal_rounds(schedule: str, micro_batches: int) -> None:
    is_legal = micro_batches not in (5, 7)
    # torch: rounds = max(1, micro-batches // ranks) must divide the micro-batches.
    problem = replace(
        PROBLEM, global_batch=GlobalBatch(minimum=8 * micro_batches, maximum=8 * micro_batches)
    )
    tried = recipe(
        pipeline_parallel=2, schedule=schedule, virtual_stages=2, accumulation=micro_batches
    )
    reason = why_illegal(tried, problem)
    assert (reason is None) is is_legal
    assert reason is None or reason.code == "interleaved-rounds"


LEGAL: dict[str, dict[str, Any]] = {
    "plain data parallelism": {},
    "DistributedDataParallel alone": {"replication": "ddp"},
    "zero-1": {"sharding": Sharding(optimizer=16)},
    "zero-2": {"sharding": Sharding(gradients=16, optimizer=16)},
    "zero-3": {"sharding": Sharding(parameters=16, gradients=16, optimizer=16)},
    "hybrid": {"sharding": Sharding(parameters=4, gradients=4, optimizer=4)},
    "three levels": {"sharding": Sharding.named("3-level-2/8", 16)},
    "three levels that meet": {"sharding": Sharding.named("3-level-4/4", 16)},
    "three levels of whole parameters": {"sharding": Sharding.named("3-level-1/4", 16)},
    "three levels under tensor and sequence parallelism": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "sharding": Sharding.named("3-level-2/4", 8),
    },
    "three levels under 1f1b": {**PIPELINE, "tensor_parallel": 1, "micro_batch_seqs": 2}
    | {"sharding": Sharding.named("3-level-2/2", 4)},
    "tensor parallelism over replicated kv heads": {"tensor_parallel": 8},
    "sequence parallelism": {"tensor_parallel": 4, "sequence_parallel": True},
    "1f1b": PIPELINE,
    "gpipe needs no micro-batches to fill it": PIPELINE
    | {"schedule": "gpipe", "micro_batch_seqs": 16, "accumulation": 2},
    "zero-3 under 1f1b": {**PIPELINE, "sharding": ZERO_3},
    "zero-3 under interleaved-1f1b": PIPELINE
    | {"schedule": "interleaved-1f1b", "virtual_stages": 3, "sharding": ZERO_3},
    "zero-1 under zbv": {**PIPELINE, "schedule": "zbv", "virtual_stages": 2, "sharding": ZERO_1},
    "full recompute under dualpipev": {
        **PIPELINE,
        "schedule": "dualpipev",
        "virtual_stages": 2,
        "recompute": "full",
    },
    "selective recompute under 1f1b": {**PIPELINE, "recompute": "selective"},
    "context parallelism over all devices but two": {"context_parallel": 8},
    "context parallelism that sends each kv head twice": {
        "context_parallel": 8,
        "sharding": Sharding(optimizer=16),
    },
    "context ranks under DistributedDataParallel": {
        "devices": 8,
        "context_parallel": 8,
        "replication": "ddp",
    },
    "context, tensor and sequence parallelism": {
        "tensor_parallel": 4,
        "context_parallel": 2,
        "sequence_parallel": True,
        "sharding": Sharding.named("3-level-2/2", 4),
    },
    "hybrid sharding over a replica's context ranks": {
        "context_parallel": 4,
        "sharding": Sharding.named("hybrid-4", 16),
    },
    "zero-1 over context ranks under zbv": {
        "pipeline_parallel": 4,
        "context_parallel": 4,
        "accumulation": 64,
        "schedule": "zbv",
        "virtual_stages": 2,
        "sharding": Sharding(optimizer=4),
    },
    "fewer devices than the cluster has": {"devices": 8},
}


@pytest.mark.parametrize("case", LEGAL)
def test_what_was_tried_and_agrees_is_legal(case: str) -> None:
    assert why_illegal(recipe(**LEGAL[case]), PROBLEM) is None
