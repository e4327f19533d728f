"""This machine as the node of a campaign, with a fork server that behaves as a test wants it to."""

from __future__ import annotations

from pathlib import Path

import pytest

from frontrunner.evaluators.nodes import child_processes, local
from frontrunner.evaluators.nodes.fork_server import Report, ServerLost, ServerSettings, Started
from frontrunner.evaluators.nodes.local import MAX_FAILED_STARTS, ThisMachine
from frontrunner.spaces.errors import FrontrunnerError


class Server:
    """A fork server that is not ready yet, and reports the same again and again."""

    is_ready = False
    told: Report

    def __init__(self, *_: object) -> None:
        pass

    def reports(self, timeout_s: float) -> list[Report]:
        del timeout_s
        return [self.told]

    def close(self) -> None:
        pass


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ThisMachine:
    monkeypatch.setattr(local, "ForkClient", Server)
    return ThisMachine(tmp_path, ServerSettings())


def test_processes_of_an_order_that_was_forgotten_before_they_started_are_killed(
    machine: ThisMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(child_processes, "kill_rank", killed.append)
    monkeypatch.setattr(Server, "told", Started("forgotten", (7, 0, 8)), raising=False)
    machine.poll(0.0)
    assert killed == [7, 8]


def test_a_server_that_is_killed_whenever_it_starts_ends_the_campaign(
    machine: ThisMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "told", ServerLost(), raising=False)
    for _ in range(MAX_FAILED_STARTS - 1):
        machine.poll(0.0)
    with pytest.raises(FrontrunnerError, match="killed 3 times in a row while it started"):
        machine.poll(0.0)
