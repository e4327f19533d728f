"""Faults of the machine under real probes: full disks, the kernel's memory killer, ranks that
nothing ends, orphans.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from frontrunner.evaluators.protocol import QUEUED
from frontrunner.evaluators.runs.run_folder import RunFolder
from frontrunner.results.outcome import FailureKind, Measurement
from frontrunner.spaces.errors import NodesUnavailable
from support.benches import Bench
from support.campaigns import is_alive, ranks_of, setup_of, wait_for
from support.limits import control_group, fill, held_in_the_kernel, small_disk

ME = os.getpid()


def test_a_disk_that_fills_up_under_a_probe_loses_it_and_says_so(
    bench: Bench, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "runs", mib=2) as disk:
        one = bench.stepping(runs=disk)
        fill(disk)
        failure = bench.failure()
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
    failure = bench.failure()
    assert failure.kind is FailureKind.LOST
    assert failure.message.startswith("rank 0 could not write: [Errno 27] File too large")
    assert RunFolder(one.run_folder).outcome() == failure


def test_a_measurement_outlives_a_disk_without_room_for_its_outcome(
    bench: Bench, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "runs", mib=2) as disk:
        one = bench.start(setup_of(bench.folder), runs=disk)
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
    bench.stepping(sequence_length=512, global_batch=8)
    with control_group("memory", f"frontrunner-{ME}") as group:
        (group / "memory.limit_in_bytes").write_text(str(4 * 2**20))
        (group / "cgroup.procs").write_text(str(ranks_of(ME)[1].pid))
        failure = bench.failure()
    assert failure.kind is FailureKind.OUT_OF_MEMORY
    assert failure.message == "rank 1 was killed by the kernel, which was out of memory"


def test_a_rank_that_nothing_ends_is_named_and_the_next_probe_waits_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontrunner.evaluators.nodes.child_processes.KILL_GRACE_S", 1.0)
    bench.stepping()
    stuck = ranks_of(ME)[1]
    with held_in_the_kernel(stuck.pid):
        ranks_of(ME)[0].send_signal(signal.SIGSEGV)
        failure = bench.failure()
        assert failure.kind is FailureKind.CRASHED
        assert f"process {stuck.pid}" in failure.message
        assert is_alive(stuck), "it was killed, and is still there"
        following = bench.start(setup_of(bench.folder))
        assert bench.evaluator.finished(0.5) == []
        progress = bench.evaluator.progress(following.token)
        assert progress is not None
        assert progress.phase == QUEUED, "nothing is measured beside it"
        monkeypatch.setattr("frontrunner.evaluators.nodes.local.STUCK_S", 0.0)
        with pytest.raises(
            NodesUnavailable, match=rf"hold their devices: process {stuck.pid} \(disk-sleep\)"
        ):
            bench.evaluator.finished(0.0)
    assert isinstance(bench.outcome(), Measurement), "it starts as soon as the other has ended"
    assert not is_alive(stuck)
