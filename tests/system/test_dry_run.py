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
from frontrunner.spaces.model import Model
from support.campaigns import frontrunner, tiny, write_toml
from support.trainer_runs import look, small_job, small_recipe

ADAMW = Optimizer(
    name="adamw", learning_rate=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, momentum=0.0, gradient_clip_norm=1.0
)
SLACK = 0.005
"""Of a peak: scalars, and a tensor now and then that a real kernel keeps and the fake one does not."""
SLACK_AMONG_RANKS = 0.02
"""Likewise among ranks, where on a busy machine gloo's threads let go of a collective's tensors late in every step."""

slow = pytest.mark.system


def traced_job(folder: Path, *, micro_batches: int | None = None, **changes: Any) -> Job:
    """A job with AdamW, of whose micro-batches so many are traced, all by default."""
    precision = changes.pop("precision", "fp32")
    recipe = small_recipe(**({"micro_batch_seqs": 1} | changes))
    probe = Probe(warm_up_steps=0, measured_steps=micro_batches or recipe.accumulation)
    return small_job(folder, recipe=recipe, precision=precision, optimizer=ADAMW, probe=probe)


def peaks(job: Job) -> list[int]:
    """The peak of each rank, as its trace sees it."""
    return [sum(seen["memory_bytes"].values()) for seen in look(job, "dry-run")]


SAME_AS_REAL = {
    "zero-3, bf16, recompute full": {
        "data_parallel": 2,
        "sharding": (2, 2, 2),
        "precision": "bf16",
        "recompute": "full",
    },
}
SAME_AS_REAL_SLOW = {
    "one rank": {},
    "one rank, bf16": {"precision": "bf16"},
    "one rank, selective": {"recompute": "selective"},
    "one rank, in pieces": {"loss_chunks": 4, "feed_forward_tiles": 4},
    "one rank, bf16 states": {"optimizer_state": "bf16"},
    "replicas": {"data_parallel": 2},
    "context ranks": {"context_parallel": 2},
}


@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(changes, id=name) for name, changes in SAME_AS_REAL.items()),
        *(pytest.param(changes, id=name, marks=slow) for name, changes in SAME_AS_REAL_SLOW.items()),
    ],
)
def test_every_rank_s_peak_is_that_of_a_real_step(changes: dict[str, Any], tmp_path: Path) -> None:
    job = traced_job(tmp_path, **changes)
    slack = SLACK if job.recipe.devices == 1 else SLACK_AMONG_RANKS
    assert peaks(job) == pytest.approx(look(job, "peak"), rel=slack)


def model_of(job: Job) -> Model:
    shape = job.model
    return Model(
        name="small",
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn_hidden=shape.ffn_hidden,
        vocabulary=shape.vocabulary,
        activation=shape.activation,
        norm=shape.norm,
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"micro_batch_seqs": 2}, id="one rank"),
        pytest.param({"recompute": "full", "precision": "bf16"}, id="recompute"),
    ],
)
def test_flops_are_those_of_the_formulas(changes: dict[str, Any], tmp_path: Path) -> None:
    job = traced_job(tmp_path, **changes)
    model, recipe, length = model_of(job), job.recipe, job.sequence_length
    tokens = recipe.global_batch_seqs * length
    seen = [found["flops"] for found in look(job, "dry-run")]
    forward, backward, again = (sum(flops[phase] for flops in seen) for phase in ("forward", "backward", "recompute"))
    assert forward + backward == tokens * model.model_flops_per_token(length)
    assert backward == 2 * forward
    hardware = model.hardware_flops_per_token(
        length,
        recipe.recompute,
        tiled_feed_forward=recipe.feed_forward_tiles > 1,
        chunked_loss=recipe.loss_chunks > 1,
    )
    # What the formula leaves out: flash attention's backward pass computes the scores again, and torch's checkpoint
    # stops once it has what the backward pass needs, which the outcome of the last matrix product is not.
    scores = model.layers * 2.0 * length * model.hidden
    runs_again = recipe.recompute == "full" or recipe.feed_forward_tiles > 1
    last_product = model.layers * 2.0 * model.hidden * model.ffn_hidden if runs_again else 0.0
    assert forward + backward + again == tokens * (hardware + scores - last_product)


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
    write_toml(folder / "tiny.toml", tiny(space=space, cluster={"devices_per_node": 4}, evaluator="simulated"))
    return folder


def test_the_command_reports_the_worst_rank_first(campaign: Path) -> None:
    arguments = ("dryrun", "--campaign", "tiny.toml", "recompute=full", "--json")
    done = frontrunner(*arguments, cwd=campaign, timeout_s=280)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    first, second = report["ranks"]
    assert {first["rank"], second["rank"]} == {0, 2}
    assert first["peak_bytes"] >= second["peak_bytes"]
    assert first["peak_bytes"] == sum(first["memory_bytes"].values()) == report["peak_bytes"]
    assert first["model_flops_per_step"] == first["model_flops_by_formula"]


@slow
def test_context_ranks_of_a_pipeline_share_each_sequence(campaign: Path) -> None:
    choices = {"recompute": "none", "tensor_parallel": 1, "context_parallel": 2}
    report = dryrun(choices, campaign=campaign / "tiny.toml")
    alone = dryrun({"recompute": "none", "tensor_parallel": 1}, campaign=campaign / "tiny.toml")
    for rank in report.ranks:
        assert rank.model_flops_per_step == rank.model_flops_by_formula
    held, whole = (found.worst.memory_bytes["pipeline buffers"] for found in (report, alone))
    assert held * report.recipe.context_parallel == whole * report.recipe.accumulation / alone.recipe.accumulation


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--campaign", "tiny.toml"), "2 recipes of the space have no choice made"),
        (("--campaign", "tiny.toml", "recompute"), "'recompute' is not a choice"),
        (("--campaign", "tiny.toml", "recompute=full", "--rank", "4"), "rank = 4: expected one of the recipe's ranks"),
        (("--campaign", "tiny.toml", "recompute=full", "engine=deepspeed", "schedule=1f1b"), "only the torch engine"),
        (("one", "two"), "expected the id of a stored recipe, not 2 words"),
    ],
)
def test_mistakes_end_with_one_message(campaign: Path, arguments: tuple[str, ...], message: str) -> None:
    done = frontrunner("dryrun", *arguments, cwd=campaign)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trace_that_fails_ends_with_the_end_of_its_output(campaign: Path) -> None:
    planned = plan_dryrun({"recompute": "full"}, campaign=campaign / "tiny.toml")
    with pytest.raises(FrontrunnerError, match=r"(?s)the trace of rank 7 ended with status 1:.*7"):
        run(replace(planned, ranks=(7,)))
