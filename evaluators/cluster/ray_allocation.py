"""Allocation of nodes of a Ray cluster, from the side of the driver, which does not import Ray: see `ray_holder.py`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from typing import Any

from frontrunner.evaluators.cluster.allocations import LOGGER, HeldAllocation, NodeLost, Placed
from frontrunner.evaluators.cluster.settings import RAY_AUTO
from frontrunner.evaluators.probe.files import tail
from frontrunner.evaluators.probe.processes import start_child

HOLDER = "frontrunner.evaluators.cluster.ray_holder"
POLL_S = 0.05
CONNECT_S = 60.0
"""How long a holder may take to connect, or to start a local cluster."""
PATIENCE_S = 300.0
"""Assumed: how long a Ray cluster may be away while it is started again."""
RETRY_S = 3.0
CLOSE_S = 10.0


class RayAllocation(HeldAllocation):
    """Nodes that a holder process keeps; those that Ray loses leave it, and others may take their places."""

    def _run(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.queued_s = began_s = time.monotonic()
            while True:
                why = self._hold()
                if self.job_id is not None or self._is_unwanted.is_set() or time.monotonic() - began_s > PATIENCE_S:
                    break
                LOGGER.warning("%s: %s", self.name, why)
                self._is_unwanted.wait(RETRY_S)
            self._note_end(why)
        except Exception as error:  # the driver gets it, and the log its traceback
            LOGGER.exception("allocation %s", self.name)
            self._note_end(f"{self.name} could not be kept: {type(error).__name__}: {error}")

    def _hold(self) -> str:
        """Hold nodes until they are unwanted or lost; return why."""
        pipe, theirs = Pipe()
        log = self._folder / "ray.log"
        with theirs, log.open("ab") as output:
            process = start_child(
                [sys.executable, "-P", "-m", HOLDER, str(theirs.fileno()), json.dumps(self._order)],
                parent_death=signal.SIGKILL,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the driver to handle
            )
        try:
            return self._serve(pipe) or f"{self._title} has ended: Ray: {tail(log, 1) or 'the connection was lost'}"
        finally:
            pipe.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=CLOSE_S if self.ready_s is not None else 0)
            process.kill()
            process.wait()

    @property
    def _order(self) -> dict[str, Any]:
        source = self._source
        return {
            "address": source.settings.address or RAY_AUTO,
            "nodes": source.nodes,
            "resources": dict(source.node_resources),
            "shares_files": source.settings.shares_files,
            "visible": str(self._folder),
        }

    @property
    def _title(self) -> str:
        return f"allocation {self.job_id}" if self.job_id is not None else "the allocation"

    def _serve(self, pipe: Connection) -> str | None:
        """Pass requests on and note what the holder reports, until it ends; return why, where that is known."""
        began_s, running = time.monotonic(), dict[str, Placed]()
        while not self._is_unwanted.is_set():
            with contextlib.suppress(queue.Empty, OSError):
                while True:
                    placed = self._requests.get_nowait()
                    running[str(placed.step)], placed.task = placed, Future()
                    pipe.send_bytes(json.dumps({"start": str(placed.step), "nodes": placed.nodes}).encode())
            if self.job_id is None and time.monotonic() - began_s > CONNECT_S:
                return f"Ray at {self._order['address']} did not respond within {CONNECT_S:g} s"
            try:
                if not pipe.poll(POLL_S):
                    continue
                message = json.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                return None
            if "failed" in message:
                return f"Ray at {self._order['address']}: {message['failed']}"
            self._note(message, running)
        return f"{self.name} was given back"

    def _note(self, message: dict[str, Any], running: dict[str, Placed]) -> None:
        if "job" in message:
            self.job_id = message["job"]
        elif "waits" in message:
            self.waits_for = message["waits"]
            LOGGER.warning("%s waits: %s", self.name, self.waits_for)
        elif "nodes" in message:
            is_whole = len(message["nodes"]) == self._source.nodes
            if self.ready_s is None and is_whole:
                self.ready_s = time.monotonic()
            self.hosts, self.nodes = tuple(message["nodes"]), len(message["nodes"])
            LOGGER.info("%s has %s", self.name, ", ".join(message["nodes"]) or "no node")
        elif (task := running.pop(message["ended"]).task) is not None:
            if message["lost"] is None:
                task.set_result(0)
            else:
                task.set_exception(NodeLost(message["lost"]))
