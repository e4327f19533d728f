"""Real faults under a store: killed writers, races, locks, full disks, damaged files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy

from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.process_identity import this_host
from frontrunner.results.ranking import best
from frontrunner.results.records import utc_now
from frontrunner.results.status import status
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven, StoreUnusable
from frontrunner.spaces.recipe import Recipe

# A driver that records one outcome after another and says so on stdout after each is acknowledged.
DRIVER = """
import os, sys
from frontrunner.results.process_identity import this_host
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.store import open_store
from frontrunner.spaces.recipe import Recipe

store = open_store(sys.argv[1])
campaign = store.campaign(None)
writer = store.drive(store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid()))
for left in store.open_attempts(campaign.id):
    writer.finish_attempt(left, Failure(kind=FailureKind.LOST, message="the driver died"), retry=True)
number = max((trial.number for trial in store.trials(campaign.id)), default=0)
while True:
    number += 1
    with writer.together():
        trial = writer.propose(f"{number:08x}", Recipe(devices=1, micro_batch_seqs=number, accumulation=1))
        attempt = writer.start_attempt(trial, run_folder=str(number))
    measurement = Measurement(
        step_times_s=(1.0 / number,), tokens_per_step=1, tokens_per_s=float(number), model_tflops_per_device=1.0,
        hardware_tflops_per_device=1.0, mfu=None, peak_memory_bytes=(1,), losses=(1.0,), node_seconds=1.0,
        build_time_s=0.0, first_step_time_s=0.0)
    writer.finish_attempt(attempt, measurement, retry=False)
    print(number, flush=True)
"""  # noqa: E501

LEASER = """
import os, sys
from frontrunner.results.process_identity import this_host
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import AlreadyDriven
with open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("epoch", store.acquire_lease(1, host=this_host(), pid=os.getpid()).epoch, flush=True)
    except AlreadyDriven as error:
        print("refused", error, flush=True)
    sys.stdin.readline()
