"""One row a rule: the recipe, the code it is refused with, and the numbers that the reason
names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.legality import ENGINE_RULES, marks, why_illegal
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import ENGINES, LOOPED_SCHEDULES
from frontrunner.spaces.sharding import Sharding
from support.legality import CLUSTER, MODEL, PIPELINE, PROBLEM, recipe

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"devices": 32}, "devices", "32 devices of 16 in the cluster"),
    (
        {"tensor_parallel": 16},
        "tensor-parallel-divides",
        "tensor_parallel 16 does not divide heads 24",
    ),
    (
        {"devices": 12, "tensor_parallel": 6, "accumulation": 32},
        "kv-heads",
        "6 neither divides kv_heads 4 nor",
    ),
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
    (
        {"pipeline_parallel": 16, "micro_batch_seqs": 4},
        "too-many-stages",
        "16 pipeline stages for 12 layers",
    ),
    (
        {**PIPELINE, "virtual_stages": 4, "schedule": "looped-bfs"},
        "too-many-stages",
        "16 pipeline stages for 12 layers",
    ),
    ({"schedule": "1f1b"}, "schedule-without-pipeline", "schedule 1f1b with pipeline_parallel 1"),
    (
        {**PIPELINE, "schedule": "none"},
        "schedule-without-pipeline",
        "schedule none with pipeline_parallel 4",
    ),
    (
        {**PIPELINE, "schedule": "looped-bfs"},
        "virtual-stages",
        "schedule looped-bfs needs virtual_stages >= 2",
    ),
    (
        {**PIPELINE, "virtual_stages": 2},
        "virtual-stages",
        "schedule 1f1b takes virtual_stages 1, not 2",
    ),
    ({"accumulation": 3}, "global-batch", "1 x 3 x 16 = 48, not 64"),
    (
        {"sharding": Sharding(optimizer=3)},
        "sharding-divides",
        "(1, 1, 3) do not divide one another and 16 replicas",
    ),
    (
        {"sharding": Sharding(parameters=4, gradients=2, optimizer=16)},
        "sharding-divides",
        "(4, 2, 16)",
    ),
    ({"sharding": Sharding(optimizer=32)}, "sharding-divides", "(1, 1, 32)"),
    (
        {"sharding": Sharding(optimizer=4)},
        "sharding-levels",
        "no sharding over 1, 1 and 4 of 16 replicas",
    ),
    (
        {"sharding": Sharding(parameters=2, gradients=4, optimizer=8)},
        "sharding-levels",
        "2, 4 and 8 of 16",
    ),
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
    (
        {"sharding": Sharding(optimizer=16), "replication": "ddp"},
        "ddp-sharding",
        "sharding is zero-1",
    ),
    (
        {"compile": True, "tensor_parallel": 4, "recompute": "full"},
        "compile-recompute-tensor",
        "tensor-parallel",
    ),
    (
        {
            **PIPELINE,
            "virtual_stages": 2,
            "schedule": "zbv",
            "tensor_parallel": 1,
            "accumulation": 4,
            "compile": True,
        },
        "compile-split-backward",
        "zbv splits the backward pass",
    ),
    ({"loss_chunks": 3}, "pieces-divide", "loss_chunks 3 does not divide the 128 positions"),
    (
        {"tensor_parallel": 4, "sequence_parallel": True, "feed_forward_tiles": 64},
        "pieces-divide",
        "feed_forward_tiles 64 does not divide the 32 positions",
    ),
    (
        {"feed_forward_tiles": 2, "recompute": "selective"},
        "tiles-selective",
        "keeps the matrix products",
    ),
    ({"offload": "optimizer"}, "torch-offload", "optimizer+parameters or none, not optimizer"),
    (
        {"offload": "optimizer+parameters"},
        "offload-sharding",
        "needs zero-3 or hybrid sharding, not none",
    ),
    (
        {**PIPELINE, "virtual_stages": 2, "schedule": "zbv", "gradient_sync": "each"},
        "gradient-sync-split-backward",
        "zbv finishes weight gradients out of order",
    ),
    (
        {"sharding": Sharding(optimizer=16), "gradient_sync": "each"},
        "gradient-sync-sharding",
        "runs as zero-2",
    ),
    (
        {"sharding": Sharding(parameters=16, gradients=16, optimizer=16), "gradient_sync": "each"},
        "gradient-sync-sharding",
        "zero-3 with gradient_sync each is what it does",
    ),
    (
        {"sharding": Sharding.named("3-level-2/8", 16), "gradient_sync": "each"},
        "gradient-sync-sharding",
        "3-level-2/8/16 holds gradients over 8 replicas until the last",
    ),
    (
        {"sharding": Sharding.named("3-level-2/8", 16), "offload": "optimizer+parameters"},
        "offload-sharding",
        "needs zero-3 or hybrid sharding, not 3-level-2/8/16",
    ),
    (
        {"sharding": Sharding.named("3-level-2/6", 16)},
        "sharding-divides",
        "(2, 6, 16) do not divide",
    ),
    (
        {"sharding": Sharding.named("3-level-2/8", 16), "replication": "ddp"},
        "ddp-sharding",
        "is 3-level-2/8/16",
    ),
]


REFUSED_IDS = [f"{n}-{row[1]}" for n, row in enumerate(REFUSED)]


@pytest.mark.parametrize(("choices", "code", "numbers"), REFUSED, ids=REFUSED_IDS)
def test_each_rule_refuses_with_its_code_and_the_numbers(
    choices: dict[str, Any], code: str, numbers: str
) -> None:
    reason = why_illegal(recipe(**choices), PROBLEM)
    assert reason is not None
    assert reason.code == code
    assert numbers in str(reason)


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
def test_what_an_engine_cannot_compute_in_is_refused(
    precision: str, replication: str, code: str | None
) -> None:
    reason = why_illegal(recipe(replication=replication), replace(PROBLEM, precision=precision))
    assert (reason and reason.code) == code


def test_tied_embeddings_cannot_be_on_two_stages() -> None:
    tied = replace(PROBLEM, model=MODEL.with_keys(tied_embeddings=True))
    reason = why_illegal(recipe(**PIPELINE), tied)
    assert reason is not None
    assert reason.code == "tied-pipeline"
    assert why_illegal(recipe(), tied) is None


@pytest.mark.parametrize(
    ("model", "part"),
    [
        (MODEL.with_keys(ffn_hidden=769), "ffn_hidden 769"),
        (MODEL.with_keys(vocabulary_multiple=1), "padded vocabulary 257"),
    ],
)
def test_tensor_parallelism_divides_every_matrix(model: Model, part: str) -> None:
    reason = why_illegal(recipe(tensor_parallel=2), replace(PROBLEM, model=model))
    assert reason is not None
    assert reason.text == f"tensor_parallel 2 does not divide {part}"


def test_a_range_of_global_batches_takes_both_ends_and_nothing_beyond() -> None:
    problem = replace(PROBLEM, global_batch=GlobalBatch(minimum=32, maximum=48))
    legal = [
        n for n in range(1, 6) if why_illegal(recipe(accumulation=n), problem) is None
    ]  # n x 16 sequences
    assert legal == [2, 3]
    assert "= 64, not 32-48" in str(why_illegal(recipe(accumulation=4), problem))


def test_every_engine_has_rules() -> None:
    assert set(ENGINE_RULES) == set(ENGINES)


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
            {**PIPELINE, "schedule": "zbv", "virtual_stages": 2, "recompute": "full"},
            {
                "split-backward-recompute": (
                    "zbv splits the backward pass, for which torch computes the same layers "
                    "again several times"
                ),
                "uneven-stages": "12 layers over 8 stages: the first 4 hold one more",
            },
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
    """6 of 24 heads and 4 kv heads: 3 ranks could take 8 heads each, but neither share 4 kv heads
    nor split them.
    """
    problem = replace(PROBLEM, sequence_length=129)
    reason = why_illegal(recipe(devices=3, context_parallel=3, accumulation=64), problem)
    assert reason is not None
    assert reason.code == "context-parallel-heads"
    assert (
        "3 neither divides the 4 kv heads of a tensor-parallel rank nor is a multiple"
        in reason.text
    )


def test_sequence_parallelism_cuts_what_a_context_rank_holds() -> None:
    problem = replace(PROBLEM, sequence_length=132)
    choices = {"tensor_parallel": 4, "sequence_parallel": True}
    assert why_illegal(recipe(**choices), problem) is None
    reason = why_illegal(recipe(**choices, context_parallel=2), problem)
    assert reason is not None
    assert reason.text == "tensor_parallel 4 does not divide the 66 positions of a context rank"


@pytest.mark.parametrize(
    "choices", [{"activation_offload": True}, {"offload": "optimizer+parameters"}]
)
def test_a_cpu_has_no_other_memory_to_offload_to(choices: dict[str, Any]) -> None:
    sharded = recipe(sharding=Sharding(parameters=16, gradients=16, optimizer=16), **choices)
    assert why_illegal(sharded, PROBLEM) is None

    reason = why_illegal(sharded, replace(PROBLEM, cluster=replace(CLUSTER, backend="cpu")))

    assert reason is not None
    assert reason.code == "offload-cpu"


def test_async_tensor_parallelism_says_all_that_it_needs() -> None:
    choices = {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "compile": True,
        "async_tensor_parallel": True,
    }
    assert why_illegal(recipe(**choices), PROBLEM) is None

    without = recipe(**choices | {"sequence_parallel": False, "compile": False})
    reason = why_illegal(without, replace(PROBLEM, cluster=replace(CLUSTER, backend="rocm")))

    assert reason is not None
    assert reason.text == "async_tensor_parallel needs compile, sequence_parallel, a cuda device"


H100 = replace(
    PROBLEM, cluster=replace(CLUSTER, device="h100-80gb",
        peak_tflops=ByPrecision(bf16=989.4, fp8=1978.9)),
    precision="bf16", tolerance="quantized",
)  # fmt: skip


B200 = replace(H100, cluster=replace(H100.cluster, device="b200-180gb", mxfp8=True))
ASYNC = {
    "async_tensor_parallel": True,
    "compile": True,
    "sequence_parallel": True,
    "tensor_parallel": 2,
}


@pytest.mark.parametrize(
    ("problem", "choices", "refusal"),
    [
        (H100, {}, None),
        (H100, {"tensor_parallel": 2, "recompute": "selective"}, None),
        (
            replace(H100, precision="fp16"),
            {},
            "fp8-precision: problem.precision is fp16; use fp8 none",
        ),
        (
            replace(H100, tolerance="rounding"),
            {},
            'fp8-tolerance: set problem.tolerance = "quantized" to accept that',
        ),
        (
            replace(H100, cluster=replace(CLUSTER, backend="cpu")),
            {},
            "fp8-backend: which cpu devices do not have; use none",
        ),
        (
            replace(
                H100,
                cluster=replace(CLUSTER, device="a100-80gb", peak_tflops=ByPrecision(bf16=312)),
            ),
            {},
            "fp8-device: a100-80gb states no cluster.peak_tflops.fp8; use fp8 none",
        ),
        (replace(H100, sequence_length=8), {}, "fp8-divides: multiples of 16; a rank has tokens 8"),
        (
            H100,
            {"fp8": "mxfp8"},
            "fp8-device: h100-80gb states no cluster.mxfp8; use tensorwise, rowwise or none",
        ),
        (B200, {"fp8": "mxfp8"}, None),
        (
            replace(B200, sequence_length=16),
            {"fp8": "mxfp8"},
            "fp8-divides: multiples of 32; a rank has tokens 16",
        ),
        (
            replace(B200, cluster=replace(B200.cluster, backend="rocm")),
            {"fp8": "mxfp8"},
            "fp8-backend: by a CUDA kernel; on rocm use tensorwise or rowwise",
        ),
        (
            H100,
            ASYNC,
            "fp8-async: overlaps products in bf16",
        ),
        (
            H100,
            {"engine": "deepspeed", "sharding": Sharding.named("zero-1", 16)},
            "fp8-engine: only the torch engine has fp8 rowwise",
        ),
    ],
)
def test_products_in_8_bits_are_refused_by_name_where_they_cannot_be(
    problem: Problem, choices: dict[str, Any], refusal: str | None
) -> None:
    found = why_illegal(recipe(**{"fp8": "rowwise", **choices}), problem)
    code, _, text = (refusal or "").partition(": ")
    assert (found and found.code) == (code or None)
    assert text in str(found)
