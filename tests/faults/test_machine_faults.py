"""Faults of the machine under real probes: full disks, the kernel's memory killer, ranks that nothing ends, orphans."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from frontrunner.evaluators.protocol import QUEUED, NodesUnavailable, ProbeOrder
from frontrunner.evaluators.run_folder import RunFolder
from frontrunner.evaluators.training_probe import TrainingProbe
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from support.campaigns import is_alive, order, ranks_of, setup_of, wait_for
from support.limits import control_group, fill, held_in_the_kernel, small_disk

ENDLESS = {"measured_steps": 1_000_000}
ME = os.getpid()


class Bench:
    """One evaluator whose orders may have their folders on other disks."""

    def __init__(self, folder: Path) -> None:
        self.evaluator = TrainingProbe(setup_of(folder))
        self.folder = folder
        self._count = 0

    def start(self, runs: Path | None = None, **sections: object) -> ProbeOrder:
        self._count += 1
        setup = setup_of(self.folder, **{"probe": ENDLESS, **sections})  # type: ignore[arg-type]
        self.evaluator._setup = setup
        folder = (runs or self.folder) / f"{self._count:05d}.1"
        one = ProbeOrder(token=folder.name, recipe=order(setup).recipe, run_folder=folder)
        self.evaluator.start(one)
        return one

    def stepping(self, **asked: object) -> ProbeOrder:
        """A probe that steps without an end."""
        one = self.start(**asked)  # type: ignore[arg-type]
        wait_for(lambda: self.steps_of(one) >= 2)
        return one

    def steps_of(self, one: ProbeOrder) -> int:
        assert self.evaluator.finished(0.02) == []
        progress = self.evaluator.progress(one.token)
        return 0 if progress is None else progress.steps_done

    def outcome(self) -> Failure | Measurement:
        (finished,) = wait_for(lambda: self.evaluator.finished(0.2))
        found: Failure | Measurement = finished.outcome
        return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("machine"))
    yield made
    made.evaluator.close()


def test_a_disk_that_fills_up_under_a_probe_loses_it_and_says_so(bench: Bench, tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", mib=2) as disk:
        one = bench.stepping(runs=disk)
        fill(disk)
        failure = bench.outcome()
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.LOST, failure
        assert "full" in failure.message or "No space left on device" in failure.message
        assert not failure.policy.counts_against_recipe
        assert ranks_of(ME) == []
        assert bench.evaluator.harvest(one) is None
        assert list(one.run_folder.glob(".*")) == [], "nothing half-written"
        assert not (one.run_folder / "result.json").exists()


def test_a_rank_that_may_write_no_more_to_its_files_loses_the_probe(bench: Bench) -> None:
    one = bench.stepping()
    resource.prlimit(ranks_of(ME)[0].pid, resource.RLIMIT_FSIZE, (8192, 8192))
    failure = bench.outcome()
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.LOST
    assert failure.message.startswith("rank 0 could not write to its run folder: [Errno 27] File too large")
    assert RunFolder(one.run_folder).outcome() == failure


def test_a_measurement_outlives_a_disk_without_room_for_its_outcome(bench: Bench, tmp_path: Path) -> None:
    with small_disk(tmp_path / "runs", mib=2) as disk:
        one = bench.start(disk, probe={"measured_steps": 2})
        wait_for(lambda: bench.evaluator._client.reports(0.02) or (one.run_folder / "result.json").exists())
        wait_for((one.run_folder / "result.json").exists)
        ballast = fill(disk)
        bench.evaluator._running.clear()  # as if this driver had died here
        found = bench.evaluator.harvest(one)
        assert isinstance(found, Measurement)
        assert not (one.run_folder / "outcome.json").exists()
        ballast.unlink()
        assert bench.evaluator.harvest(one) == found
        assert RunFolder(one.run_folder).outcome() == found


def test_the_kernel_s_memory_killer_is_told_from_other_kills(bench: Bench) -> None:
    big = {"sequence_length": 512, "global_batch": 64}
    one = bench.stepping(problem=big)
    del one
    with control_group("memory", f"frontrunner-{ME}") as group:
        (group / "memory.limit_in_bytes").write_text(str(4 * 2**20))
        (group / "cgroup.procs").write_text(str(ranks_of(ME)[1].pid))
        failure = bench.outcome()
    assert isinstance(failure, Failure)
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert failure.message == "rank 1 was killed by the kernel, which was out of memory"


def test_a_rank_that_nothing_ends_is_named_and_the_next_probe_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontrunner.evaluators.watch.KILL_GRACE_S", 1.0)
    bench.stepping()
    stuck = ranks_of(ME)[1]
    with held_in_the_kernel(stuck.pid):
        ranks_of(ME)[0].send_signal(signal.SIGSEGV)
        failure = bench.outcome()
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.CRASHED
        assert f"process {stuck.pid}" in failure.message
        assert is_alive(stuck), "it was killed, and is still there"
        following = bench.start(probe={"measured_steps": 2})
        assert bench.evaluator.finished(0.5) == []
        progress = bench.evaluator.progress(following.token)
        assert progress is not None
        assert progress.phase == QUEUED, "nothing is measured beside it"
        monkeypatch.setattr("frontrunner.evaluators.training_probe.STUCK_S", 0.0)
        with pytest.raises(NodesUnavailable, match=rf"hold their devices: process {stuck.pid} \(disk-sleep\)"):
            bench.evaluator.finished(0.0)
    assert isinstance(bench.outcome(), Measurement), "it starts as soon as the other has ended"
    assert not is_alive(stuck)