"""

OTHER = """
import sys
print("ready", flush=True)
sys.stdin.readline()
"""

CREATOR = """
import sys
from frontrunner.results.store import open_store
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    store.create_campaign(name=sys.argv[2], spec_json="{}", legal_recipes=1, problem_summary={})
"""

RECIPE = Recipe(devices=1, micro_batch_seqs=1, accumulation=1)
CRASH = Failure(kind=FailureKind.CRASHED, message="x" * 500)


def child(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with open_store(str(tmp_path / "store.db")) as store:
        store.create_campaign(name="faulted", spec_json="{}", legal_recipes=1, problem_summary={})
    return tmp_path / "store.db"


def drive(store: Store) -> CampaignWriter:
    return store.drive(store.acquire_lease(1, host="another-host.example", pid=1, take_over=True))


def fill(writer: CampaignWriter, count: int, *, begin: int = 0) -> None:
    for number in range(begin, begin + count):
        attempt = writer.start_attempt(
            writer.propose(f"{number:08x}", RECIPE), run_folder=str(number)
        )
        writer.finish_attempt(attempt, CRASH, retry=False)


def integrity(path: Path) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall()
    finally:
        connection.close()


def test_ten_kills_lose_no_acknowledged_outcome_and_count_none_twice(path: Path) -> None:
    acknowledged: set[int] = set()
    for round_number in range(10):
        driver = child(DRIVER, path)
        assert driver.stdout is not None
        for _ in range(3 + round_number % 4):  # killed at a different place of its loop each time
            acknowledged.add(int(driver.stdout.readline()))
        time.sleep(0.001 * round_number)
        driver.kill()
        rest, _ = driver.communicate()
        acknowledged.update(map(int, rest.split()))
        assert integrity(path) == [("ok",)]
    with open_store(str(path), read_only=True) as store:
        told = [recipe.micro_batch_seqs for recipe, _ in store.final_outcomes(1)]
        assert acknowledged <= set(told)
        assert len(told) == len(set(told)) <= len(acknowledged) + 10, (
            "each driver may die between writing and saying so"
        )
        assert store.campaign(None).node_seconds_spent == len(told)
        assert len(store.open_attempts(1)) <= 1, (
            "each driver settled what the one before left running"
        )


def test_of_two_drivers_that_race_one_gets_the_lease(path: Path) -> None:
    for epoch in range(1, 4):
        racers = [child(LEASER, path) for _ in range(2)]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = sorted(racer.stdout.readline() for racer in racers if racer.stdout is not None)
        assert said[0] == f"epoch {epoch}\n"
        assert said[1].startswith("refused campaign faulted is driven by ")
        for racer in racers:
            racer.communicate("done\n")


@pytest.mark.parametrize("jump", [timedelta(hours=1), timedelta(hours=-1)])
def test_a_clock_that_jumps_an_hour_takes_the_lease_from_no_live_driver(
    path: Path, jump: timedelta
) -> None:
    """The driver was told the time before the jump, and has not renewed its lease since."""
    driver = child(LEASER, path)
    try:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
        assert [driver.stdout.readline(), driver.stdout.readline()] == ["ready\n", "epoch 1\n"]
        with open_store(str(path), clock=lambda: utc_now() + jump) as store:
            with pytest.raises(AlreadyDriven, match=f":{driver.pid} since"):
                store.acquire_lease(1, host=this_host(), pid=os.getpid())
            assert status(store, None).driver_is_live
            driver.kill()
            driver.wait()
            assert not status(store, None).driver_is_live
            assert store.acquire_lease(1, host=this_host(), pid=os.getpid()).epoch == 2
    finally:
        driver.kill()
        driver.communicate()


def test_a_process_that_was_given_the_id_of_a_driver_does_not_hold_its_lease(path: Path) -> None:
    """The lease would be held beyond its time by the driver itself."""
    other = child(OTHER)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with open_store(str(path), clock=lambda: utc_now() - timedelta(days=1)) as store:
            store.acquire_lease(1, host=this_host(), pid=other.pid)
        with open_store(str(path)) as store:
            assert status(store, None).driver_is_live
            with store.database.write() as connection:
                connection.exec_driver_sql("UPDATE holders SET started_ticks = started_ticks - 1")
            assert not status(store, None).driver_is_live
            assert store.acquire_lease(1, host=this_host(), pid=os.getpid()).epoch == 2
    finally:
        other.kill()
        other.communicate()


def in_new_namespaces(*options: str, script: str, arguments: tuple[str, ...] = ()) -> str:
    """What a script prints in namespaces of its own; skips the test where none can be made."""
    if subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode:
        pytest.skip("making a namespace is not permitted here")
    command = ["unshare", *options, sys.executable, "-P", "-c", script, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, input="go\n\n"
    ).stdout


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare of util-linux")
def test_a_driver_is_not_taken_for_gone_where_its_process_id_means_nothing(path: Path) -> None:
    """As in a container that has the host's name, and process ids of its own."""
    with open_store(str(path)) as store:
        store.acquire_lease(1, host=this_host(), pid=os.getpid())
    said = in_new_namespaces(
        "--pid", "--fork", "--mount-proc", script=LEASER, arguments=(str(path),)
    )
    assert said.splitlines()[1].startswith(
        f"refused campaign faulted is driven by {this_host()}:{os.getpid()} since "
    )


@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0, reason="needs unshare, and to be root"
)
def test_another_user_s_process_runs_though_it_is_not_shown() -> None:
    script = (
        "import os, subprocess\n"
        "from frontrunner.results.process_identity import is_alive\n"
        "subprocess.run(['mount', '-t', 'proc', '-o', 'hidepid=2', 'proc', '/proc'], check=True)\n"
        "os.setgroups([])\n"
        "os.setgid(65534)\n"
        "os.setuid(65534)\n"
        "print(os.path.exists('/proc/1'), is_alive(1), is_alive(2**22 + 1), is_alive(2**40))\n"
    )
    assert in_new_namespaces("--mount", script=script) == "False True False False\n"


