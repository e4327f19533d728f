"""Tokens: a file that is its owner's alone, links that are good once, and processes that are
ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from frontrunner.remote import connect
from frontrunner.results.process_identity import acting_for, this_host
from frontrunner.results.store import open_store
from frontrunner.server import drivers
from frontrunner.server.auth import (
    MOST_LINKS,
    PLAIN_HTTP_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Caller,
    LoginLinks,
    Role,
    make_tokens,
    owner,
    read_tokens,
)
from frontrunner.server.drivers import CHILD, Drivers, our_process
from frontrunner.server.errors import Conflict
from frontrunner.server.middleware import RateLimit
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, NotFound
from support.services import settings


def test_a_token_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokens.json"
    before = os.umask(0)
    try:
        made = make_tokens(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["tokens.json"]
    assert read_tokens(path) == make_tokens(path) == made
    assert made.operator != made.reader
    assert make_tokens(tmp_path / "other.json") != made


def test_a_token_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    make_tokens(path)
    for mode in (0o640, 0o604, 0o660):
        path.chmod(mode)
        with pytest.raises(InvalidInput, match="can be read by others"):
            read_tokens(path)
    path.chmod(0o600)
    (tmp_path / "link.json").symlink_to(path)
    with pytest.raises(InvalidInput, match="cannot be opened"):
        read_tokens(tmp_path / "link.json")
    os.mkfifo(tmp_path / "pipe.json", 0o600)
    with pytest.raises(InvalidInput):
        read_tokens(tmp_path / "pipe.json")
    with pytest.raises(NotFound):
        read_tokens(tmp_path / "none.json")


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"operator": "short", "reader": "x"}', '{"operator": 1, "reader": 2}'],
)
def test_a_token_file_holds_two_tokens(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(InvalidInput, match="does not hold two tokens"):
        read_tokens(path)


def test_links_end_with_use_with_time_and_with_many_others() -> None:
    now = [0.0]
    links = LoginLinks(clock=lambda: now[0])
    reader = Caller(name="reader", role=Role.READER)
    code = links.make(reader)
    assert links.spend(code) == reader
    assert links.spend(code) is None
    late = links.make(owner())
    now[0] = 601.0
    assert links.spend(late) is None
    first = links.make(owner())
    for _ in range(MOST_LINKS):
        links.make(reader)
    assert links.spend(first) is None


def test_a_bucket_fills_again_with_time_for_each_address() -> None:
    now = [0.0]
    bucket = RateLimit(2.0, 3, clock=lambda: now[0])
    assert [bucket.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.wait_s("b") == 0.0
    now[0] = 0.5
    assert bucket.wait_s("a") == 0.0
    assert bucket.wait_s("a") > 0.0
    now[0] = 1e6
    assert [bucket.wait_s("a") for _ in range(4)][:3] == [0.0] * 3


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


REPORTING = """
import json, os, sys
said = json.load(sys.stdin)
print(json.dumps(said | {"words": sys.argv[1:], "store": os.environ["FRONTRUNNER_STORE"]}))
"""


def test_starter_hands_a_child_its_order_and_returns_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reporting_child.py").write_text(REPORTING)
    monkeypatch.setattr(drivers, "CHILD", "reporting_child")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    starter = drivers.Starter(settings(tmp_path))
    report = starter.start(("launch", "x"), {"a": 1})
    assert report.pop("pid") > 0
    assert report == {"a": 1, "words": ["launch", "x"], "store": settings(tmp_path).store}
    problem = {"error": {"kind": "", "detail": "this is refused"}}
    (tmp_path / "reporting_child.py").write_text(f"print({json.dumps(problem)!r})")
    with pytest.raises(FrontrunnerError, match="this is refused"):
        starter.start(("launch",))
    (tmp_path / "reporting_child.py").write_text("")
    with pytest.raises(FrontrunnerError, match="without a report"):
        starter.start(("launch",))


def test_only_a_frontrunner_that_was_there_at_the_time_is_ours(
    sleeper: subprocess.Popen[bytes],
) -> None:
    program = "import time; print(flush=True); time.sleep(60)"
    named = subprocess.Popen([sys.executable, "-c", program, "-m", CHILD], stdout=subprocess.PIPE)
    try:
        assert named.stdout is not None
        assert named.stdout.readline()  # before exec has ended, its command line may still be empty
        now = datetime.now(UTC)
        assert our_process(named.pid, since=now.isoformat()) is not None
        assert (
            our_process(named.pid, since=(now - timedelta(hours=1)).isoformat()) is None
        )  # its id was used before
        assert our_process(sleeper.pid, since=now.isoformat()) is None
        assert our_process(2**22 + 1, since=now.isoformat()) is None
    finally:
        for process in (named, sleeper):
            process.kill()
            process.communicate()


def test_a_process_that_is_no_driver_is_not_signalled(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    try:
        with open_store(str(tmp_path / "store.db")) as store:
            made = store.create_campaign(
                name="c", spec_json="{}", legal_recipes=1, problem_summary={}
            )
            drivers = Drivers(store, settings(tmp_path))
            with pytest.raises(Conflict, match="c is not running, so there is nothing to stop"):
                drivers.tell("c", "stop")
            store.acquire_lease(made.id, host=this_host(), pid=sleeper.pid)
            with pytest.raises(Conflict, match="is not a frontrunner command"):
                drivers.tell("c", "cancel")
            store.acquire_lease(made.id, host="elsewhere.example", pid=sleeper.pid, take_over=True)
            with pytest.raises(
                Conflict, match=r"on elsewhere\.example, which this service cannot reach"
            ) as refused:
                drivers.tell("c", "pause")
            assert refused.value.hint == f"there: kill -USR1 {sleeper.pid}"
            with pytest.raises(Conflict, match="c is driven by") as driven:
                drivers.resume("c")
            assert "frontrunner resume c --take-over" in str(driven.value.hint)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_process_on_another_machine_of_this_name_is_not_signalled(tmp_path: Path) -> None:
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-m", CHILD])
    try:
        with open_store(str(tmp_path / "store.db")) as store:
            made = store.create_campaign(
                name="c", spec_json="{}", legal_recipes=1, problem_summary={}
            )
            store.acquire_lease(made.id, host=this_host(), pid=driver.pid)
            with store.database.write() as connection:
                connection.exec_driver_sql("UPDATE holders SET boot_id = 'another'")
            with pytest.raises(Conflict, match="which this service cannot reach"):
                Drivers(store, settings(tmp_path)).tell("c", "stop")
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("by_earlier_version", [False, True])
def test_a_driver_is_told_though_the_store_s_clock_is_not_this_host_s(
    tmp_path: Path, by_earlier_version: bool
) -> None:
    def behind() -> datetime:
        return datetime.now(UTC) - timedelta(hours=1)

    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "-m", CHILD])
    try:
        with open_store(str(tmp_path / "store.db"), clock=behind) as store:
            made = store.create_campaign(
                name="c", spec_json="{}", legal_recipes=1, problem_summary={}
            )
            store.acquire_lease(made.id, host=this_host(), pid=driver.pid)
            if by_earlier_version:
                with store.database.write() as connection:
                    connection.exec_driver_sql("DELETE FROM holders")
            with acting_for("ada"):
                assert Drivers(store, settings(tmp_path)).tell("c", "pause")["pid"] == driver.pid
            [asked] = store.events(made.id)
            assert (asked.kind, asked.data) == ("requested", {"word": "pause", "user": "ada"})
        assert driver.wait(30) == -signal.SIGUSR1
    finally:
        driver.kill()
        driver.wait()


def test_the_operator_s_token_goes_to_this_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "tokens.json"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    make_tokens(tmp_path / "tokens.json")
    for here in (
        "http://127.0.0.1:8787",
        "http://localhost:8787",
        "http://[::1]:8787",
        "https://localhost",
    ):
        connect(here)
    for elsewhere in (
        "https://tune.example.org",
        "http://localhost.example.org:8787",
        "http://10.0.0.1:8787",
    ):
        with pytest.raises(NotFound, match="is for this machine only"):
            connect(elsewhere)


def test_a_token_crosses_a_network_unencrypted_only_where_that_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PLAIN_HTTP_VARIABLE, raising=False)
    connect("https://tune.example.org", token="given")
    connect("http://127.0.0.1:8787", token="given")
    with pytest.raises(InvalidInput, match="neither https nor this machine"):
        connect("http://tune.example.org", token="given")
    monkeypatch.setenv(PLAIN_HTTP_VARIABLE, "1")
    connect("http://tune.example.org", token="given")
