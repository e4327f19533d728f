"""Who is named: from stores and reports as a failing test leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.diagnostics.doctor.check import PROBLEM, WARNING
from frontrunner.evaluators.diagnostics.doctor.collective_test import (
    SETTLE_S,
    SILENT_S,
    Bandwidth,
    TestResult,
    Watch,
    bandwidths,
    collective_checks,
    laggards,
)
from frontrunner.evaluators.diagnostics.ranks import Rank
from frontrunner.evaluators.trainer.collective_test import DONE, partners
from support.campaigns import wait_for

NODES = ("frontier00001", "frontier00002")
DEADLINE_S = 60.0


HOSTS = {rank: NODES[rank // 2] for rank in range(4)}


def arrivals(ranks: int = 4, **changes: Any) -> dict[int, Any]:
    """Ranks of two nodes."""
    told: dict[str, Any] = {"python": "3.11.7", "torch": "2.13.0", "pid": 77} | changes
    return {rank: {"host": NODES[rank * 2 // ranks], **told} for rank in range(ranks)}


def watch(came: dict[int, Any] | None = None) -> Watch:
    return Watch(ranks=range(4), ranks_per_node=2, nodes=NODES, deadline_s=DEADLINE_S, began_s=0.0,
                 arrivals=arrivals() if came is None else came)  # fmt: skip


def signs(count: int, *steps: int, stage: str = "timing all-reduces") -> dict[int, Any]:
    return {rank: {"count": count, "stage": stage, "step": step} for rank, step in enumerate(steps)}


def test_ranks_that_never_come_are_named_with_the_node_that_they_would_be_on():
    came = {rank: told for rank, told in arrivals().items() if rank != 3}
    watched = watch(came)
    assert watched.fault(DEADLINE_S - 1, signs(1, 0, 0, 0), {}) is None
    later = watched.fault(DEADLINE_S + 1, signs(2, 0, 0, 0), {})
    assert later is not None
    assert list(later.ranks) == [3]
    assert later.found == "rank 3 on frontier00002 never arrived within 60 s; 3 of 4 did"


def test_a_rank_without_signs_is_named_by_host_and_process():
    watched = watch()
    assert watched.fault(0.0, signs(1, 5, 5, 5, 5), {}) is None
    alive = signs(2, 6, 6, 6, 6) | {2: {"count": 1, "stage": "timing all-reduces", "step": 5}}
    assert watched.fault(SILENT_S - 1, alive, {}) is None
    fault = watched.fault(SILENT_S, alive, {})
    assert fault is not None
    assert list(fault.ranks) == [2]
    assert "rank 2 on frontier00002 (process 77) stands still: no heartbeat for 10 s" in fault.found


def test_a_rank_that_has_reported_owes_no_signs():
    watched = watch()
    last = {**signs(1, 9, 9, 9, 9), 0: {"count": -1, "stage": DONE, "step": 10}}
    assert watched.fault(0.0, last, {}) is None
    assert watched.fault(SILENT_S + 1, {**signs(2, 9, 9, 9, 9), 0: last[0]}, {}) is None
    assert not watched.all_done
    assert watched.fault(SILENT_S + 2, signs(-1, 10, 10, 10, 10, stage=DONE), {}) is None
    assert watched.all_done


def test_a_rank_that_lives_but_is_behind_is_named_and_nobody_where_none_is():
    behind, level = watch(), watch()
    for second in range(int(DEADLINE_S) + 1):
        fault = behind.fault(float(second), signs(second, 8, 7, 8, 8), {})
        all_wait = level.fault(float(second), signs(second, 8, 8, 8, 8), {})
    assert fault is not None
    assert all_wait is not None
    assert list(fault.ranks) == [1]
    assert (
        "rank 1 on frontier00001 (process 77) is alive, but does not advance from timing"
        " all-reduces" in fault.found
    )
    assert all_wait.ranks == ()
    assert "NCCL_SOCKET_IFNAME" in all_wait.remedy


def test_of_ranks_that_ended_those_that_a_signal_ended_are_named():
    watched = watch()
    lost_peer = {"status": 1, "tail": "RuntimeError: Connection closed by peer\n"}
    assert watched.fault(1.0, signs(1, 3, 3, 3, 3), {0: lost_peer}) is None
    both = {0: lost_peer, 3: {"status": -9, "tail": ""}}
    fault = watched.fault(1.0 + SETTLE_S, signs(1, 3, 3, 3, 3), both)
    assert fault is not None
    assert list(fault.ranks) == [3]
    assert fault.found == "rank 3 on frontier00002 (process 77) was killed by SIGKILL"


def test_a_rank_that_ended_by_itself_is_named_with_its_last_words():
    watched = watch()
    ending = {1: {"status": 1, "tail": "Traceback\n  ...\nRuntimeError: no device\n\n"}}
    watched.fault(1.0, {}, ending)
    fault = watched.fault(1.0 + SETTLE_S, {}, ending)
    assert fault is not None
    assert fault.found.endswith("(process 77) ended with status 1: RuntimeError: no device")


def test_a_rank_that_ends_before_it_reads_its_order_is_seen_by_its_status(tmp_path: Path):
    rank = Rank(0, ["keyword"], "x" * 10**6, {}, tmp_path)
    wait_for(lambda: rank.status is not None)
    assert rank.status == 0


def report(*, work_s: float = 0.01, wait_s: float = 0.002, node_s: float = 0.001,
    network_s: float = 0.004,
           wrong: int = 0) -> dict[str, Any]:  # fmt: skip
    """What one of four ranks measured, three partners each: one in its node and two elsewhere."""
    pairs = [{"level": "node", "partner": 0, "time_s": node_s, "bytes": 1}] * 3
    pairs += [{"level": "network", "partner": 2, "time_s": network_s, "bytes": 1}] * 2
    return {"wrong_sums": wrong, "work_s": [work_s] * 10, "wait_s": [wait_s] * 10, "pairs": pairs,
            "all_reduce": [{"bytes": 2**20, "time_s": 0.01}]}  # fmt: skip


def test_equal_ranks_have_no_laggard():
    assert laggards({rank: report() for rank in range(4)}, HOSTS, device="cuda") == ()


def test_a_rank_slow_at_its_work_is_late_too_and_both_are_told():
    slow = report(work_s=0.04, wait_s=0.001)
    others = report(wait_s=0.031)
    found = laggards({0: others, 1: others, 2: slow, 3: others}, HOSTS, device="cpu")
    assert [(each.ranks, each.host, each.what) for each in found] == [
        ((2,), "frontier00002", "its own work"), ((2,), "frontier00002", "arriving at collectives"),
    ]  # fmt: skip
    assert [each.times_median for each in found] == [pytest.approx(4.0), pytest.approx(4.0)]


def test_a_node_whose_ranks_are_all_slow_to_other_nodes_is_named_as_a_node():
    reports = {rank: report(network_s=0.012 if rank < 4 else 0.004) for rank in range(16)}
    hosts = {rank: f"n{rank // 4}" for rank in range(16)}
    (found,) = laggards(reports, hosts, device="cuda")
    assert (found.ranks, found.host, found.is_node) == ((0, 1, 2, 3), "n0", True)
    assert (found.what, found.times_median) == ("pairs with other nodes", pytest.approx(3.0))


def test_a_fast_rank_that_met_a_slow_one_is_not_named():
    slow = report(node_s=0.010)
    met_it = report()
    met_it["pairs"] = [
        {"level": "node", "partner": 3, "time_s": 0.010, "bytes": 1},
        *met_it["pairs"],
    ]
    found = laggards({0: met_it, 1: met_it, 2: met_it, 3: slow}, HOSTS, device="cuda")
    assert [each.ranks for each in found] == [(3,)]


def test_processes_that_share_cores_may_differ_by_more():
    reports = {rank: report(work_s=0.02 if rank == 1 else 0.01, wait_s=0.002) for rank in range(4)}
    assert laggards(reports, HOSTS, device="cpu") == ()
    assert [each.ranks for each in laggards(reports, HOSTS, device="cuda")] == [(1,)]


def test_bandwidths_are_those_of_nccl_s_tests():
    (row,) = bandwidths({rank: report() for rank in range(4)})
    assert row == Bandwidth(bytes=2**20, time_s=0.01, ranks=4)
    assert row.algorithm_bytes_per_s == pytest.approx(2**20 / 0.01)
    assert row.bus_bytes_per_s == pytest.approx(2**20 / 0.01 * 2 * 3 / 4)


def test_wrong_sums_and_versions_that_differ_are_named():
    came = arrivals()
    came[3] |= {"torch": "2.12.0"}
    reports = {0: report(), 1: report(wrong=3), 2: report(), 3: report()}
    found = {
        check.name: check for check in collective_checks(TestResult("cpu", 4, None, came, reports))
    }
    assert found["all-reduce"].found == "wrong sums on ranks 1 (frontier00001)"
    assert (found["all-reduce"].status, found["nodes"].status) == (PROBLEM, WARNING)
    assert (
        found["nodes"].found
        == "torch differs: 2.13.0 on frontier00001, frontier00002; 2.12.0 on frontier00002"
    )
    equal = collective_checks(
        TestResult("cpu", 4, None, arrivals(), {rank: report() for rank in range(4)})
    )
    assert [check.name for check in equal] == ["all-reduce", "pace"]


@pytest.mark.parametrize("places", range(2, 10))
def test_in_a_tournament_everybody_meets_everybody_once(places: int):
    plans = [list(partners(places, own)) for own in range(places)]
    for own, plan in enumerate(plans):
        assert sorted(met for met in plan if met is not None) == [
            other for other in range(places) if other != own
        ]
        assert all(met is None or plans[met][turn] == own for turn, met in enumerate(plan))
