"""Ray from the side of the driver, which does not import it: a look at a cluster, and an allocation
of its nodes.

Processes of their own do both: see `ray_view.py` and `ray_holder.py`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.backends import (
    LOGGER,
    Backend,
    HeldAllocation,
    NodeLost,
    Placed,
)
from frontrunner.evaluators.nodes.child_processes import start_child
from frontrunner.evaluators.nodes.environment import Allocation
from frontrunner.evaluators.nodes.settings import (
    RAY_AUTO,
    RAY_LOCAL,
    DispatchSettings,
    NodeSource,
    why_unreachable,
)
from frontrunner.evaluators.runs.files import tail
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import bad_value

HOLDER = "frontrunner.evaluators.nodes.ray_holder"
VIEW = "frontrunner.evaluators.nodes.ray_view"
ONLY_CONNECT = "--only-connect"
POLL_S = 0.05
CONNECT_S = 60.0
"""How long a holder may take to connect, or to start a local cluster."""
VIEW_TIMEOUT_S = 120.0
PATIENCE_S = 300.0
"""Assumed: how long a Ray cluster may be away while it is started again."""
RETRY_S = 3.0
CLOSE_S = 10.0
AUTH_MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
REFUSED = "InvalidAuthToken"


def ray_environment(address: str, refused: str = "") -> dict[str, str]:
    """Return the environment of a process that connects to Ray, which has `refused` the last one
    for this reason.

    `ray start` enables tokens where it finds one, and connecting to an address does so only if told
    to. With a token on a cluster without, actors die at once: Ray's calls to the driver are
    refused. So a token is used once it is missed.
    """
    given = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    file = Path(given.get(TOKEN_PATH) or Path.home() / ".ray" / "auth_token")
    if address == RAY_LOCAL or AUTH_MODE in given or not (TOKEN in given or file.is_file()):
        return given
    if REFUSED in refused:
        return given | {AUTH_MODE: "token"}
    return given | {
        AUTH_MODE: "disabled",
        "RAY_NUM_REDIS_GET_RETRIES": "2",
    }  # of connecting; 20 take as many seconds


def look_at_ray(address: str, *options: str) -> Mapping[str, Any] | str:
    """Return a cluster's nodes as `ray_view.py` prints them, or why it could not be looked at."""
    if (why := why_unreachable(address)) is not None:
        return why
    found = _looked(address, options, ray_environment(address))
    if isinstance(found, str) and REFUSED in found:
        found = _looked(address, options, ray_environment(address, refused=found))
    return found


def _looked(
    address: str, options: Sequence[str], environment: Mapping[str, str]
) -> Mapping[str, Any] | str:
    command = [sys.executable, "-P", "-m", VIEW, address, *options]
    timeout_s = CONNECT_S if ONLY_CONNECT in options else VIEW_TIMEOUT_S
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"it did not respond within {timeout_s:g} s"
    for line in done.stdout.splitlines():
        if line.startswith('{"'):
            found: dict[str, Any] = json.loads(line)
            return str(found["failed"]) if "failed" in found else found
    return (done.stderr.strip().splitlines() or ["no output"])[-1]


class RayAllocation(HeldAllocation):
    """Nodes that a holder process keeps; those that Ray loses leave it, and others may take their
    places.
    """

    _refused = ""

    def _run(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self.queued_s = began_s = time.monotonic()
            while True:
                why = self._hold()
                if REFUSED in why and not self._refused:
                    self._refused = why
                    continue
                if (
                    self.job_id is not None
                    or self._is_unwanted.is_set()
                    or time.monotonic() - began_s > PATIENCE_S
                ):
                    break
                self.waits_for = why
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
                env=ray_environment(self._order["address"], refused=self._refused),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # signals of the terminal are for the driver to handle
            )
        try:
            return (
                self._serve(pipe)
                or f"{self._title} has ended: Ray: {tail(log, 1) or 'the connection was lost'}"
            )
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
        """Pass requests on and note what the holder reports, until it ends; return why, where that
        is known.
        """
        began_s, running = time.monotonic(), dict[str, Placed]()
        while not self._is_unwanted.is_set():
            with contextlib.suppress(queue.Empty, OSError):
                while True:
                    placed = self._requests.get_nowait()
                    running[str(placed.step)], placed.task = placed, Future()
                    pipe.send_bytes(
                        json.dumps({"start": str(placed.step), "nodes": placed.nodes}).encode()
                    )
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


class RayCluster(Backend):
    """Nodes of a Ray cluster."""

    package, extra, title = "ray", "ray", "Ray"
    ends_with_driver = True

    def source(
        self, settings: DispatchSettings, cluster: Cluster, job: Allocation | None
    ) -> NodeSource:
        """Return how nodes are requested."""
        del job
        nodes = settings.nodes_per_allocation or cluster.nodes
        allocations = settings.allocations or 1
        if settings.address == RAY_LOCAL:
            stated = (
                "cluster.nodes"
                if settings.nodes_per_allocation is None
                else "dispatch.nodes_per_allocation"
            )
            for key, value in ((stated, nodes), ("dispatch.allocations", allocations)):
                if value > 1:
                    expected = '1 with dispatch.address = "local", a Ray cluster of this machine'
                    raise bad_value(key, value, f"{expected} alone")
        kind = "CPU" if cluster.backend == "cpu" else "GPU"
        if kind in settings.resources:
            raise bad_value(
                f"dispatch.resources.{kind}",
                settings.resources[kind],
                "no entry: cluster.devices_per_node is it",
            )
        return NodeSource(
            backend="ray",
            nodes=nodes,
            allocations=allocations,
            launcher="none",
            settings=settings,
            node_resources={kind: float(cluster.devices_per_node), **settings.resources},
        )

    def request(self, source: NodeSource, name: str, folder: Path) -> HeldAllocation:
        """Request a placement group."""
        return RayAllocation(source, name, folder)

    def check(self, settings: DispatchSettings) -> None:
        """Raise `InvalidInput` if there is no Ray cluster at the address that a campaign names."""
        address = settings.address or RAY_AUTO
        if address != RAY_LOCAL and isinstance(why := look_at_ray(address, ONLY_CONNECT), str):
            hint = "start one (`ray start`), or correct the address"
            expected = f"the address of a Ray cluster; {why}"
            raise bad_value("dispatch.address", address, expected, hint=hint)


RAY_CLUSTER = RayCluster()
