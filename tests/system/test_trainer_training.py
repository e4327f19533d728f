"""Train mode: schedule, evaluation, metrics, checkpoints, and going on after a kill."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Job
from support.campaigns import metrics
from support.trainer_runs import (
    in_train_mode,
    logged_losses,
    read_result,
    run_job,
    small_job,
    small_recipe,
    warm_parent,
)

FORMS = {
    "one-rank": {},
    "tp2-sp-dp2-zero3": {
        "tensor_parallel": 2,
        "sequence_parallel": True,
        "data_parallel": 2,
        "sharding": (2, 2, 2),
    },
    "pp2-interleaved-dp2-zero2": {
        "pipeline_parallel": 2,
        "schedule": "interleaved-1f1b",
        "virtual_stages": 2,
        "data_parallel": 2,
        "sharding": (1, 2, 2),
        "micro_batch_seqs": 1,
    },
    "dp4-levels": {"data_parallel": 4, "sharding": (2, 2, 4), "micro_batch_seqs": 1},
    "tp2-dp4-levels": {
        "tensor_parallel": 2,
        "data_parallel": 4,
        "sharding": (1, 2, 4),
        "micro_batch_seqs": 1,
    },
    "pp2-1f1b-cp2-zero3": {
        "pipeline_parallel": 2,
        "schedule": "1f1b",
        "context_parallel": 2,
        "sharding": (2, 2, 2),
        "micro_batch_seqs": 2,
    },
    "pp2-zbv": {
        "pipeline_parallel": 2,
        "schedule": "zbv",
        "virtual_stages": 2,
        "micro_batch_seqs": 1,
    },
}

# The faster form gets more steps, so that a kill comes well before the end.
BY_NIGHT = ("dp4-levels", "tp2-sp-dp2-zero3", "tp2-dp4-levels", "pp2-1f1b-cp2-zero3")
STEPS_TO_KILL_IN = {
    "one-rank": 40,
    "tp2-sp-dp2-zero3": 10,
    "pp2-interleaved-dp2-zero2": 12,
    "dp4-levels": 12,
    "pp2-1f1b-cp2-zero3": 12,
}
Finished = Callable[..., Job]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The job of a form that has trained to its end, once for all tests; they only read what it
    left.
    """

    @cache
    def trained(form: str, *, steps: int = 8) -> Job:
        job = _training_job(tmp_path_factory.mktemp(form), FORMS[form], steps=steps)
        run_job(job)
        return job

    return trained


def _training_job(folder: Path, recipe: dict[str, Any], **changes: Any) -> Job:
    return in_train_mode(small_job(folder, recipe=small_recipe(**recipe)), **changes)


def _metrics(job: Job) -> list[dict[str, str]]:
    return metrics(Path(job.run_folder))


def _as_numbers(rows: list[dict[str, str]]) -> list[dict[str, float]]:
    return [{key: float(value) for key, value in row.items() if value} for row in rows]


def _checkpoints(job: Job) -> list[str]:
    return sorted(path.name for path in (Path(job.run_folder) / "checkpoints").glob("step-*"))


def _kill_a_rank_after(job: Job, step: int) -> None:
    """Start the job and SIGKILL its rank 0 once it has logged `step`; the others are killed by
    their parent.
    """
    warm_parent().start(job)
    deadline = time.monotonic() + 60
    while step not in logged_losses(job):
        assert time.monotonic() < deadline, "the run did not get to the step"
        time.sleep(0.005)
    os.kill(_pid_of_rank_0(job), signal.SIGKILL)
    assert warm_parent().wait()[0] == -signal.SIGKILL


