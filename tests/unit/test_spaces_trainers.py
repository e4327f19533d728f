"""Rules of trainers other than the built-in one: what they run that it does not, and what they
refuse themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frontrunner.evaluators.export.tools import TOOLS
from frontrunner.spaces.cluster import ByPrecision
from frontrunner.spaces.legality import (
    FRAME_RULES,
    UNKNOWN_RULE,
    Reason,
    marks,
    rules_of,
    why_illegal,
)
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.trainers import TRAINERS
from support.legality import CLUSTER, MODEL, PIPELINE, PROBLEM, recipe

TIED = replace(PROBLEM, model=MODEL.with_keys(tied_embeddings=True))
EXPERTS = replace(PROBLEM, model=MODEL.with_keys(experts=8, experts_per_token=2))
NARROW = replace(PROBLEM, model=MODEL.with_keys(kv_heads=3))
FP16, BF16 = (replace(PROBLEM, precision=name) for name in ("fp16", "bf16"))
CUT = replace(PROBLEM, sequence_length=126)
H100 = replace(
    PROBLEM,
    precision="bf16",
    tolerance="quantized",
    cluster=replace(CLUSTER, peak_tflops=ByPrecision(bf16=989, fp8=1979)),
)
H100_EXPERTS = replace(H100, model=EXPERTS.model)
UNEVEN_EXPERTS = replace(H100, model=EXPERTS.model.with_keys(ffn_hidden=764))

CONTEXT: dict[str, Any] = {"tensor_parallel": 4, "context_parallel": 4}
"""Context ranks that do not divide the 6 heads of a tensor rank."""
FEW: dict[str, Any] = PIPELINE | {"accumulation": 2, "micro_batch_seqs": 16}
"""4 stages, and 2 micro-batches."""
TWO_STAGES: dict[str, Any] = {"pipeline_parallel": 2, "accumulation": 1, "micro_batch_seqs": 8}
LOOPED: dict[str, Any] = {"schedule": "looped-bfs", "virtual_stages": 2}
INTERLEAVED: dict[str, Any] = {"schedule": "interleaved-1f1b", "virtual_stages": 2}
WITH_DEEPSPEED: dict[str, Any] = {"engine": "deepspeed"}


def over(copies: int, name: str) -> dict[str, Any]:
    """A sharding by its name."""
    return {"sharding": Sharding.named(name, copies)}


RUNS: list[tuple[str, Problem, dict[str, Any], str]] = [
    ("megatron-lm", TIED, PIPELINE, "tied-pipeline"),
    ("megatron-lm", PROBLEM, CONTEXT, "context-parallel-heads"),
    ("megatron-lm", PROBLEM, FEW, "micro-batches"),
    ("megatron-lm", EXPERTS, {"tensor_parallel": 2, "sequence_parallel": True}, "experts-tensor"),
    ("nemo", PROBLEM, CONTEXT, "context-parallel-heads"),
    (
        "megatron-deepspeed",
        FP16,
        WITH_DEEPSPEED | {"tensor_parallel": 2, "sequence_parallel": True},
        "deepspeed-sequence-parallel",
    ),
    ("megatron-deepspeed", TIED, PIPELINE | WITH_DEEPSPEED, "tied-pipeline"),
    (
        "megatron-deepspeed",
        PROBLEM,
        WITH_DEEPSPEED | {"tensor_parallel": 2, "recompute": "selective"},
        "deepspeed-selective-tensor",
    ),
    ("megatron-deepspeed", PROBLEM, FEW, "micro-batches"),
    ("deepspeed", FP16, WITH_DEEPSPEED, "precision-fp16"),
    ("deepspeed", BF16, WITH_DEEPSPEED, "deepspeed-bf16"),
    (
        "deepspeed",
        EXPERTS,
        {"expert_parallel": 4, "offload": "optimizer", **over(16, "zero-1")},
        "experts-offload",
    ),
    ("torchtitan", PROBLEM, FEW | LOOPED, "micro-batches"),
    ("torchtitan", EXPERTS, {"tensor_parallel": 2}, "experts-tensor"),
    ("torchtitan", PROBLEM, CONTEXT | over(4, "zero-3"), "context-parallel-heads"),
    ("torchtitan", EXPERTS, {"expert_parallel": 4, **over(16, "hybrid-8")}, "experts-sharding"),
    ("nanotron", PROBLEM, TWO_STAGES, "micro-batches"),
    ("nanotron", TIED, PIPELINE, "tied-pipeline"),
    ("accelerate", FP16, WITH_DEEPSPEED, "precision-fp16"),
    ("accelerate", PROBLEM, CONTEXT | over(4, "zero-3"), "context-parallel-heads"),
]


@pytest.mark.parametrize(("trainer", "problem", "choices", "code"), RUNS)
def test_trainer_runs_what_only_the_built_in_one_refuses(
    trainer: str, problem: Problem, choices: dict[str, Any], code: str
) -> None:
    chosen = recipe(**choices)
    assert code in {reason.code for reason in reasons_of_built_in(chosen, problem)}
    theirs = replace(problem, trainer=trainer)
    assert why_illegal(chosen, theirs) is None
    assert UNKNOWN_RULE not in {mark.code for mark in marks(chosen, theirs)}


def reasons_of_built_in(chosen: Recipe, problem: Problem) -> list[Reason]:
    """Return every reason that the built-in trainer has against a recipe."""
    rules = (*FRAME_RULES, *rules_of(chosen.engine, None))
    return [Reason(*reason) for rule in rules for reason in rule(chosen, problem)]


REFUSES: list[tuple[str, Problem, dict[str, Any], str]] = [
    (
        "megatron-lm",
        CUT,
        {"context_parallel": 2},
        "context-halves: Megatron core cuts 126 positions into 2 x context_parallel 2 equal slices",
    ),
    (
        "megatron-lm",
        PROBLEM,
        FEW | INTERLEAVED,
        "interleaved-rounds: Megatron core runs interleaved micro-batches in rounds of"
        " pipeline_parallel 4, which does not divide 2",
    ),
    (
        "megatron-lm",
        NARROW,
        {"tensor_parallel": 2},
        "kv-heads: tensor_parallel 2 neither divides kv_heads 3 nor is a multiple",
    ),
    (
        "megatron-lm",
        H100,
        {"tensor_parallel": 8, "fp8": "tensorwise"},
        "fp8-divides: Transformer Engine in 8 bits: a rank has width of queries 24, not a multiple"
        " of 16",
    ),
    (
        "megatron-lm",
        replace(H100, sequence_length=12),
        {"tensor_parallel": 2, "sequence_parallel": True, "fp8": "tensorwise"},
        "fp8-divides: Transformer Engine in 8 bits: a rank has tokens 6, not a multiple of 8",
    ),
    (
        "megatron-lm",
        replace(H100, model=MODEL.with_keys(ffn_hidden=776)),
        {"fp8": "tensorwise"},
        "fp8-divides: Transformer Engine in 8 bits: a rank has ffn_hidden 776, not a multiple of"
        " 16",
    ),
    (
        "nemo",
        EXPERTS,
        {"tensor_parallel": 2},
        "experts-tensor: Megatron core trains experts with tensor_parallel 2 only with"
        " sequence_parallel",
    ),
    (
        "megatron-deepspeed",
        PROBLEM,
        {"tensor_parallel": 8},
        "kv-heads: Megatron-DeepSpeed needs tensor_parallel 8 to divide kv_heads 4",
    ),
    (
        "megatron-deepspeed",
        PROBLEM,
        PIPELINE | INTERLEAVED,
        "deepspeed-schedule: DeepSpeed's pipeline runs 1f1b only, not interleaved-1f1b",
    ),
    (
        "megatron-deepspeed",
        PROBLEM,
        PIPELINE | over(2, "zero-2"),
        "deepspeed-pipeline-sharding: DeepSpeed's pipeline takes ZeRO 0 and 1, not zero-2: it keeps"
        " whole gradients",
    ),
    (
        "megatron-deepspeed",
        EXPERTS,
        over(16, "zero-3"),
        "experts-sharding: Megatron-DeepSpeed has experts with ZeRO 0 to 2, not zero-3",
    ),
    (
        "deepspeed",
        PROBLEM,
        over(16, "hybrid-4"),
        "deepspeed-sharding: no sharding over 4, 4 and 4 of 16 replicas: DeepSpeed has removed"
        " MiCS; use zero-3 with secondary_partition",
    ),
    (
        "deepspeed",
        PROBLEM,
        {"offload": "optimizer+parameters", **over(16, "zero-2")},
        "offload-parameters: parameters are offloaded by ZeRO-3; sharding is zero-2",
    ),
    (
        "deepspeed",
        EXPERTS,
        {"expert_parallel": 4, "secondary_partition": 4, **over(16, "zero-3")},
        "experts-sharding: DeepSpeed's AutoEP takes no secondary_partition under ZeRO-3",
    ),
    (
        "deepspeed",
        H100_EXPERTS,
        {"expert_parallel": 4, "quantized_gradients": True, **over(16, "zero-3")},
        "experts-sharding: DeepSpeed's AutoEP takes no quantized_gradients under ZeRO-3",
    ),
    (
        "deepspeed",
        EXPERTS,
        {
            "tensor_parallel": 2,
            "expert_parallel": 4,
            "offload": "optimizer",
            **over(8, "zero-1"),
        },
        "experts-offload: DeepSpeed's AutoEP with tensor_parallel 2 takes no offload",
    ),
    (
        "torchtitan",
        TIED,
        PIPELINE,
        "tied-pipeline: torchtitan has no tied embeddings with pipeline_parallel > 1",
    ),
    (
        "torchtitan",
        PROBLEM,
        {"tensor_parallel": 8},
        "kv-heads: torchtitan needs tensor_parallel 8 to divide kv_heads 4",
    ),
    (
        "torchtitan",
        PROBLEM,
        FEW,
        "micro-batches: 2 micro-batches; torch's 1f1b over 4 stages needs 4",
    ),
    (
        "torchtitan",
        replace(PROBLEM, global_batch=GlobalBatch(minimum=40, maximum=40)),
        INTERLEAVED | {"pipeline_parallel": 2, "accumulation": 5},
        "interleaved-rounds: interleaved-1f1b over 2 ranks runs 5 micro-batches in 2 rounds, which"
        " does not divide them",
    ),
    (
        "torchtitan",
        PROBLEM,
        PIPELINE | {"schedule": "zbv", "virtual_stages": 3},
        "virtual-stages: zbv takes virtual_stages 2, not 3",
    ),
    (
        "torchtitan",
        CUT,
        {"context_parallel": 2, **over(16, "zero-3")},
        "context-halves: torchtitan cuts a micro-batch into 4 equal slices, which do not divide its"
        " 126 tokens",
    ),
    (
        "torchtitan",
        EXPERTS,
        {"tensor_parallel": 2, "expert_parallel": 4},
        "experts-ranks: torchtitan spreads experts over the 2 ranks of a shard and its tensor"
        " ranks, which expert_parallel 4 does not divide",
    ),
    (
        "torchtitan",
        UNEVEN_EXPERTS,
        {},
        "experts-grouped: torch's grouped products of experts in bf16 need multiples of 8: an"
        " expert has ffn_hidden 764; 760 and 768 are",
    ),
    (
        "torchtitan",
        replace(H100, model=EXPERTS.model.with_keys(hidden=204, head_width=8)),
        {},
        "experts-grouped: torch's grouped products of experts in bf16 need multiples of 8: hidden"
        " is 204; 200 and 208 are",
    ),
    (
        "nanotron",
        PROBLEM,
        {"tensor_parallel": 8},
        "kv-heads: nanotron needs tensor_parallel 8 to divide kv_heads 4",
    ),
    (
        "nanotron",
        PROBLEM,
        FEW,
        "micro-batches: 2 micro-batches; nanotron's 1f1b over 4 stages needs 3",
    ),
    (
        "accelerate",
        PROBLEM,
        WITH_DEEPSPEED | over(16, "3-level-2/4"),
        "deepspeed-sharding: no sharding over 2, 4 and 16 of 16 replicas: it has ZeRO 0 to 3",
    ),
    (
        "accelerate",
        PROBLEM,
        {"tensor_parallel": 2},
        "sharding-replicas: Accelerate has tensor and context parallelism over 8 replicas only"
        " where these share states, not with sharding none",
    ),
]


@pytest.mark.parametrize(("trainer", "problem", "choices", "refusal"), REFUSES)
def test_trainer_refuses_by_a_rule_of_its_own(
    trainer: str, problem: Problem, choices: dict[str, Any], refusal: str
) -> None:
    reason = why_illegal(recipe(**choices), replace(problem, trainer=trainer))
    assert reason is not None
    assert f"{reason.code}: {reason.text}" == refusal


@pytest.mark.parametrize(
    ("trainer", "problem", "choices"),
    [
        ("megatron-lm", H100, {"tensor_parallel": 8}),
        (
            "megatron-lm",
            UNEVEN_EXPERTS,
            {"tensor_parallel": 2, "sequence_parallel": True, "fp8": "tensorwise"},
        ),
        ("torchtitan", replace(H100, model=MODEL.with_keys(ffn_hidden=764)), {}),
        ("deepspeed", EXPERTS, {"secondary_partition": 4, **over(16, "zero-3")}),
        ("accelerate", PROBLEM, {"tensor_parallel": 2, **over(8, "zero-3")}),
    ],
)
def test_rule_of_a_part_holds_only_where_the_recipe_has_the_part(
    trainer: str, problem: Problem, choices: dict[str, Any]
) -> None:
    assert why_illegal(recipe(**choices), replace(problem, trainer=trainer)) is None


def test_export_is_refused_by_the_trainer_s_own_rule() -> None:
    problem = replace(PROBLEM, model=MODEL.with_keys(activation="swiglu", norm="rmsnorm"))
    reason = TOOLS["nanotron"].why_not(problem, recipe(tensor_parallel=8))
    assert str(reason) == "nanotron needs tensor_parallel 8 to divide kv_heads 4"


def test_every_ready_made_trainer_has_rules() -> None:
    assert set(TRAINERS) == set(TOOLS)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    ("problem", "choices", "code"),
    [
        (PROBLEM, {"devices": 32}, "devices"),
        (PROBLEM, {"accumulation": 3}, "global-batch"),
        (PROBLEM, {"tensor_parallel": 16}, "tensor-parallel-divides"),
        (EXPERTS, {"expert_parallel": 16}, "experts-divide"),
        (replace(H100, tolerance="rounding"), {"fp8": "tensorwise"}, "fp8-tolerance"),
        (replace(H100, cluster=CLUSTER), {"fp8": "tensorwise"}, "fp8-device"),
        (PROBLEM, {"quantized_weights": True}, "quantized-tolerance"),
        (PROBLEM, {"offload": "nvme"}, "offload-nvme"),
    ],
)
def test_rules_of_model_cluster_and_problem_hold_for_every_trainer(
    trainer: str, problem: Problem, choices: dict[str, Any], code: str
) -> None:
    reason = why_illegal(recipe(**choices), replace(problem, trainer=trainer))
    assert reason is not None
    assert reason.code == code


def warnings(trainer: str, problem: Problem, chosen: Recipe) -> list[str]:
    """Return what is not known of a trainer and a recipe."""
    found = marks(chosen, replace(problem, trainer=trainer))
    return [mark.text for mark in found if mark.code == UNKNOWN_RULE]


def test_rule_that_no_source_settles_is_a_warning() -> None:
    chosen = recipe(**CONTEXT)
    assert why_illegal(chosen, replace(PROBLEM, trainer="nanotron")) is None
    assert warnings("nanotron", PROBLEM, chosen) == [
        "the built-in trainer would not: context_parallel 4 does not divide the 6 heads of a"
        " tensor-parallel rank; whether nanotron runs it is not known"
    ]


def test_choice_that_an_engine_lacks_says_nothing_of_another_trainer() -> None:
    chosen = recipe(engine="deepspeed", rank_order="tp-pp-dp", **over(16, "zero-1"))
    reason = why_illegal(chosen, PROBLEM)
    assert reason is not None
    assert reason.code == "deepspeed-rank-order"
    assert warnings("megatron-lm", PROBLEM, chosen) == []


def test_refused_recipe_has_no_warning() -> None:
    assert warnings("torchtitan", TIED, recipe(**PIPELINE)) == []
