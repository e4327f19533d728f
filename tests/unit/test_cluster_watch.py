"""What a supervisor makes of a step's files, and of what becomes of its allocation."""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from frontrunner.evaluators.nodes import agent, child_processes, dispatched
from frontrunner.evaluators.nodes.agent import (
    Heartbeat,
    HeartbeatMonitor,
    NodeReport,
    OrphanedSteps,
    ProgramAgent,
    Step,
    StepFolder,
    was_interrupted,
)
from frontrunner.evaluators.nodes.backends import Placed
from frontrunner.evaluators.nodes.dispatched import StepProcesses
from frontrunner.evaluators.nodes.fork_server import (
    Exited,
    ForkRequest,
    Report,
    ServerLost,
    Started,
)
from frontrunner.evaluators.programs.ranks import RankWatch
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.records import Attempt
from frontrunner.results.states import AttemptState
from frontrunner.search.attempts import MAX_ATTEMPTS, MOST_CUTS, RetryPolicy
from support.campaigns import order, setup_of, tiny_recipe, wait_for
from support.doubles import Clock

RUNNING = {"host": "n", "running": True}


@dataclass
class Held:
    """As much of an allocation as a watch reads."""

    ended_s: float | None = None
    why: str = ""


class Seen:
    """A step of two nodes with a rank each, and its watch."""

    def __init__(self, setup: ProbeSetup) -> None:
        self.setup = setup
        self.one = order(setup, tiny_recipe(devices=2))
        self.one.run_folder.mkdir(parents=True)
        self.folder = StepFolder(self.one.run_folder)
        self.folder.prepare(2)
        self.held = Held()
        self.future: Future[int] = Future()
        placed = Placed(
            step=Path(),
            allocation=cast("Any", self.held),
            hosts=("n1", "n2"),
            expected_end_s=0.0,
            task=self.future,
        )
        self.watch = RankWatch(self.one, setup, StepProcesses(self.one.run_folder, placed, 2))

    def tell(self, node: int, **values: Any) -> None:
        self.folder.write_report(NodeReport(node=node, **RUNNING | values))
        self.watch.look()

    def failure(self) -> Failure:
        assert self.watch.has_ended
        outcome = self.watch.outcome()
        assert isinstance(outcome, Failure)
        return outcome


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    return Seen(setup_of(tmp_path, cluster={"nodes": 2, "devices_per_node": 1}))


def test_a_step_begins_when_every_node_has_and_spends_from_the_first(seen: Seen) -> None:
    assert seen.watch.seconds == 0.0
    assert seen.watch.progress.phase == "starting"
    seen.tell(0)
    assert seen.watch.seconds > 0
    assert seen.watch.progress.phase == "starting"
    seen.tell(1)
    assert seen.watch.progress.phase == "building"


def test_a_cancelled_allocation_is_named_and_is_a_cut(seen: Seen) -> None:
    seen.tell(0)
    seen.tell(1)
    seen.tell(0, statuses={0: -15}, interrupted="SIGTERM", ended=True)
    seen.tell(1, statuses={1: 1}, interrupted="SIGTERM", ended=True)
    assert not seen.watch.has_ended, "the batch system may yet say why"
    seen.held.why, seen.held.ended_s = "allocation 7 has ended: Slurm: CANCELLED", time.monotonic()
    seen.watch.look()
    failure = seen.failure()
    assert (failure.kind, failure.message) == (
        FailureKind.LOST,
        "allocation 7 has ended: Slurm: CANCELLED",
    )
    assert seen.watch.is_cut


def test_an_interruption_that_nobody_explains_names_its_node(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatched, "VERDICT_S", -1.0)
    seen.tell(0, statuses={0: -15}, interrupted="SIGTERM", ended=True, host="n7")
    assert seen.failure().message == "node n7 was told to end (SIGTERM)"


def test_an_interruption_after_the_last_step_changes_nothing(seen: Seen) -> None:
    seen.tell(0, statuses={0: 0}, ended=True)
    seen.tell(1, statuses={1: 0}, ended=True, interrupted="SIGTERM")
    assert seen.watch.has_ended
    assert seen.watch.lost is None


def test_a_launcher_that_fails_is_told_by_its_last_words(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatched, "LAST_FILES_S", -1.0)
    seen.folder.launcher_log.write_text("srun: error: Unable to create step\n")
    seen.future.set_result(1)
    seen.watch.look()
    failure = seen.failure()
    assert failure.kind is FailureKind.LOST
    assert failure.message == "the launcher ended with status 1: srun: error: Unable to create step"
    assert not seen.watch.is_cut


