"""Real faults of a PostgreSQL store: a server that restarts, drivers that race, sessions that are
cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from frontrunner.results.check import check
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.process_identity import BOOT_ID, this_host
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven, StoreUnusable
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import dump_json
from support.campaigns import WIDE, frontrunner, spec_of, started, tiny, wait_for
from support.cut_proxy import proxy_before
from support.postgresql import Server, running_server

PROBES = 60
# Takes a lease on what looks like another machine of this one's name, whose boot id is in a file,
# and dies with it.
ON_ANOTHER_MACHINE = """
import os, subprocess, sys
subprocess.run(["mount", "--bind", sys.argv[2], "/proc/sys/kernel/random/boot_id"], check=True)
from frontrunner.results.process_identity import this_host
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import AlreadyDriven
store = open_store(sys.argv[1])
try:
    print("epoch", store.acquire_lease(1, host=this_host(), pid=os.getpid()).epoch, flush=True)
except AlreadyDriven as error:
    print("refused", error, flush=True)
os._exit(0)
"""
RECIPE = Recipe(devices=1, micro_batch_seqs=1, accumulation=1)
CRASH = Failure(kind=FailureKind.CRASHED, message="x", node_seconds=1.0)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that these tests may stop; the others share one that stays."""
    with running_server() as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    return server.new_store()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as opened:
        opened.create_campaign(name="faulted", spec_json="{}", legal_recipes=1, problem_summary={})
        yield opened


def drive(store: Store, *, pid: int = 1) -> CampaignWriter:
    writer = store.drive(
        store.acquire_lease(1, host="another-host.example", pid=pid, take_over=True)
    )
    writer.set_state(CampaignState.RUNNING, reason="")
    return writer


def cut_sessions(server: Server, url: str, *, when: str) -> None:
    """End the other sessions of the database that are in a state, as a network or a server
    would.
    """
    with server.connect(url) as connection:
        ended = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND state = %s"
        )
        assert connection.execute(ended, [when]).fetchall()


def test_a_session_cut_between_transactions_is_not_noticed(
    server: Server, url: str, store: Store
) -> None:
    writer = drive(store)
    cut_sessions(server, url, when="idle")
    writer.event("after")
    assert [event.kind for event in store.events(1)] == ["after"]


def test_a_transaction_cut_in_its_middle_is_made_again_and_once(
    server: Server, url: str, store: Store
) -> None:
    writer = drive(store)
    calls = []

    def work() -> None:
        attempt = writer.start_attempt(writer.propose("aaaa", RECIPE), run_folder=str(len(calls)))
        calls.append(attempt)
        if len(calls) == 1:
            cut_sessions(server, url, when="idle in transaction")
        writer.finish_attempt(attempt, CRASH, retry=False)

    writer.atomically(work)
    assert len(calls) == 2
    assert [trial.state for trial in store.trials(1)] == [TrialState.FAILED]
    assert store.campaign(None).node_seconds_spent == 1.0
    with store.database.read() as connection:
        assert check(connection, store=url).findings == ()


def test_a_read_cut_in_its_middle_is_made_again(server: Server, url: str, store: Store) -> None:
    """As `keep` of a driver reads every few seconds, beside probes that go on meanwhile."""
    cuts = []

    @event.listens_for(store.database._engine, "before_cursor_execute")
    def cut(*_: object) -> None:
        if len(cuts) < 2:
            cuts.append(None)
            cut_sessions(server, url, when="idle")  # it begins with its first statement

    assert store.campaign("faulted").name == "faulted"
    assert store.trials(1) == []
    assert len(cuts) == 2


def test_a_commit_whose_answer_was_lost_is_not_made_again(
    server: Server, url: str, store: Store
) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp") as name,
        proxy_before(server.folder, Path(name)) as proxy,
    ):
        with open_store(url.replace(str(server.folder), name)) as through:
            writer = drive(through)
            proxy.cut_next_commit = True
            writer.event("once")
            writer.event("after")
        assert proxy.cuts == 1
    assert [event.kind for event in store.events(1)] == ["once", "after"]


