"""Roll calls of real ranks, some of which a test stops, kills or slows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from frontrunner.evaluators.diagnostics.doctor.collective_test import RANK_MODULE
from support.campaigns import environment, marked, wait_for


def start_test(ranks: int, deadline_s: float, folder: Path) -> subprocess.Popen[str]:
    """`frontrunner doctor --run`, as a process of its own."""
    command = [sys.executable, "-P", "-m", "frontrunner.cli", "doctor", "--run", "--json"]
    return subprocess.Popen(
        [*command, "--ranks", str(ranks), "--deadline", str(deadline_s)],
        cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ranks_below(pid: int, count: int) -> list[psutil.Process]:
    """The ranks that a process started, in their order, once all are there."""

    def found() -> list[psutil.Process]:
        children = psutil.Process(pid).children(recursive=True)
        own = [child for child in children if RANK_MODULE in child.cmdline()]
        return own if len(own) == count else []

    ranks: list[psutil.Process] = wait_for(found)
    return sorted(ranks, key=lambda process: process.pid)


def ranks_of_cluster(slurm_conf: str) -> list[psutil.Process]:
    """The ranks that run on a Slurm cluster, by the file that its steps carry in their
    environment.
    """
    return [
        process for process in marked("SLURM_CONF", slurm_conf) if RANK_MODULE in process.cmdline()
    ]


@contextmanager
def slowed(process: psutil.Process, *, runs_s: float, stands_s: float) -> Iterator[None]:
    """A process that is stopped most of the time, again and again."""
    over = threading.Event()

    def work() -> None:
        with suppress(psutil.NoSuchProcess):
            while not over.is_set():
                process.suspend()
                time.sleep(stands_s)
                process.resume()
                over.wait(runs_s)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