def test_an_agent_s_trouble_is_told(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatched, "LAST_FILES_S", -1.0)
    seen.tell(1, trouble="the fork server was not ready within 120 s", running=False, ended=True)
    seen.future.set_result(0)
    seen.watch.look()
    assert seen.failure().message == "node n: the fork server was not ready within 120 s"


def test_nodes_that_never_begin_are_given_up(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatched, "START_TIMEOUT_S", -1.0)
    seen.tell(0)
    assert "had not all begun" in seen.failure().message
    assert seen.folder.is_cancelled


def test_out_of_memory_on_one_node_is_told_apart_from_a_kill(seen: Seen) -> None:
    seen.tell(0, statuses={0: -9}, killed=(0,), ended=True)
    seen.tell(1, statuses={1: -9}, oom_kills=1, ended=True)
    assert seen.failure().kind is FailureKind.OUT_OF_MEMORY


def test_processes_whose_run_folder_was_removed_are_ended_without_an_error(seen: Seen) -> None:
    shutil.rmtree(seen.one.run_folder)
    seen.watch.end()
    assert seen.watch.processes.killed == {0, 1}


def test_a_report_that_is_half_written_is_not_read(seen: Seen) -> None:
    (seen.one.run_folder / "node-0.json").write_text('{"node": 0, "host"')
    seen.watch.look()
    assert seen.watch.seconds == 0.0


def test_a_heart_is_heard_until_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, file = Clock(), tmp_path / "lifeline"
    monkeypatch.setattr("frontrunner.evaluators.nodes.agent.BEAT_S", 0.01)
    monkeypatch.setattr("frontrunner.evaluators.nodes.agent.time", clock)
    heart = Heartbeat(file)
    listener = HeartbeatMonitor(file, silence_s=30.0)
    for _ in range(3):
        before = file.read_text()
        wait_for(lambda before=before: file.read_text() not in ("", before))
        clock.now_s += 20.0
        assert not listener.is_silent()
    heart.stop()
    clock.now_s += 20.0
    assert not listener.is_silent()
    clock.now_s += 20.0
    assert listener.is_silent()


def test_attempts_that_are_cut_do_not_count() -> None:
    patience, lost = (
        RetryPolicy(5),
        Failure(kind=FailureKind.LOST, message="allocation 7 has ended"),
    )

    def deserves(number: int, *, is_cut: bool) -> bool:
        attempt = Attempt(
            id=number,
            campaign_id=1,
            trial_id=1,
            number=number,
            state=AttemptState.RUNNING,
            run_folder="",
            started_at="",
            finished_at=None,
        )
        return patience.deserves_retry(attempt, lost, is_cut=is_cut)

    assert all(deserves(number, is_cut=True) for number in range(1, MAX_ATTEMPTS + 5))
    assert not deserves(MOST_CUTS, is_cut=True)
    assert [deserves(number, is_cut=False) for number in range(1, 5)] == [True, True, True, False]
    patience = RetryPolicy(5)
    patience.cuts_of_trial.update({1: MAX_ATTEMPTS})  # by earlier drivers
    assert deserves(MAX_ATTEMPTS + 1, is_cut=False)
    assert not deserves(2 * MAX_ATTEMPTS, is_cut=False)


@pytest.fixture
def left(tmp_path: Path) -> StepFolder:
    """The folder of a step of two nodes whose driver is gone, and whose nodes have not heard of
    it.
    """
    step = Step(
        token="00001.1",
        run_folder=str(tmp_path),
        world_size=2,
        nodes=2,
        ranks_per_node=1,
        engines=("torch",),
        environment={},
        deadline_s=60.0,
        lifeline=str(tmp_path / "lifeline"),
        silence_s=10.0,
    )
    folder = StepFolder(tmp_path)
    folder.prepare(2)
    step.write()
    folder.write_report(NodeReport(node=0, host="n1", running=True))
    return folder


