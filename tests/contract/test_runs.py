"""What running a program on nodes promises, for every program in every place, as a probe and as a
training.

                        this machine   batch system            Ray
    built-in trainer    quick, system  quick, system, nightly  nightly
    command             quick          quick, nightly          nightly

A place of two nodes has one device on each; this machine has two devices. The batch system is a
stand-in for PBS that runs the real submit scripts, and Ray is a real cluster on this machine.

    probe      measured, harvested; crashed, killed, out of memory, not finite, hung, too slow,
               refused, run folder removed; withdrawn, cancelled; lost node, lost allocation, lost
               driver
    training   finished; restarted, given up, not restarted, hung; stopped and continued, cancelled;
               lost node, lost allocation, lost driver

Left out: this machine can lose neither a node nor an allocation without losing the driver, and Ray
takes no allocation away as a whole. A training has no deadline. What a training does before the end
of a walltime is tested with a made-up clock, in tests/unit/test_replay_watch.py.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.evaluators.programs import rank_replay
from frontrunner.evaluators.protocol import QUEUED, Finished, ProbeOrder, Progress
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.evaluators.runs.training import ReplayStopped
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.pruning import names_itself
from frontrunner.spaces.errors import FrontrunnerError
from support.campaigns import tiny_recipe, wait_for, wait_until_none
from support.run_benches import (
    ENDLESS,
    PLACES,
    Place,
    RunBench,
    processes_of_run,
)

Case = Callable[..., None]
TRAINER, COMMAND = "built-in trainer", "command"
HERE, BATCH, RAY = "this machine", "batch system", "Ray"
LOCAL = ((TRAINER, HERE), (COMMAND, HERE))
WARM = (*LOCAL, (COMMAND, BATCH))
"""Quick on an evaluator that other cases use too; ranks on nodes import torch for each probe."""
NEEDS_MPIEXEC = pytest.mark.skipif(
    shutil.which("mpiexec") is None, reason="there is no mpiexec: apt-get install mpich"
)
PHASES = (QUEUED, "starting", "building", "stepping")


def runs(
    programs: tuple[str, ...] = (TRAINER, COMMAND),
    places: tuple[str, ...] = (HERE, BATCH, RAY),
    *,
    quick: tuple[tuple[str, str], ...] = WARM,
    on_batch: bool = False,
) -> Callable[[Case], Case]:
    """Run a case with each of these programs in each of these places: `quick` ones in the quick
    tier, others on this machine in the system tier, with `on_batch` also that of the built-in
    trainer on a batch system, and the rest in the nightly tier.
    """
    chosen = []
    for place in places:
        for program in programs:
            is_gate = place == HERE or (on_batch and (program, place) == (TRAINER, BATCH))
            tier = pytest.mark.system if is_gate else pytest.mark.nightly
            marks = [] if (program, place) in quick else [tier]
            marks += [NEEDS_MPIEXEC] if place == BATCH else []
            chosen.append(pytest.param((program, place), id=f"{program}, {place}", marks=marks))
    return pytest.mark.parametrize("bench", chosen, indirect=True)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    """Return a place by its name, which is made at its first use."""
    made: dict[str, Place] = {}
    with ExitStack() as stack:

        def place(name: str) -> Place:
            if name not in made:
                folder = tmp_path_factory.mktemp("place")
                made[name] = stack.enter_context(PLACES[name](folder))
            return made[name]

        yield place


@pytest.fixture(scope="module")
def benches(
    places: Callable[[str], Place], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], RunBench]]:
    """Return the bench of a combination, which is made at its first use; none leaves a process."""
    made: dict[tuple[str, str], RunBench] = {}

    def make_room() -> None:
        """Take the nodes of Ray, which are few, from the evaluators that hold them."""
        for program in (TRAINER, COMMAND):
            if (program, RAY) in made:
                made[program, RAY].close()

    def bench(program: str, place: str) -> RunBench:
        if (program, place) not in made:
            folder = tmp_path_factory.mktemp("bench")
            made[program, place] = RunBench(program, places(place), folder, make_room)
        return made[program, place]

    yield bench
    for one in made.values():
        one.close()
        nothing_is_left(one.folder)


@pytest.fixture
def bench(request: pytest.FixtureRequest, benches: Callable[[str, str], RunBench]) -> RunBench:
    return benches(*request.param)


def nothing_is_left(folder: Path) -> None:
    wait_until_none(lambda: processes_of_run(folder), 120)


def ended(bench: RunBench, order: ProbeOrder) -> Finished:
    """How an order ends: with nothing left of it."""
    finished = bench.finish(order)
    nothing_is_left(order.run_folder)
    return finished


def failure(bench: RunBench, order: ProbeOrder, kind: FailureKind) -> Failure:
    """The failure that an order ends in, which is on disk."""
    outcome = ended(bench, order).outcome
    assert isinstance(outcome, Failure), outcome
    assert outcome.kind is kind, outcome.message
    assert RunFolder(order.run_folder).outcome() == outcome
    return outcome


def lost(bench: RunBench, order: ProbeOrder) -> Finished:
    finished = ended(bench, order)
    assert isinstance(finished.outcome, Failure), finished.outcome
    assert finished.outcome.kind is FailureKind.LOST
    return finished


# Probes


@runs(quick=(*WARM, (TRAINER, BATCH)), on_batch=True)
def test_probe_is_measured_and_its_progress_shown(bench: RunBench) -> None:
    seen: list[Progress] = []
    order = bench.start(probe={"measured_steps": 20})
    finished = bench.finish(order, lambda progress: progress and seen.append(progress))
    outcome = finished.outcome
    assert isinstance(outcome, Measurement), outcome
    assert len(outcome.step_times_s) == 20
    assert outcome.tokens_per_step == 8 * 32
    assert 0 < sum(outcome.step_times_s) < outcome.node_seconds
    assert finished.has_stepped
    assert not finished.is_cut
    phases = [PHASES.index(progress.phase) for progress in seen]
    assert phases == sorted(phases)
    steps = [progress.steps_done for progress in seen]
    assert steps == sorted(steps)
    assert {progress.steps_total for progress in seen} == {21}
    assert bench.evaluator.progress(order.token) is None
    assert bench.evaluator.finished(0.0) == []
    nothing_is_left(order.run_folder)


@runs((TRAINER,), (BATCH, RAY), on_batch=True)
def test_probe_computes_the_same_on_two_nodes_as_on_one(
    bench: RunBench, benches: Callable[[str, str], RunBench]
) -> None:
    one_node = benches(TRAINER, HERE)
    there, here = (one.finish(one.start()).outcome for one in (bench, one_node))
    assert isinstance(there, Measurement)
    assert isinstance(here, Measurement)
    assert there.losses == pytest.approx(here.losses, rel=1e-6)


@runs()
def test_probe_is_harvested_as_it_was_returned_and_for_its_order_alone(bench: RunBench) -> None:
    order = bench.start()
    other = bench.start()
    outcomes = {}
    wait_for(
        lambda: (
            outcomes.update({one.token: one.outcome for one in bench.evaluator.finished(0.05)})
            or len(outcomes) == 2
        ),
        120,
    )
    assert isinstance(outcomes[order.token], Measurement)
    assert bench.evaluator.harvest(order) == outcomes[order.token]
    shutil.copy(order.run_folder / "outcome.json", other.run_folder)
    (other.run_folder / "result.json").unlink(missing_ok=True)
    assert bench.evaluator.harvest(other) is None
    assert names_itself(order.run_folder)
    (order.run_folder / "outcome.json").unlink()
    assert names_itself(order.run_folder), "or a lost attempt could not be pruned"


@runs(places=(HERE,))  # it reads files alone
def test_probe_that_was_killed_in_writing_leaves_nothing_to_harvest(
    bench: RunBench, tmp_path: Path
) -> None:
    order = ProbeOrder(token="half", recipe=tiny_recipe(), run_folder=tmp_path / "half")
    assert bench.evaluator.harvest(order) is None
    order.run_folder.mkdir()
    (order.run_folder / "outcome.json").write_text('{"kind": "measurement", "outco')
    for name in (".outcome.json.4711", ".job.json.12", ".of-a-trainer", "rank-0.log"):
        (order.run_folder / name).touch()
    assert bench.evaluator.harvest(order) is None
    left = {path.name for path in order.run_folder.iterdir()}
    assert left == {"outcome.json", ".of-a-trainer", "rank-0.log"}


@runs((TRAINER,))
def test_probe_whose_driver_died_before_judging_it_is_harvested(bench: RunBench) -> None:
    order = bench.start()
    outcome = bench.finish(order).outcome
    assert isinstance(outcome, Measurement)
    (order.run_folder / "outcome.json").unlink()
    harvested = bench.evaluator.harvest(order)
    assert isinstance(harvested, Measurement)
    assert harvested.step_times_s == outcome.step_times_s
    assert sum(harvested.step_times_s) < harvested.node_seconds
    assert RunFolder(order.run_folder).outcome() == harvested


@runs()
def test_probe_with_a_process_that_crashes_ends_with_all_others(bench: RunBench) -> None:
    order = bench.stepping()
    last = bench.trains(order.run_folder)[-1]
    number = bench.program.number_of(last, order.run_folder)
    last.send_signal(signal.SIGSEGV)
    found = failure(bench, order, FailureKind.CRASHED)
    assert "ended with signal 11" in found.message
    assert found.log_path == str(bench.program.log(order.run_folder, number or 0))
    assert Path(found.log_path).is_file()
    assert found.node_seconds > 0


@runs()
def test_probe_with_a_process_that_is_killed_is_lost(bench: RunBench) -> None:
    order = bench.stepping()
    bench.trains(order.run_folder)[0].kill()
    found = failure(bench, order, FailureKind.LOST)
    assert "killed from outside (SIGKILL)" in found.message
    assert not found.policy.counts_against_recipe


@runs()
def test_probe_without_enough_memory_says_so(bench: RunBench) -> None:
    found = failure(bench, bench.start(**bench.program.memory_failure), FailureKind.OUT_OF_MEMORY)
    assert found.log_tail


@runs()
def test_probe_whose_loss_is_not_finite_ends_at_once(bench: RunBench) -> None:
    found = failure(bench, bench.start(**bench.program.divergence), FailureKind.NOT_FINITE)
    assert "at step" in found.message


@runs(quick=LOCAL)
def test_probe_that_stops_stepping_is_hung(bench: RunBench) -> None:
    order = bench.stepping(step_deadline_s=2)
    bench.trains(order.run_folder)[0].suspend()
    found = failure(bench, order, FailureKind.HUNG)
    assert "probe.step_deadline_s = 2 s" in found.message


@runs()
def test_probe_that_steps_past_its_deadline_is_too_slow(bench: RunBench) -> None:
    order = bench.start(probe={"measured_steps": ENDLESS, "deadline_s": 1})
    found = failure(bench, order, FailureKind.TOO_SLOW)
    assert f"of at most {ENDLESS + 1} steps within probe.deadline_s = 1 s" in found.message


@runs(quick=(*WARM, (TRAINER, BATCH)))
def test_probe_of_a_refused_recipe_starts_nothing(bench: RunBench) -> None:
    found = failure(
        bench, bench.start(recipe=bench.program.refused_recipe), FailureKind.ILLEGAL_FOR_ENGINE
    )
    assert found.node_seconds == 0


@runs()
def test_probe_whose_run_folder_is_removed_is_lost(bench: RunBench) -> None:
    """As by a purge of scratch: it fails this attempt, and the campaign goes on."""
    order = bench.stepping(step_deadline_s=3)
    order.run_folder.rename(order.run_folder.with_suffix(".removed"))  # at once, whoever writes
    found = bench.finish(order).outcome
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.LOST
    assert "was removed while it ran" in found.message
    nothing_is_left(order.run_folder)


@runs(places=(BATCH, RAY))  # this machine has no queue
def test_probe_that_waits_is_withdrawn_and_charged_nothing(bench: RunBench) -> None:
    running = bench.stepping()
    waiting = bench.start(probe={"measured_steps": ENDLESS})
    assert bench.evaluator.finished(0.0) == []
    progress = bench.evaluator.progress(waiting.token)
    assert progress is not None
    assert (progress.phase, progress.node_seconds) == (QUEUED, 0)
    assert bench.evaluator.withdraw(waiting.token)
    assert not bench.evaluator.withdraw(running.token)
    assert bench.evaluator.progress(waiting.token) is None
    bench.trains(running.run_folder)[0].kill()
    failure(bench, running, FailureKind.LOST)


@runs(quick=LOCAL)
def test_probe_ends_with_its_evaluator(bench: RunBench) -> None:
    evaluator = bench.new_evaluator()
    order = bench.stepping(evaluator)
    assert processes_of_run(order.run_folder)
    evaluator.close()
    nothing_is_left(order.run_folder)
    assert RunFolder(order.run_folder).outcome() is None
    assert evaluator.harvest(order) is None


@runs(quick=LOCAL)
def test_probe_that_has_not_begun_ends_with_its_evaluator(bench: RunBench) -> None:
    evaluator = bench.new_evaluator()
    order = bench.start(evaluator)
    evaluator.close()
    nothing_is_left(order.run_folder)


@runs(places=(BATCH, RAY), quick=(), on_batch=True)
def test_probe_on_a_lost_node_is_lost_and_the_next_one_is_measured(bench: RunBench) -> None:
    order = bench.stepping()
    bench.lose_node(order.run_folder)
    finished = lost(bench, order)
    assert finished.has_stepped
    assert isinstance(bench.finish(bench.start()).outcome, Measurement)


# Ray ends what it does not kill; commands do the same.
@runs((TRAINER,), (BATCH,), quick=(), on_batch=True)
def test_probe_on_a_node_that_is_told_to_end_is_cut(bench: RunBench) -> None:
    order = bench.stepping()
    bench.node_agent(order.run_folder).terminate()
    finished = lost(bench, order)
    assert "was told to end (SIGTERM)" in finished.outcome.message
    assert finished.is_cut


@runs(places=(BATCH,), quick=(), on_batch=True)  # Ray gives nodes one by one
def test_probe_on_a_lost_allocation_is_cut_and_the_next_one_gets_another(bench: RunBench) -> None:
    order = bench.stepping()
    bench.lose_allocation(order.run_folder)
    finished = lost(bench, order)
    assert "has ended: PBS: exit status 271, ended by qdel" in finished.outcome.message
    assert finished.is_cut
    assert not finished.blames_nodes
    assert isinstance(bench.finish(bench.start()).outcome, Measurement)


@runs(quick=LOCAL, on_batch=True)
def test_probe_of_a_killed_driver_is_lost_with_its_processes(
    bench: RunBench, tmp_path: Path
) -> None:
    order = bench.order_of_driver(tmp_path)
    with bench.driver("probe", tmp_path) as driver:
        wait_for(lambda: bench.program.steps(order.run_folder) > 2, 120)
        driver.kill()
    nothing_is_left(order.run_folder)
    assert bench.evaluator.harvest(order) is None
    assert RunFolder(order.run_folder).busy_seconds() > 0, "what ran is charged"


# On this machine processes notice a dead driver alone; Ray notices another one itself.
@runs(places=(BATCH,), quick=(), on_batch=True)
def test_probe_of_a_driver_that_stands_still_is_ended_on_other_nodes(
    bench: RunBench, tmp_path: Path
) -> None:
    order = bench.order_of_driver(tmp_path)
    with bench.driver("probe", tmp_path) as driver:
        wait_for(lambda: bench.program.steps(order.run_folder) > 2, 120)
        driver.send_signal(signal.SIGSTOP)
        nothing_is_left(order.run_folder)


# Trainings


class Events:
    """What a training tells. Once it has done `at_step`, which is after a checkpoint, `act` is
    called; once it steps again in another start, it is stopped.
    """

    def __init__(
        self, act: Callable[[], object] = lambda: None, *, at_step: int = 15, start: int = 1
    ) -> None:
        self.seen: list[Mapping[str, Any]] = []
        self.signals: list[str] = []
        self._act, self._at_step, self._start = act, at_step, start
        self._has_acted = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        self.seen.append(event)
        if event["event"] != "step":
            return
        if self._has_acted and len(self.named("start")) > self._start:
            self.signals.append("SIGTERM")
        elif not self._has_acted and event["step"] >= self._at_step:
            self._has_acted = True
            self._act()

    def named(self, name: str) -> list[Mapping[str, Any]]:
        return [event for event in self.seen if event["event"] == name]

    @property
    def steps(self) -> list[int]:
        return [event["step"] for event in self.named("step")]

    @property
    def went_on_from(self) -> int:
        """The step before the first one of the last start."""
        last_start = max(n for n, event in enumerate(self.seen) if event["event"] == "start")
        later = [event["step"] for event in self.seen[last_start:] if event["event"] == "step"]
        return later[0] - 1


def restarted(bench: RunBench, folder: Path, act: Callable[[], object]) -> Events:
    """A training to which something happens once it has a checkpoint, and that goes on."""
    events = Events(act)
    with pytest.raises(ReplayStopped):
        bench.train(folder, events, steps=ENDLESS, signals=events.signals, restarts=1)
    assert [event["number"] for event in events.named("start")] == [1, 2]
    assert events.went_on_from > 0
    nothing_is_left(folder)
    return events


@runs(quick=((COMMAND, HERE),))
def test_training_runs_to_its_last_step_and_is_not_run_again(
    bench: RunBench, tmp_path: Path
) -> None:
    events, again = Events(), Events()
    found = bench.train(tmp_path, events, steps=24)
    assert found.final_step == 24
    assert found.final_loss is not None
    assert found.tokens_per_s is not None
    assert events.steps == list(range(1, 25))
    assert [event["number"] for event in events.named("start")] == [1]
    nothing_is_left(tmp_path)
    assert bench.train(tmp_path, again, steps=24).tokens_per_s is None
    assert again.steps == [], "nothing was left to do"


@runs(quick=LOCAL)
def test_training_goes_on_from_its_checkpoint_after_a_failure(
    bench: RunBench, tmp_path: Path
) -> None:
    def kill() -> None:
        bench.trains(tmp_path)[0].kill()

    events = restarted(bench, tmp_path, kill)
    assert [event["kind"] for event in events.named("failed")] == ["lost"]


@runs(quick=((COMMAND, HERE),))
def test_training_that_fails_in_every_start_is_given_up(bench: RunBench, tmp_path: Path) -> None:
    events = Events()

    def kill(event: Mapping[str, Any]) -> None:
        events(event)
        if event["event"] == "step":
            for process in bench.trains(tmp_path):
                with suppress(psutil.NoSuchProcess):  # it ends with the one before
                    process.kill()

    why = "the replay failed, lost: .* 2 starts in a row without .*--restarts is 1"
    with pytest.raises(FrontrunnerError, match=why) as caught:
        bench.train(tmp_path, kill, steps=ENDLESS, restarts=1, behave="forgets")
    assert "starts/0002/" in str(caught.value.hint)
    assert len(events.named("start")) == 2
    nothing_is_left(tmp_path)


@runs(quick=((COMMAND, HERE),))
def test_training_without_enough_memory_is_not_started_again(
    bench: RunBench, tmp_path: Path
) -> None:
    events = Events()
    with pytest.raises(FrontrunnerError, match="the replay failed, out-of-memory"):
        bench.train(tmp_path, events, steps=24, **bench.program.memory_failure)
    assert len(events.named("start")) == 1


# A command's training may pause for as long as it likes.
@runs((TRAINER,), quick=())
def test_training_that_stops_stepping_is_hung_and_started_again(
    bench: RunBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_replay, "COLLECTIVE_TIMEOUT_S", 5.0)

    def suspend() -> None:
        bench.trains(tmp_path)[0].suspend()

    events = restarted(bench, tmp_path, suspend)
    assert [event["kind"] for event in events.named("failed")] == ["hung"]


@runs(quick=((COMMAND, HERE),))
def test_training_stopped_on_a_signal_goes_on_from_its_last_step(
    bench: RunBench, tmp_path: Path
) -> None:
    events = Events(start=0)
    with pytest.raises(ReplayStopped, match=r"stopped after step \d+, .*on SIGTERM"):
        bench.train(tmp_path, events, steps=ENDLESS, signals=events.signals)
    stopped = bench.program.checkpoint(tmp_path)
    assert stopped >= 15
    nothing_is_left(tmp_path)
    again = Events()
    assert bench.train(tmp_path, again, steps=stopped + 4).final_step == stopped + 4
    assert again.steps == list(range(stopped + 1, stopped + 5))


@runs(quick=((COMMAND, HERE),))
def test_training_that_is_interrupted_leaves_nothing(bench: RunBench, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.train(tmp_path, Events(interrupt), steps=ENDLESS)
    nothing_is_left(tmp_path)


@runs(places=(BATCH,), quick=(), on_batch=True)
def test_training_that_loses_its_allocation_goes_on_in_another(
    bench: RunBench, tmp_path: Path
) -> None:
    events = restarted(bench, tmp_path, lambda: bench.lose_allocation(tmp_path))
    (failed,) = events.named("failed")
    assert failed["kind"] == "lost"
    assert "has ended: PBS: exit status 271, ended by qdel" in failed["why"]


@runs(places=(BATCH, RAY), quick=(), on_batch=True)
def test_training_that_loses_a_node_goes_on_on_others(bench: RunBench, tmp_path: Path) -> None:
    events = restarted(bench, tmp_path, lambda: bench.lose_node(tmp_path))
    assert [event["kind"] for event in events.named("failed")] == ["lost"]


@runs(quick=((COMMAND, HERE),))
def test_training_of_a_killed_driver_is_gone_and_goes_on_when_it_is_run_again(
    bench: RunBench, tmp_path: Path
) -> None:
    with bench.driver("training", tmp_path) as driver:
        wait_for(lambda: bench.program.checkpoint(tmp_path) > 0, 120)
        driver.kill()
    nothing_is_left(tmp_path)
    reached = bench.program.checkpoint(tmp_path)
    events = Events()
    assert bench.train(tmp_path, events, steps=reached + 4).final_step == reached + 4
    assert events.steps == list(range(reached + 1, reached + 5))
