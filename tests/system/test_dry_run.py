"""Dry runs against real ranks over gloo, against the formulas of FLOPs, and as a command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner import dryrun, plan_dryrun
from frontrunner.evaluators.diagnostics.dryrun import run
from frontrunner.evaluators.trainer.job import Job, Optimizer, Probe
from frontrunner.spaces.errors import FrontrunnerError
from support.campaigns import frontrunner, tiny, write_toml
from support.trainer_runs import DEEPSEEK, EXPERTS, look, small_job, small_model, small_recipe

ADAMW = Optimizer(
    name="adamw",
    learning_rate=1e-3,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    momentum=0.0,
    gradient_clip_norm=1.0,
)
SLACK = 0.005
"""Of a peak: scalars, and a tensor now and then that a real kernel keeps and the fake one does
not.
"""
SLACK_AMONG_RANKS = 0.02
"""Likewise among ranks, where on a busy machine gloo's threads let go of a collective's tensors
late in every step.
"""

nightly = pytest.mark.nightly


def traced_job(folder: Path, *, micro_batches: int | None = None, **changes: Any) -> Job:
    """A job with AdamW, of whose micro-batches so many are traced, all by default."""
    precision, shape = changes.pop("precision", "fp32"), changes.pop("model", {})
    recipe = small_recipe(**({"micro_batch_seqs": 1} | changes))
    probe = Probe(warm_up_steps=0, measured_steps=micro_batches or recipe.accumulation)
    return small_job(
        folder,
        model=small_model(**shape),
        recipe=recipe,
        precision=precision,
        optimizer=ADAMW,
        probe=probe,
    )


def peaks(job: Job) -> list[int]:
    """The peak of each rank, as its trace sees it."""
    return [sum(seen["memory_bytes"].values()) for seen in look(job, "dry-run")]


SAME_AS_REAL = {
    "one rank, selective": {"recompute": "selective"},
}
MORE_SAME_AS_REAL = {
    "one rank, in pieces": {"loss_chunks": 4, "feed_forward_tiles": 4},
    "experts, shared": {
        "data_parallel": 2,
        "expert_parallel": 2,
        "model": EXPERTS | {"routing": "uniform"},
    },
    "zero-3, bf16, recompute full": {
        "data_parallel": 2,
        "sharding": (2, 2, 2),
        "precision": "bf16",
        "recompute": "full",
    },
    "deepseek, zero-3, full": {
        "data_parallel": 2,
        "expert_parallel": 2,
        "sharding": (2, 2, 2),
        "recompute": "full",
        "model": DEEPSEEK | {"routing": "uniform"},
    },
    "context ranks": {"context_parallel": 2},
    "one rank": {},
    "one rank, bf16": {"precision": "bf16"},
    "one rank, bf16 states": {"optimizer_state": "bf16"},
    "replicas": {"data_parallel": 2},
    "experts, shared, zero-3, bf16, full": {
        "data_parallel": 2,
        "expert_parallel": 2,
        "sharding": (2, 2, 2),
        "precision": "bf16",
        "recompute": "full",
        "model": EXPERTS | {"routing": "uniform"},
    },
    "experts, shared, selective": {
        "data_parallel": 2,
        "expert_parallel": 2,
        "recompute": "selective",
        "model": EXPERTS | {"routing": "uniform"},
    },
}


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(changes, id=name) for name, changes in SAME_AS_REAL.items()),
        *(
            pytest.param(changes, id=name, marks=nightly)
            for name, changes in MORE_SAME_AS_REAL.items()
        ),
    ],
)
def test_every_rank_s_peak_is_that_of_a_real_step(changes: dict[str, Any], tmp_path: Path) -> None:
    job = traced_job(tmp_path, **changes)
    slack = SLACK if job.recipe.devices == 1 else SLACK_AMONG_RANKS
    assert peaks(job) == pytest.approx(look(job, "peak"), rel=slack)


GPT2 = {
    "positions": "learned",
    "activation": "gelu",
    "norm": "layernorm",
    "biases": "all",
    "tied_embeddings": True,
}


@pytest.mark.parametrize("attention", ["flash", pytest.param("math", marks=nightly)])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param({"kv_heads": 2, "head_width": 24}, id="grouped heads of their own width"),
        pytest.param(GPT2, id="tied, biases"),
        pytest.param({"experts": 4, "experts_per_token": 2}, id="experts", marks=nightly),
        pytest.param(DEEPSEEK, id="deepseek", marks=nightly),
        pytest.param(
            {"post_norms": True, "parallel_residual": True},
            id="norms after, parallel residual",
            marks=nightly,
        ),
    ],
)
def test_flops_of_the_formula_are_those_that_torch_counts(
    shape: dict[str, Any], attention: str, tmp_path: Path
) -> None:
    job = small_job(
        tmp_path,
        model=small_model(**shape, attention=attention),
        recipe=small_recipe(micro_batch_seqs=4),
    )
    tokens = job.recipe.global_batch_seqs * job.sequence_length
    (found,) = look(job, "flops")
    wrong = {
        str(changes): (counted / tokens, executed)
        for changes, counted in found
        if counted != tokens * (executed := flops_executed(job, **changes))
    }
    assert not wrong
    assert len(found) == 3 * 3 * 2


def flops_executed(job: Job, *, recompute: str, feed_forward_tiles: int, loss_chunks: int) -> float:
    """For one token, by the formula."""
    return job.model.hardware_flops_per_token(
        job.sequence_length,
        recompute,
        feed_forward_tiles=feed_forward_tiles,
        chunked_loss=loss_chunks > 1,
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"micro_batch_seqs": 2}, id="one rank"),
        pytest.param({"recompute": "full", "precision": "bf16"}, id="recompute"),
        pytest.param(
            {"recompute": "full", "feed_forward_tiles": 4, "loss_chunks": 2},
            id="recompute, in pieces",
        ),
        pytest.param(
            {"recompute": "selective", "attention": "math"},
            id="selective, math attention",
            marks=nightly,
        ),
        pytest.param(
            {
                "tensor_parallel": 2,
                "sequence_parallel": True,
                "recompute": "full",
                "feed_forward_tiles": 2,
            },
            id="sequence parallel, tiles",
            marks=nightly,
        ),
        pytest.param(
            {"pipeline_parallel": 2, "schedule": "1f1b", "recompute": "full", "loss_chunks": 2},
            id="pipeline, chunks",
            marks=nightly,
        ),
    ],
)
def test_flops_are_those_of_the_formulas(changes: dict[str, Any], tmp_path: Path) -> None:
    attention = changes.pop("attention", "flash")
    job = replace(traced_job(tmp_path, **changes), model=small_model(attention=attention))
    recipe, length = job.recipe, job.sequence_length
    tokens = recipe.global_batch_seqs * length
    seen = [found["flops"] for found in look(job, "dry-run")]
    forward, backward, again = (
        sum(flops[phase] for flops in seen) for phase in ("forward", "backward", "recompute")
    )
    assert forward + backward == tokens * job.model.model_flops_per_token(length)
    assert backward == 2 * forward
    pieces = {
        name: getattr(recipe, name) for name in ("recompute", "feed_forward_tiles", "loss_chunks")
    }
    assert forward + backward + again == tokens * flops_executed(job, **pieces)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=nightly)])
def test_flops_of_experts_are_those_of_the_formulas(device: Any, tmp_path: Path) -> None:
    """One product for each expert, and the one kernel for all that a GPU has."""
    shared = {"data_parallel": 2, "expert_parallel": 2, "model": EXPERTS, "precision": "bf16"}
    job = replace(traced_job(tmp_path, **shared), device=device)
    tokens = job.recipe.global_batch_seqs * job.sequence_length
    seen = [found["flops"] for found in look(job, "dry-run")]
    assert sum(
        flops["forward"] + flops["backward"] for flops in seen
    ) == tokens * job.model.model_flops_per_token(job.sequence_length)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a campaign file of one recipe and one choice: recompute."""
    folder = tmp_path_factory.mktemp("dryrun")
    space = {
        "tensor_parallel": [2],
        "pipeline_parallel": [2],
        "micro_batch_seqs": [2],
        "schedule": ["1f1b"],
        "recompute": ["none", "full"],
    }
    write_toml(
        folder / "tiny.toml",
        tiny(space=space, cluster={"devices_per_node": 4}, evaluator="simulated"),
    )
    return folder


