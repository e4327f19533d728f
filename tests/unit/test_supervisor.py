"""The supervisor of a command: how it ends what it has started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

from frontrunner.evaluators.nodes.supervisor import NOT_STARTED, CommandRun, EndRequest, Place
from frontrunner.evaluators.programs.command_log import Log

TALKATIVE = """
import os, signal, sys, time
def stop(*_):
    print("x" * 99, *["x" * 99] * 4000, sep=chr(10), flush=True)
    print("stored", flush=True)
    os._exit(3)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(600)
"""
"""On a SIGTERM it prints more than a pipe holds, before it ends."""
HERE = Place(node=0, nodes=("here",), address="127.0.0.1", port=1)


class OnceLogged:
    """The request to end a command, which comes once its log has a word."""

    def __init__(self, log: Path, word: str) -> None:
        self._log, self._word = log, word

    @property
    def is_there(self) -> bool:
        return self._word in self._log.read_text()


def order(where: Path, *arguments: str) -> dict[str, Any]:
    return {
        "arguments": list(arguments),
        "environment": {},
        "passed": [],
        "folder": str(where),
        "devices": 1,
        "devices_per_node": 1,
        "starts_ranks": False,
        "stop_file": None,
    }


def followed(folder: Path, chosen: dict[str, Any], word: str) -> tuple[CommandRun, str]:
    """A command that was followed to its end, after it was to end once it has logged a word, and
    its log.
    """
    log = folder / "command.log"
    run = CommandRun(chosen, writer := Log(log), None)
    run.start(folder, HERE)
    run.follow(cast("EndRequest", OnceLogged(log, word)))
    writer.close()
    return run, log.read_text()


def test_a_command_that_prints_much_while_it_ends_has_the_time_to(tmp_path: Path) -> None:
    run, log = followed(tmp_path, order(tmp_path, sys.executable, "-c", TALKATIVE), "ready")
    assert run.status == 3
    assert log.endswith(" stored\n")


def test_a_command_whose_folder_is_missing_says_so(tmp_path: Path) -> None:
    chosen = order(tmp_path / "gone", sys.executable, "-c", "")
    run, log = followed(tmp_path, chosen, "never")
    assert run.status == NOT_STARTED
    assert log.endswith(f"{tmp_path / 'gone'}: No such file or directory\n")
