"""The races of drivers and stores, two hundred times each, by processes that stay from round to
round.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frontrunner.results.check import check
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.results.process_identity import this_host
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.errors import AlreadyDriven
from frontrunner.spaces.recipe import Recipe
from support.cut_proxy import proxy_before
from support.postgresql import Server
from support.store_contract import KINDS

ROUNDS = 200

RACER = """
import os, sys
from frontrunner.results.process_identity import this_host
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import AlreadyDriven

store = open_store(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    try:
        lease = store.acquire_lease(int(line), host=this_host(), pid=os.getpid())
        print("epoch", lease.epoch, flush=True)
    except AlreadyDriven:
        print("refused", flush=True)
"""
CREATOR = """
import sys
from frontrunner.results.store import open_store

print("ready", flush=True)
for line in sys.stdin:
    path, name = line.split()
    with open_store(path) as store:
        store.create_campaign(name=name, spec_json="{}", legal_recipes=1, problem_summary={})
    print("made", flush=True)
"""
RECIPE = Recipe(devices=1, micro_batch_seqs=1, accumulation=1)
CRASH = Failure(kind=FailureKind.CRASHED, message="x", node_seconds=1.0)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    server: Server = request.getfixturevalue("postgresql_server")
    return server.new_store()


def create(store: Store, name: str) -> int:
    return store.create_campaign(name=name, spec_json="{}", legal_recipes=1, problem_summary={}).id


@contextmanager
def two_of(script: str, *arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that have imported everything and wait for lines."""
    command = [sys.executable, "-P", "-c", script, *arguments]
    racers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(2)
    ]
    try:
        for racer in racers:
            assert answer(racer) == "ready"
        yield racers
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def tell(racer: subprocess.Popen[str], line: str) -> None:
    assert racer.stdin is not None
    racer.stdin.write(f"{line}\n")
    racer.stdin.flush()


def answer(racer: subprocess.Popen[str]) -> str:
    assert racer.stdout is not None
    return racer.stdout.readline().strip()


def test_of_two_drivers_that_race_one_gets_the_lease(url: str) -> None:
    with open_store(url) as store:
        campaigns = [create(store, f"raced-{number}") for number in range(ROUNDS)]
    winners = []
    with two_of(RACER, url) as racers:
        for number, campaign in enumerate(campaigns):
            first, second = racers if number % 2 else reversed(racers)
            tell(first, str(campaign))
            tell(second, str(campaign))
            said = [answer(racer) for racer in racers]
            assert sorted(said) == ["epoch 1", "refused"]
            winners.append(said.index("epoch 1"))
    assert len(set(winners)) == 2, "it was a race"


@pytest.mark.nightly
def test_two_processes_that_create_one_store_at_once_share_it(tmp_path: Path) -> None:
    with two_of(CREATOR) as racers:
        for number in range(ROUNDS):
            path = tmp_path / f"{number}.db"
            for racer, name in zip(racers, ("first", "second"), strict=True):
                tell(racer, f"{path} {name}")
            assert [answer(racer) for racer in racers] == ["made", "made"]
            with open_store(str(path), read_only=True) as store:
                assert {summary.name for summary in store.campaigns()} == {"first", "second"}
            path.unlink()