def _pid_of_rank_0(job: Job) -> int:
    return int((Path(job.run_folder) / "rank-0.pid").read_text())


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=[pytest.mark.nightly] if form in BY_NIGHT else [])
        for form in STEPS_TO_KILL_IN
    ],
)
def test_a_killed_run_goes_on_as_if_it_never_was(
    form: str, finished: Finished, tmp_path: Path
) -> None:
    steps = STEPS_TO_KILL_IN[form]
    whole = finished(form, steps=steps)
    killed = _training_job(tmp_path / "killed", FORMS[form], steps=steps)

    _kill_a_rank_after(killed, 5)
    result = run_job(killed)

    assert result["status"] == "trained"
    assert 4 <= result["resumed_step"] < steps
    assert logged_losses(killed) == logged_losses(whole)
    assert [row["loss"] for row in _metrics(killed)] == [row["loss"] for row in _metrics(whole)]
    assert [row["evaluation_loss"] for row in _metrics(killed)] == [
        row["evaluation_loss"] for row in _metrics(whole)
    ]


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=[pytest.mark.nightly] if form in BY_NIGHT else [])
        for form in FORMS
        if form != "one-rank"
    ],
)
def test_training_is_the_same_under_every_form(form: str, finished: Finished) -> None:
    steps = STEPS_TO_KILL_IN.get(form, 8)
    alone, spread = finished("one-rank", steps=steps), finished(form, steps=steps)
    expected, actual = read_result(alone), read_result(spread)

    assert logged_losses(spread) == pytest.approx(logged_losses(alone), abs=1e-5)
    norms = [
        [row["gradient_norm"] for row in _as_numbers(_metrics(job))] for job in (spread, alone)
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert [step for step, _ in actual["evaluation_losses"]] == sorted({4, 8, steps})
    assert dict(actual["evaluation_losses"]) == pytest.approx(
        dict(expected["evaluation_losses"]), abs=1e-5
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("one-rank", "tp2-sp-dp2-zero3"),
        pytest.param("one-rank", "tp2-dp4-levels", marks=pytest.mark.nightly),
        ("dp4-levels", "one-rank"),
        ("pp2-1f1b-cp2-zero3", "one-rank"),
    ],
)
def test_a_checkpoint_loads_under_another_form(
    first: str, second: str, finished: Finished, tmp_path: Path
) -> None:
    """Other ranks go on from where the first stopped, with their weights, optimizer states and
    data.
    """
    moved = _training_job(tmp_path / "moved", FORMS[first], checkpoint_every_steps=4)
    run_job(moved)
    shutil.rmtree(Path(moved.run_folder) / "checkpoints" / "step-00000008")

    run_job(replace(moved, recipe=small_recipe(**FORMS[second])))

    assert logged_losses(moved) == pytest.approx(logged_losses(finished("one-rank")), abs=1e-5)


def test_only_the_newest_checkpoints_are_kept(finished: Finished) -> None:
    job = finished("one-rank")
    result = read_result(job)

    assert _checkpoints(job) == ["step-00000006", "step-00000008"]
    assert result["checkpoint"] == str(Path(job.run_folder) / "checkpoints" / "step-00000008")


def test_a_half_written_checkpoint_is_not_resumed_from(tmp_path: Path) -> None:
    job = _training_job(tmp_path / "run", {}, steps=4)
    run_job(job)
    checkpoints = Path(job.run_folder) / "checkpoints"
    (checkpoints / "step-00000004" / ".metadata").unlink()

    result = run_job(job)

    assert result["resumed_step"] == 2
    assert _checkpoints(job) == ["step-00000002", "step-00000004"]


def test_metrics_hold_the_schedule_and_a_row_a_step(finished: Finished) -> None:
    rows = _as_numbers(_metrics(finished("one-rank")))

    assert [row["step"] for row in rows] == list(range(1, 9))
    rates = [row["learning_rate"] for row in rows]
    assert rates[:2] == pytest.approx([0.5e-3, 1e-3])
    assert rates[-1] == pytest.approx(1e-4)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert [row["step"] for row in rows if "evaluation_loss" in row] == [4, 8]


def test_tensorboard_gets_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra")
    job = _training_job(tmp_path / "run", {}, steps=2, metrics="tensorboard")

    run_job(job)

    assert list((Path(job.run_folder) / "tensorboard").glob("events.out.tfevents.*"))


def test_a_finished_run_started_again_only_tells_its_result(tmp_path: Path) -> None:
    job = _training_job(tmp_path / "run", {})
    run_job(job)
    before = logged_losses(job)

    result = run_job(job)

    assert (result["resumed_step"], result["final_step"]) == (8, 8)
    assert result["step_times_s"] == []
    assert logged_losses(job) == before
    assert read_result(job)["status"] == "trained"