def test_a_driver_that_was_fenced_while_it_was_cut_off_is_refused(
    server: Server, url: str, store: Store
) -> None:
    writer = drive(store)
    calls: list[int] = []

    def work() -> None:
        writer.event("lost")
        calls.append(1)
        if len(calls) == 1:
            cut_sessions(server, url, when="idle in transaction")
            with open_store(url) as elsewhere:
                drive(elsewhere, pid=2)
        writer.event("lost too")

    with pytest.raises(AlreadyDriven, match="taken over by another-host"):
        writer.atomically(work)
    assert store.events(1) == []


def test_drivers_of_two_campaigns_do_not_wait_for_each_other(url: str, store: Store) -> None:
    store.create_campaign(name="second", spec_json="{}", legal_recipes=1, problem_summary={})
    first = drive(store)
    with open_store(url, busy_timeout_s=0.2) as elsewhere:
        second = elsewhere.drive(elsewhere.acquire_lease(2, host="a-third.example", pid=1))
        with first.together():
            first.event("long")
            second.event("meanwhile")
            with pytest.raises(StoreUnusable, match=r"held the write lock for more than 0\.2 s"):
                drive(elsewhere)
    assert [event.kind for event in store.events(2)] == ["meanwhile"]


def test_a_name_taken_at_the_same_time_is_refused_as_taken(url: str, store: Store) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def create(number: int) -> str:
        with open_store(url) as opened:
            try:
                opened.create_campaign(
                    name="same", spec_json="{}", legal_recipes=1, problem_summary={}
                )
            except Exception as error:
                return type(error).__name__
        return "made"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(create, range(4))) == ["NameTaken"] * 3 + ["made"]


def test_leases_are_judged_by_the_server_s_clock(server: Server, url: str, store: Store) -> None:
    with server.connect(url) as connection:
        (now,) = connection.execute("SELECT clock_timestamp()").fetchone() or ()
    assert abs((store.now() - now).total_seconds()) < 5  # type: ignore[operator]
    assert store.now().utcoffset() is not None


def test_two_machines_of_one_name_do_not_judge_each_other_s_processes(
    url: str, store: Store, tmp_path: Path
) -> None:
    """Each sees at once that a driver of its own is gone, and gives that of the other the time of
    its lease.
    """
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("11111111-2222-3333-4444-555555555555\n")
    if subprocess.run(
        ["unshare", "--mount", "mount", "--bind", boot_id, BOOT_ID], check=False
    ).returncode:
        pytest.skip("a file may not be mounted here")
    command = ["unshare", "--mount", sys.executable, "-P", "-c", ON_ANOTHER_MACHINE, url, boot_id]

    def there() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert there() == "epoch 1\n"
    with pytest.raises(AlreadyDriven, match=f"is driven by {this_host()}:"):
        store.acquire_lease(1, host=this_host(), pid=os.getpid())
    assert there() == "epoch 2\n"
    store.acquire_lease(1, host=this_host(), pid=os.getpid(), take_over=True)
    assert there().startswith(
        f"refused campaign faulted is driven by {this_host()}:{os.getpid()} since "
    )


def test_a_server_that_restarts_again_and_again_costs_a_running_campaign_nothing(
    server: Server, url: str, tmp_path: Path
) -> None:
    spec = spec_of(tiny(**WIDE, budget={"probes": PROBES}), run_root=tmp_path / "frontrunner-runs")
    with open_store(url) as store:
        store.create_campaign(
            name="wide", spec_json=dump_json(spec), legal_recipes=1, problem_summary={}
        )

    def finals() -> int:
        with server.connect(url) as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM trials WHERE outcome_number > 0"
            ).fetchone() or (0,)
            return int(str(count))

    with started("resume", "wide", "--store", url, cwd=tmp_path) as driver:
        for number in range(4):
            before = finals()
            wait_for(lambda n=before: finals() >= n + 3)
            assert driver.poll() is None, (tmp_path / "stderr").read_text()
            server.stop(kill=number % 2 == 1)
            server.start()
        assert driver.wait(timeout=600) == 0, (tmp_path / "stderr").read_text()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    with open_store(url, read_only=True) as store:
        assert store.campaign("wide").outcomes == PROBES
        with store.database.read() as connection:
            assert [f for f in check(connection, store=url).findings if f.is_fault] == []
    again = frontrunner("status", "wide", "--store", url, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