def test_a_driver_that_is_taken_over_while_it_writes_stores_all_or_nothing(url: str) -> None:
    """The first finishes its attempt while another takes the campaign over, settles what is left,
    and goes on.
    """
    with open_store(url) as store, open_store(url) as other:
        for number in range(ROUNDS):
            campaign = create(store, f"fenced-{number}")
            writer = drive(store, campaign, pid=1)
            attempt = writer.start_attempt(writer.propose("aaaa", RECIPE), run_folder="1")
            barrier, refused = threading.Barrier(2), list[bool]()

            def finish(writer: CampaignWriter = writer, attempt: object = attempt) -> None:
                barrier.wait()  # noqa: B023 - the thread ends within the round
                try:
                    writer.finish_attempt(attempt, CRASH, retry=False)  # type: ignore[arg-type]
                except AlreadyDriven:
                    refused.append(True)  # noqa: B023

            first = threading.Thread(target=finish)
            first.start()
            barrier.wait()
            successor = drive(other, campaign, pid=2)
            for left in other.open_attempts(campaign):
                successor.finish_attempt(
                    left, Failure(kind=FailureKind.HUNG, message="y"), retry=False
                )
            first.join()
            told = [
                outcome.kind
                for _, outcome in other.final_outcomes(campaign)
                if isinstance(outcome, Failure)
            ]
            assert told == [FailureKind.HUNG if refused else FailureKind.CRASHED]
        with store.database.read() as connection:
            assert check(connection, store=url).findings == ()


def drive(store: Store, campaign: int, *, pid: int) -> CampaignWriter:
    writer = store.drive(
        store.acquire_lease(campaign, host="another-host.example", pid=pid, take_over=True)
    )
    writer.set_state(CampaignState.RUNNING, reason="")
    return writer


@pytest.mark.nightly
def test_a_driver_killed_at_any_moment_loses_nothing_that_it_had_said_was_stored(
    tmp_path: Path,
) -> None:
    path, acknowledged, moments = str(tmp_path / "store.db"), set[int](), random.Random(1)
    with open_store(path) as store:
        drive(store, create(store, "killed"), pid=1)
    for _ in range(ROUNDS):
        acknowledged |= driven_until_killed(
            path, outcomes=moments.randint(0, 2), after_s=moments.uniform(0.0, 0.01)
        )
    with open_store(path, read_only=True) as store:
        told = [recipe.micro_batch_seqs for recipe, _ in store.final_outcomes(1)]
        assert acknowledged <= set(told)
        assert len(told) == len(set(told)), "none was counted twice"
        with store.database.read() as connection:
            assert check(connection, store=path).findings == ()


def driven_until_killed(path: str, *, outcomes: int, after_s: float) -> set[int]:
    """What a driver, forked from here, said was stored until it was killed, so long after so many
    outcomes.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            record_without_end(path, writing)
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as said:
        began = said.readline()
        first = {int(said.readline()) for _ in range(outcomes)}
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert began == "begins\n"
        assert os.WIFSIGNALED(status), "it wrote until it was killed"
        return first | {int(line) for line in said if line.endswith("\n")}


def record_without_end(path: str, pipe: int) -> None:
    with open_store(path) as store:
        writer = store.drive(
            store.acquire_lease(1, host=this_host(), pid=os.getpid(), take_over=True)
        )
        for left in store.open_attempts(1):
            writer.finish_attempt(left, CRASH, retry=False)
        number = max((trial.number for trial in store.trials(1)), default=0)
        os.write(pipe, b"begins\n")
        while True:
            number += 1
            recipe = Recipe(devices=1, micro_batch_seqs=number, accumulation=1)
            attempt = writer.start_attempt(
                writer.propose(f"{number:08x}", recipe), run_folder=str(number)
            )
            writer.finish_attempt(attempt, CRASH, retry=False)
            os.write(pipe, b"%d\n" % number)


def test_commits_whose_answers_are_lost_are_not_made_again(postgresql_server: Server) -> None:
    url = postgresql_server.new_store()
    with open_store(url) as store:
        campaign = create(store, "cut")
        with (
            tempfile.TemporaryDirectory(prefix="fr-", dir="/tmp") as name,
            proxy_before(postgresql_server.folder, Path(name)) as proxy,
            open_store(url.replace(str(postgresql_server.folder), name)) as through,
        ):
            writer = drive(through, campaign, pid=1)
            for number in range(ROUNDS):
                proxy.cut_next_commit = True
                writer.event("cut", number=number)
            assert proxy.cuts == ROUNDS
        told = [event.data["number"] for event in store.events(campaign) if event.kind == "cut"]
        assert told == list(range(ROUNDS))
