"""The DeepSpeed engine's legality: each refusal with its code and its words, and what is legal
beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from frontrunner.spaces.space import Space

MODEL = Model.from_keys(
    name="toy", layers=8, hidden=128, heads=8, kv_heads=4, ffn_hidden=512, vocabulary=256
)
CLUSTER = Cluster(
    name="c", device="d", backend="cpu", nodes=1, devices_per_node=8, memory_gib_per_device=1.0
)
PROBLEM = Problem(
    model=MODEL,
    cluster=CLUSTER,
    sequence_length=64,
    global_batch=GlobalBatch(minimum=16, maximum=16),
    precision="fp32",
)
PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b"}
TENSOR = {"tensor_parallel": 2}


def recipe(*, sharding: str = "none", **choices: Any) -> Recipe:
    """A DeepSpeed recipe on 8 devices (or as the choices say), whose batch fits the problem."""
    chosen = {"engine": "deepspeed", "devices": 8, "micro_batch_seqs": 1, **choices}
    replicas = chosen["devices"] // (
        chosen.get("tensor_parallel", 1) * chosen.get("pipeline_parallel", 1)
    )
    return Recipe(
        accumulation=16 // replicas, sharding=Sharding.named(sharding, replicas), **chosen
    )


LEGAL: dict[str, dict[str, Any]] = {
    "replicas": {},
    "zero-1": {"sharding": "zero-1"},
    "zero-2": {"sharding": "zero-2"},
    "zero-3": {"sharding": "zero-3"},
    "zero-3 with a secondary partition": {"sharding": "zero-3", "secondary_partition": 2},
    "offload under zero-1": {"sharding": "zero-1", "offload": "optimizer"},
    "offload of all under zero-3": {"sharding": "zero-3", "offload": "optimizer+parameters"},
    "offload of all on one rank": {"devices": 1, "offload": "optimizer+parameters"},
    "zero-3 under tensor parallelism": {**TENSOR, "sharding": "zero-3", "recompute": "full"},
    "zero-1 under a pipeline": {**PIPELINE, "sharding": "zero-1", "offload": "optimizer"},
    "selective recompute with a pipeline's own layers": {
        **TENSOR,
        **PIPELINE,
        "recompute": "selective",
    },
    "fewer micro-batches than stages": {
        "pipeline_parallel": 8,
        "schedule": "1f1b",
        "micro_batch_seqs": 1,
    },
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_was_tried_and_agrees_is_legal(name: str) -> None:
    assert why_illegal(recipe(**LEGAL[name]), PROBLEM) is None


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"context_parallel": 2, "micro_batch_seqs": 2},
        "deepspeed-context",
        "no context parallelism; use engine torch",
    ),
    ({"replication": "ddp"}, "deepspeed-replication", "not by ddp"),
    (
        {"sharding": "hybrid-4"},
        "deepspeed-sharding",
        "4, 4 and 4 of 8 replicas: DeepSpeed has removed MiCS",
    ),
    ({**PIPELINE, "schedule": "gpipe"}, "deepspeed-schedule", "1f1b only, not gpipe"),
    (
        {**PIPELINE, "schedule": "zbv", "virtual_stages": 2},
        "deepspeed-schedule",
        "1f1b only, not zbv",
    ),
    ({**PIPELINE, "sharding": "zero-2"}, "deepspeed-pipeline-sharding", "ZeRO 0 and 1, not zero-2"),
    ({**PIPELINE, "sharding": "zero-3"}, "deepspeed-pipeline-sharding", "ZeRO 0 and 1, not zero-3"),
    (
        {**TENSOR, "sequence_parallel": True},
        "deepspeed-sequence-parallel",
        "no sequence parallelism",
    ),
    ({"tensor_parallel": 8}, "deepspeed-kv-heads", "cannot cut 4 kv heads over 8 ranks"),
    ({**TENSOR, "recompute": "selective"}, "deepspeed-selective-tensor", "wrong gradients: AutoTP"),
    ({"offload": "optimizer"}, "offload-sharding", "a part of ZeRO 1 to 3; sharding is none"),
    ({"sharding": "zero-3", "offload": "nvme"}, "offload-nvme", "set cluster.nvme_path"),
    (
        {"sharding": "zero-2", "offload": "optimizer+parameters"},
        "offload-parameters",
        "sharding is zero-2",
    ),
    (
        {**PIPELINE, "sharding": "zero-1", "offload": "optimizer+parameters"},
        "offload-pipeline",
        "pipeline",
    ),
    ({"sharding": "zero-2", "secondary_partition": 2}, "secondary-sharding", "sharding is zero-2"),
    (
        {"sharding": "zero-3", "secondary_partition": 3},
        "secondary-divides",
        "3 does not cut 8 replicas",
    ),
    (
        {"sharding": "zero-3", "secondary_partition": 8},
        "secondary-divides",
        "8 does not cut 8 replicas",
    ),
    (
        {**TENSOR, "sharding": "zero-3", "secondary_partition": 2},
        "secondary-tensor",
        "wrong parameters: hpZ",
    ),
]


@pytest.mark.parametrize(
    ("choices", "code", "words"), REFUSED, ids=[f"{n}-{row[1]}" for n, row in enumerate(REFUSED)]
)
def test_each_rule_refuses_with_its_code_and_its_words(
    choices: dict[str, Any], code: str, words: str
) -> None:
    reason = why_illegal(recipe(**choices), PROBLEM)
    assert reason is not None
    assert reason.code == code
    assert words in reason.text


def test_norms_of_heads_are_refused_where_their_gradients_would_not_be_summed() -> None:
    problem = replace(PROBLEM, model=PROBLEM.model.with_keys(qk_norm=True))
    reason = why_illegal(recipe(**TENSOR), problem)
    assert reason is not None
    assert reason.code == "deepspeed-qk-norm"
    assert why_illegal(recipe(engine="deepspeed"), problem) is None


ON_DISK = replace(PROBLEM, cluster=replace(CLUSTER, nvme_path="/scratch"))


@pytest.mark.parametrize(
    ("choices", "code"),
    [
        ({"sharding": "zero-3"}, None),
        ({**TENSOR, "sharding": "zero-3"}, None),
        ({"devices": 1}, None),
        ({"sharding": "zero-2"}, "offload-parameters"),
        ({**PIPELINE, "sharding": "zero-1"}, "offload-pipeline"),
        ({"sharding": "zero-3", "secondary_partition": 2}, "secondary-nvme"),
        ({"sharding": "zero-3", "engine": "torch"}, "torch-offload"),
    ],
)
def test_a_disk_takes_what_zero_3_shards(choices: dict[str, Any], code: str | None) -> None:
    reason = why_illegal(recipe(**{"offload": "nvme", **choices}), ON_DISK)
    assert (reason.code if reason else None) == code


def test_a_disk_is_named_by_an_absolute_path_and_is_no_part_of_a_recipes_identity() -> None:
    for path in ("scratch", "", "/a\0b"):
        with pytest.raises(InvalidInput, match=r"^cluster\.nvme_path = .*absolute path"):
            replace(CLUSTER, nvme_path=path)
    chosen = recipe(sharding="zero-3", offload="nvme")
    assert recipe_id(ON_DISK, chosen) == recipe_id(PROBLEM, chosen)


NODES = replace(CLUSTER, backend="cuda", nodes=4, devices_per_node=4)
ACCEPTED = replace(PROBLEM, cluster=NODES, tolerance="quantized")
PLUS_PLUS = {
    "devices": 16,
    "sharding": "zero-3",
    "quantized_weights": True,
    "quantized_gradients": True,
}
GATHERS = {"sharding": "zero-3", "quantized_weights": True}


@pytest.mark.parametrize(
    "choices", [PLUS_PLUS, PLUS_PLUS | {"secondary_partition": 4}, GATHERS, GATHERS | TENSOR]
)
@pytest.mark.parametrize("backend", ["cuda", "rocm"])
def test_quantized_messages_are_legal_on_gpus_where_they_are_accepted(
    choices: dict[str, Any], backend: str
) -> None:
    assert (
        why_illegal(recipe(**choices), replace(ACCEPTED, cluster=replace(NODES, backend=backend)))
        is None
    )


@pytest.mark.parametrize(
    ("choices", "problem", "code", "words"),
    [
        (
            {},
            replace(ACCEPTED, tolerance="rounding"),
            "quantized-tolerance",
            'set problem.tolerance = "quantized"',
        ),
        (
            {},
            replace(ACCEPTED, cluster=replace(NODES, backend="cpu")),
            "quantized-backend",
            "which cpu devices do not",
        ),
        (
            {},
            replace(ACCEPTED, cluster=replace(NODES, backend="xpu")),
            "quantized-backend",
            "which xpu devices do not",
        ),
        (
            {"engine": "torch"},
            ACCEPTED,
            "quantized-engine",
            "only the deepspeed engine has quantized_weights and qua",
        ),
        ({"sharding": "zero-2"}, ACCEPTED, "quantized-sharding", "sharding is zero-2"),
        (TENSOR, ACCEPTED, "quantized-tensor", "wrong gradients"),
        ({"devices": 4}, ACCEPTED, "quantized-nodes", "several whole nodes of 4 devices, not 4"),
        ({"devices": 2}, ACCEPTED, "quantized-nodes", "several whole nodes of 4 devices, not 2"),
    ],
)
def test_quantized_messages_are_refused_with_the_reason(
    choices: dict[str, Any], problem: Problem, code: str, words: str
) -> None:
    reason = why_illegal(recipe(**PLUS_PLUS | choices), problem)
    assert reason is not None
    assert reason.code == code
    assert words in reason.text


def test_a_tolerance_is_one_of_two() -> None:
    with pytest.raises(InvalidInput, match=r"^problem\.tolerance = .*rounding, quantized"):
        replace(PROBLEM, tolerance="0.1")


def test_levels_of_sharding_between_the_zero_stages_are_refused() -> None:
    levels = replace(recipe(), sharding=Sharding(parameters=2, gradients=4, optimizer=8))
    reason = why_illegal(levels, PROBLEM)
    assert reason is not None
    assert reason.text == "no sharding over 2, 4 and 8 of 8 replicas: it has ZeRO 0 to 3"


@pytest.mark.parametrize(
    ("choices", "precision", "code"),
    [
        ({}, "bf16", "deepspeed-bf16"),
        ({"sharding": "zero-1"}, "bf16", None),
        ({"devices": 1}, "bf16", None),
        ({"sharding": "zero-1"}, "fp16", "precision-fp16"),
    ],
)
def test_precision(choices: dict[str, Any], precision: str, code: str | None) -> None:
    reason = why_illegal(recipe(**choices), replace(PROBLEM, precision=precision))
    assert (reason.code if reason else None) == code


def test_tied_embeddings_take_no_pipeline() -> None:
    tied = replace(PROBLEM, model=MODEL.with_keys(tied_embeddings=True))
    assert why_illegal(recipe(), tied) is None
    reason = why_illegal(recipe(**PIPELINE), tied)
    assert reason is not None
    assert reason.code == "tied-pipeline"


def test_the_torch_engine_refuses_what_only_deepspeed_has() -> None:
    refused = [
        ("torch-offload", recipe(sharding="zero-3", engine="torch", offload="optimizer")),
        ("torch-offload", recipe(sharding="zero-3", engine="torch", offload="nvme")),
        ("torch-secondary", recipe(sharding="zero-3", engine="torch", secondary_partition=2)),
    ]
    for code, tried in refused:
        reason = why_illegal(tried, PROBLEM)
        assert reason is not None
        assert reason.code == code


def test_a_space_searches_both_engines_and_one_replica_has_no_secondary_partition() -> None:
    space = Space(
        engine=("torch", "deepspeed"),
        devices=(1, 8),
        sharding=("zero-3",),
        secondary_partition=(1, 2),
    )
    survey = space.survey(PROBLEM)
    assert [(r.engine, r.devices, r.secondary_partition) for r in survey.recipes] == [
        ("torch", 1, 1),
        ("deepspeed", 1, 1),
        ("torch", 8, 1),
        ("deepspeed", 8, 1),
        ("deepspeed", 8, 2),
    ]


def test_unknown_words_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r'^space\.offload = "disk"'):
        Space(offload=("disk",))
    with pytest.raises(InvalidInput, match=r"^space\.secondary_partition = 0"):
        Space(secondary_partition=(0,))


def test_a_recipe_on_one_line() -> None:
    tried = recipe(sharding="zero-3", offload="optimizer", secondary_partition=2)
    assert tried.describe() == "tp1 pp1 dp8 mb1 x2 zero-3 deepspeed offload=optimizer secondary=2"


@pytest.mark.parametrize(
    "lever",
    [
        {"compile": True},
        {"loss_chunks": 2},
        {"feed_forward_tiles": 2},
        {"optimizer_state": "bf16"},
        {"activation_offload": True},
        {"gradient_sync": "each"},
    ],
)
def test_levers_of_the_torch_engine_are_refused(lever: dict[str, Any]) -> None:
    reason = why_illegal(replace(recipe(), **lever), PROBLEM)
    assert reason is not None
    assert reason.code == "levers-engine"


@pytest.mark.parametrize(("replicas", "offload"), [(2, "optimizer"), (8, "optimizer")])
def test_offload_of_whole_replicas_is_refused_from_two_on(replicas: int, offload: str) -> None:
    """One rank has all parameters under any ZeRO level; two without ZeRO have a copy each."""
    assert why_illegal(recipe(devices=1, offload=offload), PROBLEM) is None
    refusal = why_illegal(recipe(devices=replicas, offload=offload), PROBLEM)
    assert refusal is not None
    assert refusal.code == "offload-sharding"
