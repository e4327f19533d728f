"""What a probe is charged while it waits for nodes, and while it has them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from frontrunner.evaluators.protocol import QUEUED, ProbeOrder, Progress
from frontrunner.results.records import Attempt, Trial
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.search.running_attempt import RunningAttempt
from support.campaigns import tiny_recipe


class Phases:
    """An evaluator that says of every order what the test wants."""

    phase: str | None = None

    def progress(self, token: str) -> Progress | None:
        return (
            None if self.phase is None else Progress(phase=self.phase, steps_done=0, steps_total=3)
        )


@pytest.fixture
def running() -> RunningAttempt:
    recipe = tiny_recipe()
    return RunningAttempt(
        trial=Trial(
            id=1, campaign_id=1, number=1, recipe_id="a", recipe=recipe, state=TrialState.RUNNING
        ),
        attempt=Attempt(
            id=1,
            campaign_id=1,
            trial_id=1,
            number=1,
            state=AttemptState.RUNNING,
            run_folder="r",
            started_at="",
            finished_at=None,
        ),
        order=ProbeOrder(token="00001.1", recipe=recipe, run_folder=Path("r")),
        started_s=time.monotonic() - 100,
        nodes=4,
    )


def test_an_evaluator_that_says_nothing_of_waiting_is_charged_from_the_start(
    running: RunningAttempt,
) -> None:
    assert running.update(Phases()).progress is None  # type: ignore[arg-type]
    assert running.node_seconds == pytest.approx(400, abs=20)


def test_waiting_for_nodes_is_free_and_having_them_is_not(running: RunningAttempt) -> None:
    evaluator = Phases()
    evaluator.phase = QUEUED
    running.update(evaluator)  # type: ignore[arg-type]
    assert running.node_seconds == 0
    evaluator.phase = "stepping"
    running.update(evaluator)  # type: ignore[arg-type]
    assert 0 <= running.node_seconds < 40  # not for the 100 s that it waited


def test_a_probe_that_is_queued_again_is_charged_nothing_meanwhile(running: RunningAttempt) -> None:
    evaluator = Phases()
    for phase in ("stepping", QUEUED):
        evaluator.phase = phase
        running.update(evaluator)  # type: ignore[arg-type]
    assert running.node_seconds == 0
