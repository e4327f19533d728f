"""Fork server: a process that has imported torch once and forks the ranks of each probe.

A probe's ranks start warm and start clean: whatever they break ends with them. The server is single-threaded, holds no
process group and never touches an accelerator, so that forking it is safe. Its protocol is JSON lines:

    in    {"start": token, "job": path, "world_size": n, "ranks": [first, count], "logs": folder,
           "scratch": folder, if any, "meeting": folder, if other nodes have more of the ranks}
    out   {"ready": pid}   {"started": token, "pids": [...]}   {"exited": token, "rank": r, "status": s}

`status` is as in `subprocess`: the exit code, or minus the signal. Ranks die with the server, and the server ends,
killing them and removing their scratch folders, when its input closes: when its driver is gone. Its arguments are a
folder of its own for rendezvous, which it removes in the end, and the engines to import.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from frontrunner.evaluators.probe.processes import die_with_parent, kill_group, kill_rank

START_FAILED = 120
"""Exit status of a rank that could not even read its job."""
POLL_S = 1.0
"""Between two checks for the driver while engines are imported."""


class ForkServer:
    """Server that reads requests from `requests_fd`, writes reports to `reports_fd`, and owns the ranks it forked."""

    def __init__(self, requests_fd: int, reports_fd: int, rendezvous: Path) -> None:
        self.requests_fd = requests_fd
        self.reports_fd = reports_fd
        self.rendezvous = rendezvous
        self.ranks: dict[int, tuple[str, int]] = {}
        self.scratch: dict[str, Path] = {}
        self.pid = os.getpid()
        self._unread = b""

    def serve(self) -> None:
        """Serve until the input closes, then kill every rank that is left."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler must exist for the wake-up byte to be written
        signal.set_wakeup_fd(wake_write)
        selector = selectors.DefaultSelector()
        selector.register(self.requests_fd, selectors.EVENT_READ)
        selector.register(wake_read, selectors.EVENT_READ)
        self._report({"ready": os.getpid()})
        is_open = True
        while is_open:
            for key, _ in selector.select():
                if key.fd == wake_read:
                    os.read(wake_read, 4096)
                else:
                    is_open = self._read_requests()
            self._reap()
        for pid in self.ranks:
            kill_rank(pid)
        for pid, (token, _) in self.ranks.items():
            if token in self.scratch:  # which they may still write to
                os.waitpid(pid, 0)
        for folder in self.scratch.values():
            shutil.rmtree(folder, ignore_errors=True)

    def _read_requests(self) -> bool:
        data = os.read(self.requests_fd, 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._start(json.loads(line))
        return bool(data)

    def _start(self, request: dict[str, Any]) -> None:
        if "scratch" in request:
            self.scratch[request["start"]] = Path(request["scratch"])
        pids = []
        first, count = request["ranks"]
        for rank in range(first, first + count):
            pid = os.fork()
            if pid == 0:
                self._become_rank(request, rank)
            self.ranks[pid] = (request["start"], rank)
            pids.append(pid)
        self._report({"started": request["start"], "pids": pids})

    def _reap(self) -> None:
        while self.ranks:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            kill_group(ended.si_pid)  # before it is reaped: until then its id is not reused
            pid, status = os.waitpid(ended.si_pid, 0)
            token, rank = self.ranks.pop(pid)
            self._report({"exited": token, "rank": rank, "status": os.waitstatus_to_exitcode(status)})

    def _report(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(self.reports_fd, data) :]

    def _become_rank(self, request: dict[str, Any], rank: int) -> NoReturn:
        """Run one rank in the forked child; never returns."""
        status = START_FAILED
        try:
            die_with_parent(self.pid, signal.SIGKILL)
            os.setsid()  # a group of its own, so that whatever it starts can be killed with it
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _redirect_output(Path(request["logs"]) / f"rank-{rank}.log")
            os.close(self.requests_fd)
            os.close(self.reports_fd)
            status = _run(request, rank, self.rendezvous)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _run(request: dict[str, Any], rank: int, rendezvous: Path) -> int:
    from frontrunner.evaluators.trainer.entry import run_rank
    from frontrunner.evaluators.trainer.job import Job
    from frontrunner.evaluators.trainer.rendezvous import rendezvous_url, set_local_rank_env

    job = Job.from_json(Path(request["job"]).read_text(encoding="utf-8"))
    is_alone = "meeting" not in request
    init_method = f"file://{rendezvous / request['start']}" if is_alone else rendezvous_url(Path(request["meeting"]))
    first, count = request["ranks"]
    set_local_rank_env(rank - first, count)
    try:
        run_rank(job, rank=rank, world_size=request["world_size"], init_method=init_method, local_rank=rank - first)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _redirect_output(log: Path) -> None:
    """Send stdout and stderr to the rank's log, and read stdin from /dev/null."""
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.close(null_fd)


@contextlib.contextmanager
def _ended_with_driver(requests_fd: int, rendezvous: Path) -> Iterator[None]:
    """End this process when its driver ends meanwhile: imports take seconds, in which nobody reads requests.

    Use a timer's signal: a thread would have to be gone before ranks are forked, and `die_with_parent` would leave the
    folder behind.
    """
    requests = select.poll()
    requests.register(requests_fd, 0)  # a hang-up is always reported

    def look(*_: object) -> None:
        if requests.poll(0):
            shutil.rmtree(rendezvous, ignore_errors=True)
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.siginterrupt(signal.SIGALRM, False)  # noqa: FBT003 - no system call of a library is to fail for it
    signal.setitimer(signal.ITIMER_REAL, POLL_S, POLL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def main() -> None:
    """Serve the driver that started this process over duplicates of stdin and stdout.

    The originals are pointed at /dev/null and stderr, so that a library that prints cannot garble a report.
    """
    requests_fd, reports_fd = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles interrupts
    rendezvous, engines = Path(sys.argv[1]), sys.argv[2:]
    try:
        with _ended_with_driver(requests_fd, rendezvous):
            from frontrunner.evaluators.trainer.entry import preload

            preload(engines)
        ForkServer(requests_fd, reports_fd, rendezvous).serve()
    finally:
        shutil.rmtree(rendezvous, ignore_errors=True)
    os._exit(0)  # an orderly shutdown of torch takes a second, and nothing is left to do


if __name__ == "__main__":
    main()
