"""Holder of one allocation on Ray, `python -P -m frontrunner.evaluators.nodes.ray_holder FD
ORDER`: a Ray driver.

It reserves nodes by a placement group, one bundle per node, keeps an agent on each, and starts
steps on them. It is a process of its own because Ray ends one that loses its cluster. Ray ends what
it holds when it ends, and it ends with the driver that started it. Messages are JSON, on a pipe;
`ORDER` is a `HoldOrder`:

    in    {"start": step.json, "nodes": n} out   {"job": id}   {"waits": why}   {"nodes": [names]}
    {"failed": why}   {"ended": step.json, "lost": why}

`nodes` names those whose agents are ready, whenever that changes. Agents that Ray loses are
replaced, on another node if Ray has one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import sys
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from textwrap import shorten
from typing import Any
from uuid import uuid4

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from frontrunner.evaluators.nodes.agent import StepFolder
from frontrunner.evaluators.nodes.ray_agent import (
    FILES_GROUP,
    LIFE_GROUP,
    Change,
    RayAgent,
    data_files,
    own_versions,
)
from frontrunner.evaluators.nodes.settings import (
    RAY_LOCAL,
    has_resources,
    in_words,
    why_unreachable,
)
from frontrunner.evaluators.runs.files import read_json
from frontrunner.evaluators.runs.run_folder import MEETING, STEP
from frontrunner.spaces.document import write_bytes

POLL_S = 0.05
BEAT_S = 1.0
"""Between two signs of life to each agent."""
EXCHANGE_S = 0.1
"""Between two exchanges of files with a node that does not see the driver's."""
SAY_S = 20.0
"""After this time without nodes the driver gets to know what there is."""
RETRY_S = 2.0
LONGEST_RETRY_S = 30.0
CLOSE_S = 5.0
MAX_FAILED_AGENTS = 3
"""Agents in a row that ended before they were ready, before all nodes ever were: something is wrong
with them.
"""
CONNECT_ERRORS = (RayError, ConnectionError, RuntimeError, ValueError)
"""What connecting to a cluster raises."""
MOST_CHARACTERS = 300
"""Of an error's text."""
_REASON = re.compile(r" because |\w+Error: ")
_UNTOLD = re.compile(
    r"^The actor \w+ is unavailable: "
    r"| Node Id: [0-9a-f]+"
    r"|,? ?\b\w+_id=[0-9a-f]{16,}"
    r"| \b[0-9a-f]{16,}\b"
    r"| Some common causes include: .*"
    r"| The task may or may not have been executed on the actor\."
)
"""What Ray's errors say beside the cause: ids, repetitions and guesses."""
CHUNK_BYTES = 2**22
"""Of a data file that is sent. Through a slow connection (`ray://`) signs of life wait for it."""


@dataclass(frozen=True, kw_only=True)
class HoldOrder:
    """What to hold: `nodes` nodes with `resources` each; `visible` is a folder that they see if
    they share files.
    """

    address: str
    nodes: int
    resources: dict[str, float]
    shares_files: bool
    visible: str


class Unfit(Exception):
    """The cluster, or its nodes, cannot be used: the message says why."""


@dataclass(kw_only=True, eq=False)
class Node:
    """A bundle of the placement group and the agent on it."""

    index: int
    agent: Any = None
    hello: Any = None
    life: Any = None
    name: str | None = None
    failures: int = 0
    again_s: float = 0.0
    step: RunningStep | None = None
    ran: Any = None
    exchange: Any = None
    exchanged_s: float = 0.0


@dataclass(kw_only=True, eq=False)
class RunningStep:
    """A step, and which of its nodes have not ended their part."""

    path: Path
    nodes: list[Node]
    left: set[int] = field(default_factory=set)
    lost: str | None = None