def test_ranks_without_a_driver_are_ended_and_waited_for(left: StepFolder) -> None:
    (left.path / "job.json").write_text("{}")
    for file in left.path.iterdir():
        os.utime(file, (time.time() - 1000, time.time() - 1000))
    steps = OrphanedSteps([left.path])
    assert left.is_cancelled
    assert RunFolder(left.path).busy_seconds() < 1, "the flag is no work of the ranks"
    assert not steps.have_ended()
    left.write_report(NodeReport(node=0, host="n1", ended=True))
    assert not steps.have_ended(), "the second node may be about to begin"
    left.write_report(NodeReport(node=1, host="n2", ended=True, interrupted="SIGTERM"))
    assert steps.have_ended()
    assert was_interrupted(left.path)


def test_a_node_that_is_gone_is_not_waited_for_beyond_its_lifeline(
    left: StepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = OrphanedSteps([left.path])
    monkeypatch.setattr(agent, "ORPHAN_END_S", -10.0)
    assert steps.have_ended()
    assert not was_interrupted(left.path)


def test_what_is_long_over_or_was_never_a_step_is_not_waited_for(
    left: StepFolder, tmp_path: Path
) -> None:
    assert OrphanedSteps([tmp_path / "gone"]).have_ended()
    os.utime(left.path / "step.json", (0, 0))
    assert OrphanedSteps([left.path]).have_ended()


class Scripted:
    """A fork server whose reports are given, some at a time; the step is cancelled before the
    first that are none. A rank that is killed has ended at the next report.
    """

    def __init__(self, folder: StepFolder, reports: list[list[Report]]) -> None:
        self._folder = folder
        self._reports = list(reports)
        self.started: tuple[str, list[int]] | None = None

    def start(self, request: ForkRequest) -> None:
        self.started = request.token, list(request.numbers)

    def reports(self, timeout_s: float) -> list[Report]:
        del timeout_s
        found = self._reports.pop(0)
        if not found:
            self._folder.cancel()
        return found

    def kill(self, pid: int) -> None:
        assert pid == os.getpid()
        self._reports.append([Exited("00001.1", 0, -9)])


STARTED = Started("00001.1", (os.getpid(),))
"""The rank is this process, which exists for as long as the test wants it to."""


@pytest.mark.parametrize(
    ("reports", "expected", "is_clean"),
    [
        pytest.param(
            [[Exited("00000.1", 0, 9), STARTED], [Exited("00001.1", 0, 3)]],
            {"running": True, "statuses": {0: 3}},
            True,
            id="a rank of an earlier step",
        ),
        pytest.param(
            [[STARTED], []],
            {"running": True, "statuses": {0: -9}, "killed": (0,)},
            True,
            id="cancelled",
        ),
        pytest.param([[]], {"killed": (0,)}, False, id="cancelled before it starts"),
        pytest.param(
            [[STARTED], [ServerLost()]],
            {"running": True, "trouble": "the node's fork server ended, and the ranks with it"},
            False,
            id="server lost",
        ),
    ],
)
def test_rank_agent_reports_how_its_node_s_ranks_ended(
    left: StepFolder,
    monkeypatch: pytest.MonkeyPatch,
    reports: list[list[Report]],
    expected: dict[str, Any],
    is_clean: bool,
) -> None:
    server = Scripted(left, reports)
    monkeypatch.setattr(agent, "LOOK_S", 0.0)
    monkeypatch.setattr(agent, "END_S", 0.0)
    monkeypatch.setattr(agent, "kernel_oom_kills", lambda: 0)
    monkeypatch.setattr(child_processes, "kill_rank", server.kill)
    step = left.step()
    assert step is not None
    ranks = ProgramAgent(step, 0, "n1", server=cast("Any", server))

    ranks.run()

    assert server.started == ("00001.1", [0])
    assert left.report(0) == NodeReport(node=0, host="n1", ended=True, **expected)
    assert ranks.is_clean == is_clean


def test_agent_keeps_a_signal_that_comes_while_it_writes_a_report(
    left: StepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = [signal.SIGTERM]

    def replaced(report: NodeReport, **changes: Any) -> NodeReport:
        found = replace(report, **changes)
        if signals:
            interrupted.interrupt(signals.pop(), None)
        return found

    monkeypatch.setattr(agent, "replace", replaced)
    monkeypatch.setattr(agent, "LOOK_S", 0.0)
    step = left.step()
    assert step is not None
    interrupted = ProgramAgent(step, 0, "n1", server=cast("Any", Scripted(left, [[]])))

    interrupted.run()

    report = left.report(0)
    assert report is not None
    assert report.interrupted == "SIGTERM"
