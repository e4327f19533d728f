"""One row a rule: the recipe, the code it is refused with, and the numbers that the reason names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.engines import ENGINE_RULES
from frontrunner.spaces.legality import RULES, marks, why_illegal
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import ENGINES, LOOPED_SCHEDULES, Recipe
from frontrunner.spaces.sharding import Sharding

MODEL = Model(
    name="toy", layers=12, hidden=192, heads=24, kv_heads=4, ffn_hidden=768, vocabulary=257, vocabulary_multiple=24
)
CLUSTER = Cluster(name="c", device="d", backend="cuda", nodes=4, devices_per_node=4, memory_gib_per_device=1.0)
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
        chosen["accumulation"] = 64 // (chosen["micro_batch_seqs"] * (chosen["devices"] // devices_per_replica))
    if "schedule" not in chosen and chosen.get("pipeline_parallel", 1) > 1:
        chosen["schedule"] = "1f1b"
    return Recipe(**chosen)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"devices": 32}, "devices", "32 devices of 16 in the cluster"),
    ({"tensor_parallel": 16}, "tensor-parallel-divides", "tensor_parallel 16 does not divide heads 24"),
    ({"devices": 12, "tensor_parallel": 6, "accumulation": 32}, "kv-heads", "6 neither divides kv_heads 4 nor"),
    (
        {**PIPELINE, "layers_per_stage": (3, 3, 3, 2)},
        "layers-per-stage",
        "stages of 3x3+2 layers for 12 layers",
    ),
    (
        {"devices": 12, "context_parallel": 3, "accumulation": 16},
        "context-parallel-divides",
        "context_parallel 3 does not divide sequence_length 128",
    ),
    (
        {"tensor_parallel": 4, "context_parallel": 4},
        "context-parallel-heads",
        "context_parallel 4 does not divide the 6 heads of a tensor-parallel rank",
    ),
    (
        {"tensor_parallel": 4, "context_parallel": 2, "sequence_parallel": True, "loss_chunks": 32},
        "pieces-divide",
        "loss_chunks 32 does not divide the 16 positions",
    ),
    (
        {"context_parallel": 2, "sharding": Sharding(optimizer=32)},
        "sharding-divides",
        "(1, 1, 32) do not divide one another and 16 copies (8 replicas x 2 context ranks)",
    ),
    (
        {"context_parallel": 2, "sharding": Sharding(optimizer=8)},
        "sharding-levels",
        "no sharding over 1, 1 and 8 of 16 copies (8 replicas x 2 context ranks)",
    ),
    ({"sequence_parallel": True}, "sequence-parallel-alone", "needs tensor_parallel > 1"),
    (
        {"devices": 12, "tensor_parallel": 12, "accumulation": 64, "sequence_parallel": True},
        "sequence-parallel-divides",
        "tensor_parallel 12 does not divide sequence_length 128",
    ),
    ({"pipeline_parallel": 16, "micro_batch_seqs": 4}, "too-many-stages", "16 pipeline stages for 12 layers"),
    (
        {**PIPELINE, "virtual_stages": 4, "schedule": "looped-bfs"},
        "too-many-stages",
        "16 pipeline stages for 12 layers",
    ),
    ({"schedule": "1f1b"}, "schedule-without-pipeline", "schedule 1f1b with pipeline_parallel 1"),
    ({**PIPELINE, "schedule": "none"}, "schedule-without-pipeline", "schedule none with pipeline_parallel 4"),
    ({**PIPELINE, "schedule": "looped-bfs"}, "virtual-stages", "schedule looped-bfs needs virtual_stages >= 2"),
    ({**PIPELINE, "virtual_stages": 2}, "virtual-stages", "schedule 1f1b takes virtual_stages 1, not 2"),
    ({"accumulation": 3}, "global-batch", "1 x 3 x 16 = 48, not 64"),
    ({"sharding": Sharding(optimizer=3)}, "sharding-divides", "(1, 1, 3) do not divide one another and 16 replicas"),
    ({"sharding": Sharding(parameters=4, gradients=2, optimizer=16)}, "sharding-divides", "(4, 2, 16)"),
    ({"sharding": Sharding(optimizer=32)}, "sharding-divides", "(1, 1, 32)"),
    ({"sharding": Sharding(optimizer=4)}, "sharding-levels", "no sharding over 1, 1 and 4 of 16 replicas"),
    ({"sharding": Sharding(parameters=2, gradients=4, optimizer=8)}, "sharding-levels", "2, 4 and 8 of 16"),
    (
        {**PIPELINE, "virtual_stages": 3, "schedule": "zbv"},
        "virtual-stages",
        "zbv takes virtual_stages 2, not 3",
    ),
    (
        {"tensor_parallel": 4, "devices": 4, "replication": "ddp"},
        "ddp-alone",
        "replication ddp needs data_parallel > 1",
    ),
    ({"sharding": Sharding(optimizer=16), "replication": "ddp"}, "ddp-sharding", "sharding is zero-1"),
    ({"compile": True, "tensor_parallel": 4, "recompute": "full"}, "compile-recompute-tensor", "tensor-parallel"),
    ({"compile": True, "recompute": "selective"}, "compile-selective", "compile hides"),
    (
        {**PIPELINE, "virtual_stages": 2, "schedule": "zbv", "tensor_parallel": 1, "accumulation": 4, "compile": True},
        "compile-split-backward",
        "zbv splits the backward pass",
    ),
    ({"loss_chunks": 3}, "pieces-divide", "loss_chunks 3 does not divide the 128 positions"),
    (
        {"tensor_parallel": 4, "sequence_parallel": True, "feed_forward_tiles": 64},
        "pieces-divide",
        "feed_forward_tiles 64 does not divide the 32 positions",
    ),
    ({"feed_forward_tiles": 2, "recompute": "selective"}, "tiles-selective", "keeps the matrix products"),
    ({"offload": "optimizer"}, "torch-offload", "optimizer+parameters or none, not optimizer"),
    ({"offload": "optimizer+parameters"}, "offload-sharding", "needs zero-3 or hybrid sharding, not none"),
    (
        {**PIPELINE, "virtual_stages": 2, "schedule": "zbv", "synchronise": "each"},
        "synchronise-split-backward",
        "zbv finishes weight gradients out of order",
    ),
    ({"sharding": Sharding(optimizer=16), "synchronise": "each"}, "synchronise-sharding", "runs as zero-2"),
    (
        {"sharding": Sharding(parameters=16, gradients=16, optimizer=16), "synchronise": "each"},
        "synchronise-sharding",
        "zero-3 with synchronise each is what it does",
    ),
    (
        {"sharding": Sharding.named("3-level-2/8", 16), "synchronise": "each"},
        "synchronise-sharding",
        "3-level-2/8/16 holds gradients over 8 replicas until the last",
    ),
    (
        {"sharding": Sharding.named("3-level-2/8", 16), "offload": "optimizer+parameters"},
        "offload-sharding",
        "needs zero-3 or hybrid sharding, not 3-level-2/8/16",
    ),
    ({"sharding": Sharding.named("3-level-2/6", 16)}, "sharding-divides", "(2, 6, 16) do not divide"),
    ({"sharding": Sharding.named("3-level-2/8", 16), "replication": "ddp"}, "ddp-sharding", "is 3-level-2/8/16"),
]


REFUSED_IDS = [f"{n}-{row[1]}" for n, row in enumerate(REFUSED)]


@pytest.mark.parametrize(("choices", "code", "numbers"), REFUSED, ids=REFUSED_IDS)
def test_each_rule_refuses_with_its_code_and_the_numbers(choices: dict[str, Any], code: str, numbers: str) -> None:
    reason = why_illegal(recipe(**choices), PROBLEM)
    assert reason is not None
    assert reason.code == code
    assert numbers in str(reason)


TRIED_AND_WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    # Found by comparing with one process: silently wrong, at full speed.
    "zero-3 under interleaved-zero-bubble": (
        {**PIPELINE, "schedule": "interleaved-zero-bubble", "virtual_stages": 2, "sharding": ZERO_3},
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
        {**PIPELINE, "micro_batch_seqs": 8, "accumulation": 4, "schedule": "dualpipev", "virtual_stages": 2},
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
    problem = replace(PROBLEM, global_batch=GlobalBatch(minimum=8 * micro_batches, maximum=8 * micro_batches))
    tried = recipe(pipeline_parallel=2, schedule=schedule, virtual_stages=2, accumulation=micro_batches)
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
    "full recompute under dualpipev": {**PIPELINE, "schedule": "dualpipev", "virtual_stages": 2, "recompute": "full"},
    "selective recompute under 1f1b": {**PIPELINE, "recompute": "selective"},
    "context parallelism over all devices but two": {"context_parallel": 8},
    "context parallelism that sends each kv head twice": {"context_parallel": 8, "sharding": Sharding(optimizer=16)},
    "context ranks under DistributedDataParallel": {"devices": 8, "context_parallel": 8, "replication": "ddp"},
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


@pytest.mark.parametrize(
    ("precision", "replication", "code"),
    [
        ("fp32", "ddp", None),
        ("bf16", "replicate", None),
        ("bf16", "ddp", "ddp-precision"),
        ("fp16", "replicate", None),
        ("fp16", "ddp", "ddp-precision"),
    ],
)
def test_what_an_engine_cannot_compute_in_is_refused(precision: str, replication: str, code: str | None) -> None:
    reason = why_illegal(recipe(replication=replication), replace(PROBLEM, precision=precision))
    assert (reason and reason.code) == code


def test_tied_embeddings_cannot_be_on_two_stages() -> None:
    tied = replace(PROBLEM, model=replace(MODEL, tied_embeddings=True))
    reason = why_illegal(recipe(**PIPELINE), tied)
    assert reason is not None
    assert reason.code == "tied-pipeline"
    assert why_illegal(recipe(), tied) is None


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (replace(MODEL, ffn_hidden=769), "ffn_hidden 769"),
        (replace(MODEL, vocabulary_multiple=1), "padded vocabulary 257"),
    ],
)
def test_tensor_parallelism_divides_every_matrix(model: Model, part: str) -> None:
    reason = why_illegal(recipe(tensor_parallel=2), replace(PROBLEM, model=model))
    assert reason is not None
    assert reason.text == f"tensor_parallel 2 does not divide {part}"


def test_a_range_of_global_batches_takes_both_ends_and_nothing_beyond() -> None:
    problem = replace(PROBLEM, global_batch=GlobalBatch(minimum=32, maximum=48))
    legal = [n for n in range(1, 6) if why_illegal(recipe(accumulation=n), problem) is None]  # n x 16 sequences
    assert legal == [2, 3]
    assert "= 64, not 32-48" in str(why_illegal(recipe(accumulation=4), problem))


def test_every_engine_has_rules_and_every_rule_says_what_it_is() -> None:
    assert set(ENGINE_RULES) == set(ENGINES)
    for rule in (*RULES, *(rule for rules in ENGINE_RULES.values() for rule in rules)):
        assert rule.__doc__


def test_every_looped_schedule_is_legal_somewhere() -> None:
    for schedule in LOOPED_SCHEDULES:
        assert why_illegal(recipe(**PIPELINE, schedule=schedule, virtual_stages=2), PROBLEM) is None


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, {}),
        ({"tensor_parallel": 4}, {}),
        (
            {"tensor_parallel": 8},
            {
                "tp-beyond-node": "tensor_parallel 8 crosses nodes of 4 devices",
                "kv-replicated": "each of 4 kv heads is held by 2 ranks",
            },
        ),
        (
            {"tensor_parallel": 2, "context_parallel": 4},
            {"cp-beyond-node": "tensor_parallel 2 x context_parallel 4 crosses nodes of 4 devices"},
        ),
        (
            {"devices": 10, "pipeline_parallel": 5, "micro_batch_seqs": 1, "accumulation": 32},
            {
                "uneven-stages": "12 layers over 5 stages: the first 2 hold one more",
                "idle-devices": "6 of 16 devices stay idle",
            },
        ),
    ],
)
def test_marks_say_what_is_unusual(choices: dict[str, Any], expected: dict[str, str]) -> None:
    tried = recipe(**choices)
    assert why_illegal(tried, PROBLEM) is None
    assert {mark.code: mark.text for mark in marks(tried, PROBLEM)} == expected


def test_context_ranks_share_key_value_heads_or_split_them() -> None:
    """6 of 24 heads and 4 kv heads: 3 ranks could take 8 heads each, but neither share 4 kv heads nor split them."""
    problem = replace(PROBLEM, sequence_length=129)
    reason = why_illegal(recipe(devices=3, context_parallel=3, accumulation=64), problem)
    assert reason is not None
    assert reason.code == "context-parallel-heads"
    assert "3 neither divides the 4 kv heads of a tensor-parallel rank nor is a multiple" in reason.text


def test_sequence_parallelism_cuts_what_a_context_rank_holds() -> None:
    problem = replace(PROBLEM, sequence_length=132)
    choices = {"tensor_parallel": 4, "sequence_parallel": True}
    assert why_illegal(recipe(**choices), problem) is None
    reason = why_illegal(recipe(**choices, context_parallel=2), problem)
    assert reason is not None
    assert reason.text == "tensor_parallel 4 does not divide the 66 positions of a context rank"


@pytest.mark.parametrize("choices", [{"activation_offload": True}, {"offload": "optimizer+parameters"}])
def test_a_cpu_has_no_other_memory_to_offload_to(choices: dict[str, Any]) -> None:
    sharded = recipe(sharding=Sharding(parameters=16, gradients=16, optimizer=16), **choices)
    assert why_illegal(sharded, PROBLEM) is None

    reason = why_illegal(sharded, replace(PROBLEM, cluster=replace(CLUSTER, backend="cpu")))

    assert reason is not None
    assert reason.code == "offload-cpu"
