"""What is left of a program that does everything to stay: nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from frontrunner.evaluators.nodes.child_processes import start_child
from frontrunner.evaluators.nodes.control_group import ControlGroup

CHAIN = """
import os, time
while True:  # each process starts its successor, in a session of its own, and ends
    if os.fork():
        os._exit(0)
    os.setsid()
    time.sleep(0.001)
"""
KEEPER = """
import subprocess, sys, time
from frontrunner.evaluators.nodes.child_processes import adopt_orphans, kill_descendants
adopt_orphans()
started = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.DEVNULL)
started.wait()
print(len(kill_descendants([started], timeout_s=5)))
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A word on the command lines of a test's processes, of which none is left in the end."""
    found = uuid4().hex
    yield found
    while left := named(found):
        for process in left:
            with suppress(psutil.Error):
                process.kill()


def named(word: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if word in (process.info["cmdline"] or ()) and process.info["status"] != "zombie"
    ]


def test_a_chain_of_processes_that_each_start_the_next_is_ended(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", KEEPER, CHAIN, name],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "0\n"
    assert named(name) == []


def test_a_control_group_ends_with_all_that_is_in_it(name: str) -> None:
    group = ControlGroup.create()
    if group is None:
        pytest.skip("this process may not create control groups (cgroup v2)")
    process = start_child([sys.executable, "-c", "import time; time.sleep(600)", name], group=group)
    group.kill()
    assert process.wait(timeout=60) == -9
    group.remove()
    assert not Path(group._path).exists()
