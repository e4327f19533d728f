"""Probes of real ranks that end when their step time is known, and not before."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.evaluators.trainer.job import Adaptive, Job, Probe
from frontrunner.spaces.recipe import Recipe
from support.trainer_runs import read_progress, run_job, small_job, small_recipe

RECIPES = {
    "one rank": small_recipe(),
    "replicas": small_recipe(data_parallel=2, sharding=(2, 2, 2)),
    "pipeline": small_recipe(pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=2),
    "context": small_recipe(context_parallel=2),
    "deepspeed": small_recipe(data_parallel=2, engine="deepspeed", sharding=(1, 1, 2)),
}


def adaptive_job(folder: Path, recipe: Recipe, **changes: float | None) -> Job:
    settings: dict[str, float | None] = {
        "precision": 1e-9,
        "stop_after_s": 1e9,
        "best_step_time_s": None,
    }
    adaptive = Adaptive(min_measured_steps=3, **(settings | changes))  # type: ignore[arg-type]
    return small_job(
        folder, recipe=recipe, probe=Probe(warm_up_steps=1, measured_steps=8, adaptive=adaptive)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_all_ranks_end_at_the_step_that_rank_0_decides(name: str, tmp_path: Path) -> None:
    """Every step is slower than a best that took no time; a rank that went on would wait for the
    others.

    On a busy machine steps may vary so much that not even this is clear; then rank 0 gives up,
    which ends all as well.
    """
    if name == "deepspeed":
        pytest.importorskip("deepspeed")
    job = adaptive_job(tmp_path / "run", RECIPES[name], best_step_time_s=1e-9)
    assert job.probe is not None
    job = replace(job, probe=replace(job.probe, measured_steps=60))
    if name == "deepspeed":
        job = replace(job, sequence_length=32)
    result = run_job(job)
    assert result["status"] == "measured"
    assert result["ended"] in ("slower", "noisy")
    assert 4 <= len(result["losses"]) < 61
    assert len(result["step_times_s"]) >= 3
    assert len(read_progress(job)) == 1 + len(result["losses"])


def test_a_probe_ends_when_its_step_time_is_known(tmp_path: Path) -> None:
    """To within a factor that no machine's noise exceeds: the least number of steps is enough."""
    result = run_job(adaptive_job(tmp_path / "run", small_recipe(), precision=1e6))
    assert result["ended"] == "known"
    assert (len(result["warm_up_times_s"]), len(result["step_times_s"]), len(result["losses"])) == (
        1,
        3,
        4,
    )


def test_a_probe_that_could_never_be_sure_gives_up(tmp_path: Path) -> None:
    job = adaptive_job(tmp_path / "run", small_recipe())
    assert job.probe is not None
    result = run_job(replace(job, probe=replace(job.probe, measured_steps=60)))
    assert result["ended"] == "noisy"
    assert 5 <= len(result["step_times_s"]) < len(result["losses"]) < 61


def test_a_probe_takes_no_more_steps_than_it_may(tmp_path: Path) -> None:
    job = adaptive_job(tmp_path / "run", small_recipe())
    assert job.probe is not None
    result = run_job(replace(job, probe=replace(job.probe, measured_steps=4)))
    assert (result["ended"], len(result["losses"])) == ("limit", 5)
    assert len(result["step_times_s"]) >= 3, "at least half of the steps are measured"


def test_a_probe_ends_before_its_deadline_with_what_it_has(tmp_path: Path) -> None:
    result = run_job(adaptive_job(tmp_path / "run", small_recipe(), stop_after_s=0.0))
    assert (result["ended"], result["status"]) == ("limit", "measured")
    assert 4 <= len(result["losses"]) < 9


def test_a_fixed_probe_says_so_and_a_job_of_an_earlier_version_is_fixed(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run")
    table = json.loads(job.to_json())
    del table["probe"]["adaptive"]
    assert Job.from_json(json.dumps(table)) == job
    result = run_job(job)
    assert (result["ended"], len(result["step_times_s"])) == ("fixed", 4)
