"""Load by processes of others: arithmetic over counters of the kernel, and lists of a device's
processes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer import foreign_load, telemetry
from frontrunner.evaluators.trainer.foreign_load import Load, Process, Reading
from frontrunner.results.outcome import Measurement, RecipeStats, Telemetry, doubts_of, pool
from support.rankings import measurement

SHELL, DRIVER, SERVER, RANK, HELPER, OTHER, COMPILER, ELSEWHERE = range(100, 108)
TREE = {
    DRIVER: SHELL,
    SERVER: DRIVER,
    RANK: SERVER,
    HELPER: RANK,
    OTHER: SHELL,
    COMPILER: OTHER,
    ELSEWHERE: 1,
}


def reading(at_s: float, ran_s: Mapping[int, float], **counters: float) -> Reading:
    """Two processors, 0 and 1; ELSEWHERE runs on another one."""
    named = {OTHER: "make", COMPILER: "cc1", ELSEWHERE: "far"}
    processes = {
        pid: Process(
            parent, named.get(pid, "python"), ran_s.get(pid, 0.0), 0.0, 7 if pid == ELSEWHERE else 0
        )
        for pid, parent in TREE.items()
    }
    found: dict[str, Any] = {
        "idle_s": 0.0,
        "stolen_s": 0.0,
        "waited_s": 0.0,
        "throttled_s": 0.0,
    } | counters
    return Reading(at_s=at_s, cpus=frozenset({0, 1}), processes=processes, **found)


def test_what_is_not_idle_and_not_ours_ran_for_others() -> None:
    before = reading(50.0, {RANK: 5.0, DRIVER: 1.0, COMPILER: 2.0}, idle_s=10.0)
    ran_s = {RANK: 9.0, HELPER: 1.0, DRIVER: 1.5, OTHER: 0.1, COMPILER: 8.0, ELSEWHERE: 9.0}
    after = reading(60.0, ran_s, idle_s=18.0, waited_s=3.0, throttled_s=1.0)
    load = foreign_load.between(before, after, SERVER)
    assert load is not None
    assert load.foreign_s == pytest.approx(20 - 8 - 4 - 1 - 0.5, abs=0.05)
    assert (load.elapsed_s, load.waited_s) == (
        10.0,
        2.0,
    ), "a quota's part of the waiting is nobody's"
    assert load.names == "cc1 106"
    ended = replace(
        after, processes=after.processes | {SERVER: Process(DRIVER, "python", 0.0, 6.0, 0)}
    )
    assert foreign_load.between(before, ended, SERVER).foreign_s == pytest.approx(0.5, abs=0.05)  # type: ignore[union-attr]
    assert foreign_load.between(None, after, SERVER) is None
    assert foreign_load.between(before, replace(after, cpus=frozenset({0})), SERVER) is None


def test_the_driver_on_a_node_of_its_probe_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = reading(50.0, {}).processes
    monkeypatch.setenv("FRONTRUNNER_DISPATCHED_BY", f"elsewhere:{OTHER}")
    assert not {OTHER, COMPILER} & foreign_load.ours(processes, SERVER)
    monkeypatch.setenv("FRONTRUNNER_DISPATCHED_BY", f"{os.uname().nodename}:{OTHER}")
    assert {OTHER, COMPILER, DRIVER, RANK} <= foreign_load.ours(processes, SERVER)
    assert SHELL not in foreign_load.ours(processes, SERVER)


def load(waited_s: float, foreign_s: float, **changes: Any) -> Load:
    fields: dict[str, Any] = {
        "host": "n1",
        "cpus": frozenset({0, 1}),
        "elapsed_s": 10.0,
        "stolen_s": 0.0,
        "names": "",
    }
    return Load(**(fields | {"waited_s": waited_s, "foreign_s": foreign_s} | changes))


@pytest.mark.parametrize(
    ("loads", "shares"),
    [
        ([load(3.3, 6.6), load(3.3, 6.6)], [0.33, 0.33]),
        ([load(0.1, 20.0)], [0.01]),  # on a machine with room for both
        ([load(5.0, 0.0), load(5.0, 0.0)], [0.0, 0.0]),  # too many ranks for the processors
        ([load(5.0, 2.0), load(3.0, 2.0)], [0.125, 0.075]),
        ([load(5.0, 5.0), load(5.0, 5.0, host="n2")], [0.5, 0.5]),
        ([load(5.0, 5.0), load(5.0, 0.0, cpus=frozenset({2, 3}))], [0.5, 0.0]),
        ([load(0.0, 2.0, stolen_s=2.0), load(0.0, 2.0, stolen_s=2.0)], [0.1, 0.1]),
        ([load(40.0, 40.0)], [1.0]),  # of several threads
        ([load(0.0, 0.0)], [0.0]),
    ],
)
def test_others_took_what_ranks_waited_for_and_no_more_than_they_ran(
    loads: list[Load], shares: list[float]
) -> None:
    found = foreign_load.foreign_load(loads)
    assert found["foreign_share"] == pytest.approx(shares)
    assert found["foreign_cores"] == pytest.approx([one.foreign_s / 10 for one in loads])
    unknown = foreign_load.foreign_load([*loads, None])
    assert set(unknown.values()) == {None}, "unknown is not 0"


def test_this_process_s_counters_are_read() -> None:
    now = foreign_load.read()
    assert now is not None
    own = now.processes[os.getpid()]
    assert own.parent == os.getppid()
    assert own.ran_s == pytest.approx(sum(os.times()[:2]), abs=1.0)
    assert os.getppid() in foreign_load.ours(now.processes, os.getppid())
    assert now.idle_s > 0
    assert now.waited_s > 0


def test_a_quota_of_any_level_counts_and_a_kernel_without_counters_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/jobs/mine\n")
    for group, held_us in (("jobs/mine", 250000), ("jobs", 1000000), ("", 0)):
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.stat").write_text(f"usage_usec 7\nthrottled_usec {held_us}\n")
    monkeypatch.setattr(foreign_load, "_PROC", tmp_path)
    monkeypatch.setattr(foreign_load, "_CGROUPS", tmp_path)
    assert foreign_load.throttled_s() == 1.25
    assert foreign_load.read() is None


ME = os.getpid()
NOBODY = 2**22 + 1  # beyond the largest process id of Linux: the parent of none of these tests
PROCESSES = {ME: Process(os.getppid(), "python", 0, 0, 0), 71: Process(NOBODY, "train.py", 0, 0, 0)}


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([{}, {ME: 0}], ""),
        ([{71: 0}, {ME: 0}], "train.py 71"),
        ([None, {ME: 0, 71: 0, 72: 0, 73: 0}], "train.py 71, process 72 and 1 more"),
        ([{71: 1}, {ME: 2, 71: 1}], ""),  # on another part of a divided device
        ([{71: 0}, {9071: 0}], None),  # the driver counts in another namespace
        ([{71: 0}, None], None),
    ],
)
def test_others_on_a_device_are_named(
    readings: list[dict[int, int] | None], found: str | None
) -> None:
    assert telemetry._others_on_device(readings, PROCESSES) == found


def test_rocm_s_processes_are_those_with_memory_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "nodes/0/gpu_id": "0",
        "nodes/0/properties": "cpu_cores_count 64\nlocation_id 0\ndomain 0",
    }
    files |= {"nodes/1/gpu_id": "51280", "nodes/1/properties": "location_id 50432\ndomain 0"}
    files = {f"topology/{name}": text for name, text in files.items()}
    files |= {"proc/71/vram_51280": "4096", "proc/72/vram_51280": "0", "proc/72/vram_9": "4096"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(telemetry, "_KFD", tmp_path)
    assert telemetry._kfd_processes("0000:c5:00.0") == {71: 0}
    with pytest.raises(ValueError, match=r"no device of KFD at 0000:c6:00\.0"):
        telemetry._kfd_processes("0000:c6:00.0")


DISTURBED = Telemetry(
    foreign_limit=0.1,
    foreign_share=(0.05, 0.12, 0.4),
    foreign_processes=("", "", "make 7"),
    device_processes=("", "x 8", ""),
)
WAITED = (
    "rank 2 waited 40 % of the time for processors that other processes used: make 7 (the worst of"
    " 2 ranks)"
)
SHARED = "rank 1's device was used by others: x 8"


def measured(telemetry: Telemetry | None, step_s: float) -> Measurement:
    return replace(measurement((step_s,), 10**8), telemetry=telemetry)


def test_load_above_the_limit_disturbs_and_is_put_in_words() -> None:
    assert DISTURBED.doubts == DISTURBED.disturbances == (WAITED, SHARED)
    assert replace(DISTURBED, foreign_limit=1.0).doubts == ()
    assert replace(DISTURBED, foreign_limit=0.5, device_processes=None).doubts == ()
    others = "of the time for processors that other processes used"
    assert DISTURBED.slow_nodes(2) == {
        0: f"rank 1 waited 12 % {others}",
        1: f"rank 2 waited 40 % {others}: make 7",
    }


def test_figures_are_of_undisturbed_measurements_where_there_are_any() -> None:
    slow, clean = measured(DISTURBED, 2.0), measured(Telemetry(allocator_retries=(3,)), 1.0)
    assert pool([slow, clean, slow]) == pool([clean])
    assert doubts_of([slow, clean]) == clean.doubts
    worse = measured(replace(DISTURBED, foreign_share=(0.9, 0.0, 0.0), allocator_retries=(1,)), 4.0)
    assert pool([slow, worse]).repeats == 2
    assert doubts_of([slow, worse]) == (*slow.doubts, worse.doubts[0])
    fuller = replace(slow, peak_memory_bytes=(10**9,))
    stats: RecipeStats = pool([clean, fuller])
    assert (stats.repeats, stats.peak_memory_bytes_max_rank) == (
        1,
        10**9,
    ), "memory does not depend on others"
