"""Child processes that outlive the service: start them, and identify them before they are signaled."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from frontrunner.config.settings import STORE_VARIABLE
from frontrunner.server.auth import TOKEN_VARIABLE
from frontrunner.server.errors import from_table
from frontrunner.spaces.errors import FrontrunnerError

CHILD = "frontrunner.server.child"
OUR_MODULES = frozenset({"frontrunner", "frontrunner.cli", CHILD})
CLOCK_TOLERANCE_S = 1.0
MOST_ANSWER_BYTES = 65_536


class Starter:
    """Starts children in sessions of their own, so that signals to the service do not reach them."""

    def __init__(self, store_url: str, log_folder: Path, answer_s: float) -> None:
        self._store_url = store_url
        self._log_folder = log_folder
        self._answer_s = answer_s
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, arguments: Sequence[str], body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Start a child and return its report, with its `pid`; its later output goes to a log.

        Raises the error that the child reports, and `FrontrunnerError` where it reports nothing in time.
        """
        self.running_pids()
        self._log_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self._log_folder / f"{arguments[0]}-{uuid.uuid4().hex}.log"
        with log.open("xb") as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", CHILD, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=self._environment(),
                start_new_session=True,
            )
        self._children.append(child)
        try:
            return _answered(self._talk(child, body)) | {"pid": child.pid}
        except TimeoutError:
            os.killpg(child.pid, signal.SIGKILL)
            raise FrontrunnerError(
                f"the child process reported nothing within {self._answer_s:g} s", hint=f"see {log}"
            ) from None

    def running_pids(self) -> set[int]:
        """Return the children of this service that still run, and collect those that have ended."""
        self._children = [child for child in self._children if child.poll() is None]
        return {child.pid for child in self._children}

    def _environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
        return kept | {STORE_VARIABLE: self._store_url}

    def _talk(self, child: subprocess.Popen[bytes], body: Mapping[str, object] | None) -> bytes:
        """Send the body, and read the one line of the report."""
        give_up = time.monotonic() + self._answer_s
        if child.stdin is None or child.stdout is None:
            raise ValueError("the child was started without pipes")
        with child.stdin, child.stdout:
            with suppress(BrokenPipeError):  # it has ended; its report, if any, is the reason
                child.stdin.write(json.dumps(body or {}).encode())
                child.stdin.close()
            answer = b""
            while not answer.endswith(b"\n") and len(answer) < MOST_ANSWER_BYTES:
                ready, _, _ = select.select([child.stdout], [], [], max(0.0, give_up - time.monotonic()))
                if not ready:
                    raise TimeoutError
                part = os.read(child.stdout.fileno(), MOST_ANSWER_BYTES)
                if not part:
                    break
                answer += part
        return answer


def _answered(line: bytes) -> dict[str, Any]:
    if not line:
        raise FrontrunnerError("the child process ended without a report", hint="see the service's logs")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise from_table(answer["error"])
    return answer


def our_process(pid: int, *, since: str | None) -> psutil.Process | None:
    """Return the process with this id if it is a `frontrunner` of this user that began before `since` (ISO 8601).

    Return None for a later one, whose id was reused, and for any other program. `since` None means that the id is known
    not to have been reused.
    """
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            began_s, owner, command = process.create_time(), process.uids().real, process.cmdline()
    except psutil.Error:
        return None
    is_later = since is not None and began_s > datetime.fromisoformat(since).timestamp() + CLOCK_TOLERANCE_S
    return None if is_later or owner != os.getuid() or not _is_ours(command) else process


def _is_ours(command: Sequence[str]) -> bool:
    """Return whether a command line runs `frontrunner`, by python -m or by its script."""
    by_module = any(flag == "-m" and name in OUR_MODULES for flag, name in pairwise(command))
    return by_module or any(Path(word).name == "frontrunner" for word in command[:2])