class Holder:
    """Keeps the nodes, and runs steps on them, until the pipe closes."""

    def __init__(self, order: HoldOrder, pipe: Connection) -> None:
        self._order = order
        self._pipe = pipe
        self._nodes = [Node(index=index) for index in range(order.nodes)]
        self._steps: list[RunningStep] = []
        self._has_begun = False
        self._group: Any = None
        self._is_closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, daemon=True)

    def connect(self) -> None:
        """Connect to the cluster, or start a local one; raise `Unfit` if that is impossible."""
        address = self._order.address
        if (why := why_unreachable(address)) is not None:
            raise Unfit(why)
        local: dict[str, Any] = {}
        if address == RAY_LOCAL:
            cpus = max(os.cpu_count() or 1, int(self._order.resources.get("CPU", 0)))
            local = {"include_dashboard": False, "num_cpus": cpus}
        try:
            ray.init(
                address,
                namespace=str(uuid4()),
                log_to_driver=False,
                logging_level=logging.ERROR,
                **local,
            )
        except CONNECT_ERRORS as error:
            raise Unfit(brief(error)) from error
        self._report(job=ray.get_runtime_context().get_job_id())

    def serve(self) -> None:
        """Reserve nodes, and serve until the pipe closes."""
        say_s = time.monotonic() + SAY_S
        bundles = [dict(self._order.resources) for _ in self._nodes]
        self._group = placement_group(bundles, strategy="STRICT_SPREAD")
        self._heart.start()
        while self._receive():
            for node in self._nodes:
                self._look(node)
            if not self._has_begun and time.monotonic() > say_s:
                say_s = math.inf
                self._report(waits=self._why_waiting())
            for step in [one for one in self._steps if not one.left]:
                self._steps.remove(step)
                for node in step.nodes:
                    node.step = None
                self._report(ended=str(step.path), lost=step.lost)

    def _why_waiting(self) -> str:
        needed = self._order.resources
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        fitting = sum(has_resources(node, needed) for node in nodes)
        what = f"{fitting} of Ray's {len(nodes)} nodes have {in_words(needed)}"
        return f"{what}, in use or not; {len(self._nodes)} are needed"

    def close(self) -> None:
        """End the agents, and give the nodes back."""
        self._is_closing.set()
        self._heart.join()
        agents = [node.agent for node in self._nodes if node.name is not None]
        with contextlib.suppress(RayError):
            ended = [agent.close.remote() for agent in agents]
            if ended:
                ray.wait(ended, num_returns=len(ended), timeout=CLOSE_S)
        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()

    def _receive(self) -> bool:
        timeout_s = POLL_S
        while self._pipe.poll(timeout_s):
            timeout_s = 0.0
            try:
                message = json.loads(self._pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                return False
            self._start(Path(message["start"]), message["nodes"])
        return True

    def _report(self, **message: Any) -> None:
        with contextlib.suppress(OSError):  # the driver is gone
            self._pipe.send_bytes(json.dumps(message).encode())

    # Agents

    def _beat(self) -> None:
        """Send the agents signs of life, in a thread of its own: sending files takes long."""
        while not self._is_closing.wait(BEAT_S):
            for node in self._nodes:
                if (agent := node.agent) is not None:
                    with contextlib.suppress(Exception):  # `serve` meets it too, and handles it
                        agent.beat.remote()

    def _look(self, node: Node) -> None:
        now = time.monotonic()
        if node.agent is None:
            if now >= node.again_s:
                self._enlist(node)
        elif node.name is None:
            self._welcome(node)
        else:
            try:
                if is_done(node.life):
                    ray.get(node.life)
                if node.step is not None and node.index in node.step.left:
                    self._follow(node, node.step)
            except (RayError, OSError) as error:
                self._lose(node, error)

    def _enlist(self, node: Node) -> None:
        resources = dict(self._order.resources)
        cpus, gpus = resources.pop("CPU", 0.0), resources.pop("GPU", 0.0)
        make = ray.remote(concurrency_groups={FILES_GROUP: 1, LIFE_GROUP: 2})(RayAgent)  # type: ignore[call-overload]
        place = PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=node.index
        )
        node.agent = make.options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=0, scheduling_strategy=place
        ).remote()
        node.hello = node.agent.hello.remote(self._order.visible)

    def _welcome(self, node: Node) -> None:
        if not is_done(node.hello):
            return
        try:
            found = ray.get(node.hello)
        except RayError as error:
            self._forget(node)
            node.failures += 1
            if node.failures >= MAX_FAILED_AGENTS and not self._has_begun:
                raise Unfit(f"agents cannot be started on Ray's nodes: {brief(error)}") from error
            node.again_s = time.monotonic() + min(
                LONGEST_RETRY_S, RETRY_S * 2 ** (node.failures - 1)
            )
            return
        node.life = node.agent.live.remote()
        node.failures = 0
        name = node_name(found["host"], found["node_id"])
        if any(other.name == name for other in self._nodes):  # pods of one machine
            name = f"{name}-{found['node_id'][:8]}"
        node.name = name
        for package, ours in own_versions().items():
            theirs = found["versions"].get(package, "is missing")
            if theirs != ours:
                both = f"{package} {theirs}, and the driver {ours}"
                raise Unfit(f"node {name} has {both}: install the same version")
        if self._order.shares_files and not found["sees_files"]:
            raise Unfit(
                f"node {name} does not see {self._order.visible}: name a shared folder in"
                " store.run_folder, or set dispatch.shared_files = false"
            )
        self._report_nodes()

    def _report_nodes(self) -> None:
        names = [node.name for node in self._nodes if node.name is not None]
        self._has_begun = self._has_begun or len(names) == len(self._nodes)
        self._report(nodes=names)

    def _forget(self, node: Node) -> None:
        with contextlib.suppress(RayError, ValueError):
            ray.kill(node.agent)
        node.agent = node.hello = node.life = node.name = node.ran = node.exchange = None

    def _lose(self, node: Node, error: Exception) -> None:
        """Give up a node, and with it the step on it."""
        why = f"node {node.name} was lost: {brief(error)}"
        step = node.step
        self._forget(node)
        node.again_s = time.monotonic() + RETRY_S
        if step is not None:
            step.lost = step.lost or why
            step.left.discard(node.index)
            with contextlib.suppress(OSError):
                StepFolder(step.path.parent).cancel()
        self._report_nodes()

    # Steps

    def _start(self, path: Path, count: int) -> None:
        free = [node for node in self._nodes if node.name is not None and node.step is None]
        if hosts := (read_json(path) or {}).get("hosts"):  # a step that names its nodes
            free = [node for name in hosts for node in free if node.name == name]
        if len(free) < count:
            why = f"{count} nodes are needed, and {len(free)} are left"
            self._report(ended=str(path), lost=why)
            return
        free = free[:count]
        step = RunningStep(path=path, nodes=free)
        sent = None
        data: dict[str, list[str]] = {}
        if not self._order.shares_files:
            try:
                sent = {name: (path.parent / name).read_bytes() for name in (STEP, "job.json")}
                files = [file["path"] for file in data_files(json.loads(sent["job.json"]))]
                data = {file: self._send_data(file, free) for file in files}
            except (RayError, OSError) as error:
                self._report(ended=str(path), lost=f"its files could not be sent: {brief(error)}")
                return
        for number, node in enumerate(free):
            node.step, node.exchange = step, None
            step.left.add(node.index)
            here = {file: places[number] for file, places in data.items()}
            node.ran = node.agent.run.remote(str(path.parent), number, node.name, sent, here)
        self._steps.append(step)

    def _follow(self, node: Node, step: RunningStep) -> None:
        has_ended = is_done(node.ran)
        if not self._order.shares_files:
            self._exchange(node, step, at_last=has_ended)
        if has_ended:
            ray.get(node.ran)
            step.left.discard(node.index)

    def _exchange(self, node: Node, step: RunningStep, *, at_last: bool) -> None:
        """Exchange files with a node: every `EXCHANGE_S`, and once its part has ended."""
        folder = step.path.parent
        if node.exchange is not None:
            if not at_last and not is_done(node.exchange):
                return
            apply_changes(folder, ray.get(node.exchange))
            node.exchange = None
        if not at_last and time.monotonic() - node.exchanged_s < EXCHANGE_S:
            return
        node.exchanged_s = time.monotonic()
        node.exchange = node.agent.exchange.remote(
            str(folder),
            cancelled=StepFolder(folder).is_cancelled,
            meeting=(folder / MEETING).read_bytes(),
            at_last=at_last,
        )
        if at_last:
            apply_changes(folder, ray.get(node.exchange))
            node.exchange = None

    def _send_data(self, path: str, nodes: list[Node]) -> list[str]:
        """Return where each node has a data file, which is sent to those that lack it."""
        size = Path(path).stat().st_size
        places = ray.get([node.agent.data_here.remote(path, size) for node in nodes])
        lacking = [node for node, place in zip(nodes, places, strict=True) if place is None]
        if not lacking:
            return list(places)
        with Path(path).open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                stored = ray.put(chunk)
                ray.get([node.agent.receive.remote(path, stored) for node in lacking])
                for node in self._nodes:
                    if node.step is not None:  # its driver waits for what its ranks report
                        self._look(node)
        return list(ray.get([node.agent.data_here.remote(path, size) for node in nodes]))