def test_processes_that_create_one_store_at_once_share_it(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    creators = [child(CREATOR, path, f"campaign-{number}") for number in range(4)]
    for creator in creators:
        creator.communicate("go\n")
    assert [creator.returncode for creator in creators] == [0, 0, 0, 0]
    with open_store(str(path), read_only=True) as store:
        assert {summary.name for summary in store.campaigns()} == {
            f"campaign-{number}" for number in range(4)
        }


class TestLocks:
    @pytest.fixture
    def foreign(self, path: Path) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        yield connection
        connection.close()

    def test_another_programs_lock_is_waited_for(
        self, path: Path, foreign: sqlite3.Connection
    ) -> None:
        with open_store(str(path)) as store:
            writer = drive(store)
            foreign.execute("BEGIN IMMEDIATE")
            given_back: list[bool] = []
            release = threading.Timer(
                0.5, lambda: (given_back.append(True), foreign.execute("ROLLBACK"))
            )
            release.start()
            writer.event("written")
            assert given_back, "the writer has waited"
            release.join()
            assert [event.kind for event in store.events(1)] == ["written"]

    def test_a_lock_that_is_never_given_back_is_an_error_that_names_it(
        self, path: Path, foreign: sqlite3.Connection
    ) -> None:
        with open_store(str(path), busy_timeout_s=0.2) as store:
            writer = drive(store)
            foreign.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnusable, match=r"held the write lock for more than 0\.2 s"):
                writer.event("lost")
            assert store.events(1) == [], "reading goes on beside the lock"
            foreign.execute("ROLLBACK")
            writer.event("written")
            assert [event.kind for event in store.events(1)] == ["written"]


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Every SQLite file of this process may have 60 pages and no more, as on a disk that is
    full.
    """

    def limit(connection: sqlite3.Connection, _: object) -> None:
        connection.execute("PRAGMA max_page_count = 60")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", limit)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", limit)


def test_a_full_disk_stops_writing_and_keeps_what_was_stored(path: Path, small_disk: None) -> None:
    with open_store(str(path)) as store:
        writer = drive(store)
        with pytest.raises(StoreUnusable, match="what was stored before is safe") as full:
            fill(writer, 1000)
        assert "free some space" in str(full.value.hint)
        told = len(store.final_outcomes(1))
        trials = store.trials(1)
        assert told >= 10
        assert len(trials) - told <= 1
        assert store.campaign(None).node_seconds_spent == 0.0
    assert integrity(path) == [("ok",)]


def test_writing_goes_on_when_there_is_space_again(path: Path) -> None:
    with open_store(str(path)) as store:
        writer = drive(store)
        fill(writer, 2)
        with store.database.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnusable):
            fill(writer, 1000, begin=2)
        told = len(store.final_outcomes(1))
        with store.database.read() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1000000")
        for attempt in store.open_attempts(1):
            writer.finish_attempt(attempt, CRASH, retry=False)
        fill(writer, 3, begin=2000)
        assert len(store.final_outcomes(1)) >= told + 3


class TestDamage:
    @pytest.fixture
    def filled(self, path: Path) -> Path:
        with open_store(str(path)) as store:
            fill(drive(store), 60)
        return path

    def read_all(self, path: Path, *, read_only: bool) -> None:
        with open_store(str(path), read_only=read_only) as store:
            best(store, None)
            store.final_outcomes(1)

    def refused(self, path: Path, *, read_only: bool) -> None:
        before = path.read_bytes()
        with pytest.raises(StoreUnusable, match=path.name):
            self.read_all(path, read_only=read_only)
        assert path.read_bytes() == before

    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_truncated_store_is_refused(self, filled: Path, read_only: bool) -> None:
        os.truncate(filled, filled.stat().st_size // 2)
        self.refused(filled, read_only=read_only)

    @pytest.mark.parametrize("read_only", [False, True])
    def test_a_store_with_overwritten_pages_is_refused(self, filled: Path, read_only: bool) -> None:
        content = bytearray(filled.read_bytes())
        content[4096:] = b"\xa5" * (len(content) - 4096)
        filled.write_bytes(content)
        self.refused(filled, read_only=read_only)

    def test_one_damaged_page_deep_inside_is_found_before_a_driver_starts(
        self, filled: Path
    ) -> None:
        content = bytearray(filled.read_bytes())
        middle = (len(content) // 4096 // 2) * 4096
        content[middle : middle + 64] = b"\xff" * 64
        filled.write_bytes(content)
        self.refused(filled, read_only=False)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to be another user"
)
def test_a_store_that_may_not_be_written_is_read_and_not_changed(path: Path) -> None:
    """As nobody, who may read it and no more; root may write whatever the permissions say."""
    with open_store(str(path)) as store:
        fill(drive(store), 2)
    for folder in (path.parent, *path.parent.parents):
        if folder.name.startswith(("pytest-", "popen-")) or folder == path.parent:
            folder.chmod(0o755)
    path.chmod(0o444)
    as_nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        sys.executable,
        "-P",
        "-c",
    ]
    script = (
        "import sys; sys.argv[0] = 'frontrunner'; from frontrunner.cli.main import main; main()"
    )
    before = path.read_bytes()

    def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*as_nobody, script, *arguments, "--store", str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")

    read = asked("campaigns")
    assert "faulted" in read.stdout, read.stderr
    renamed = asked("rename", "faulted", "other")
    assert renamed.returncode == 4, renamed.stderr
    assert "cannot be opened" in renamed.stderr
    assert "hint: check the permissions of file and folder" in renamed.stderr
    assert path.read_bytes() == before