def test_the_command_reports_the_worst_rank_first(campaign: Path) -> None:
    arguments = ("dryrun", "--campaign", "tiny.toml", "recompute=full", "--json")
    done = frontrunner(*arguments, cwd=campaign)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    first, second = report["ranks"]
    assert {first["rank"], second["rank"]} == {0, 2}
    assert first["peak_bytes"] >= second["peak_bytes"]
    assert first["peak_bytes"] == sum(first["memory_bytes"].values()) == report["peak_bytes"]
    assert first["model_flops_per_step"] == first["model_flops_by_formula"]


@nightly
def test_context_ranks_of_a_pipeline_share_each_sequence(campaign: Path) -> None:
    choices = {"recompute": "none", "tensor_parallel": 1, "context_parallel": 2}
    report = dryrun(choices, campaign=campaign / "tiny.toml")
    alone = dryrun({"recompute": "none", "tensor_parallel": 1}, campaign=campaign / "tiny.toml")
    for rank in report.ranks:
        assert rank.model_flops_per_step == rank.model_flops_by_formula
    held, whole = (found.worst.memory_bytes["pipeline buffers"] for found in (report, alone))
    assert (
        held * report.recipe.context_parallel
        == whole * report.recipe.accumulation / alone.recipe.accumulation
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--campaign", "tiny.toml"), "the space has 2 recipes: expected the choices of one"),
        (("--campaign", "tiny.toml", "recompute"), "'recompute' is not a choice"),
        (
            ("--campaign", "tiny.toml", "recompute=full", "--rank", "4"),
            "rank = 4: expected one of the recipe's ranks",
        ),
        (
            ("--campaign", "tiny.toml", "recompute=full", "engine=deepspeed", "schedule=1f1b"),
            "only the torch engine",
        ),
        (("one", "two"), "expected the id of a stored recipe, not 2 words"),
    ],
)
def test_mistakes_end_with_one_message(
    campaign: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = frontrunner("dryrun", *arguments, cwd=campaign)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_fails_ends_with_the_end_of_its_output(campaign: Path) -> None:
    planned = plan_dryrun({"recompute": "full"}, campaign=campaign / "tiny.toml")
    with pytest.raises(FrontrunnerError, match=r"(?s)the trace of rank 7 ended with status 1:.*7"):
        run(replace(planned, ranks=(7,)))