def is_done(reference: Any) -> bool:
    """Return whether a call has returned, or failed."""
    return bool(ray.wait([reference], timeout=0)[0])


def node_name(host: str, node_id: str) -> str:
    """Return a node's name: its host's, with the beginning of Ray's id where several nodes are on
    one host.
    """
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    hosts = [node["NodeManagerHostname"] for node in nodes if node["Alive"]]
    return host if hosts.count(host) <= 1 else f"{host}-{node_id[:8]}"


def apply_changes(folder: Path, changes: list[Change]) -> None:
    """Take over what has changed in a node's copy of a run folder."""
    for name, offset, content in changes:
        if offset is None:
            write_bytes(folder / name, content)
            continue
        with (folder / name).open("ab") as file:
            file.truncate(offset)
            file.write(content)


def brief(error: BaseException) -> str:
    """Return what an error of Ray says of its cause, in one line without ids."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    reasons = [number for number, line in enumerate(lines) if _REASON.search(line)]
    told = lines[reasons[-1] : reasons[-1] + 2] if reasons else lines[:1]
    return shorten(_UNTOLD.sub("", " ".join(told)), MOST_CHARACTERS, placeholder=" ...")


def main() -> None:
    """Hold nodes for the driver at the other end of the pipe."""
    pipe = Connection(int(sys.argv[1]))
    holder = Holder(HoldOrder(**json.loads(sys.argv[2])), pipe)
    try:
        holder.connect()
        holder.serve()
        holder.close()
    except Unfit as why:
        with contextlib.suppress(OSError):
            pipe.send_bytes(json.dumps({"failed": str(why)}).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # Ray's threads have nothing left to do


if __name__ == "__main__":
    main()
