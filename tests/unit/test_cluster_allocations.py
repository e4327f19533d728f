"""Which allocations a campaign asks for, keeps and lets go of, with allocations that no batch
system stands behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.nodes import parsl_allocation
from frontrunner.evaluators.nodes.allocations import MAX_FAILED_STARTS, Pool, Waiting
from frontrunner.evaluators.nodes.backends import Placed
from frontrunner.evaluators.nodes.environment import Allocation
from frontrunner.evaluators.nodes.settings import DispatchSettings, NodeSource
from frontrunner.spaces.errors import NodesUnavailable
from support.campaigns import wait_for
from support.imagined_nodes import Imagined

SETTINGS = DispatchSettings(
    backend="parsl", scheduler="slurm", walltime="01:00:00", queue_limit_minutes=1.0
)
SOURCE = NodeSource(
    backend="parsl", scheduler="slurm", nodes=2, allocations=2, launcher="srun", settings=SETTINGS
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Imagined]:
    """Every allocation that was asked for, in order."""
    found: list[Imagined] = []

    def imagine(source: NodeSource, name: str, folder: Path) -> Imagined:
        found.append(Imagined(source, name, folder))
        return found[-1]

    monkeypatch.setattr(parsl_allocation, "ParslAllocation", imagine)
    return found


@pytest.fixture
def pool(tmp_path: Path, asked: list[Imagined]) -> Iterator[Pool]:
    made = Pool(SOURCE, tmp_path / "dispatch")
    yield made
    made.close()


def waiting(*nodes: int, expected_s: float = 60.0) -> list[Waiting]:
    return [Waiting(f"{place}", count, expected_s) for place, count in enumerate(nodes)]


def placed(pool: Pool, probes: list[Waiting], now_s: float = 5.0) -> dict[str, Any]:
    return {token: allocation.name for token, (allocation, _) in pool.place(probes, now_s).items()}


def test_nothing_is_asked_for_before_something_waits(pool: Pool, asked: list[Imagined]) -> None:
    assert placed(pool, []) == {}
    assert not asked


def test_no_more_is_asked_for_than_what_waits_needs(pool: Pool, asked: list[Imagined]) -> None:
    for _ in range(3):
        assert placed(pool, waiting(2)) == {}
    assert len(asked) == 1
    for _ in range(3):
        placed(pool, waiting(2, 2, 2))
    assert len(asked) == 2, "the source's limit"


def test_probes_start_where_there_is_room(pool: Pool, asked: list[Imagined]) -> None:
    placed(pool, waiting(1, 1))
    asked[0].begin()
    assert placed(pool, waiting(1, 1)) == {"0": "frontrunner-1", "1": "frontrunner-1"}


def test_an_allocation_near_its_end_is_followed_by_another(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    asked[0].begin(end_s=80.0)
    assert placed(pool, waiting(1), now_s=20.0) == {}
    assert asked[0].is_given_back
    assert len(asked) == 2
    asked[1].begin(end_s=3600.0)
    assert placed(pool, waiting(1), now_s=25.0) == {"0": "frontrunner-2"}


def test_an_allocation_that_has_run_may_end_without_a_word(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    asked[0].begin()
    asked[0].end()
    assert placed(pool, waiting(1)) == {}
    assert len(asked) == 2


def test_a_refused_request_is_told_in_the_scheduler_s_words(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    asked[0].job_id = None  # type: ignore[assignment]
    asked[0].end("sbatch: error: invalid account")
    with pytest.raises(NodesUnavailable, match="invalid account"):
        placed(pool, waiting(1))


def test_allocations_that_never_get_ready_are_not_asked_for_for_ever(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    for _ in range(MAX_FAILED_STARTS - 1):
        asked[-1].end()
        placed(pool, waiting(1))
    asked[-1].end("worker_init: no module named rocm")
    with pytest.raises(NodesUnavailable, match="no module"):
        placed(pool, waiting(1))
    assert len(asked) == MAX_FAILED_STARTS


def test_the_queue_s_time_is_limited_and_the_allocation_s_is_not(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(2), now_s=1.0)
    asked[0].begin()
    placed(pool, waiting(2), now_s=3000.0)
    placed(pool, waiting(2, 2, 2, 2), now_s=3000.0)
    asked[-1].queued_s, asked[-1].ready_s = 3000.0, None
    placed(pool, waiting(2), now_s=3050.0)
    with pytest.raises(
        NodesUnavailable,
        match=r"allocation 7 has waited for more than dispatch\.queue_limit_minutes",
    ):
        placed(pool, waiting(2), now_s=3061.0)


def busy_first_and_second_to_come(pool: Pool, asked: list[Imagined]) -> None:
    """Two allocations, of which the first is had and wholly taken."""
    for _ in range(2):
        placed(pool, waiting(2, 2))
    asked[0].begin()
    ((allocation, hosts),) = pool.place(waiting(2), 5.0).values()
    pool.start(Path("step"), allocation, hosts=hosts, expected_end_s=3600.0)


def refuse(allocation: Imagined) -> None:
    allocation.job_id = None  # type: ignore[assignment]
    allocation.end("QOSMaxSubmitJobPerUserLimit")


def test_a_refused_second_allocation_leaves_the_first_its_probes(
    pool: Pool, asked: list[Imagined]
) -> None:
    busy_first_and_second_to_come(pool, asked)
    refuse(asked[1])
    placed(pool, waiting(2, 2))
    assert (len(asked), asked[0].is_given_back) == (2, False), (
        "and no second one is asked for again"
    )
    asked[0].end()
    for _ in range(2):
        placed(pool, waiting(2, 2))
    assert len(asked) == 4, "once the first has ended there may be room for two"
    refuse(asked[2])
    placed(pool, waiting(2, 2))
    refuse(asked[3])
    with pytest.raises(NodesUnavailable, match="QOSMaxSubmit"):
        placed(pool, waiting(2, 2))


def test_a_second_allocation_that_waits_too_long_is_given_back(
    pool: Pool, asked: list[Imagined]
) -> None:
    busy_first_and_second_to_come(pool, asked)
    for _ in range(2):
        placed(pool, waiting(2), now_s=61.0)
    assert [one.is_given_back for one in asked] == [False, True]


def test_nodes_that_nothing_waits_for_any_more_are_not_asked_for(
    pool: Pool, asked: list[Imagined]
) -> None:
    busy_first_and_second_to_come(pool, asked)
    pool.withdraw_requests()
    assert [one.is_given_back for one in asked] == [False, True]


def test_what_a_request_lacks_is_known_until_it_has_nodes(
    pool: Pool, asked: list[Imagined]
) -> None:
    pool.place([Waiting("a", 2, 60.0)], 0.0)
    asked[0].waits_for = "1 of 2 nodes"
    assert pool.waits_for == "1 of 2 nodes"
    asked[0].begin()
    assert pool.waits_for == ""


def test_probes_start_on_the_nodes_that_are_not_set_aside(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1, 1))
    asked[0].begin()
    pool.avoid({"n1": "node n1 is set aside"}, due=())
    ((allocation, hosts),) = pool.place(waiting(1, 1), 5.0).values()
    assert hosts == ("n2",)
    pool.start(Path("step"), allocation, hosts=("n2",), expected_end_s=3600.0)
    assert placed(pool, waiting(1)) == {}
    assert pool.free_allocation("n1") is allocation, "where it can be checked"
    assert pool.free_allocation("n2") is None
    assert asked[1].excluded == ("n1",), "another allocation is requested without it"
    pool.avoid({"n1": "node n1 is set aside"}, due=("n1",))
    assert placed(pool, waiting(1)) == {}
    pool.avoid({}, due=())
    assert placed(pool, waiting(1)) == {"0": "frontrunner-1"}


def test_an_allocation_with_too_few_nodes_left_is_replaced_and_not_for_ever(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(2))
    pool.avoid({"n1": "node n1 is set aside since 12:00"}, due=())
    for _ in range(MAX_FAILED_STARTS - 1):
        asked[-1].begin()
        assert placed(pool, waiting(2)) == {}
        assert asked[-2].is_given_back
    asked[-1].begin()
    with pytest.raises(
        NodesUnavailable,
        match=r"1 of the 2 nodes are left .* 2 or more: node n1 is set aside since",
    ):
        placed(pool, waiting(2))


def avoiding(*hosts: str, token: str = "again", nodes: int = 1) -> Waiting:
    return Waiting(token, nodes, 60.0, frozenset(hosts))


def hosts_of(pool: Pool, *probes: Waiting) -> dict[str, tuple[str, ...]]:
    return {token: hosts for token, (_, hosts) in pool.place(probes, 5.0).items()}


def test_pool_has_a_probe_wait_for_a_node_that_has_not_lost_it(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    asked[0].begin()
    (on_n2,) = pool.place([avoiding("n1")], 5.0).values()
    busy = pool.start(Path("step"), on_n2[0], hosts=on_n2[1], expected_end_s=3600.0)
    for _ in range(2):
        assert hosts_of(pool, avoiding("n1")) == {}
    assert not asked[0].is_given_back, "though n1 is idle"
    assert hosts_of(pool, avoiding("n1"), *waiting(1)) == {"0": ("n1",)}, "others may use it"
    assert busy.task is not None
    busy.task.set_result(0)
    assert hosts_of(pool, avoiding("n1"), *waiting(1)) == {"again": ("n2",), "0": ("n1",)}


def test_pool_keeps_an_idle_allocation_whose_nodes_a_probe_avoids(
    pool: Pool, asked: list[Imagined]
) -> None:
    busy_first_and_second_to_come(pool, asked)
    asked[1].hosts = ("n3", "n4")
    asked[1].begin()
    assert hosts_of(pool, avoiding("n3", "n4")) == {}
    assert not asked[1].is_given_back


def test_pool_uses_nodes_again_that_lost_a_probe_where_too_few_others_exist(
    pool: Pool, asked: list[Imagined]
) -> None:
    placed(pool, waiting(1))
    asked[0].begin()
    assert hosts_of(pool, avoiding("n1", "n2")) == {"again": ("n1",)}
    assert hosts_of(pool, avoiding("n1", nodes=2)) == {"again": ("n1", "n2")}
    pool.avoid({"n2": "node n2 is set aside"}, due=())
    assert hosts_of(pool, avoiding("n1")) == {"again": ("n1",)}


def test_allocations_whose_nodes_lose_everything_are_not_requested_for_ever(
    pool: Pool, asked: list[Imagined]
) -> None:
    """A probe is lost in each allocation, whose nodes are then set aside. In the second one another
    probe was measured before.
    """
    placed(pool, waiting(1))
    for count in range(1, MAX_FAILED_STARTS + 2):
        asked[-1].begin()
        pool.avoid({}, due=())
        ((allocation, hosts),) = pool.place(waiting(1), 5.0).values()
        step = pool.start(Path("step"), allocation, hosts=hosts, expected_end_s=3600.0)
        assert step.task is not None
        step.task.set_result(1)
        if count == 2:
            pool.note_success()
        pool.avoid({host: f"node {host} is set aside" for host in allocation.hosts}, due=())
        if count <= MAX_FAILED_STARTS:
            placed(pool, waiting(1))
    with pytest.raises(NodesUnavailable, match="0 of the 2 nodes are left"):
        placed(pool, waiting(1))


def test_a_held_job_is_not_replaced(tmp_path: Path, asked: list[Imagined]) -> None:
    job = Allocation(scheduler="slurm", job_id="12", nodes=("n1", "n2"))
    held = Pool(replace(SOURCE, held=job, allocations=1), tmp_path / "held")
    placed(held, waiting(1))
    asked[0].begin(end_s=40.0)
    with pytest.raises(NodesUnavailable, match="job ends in 20 s, and what waits needs up to 90 s"):
        placed(held, waiting(1), now_s=20.0)
    held.close()


class Executor:
    """As much of Parsl's executor as an allocation uses; its functions are done at once."""

    provider = None

    def __init__(self) -> None:
        self.blocks_to_job_id: dict[str, str] = {}
        self.submitted: list[tuple[Any, ...]] = []
        self.is_shut_down = False

    def start(self) -> None:
        pass

    def scale_out_facade(self, _count: int) -> None:
        self.blocks_to_job_id["0"] = "7"

    def status(self) -> dict[str, Any]:
        return {}

    def connected_managers(self) -> list[dict[str, Any]]:
        return [{"active": True}]

    def submit(self, function: Any, _specification: Any, *arguments: Any) -> Future[Any]:
        self.submitted.append(arguments)
        done: Future[Any] = Future()
        done.set_result(("n1", "n2"))
        return done

    def shutdown(self) -> None:
        self.is_shut_down = True


def test_parsl_allocation_serves_steps_until_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Executor()
    monkeypatch.setattr(parsl_allocation, "make_executor", lambda *_: executor)
    monkeypatch.setattr(parsl_allocation, "STATUS_S", 0.0)
    monkeypatch.setattr(parsl_allocation, "POLL_S", 0.001)
    monkeypatch.setattr(parsl_allocation, "seconds_left", lambda *_: 60.0)
    began_s = time.monotonic()
    held = parsl_allocation.ParslAllocation(SOURCE, "1", tmp_path / "1")
    step = Placed(step=tmp_path / "s", allocation=held, hosts=("n1",), expected_end_s=0.0)
    held.start(step)

    wait_for(lambda: held.ready_s is not None and step.task is not None)

    assert (held.job_id, held.hosts) == ("7", ("n1", "n2"))
    assert held.end_s is not None
    assert began_s + 60.0 <= held.end_s <= time.monotonic() + 60.0
    assert (str(tmp_path / "s"), "srun", []) in executor.submitted
    assert held.ended_s is None
    held.give_back()
    assert held.wait(60.0)
    assert (executor.is_shut_down, held.ended_s is not None) == (True, True)
