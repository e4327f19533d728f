"""Agent on a Ray node: an actor that runs the node agents of one step after the other, with warm
fork servers.

Ray pickles its calls: what crosses them is text, numbers and bytes. Where the node does not see the
driver's files the actor works on a copy of the run folder, and `exchange` passes on what changes.

The holder calls `beat` as a sign of life. A guard process ends an actor that gets none, and removes
its folder: see `ray_guard.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import ray

from frontrunner.evaluators.nodes.agent import AGENT, ProgramAgent, Step, StepFolder, agent_of
from frontrunner.evaluators.nodes.child_processes import Orphans
from frontrunner.evaluators.nodes.fork_server import ForkClient
from frontrunner.evaluators.nodes.ray_guard import PREFIX, start_guard
from frontrunner.evaluators.runs.files import write_json
from frontrunner.evaluators.runs.run_folder import CANCEL, MEETING, STEP, UNFINISHED
from frontrunner.spaces.document import write_bytes

POLL_S = 0.1
FILES_GROUP = "files"
LIFE_GROUP = "life"
"""Concurrency groups of the calls that must not wait for a step: those that pass on files, and
those that show that the actor or its holder lives.
"""
SILENCE_S = 5.0
"""An actor that has not heard from its holder for this long is ended. A cluster that has lost its
head does not end it.
"""
_GROWING = (".log", ".jsonl")

MUST_AGREE = ("frontrunner", "ray", "torch")
"""Packages of which driver and nodes need the same version."""
NODE_VARIABLE = "FRONTRUNNER_NODE"
"""The machine's name, where the host's name is a pod's."""

Change = tuple[str, int | None, bytes]
"""A file's name and content: from an offset on, or whole with None."""


def own_versions() -> dict[str, str]:
    """Return the versions of this process's packages that must agree; builds of one version may
    differ.
    """
    found = {}
    for name in MUST_AGREE:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def data_files(job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tables of a job's data files; none for a step."""
    return [job["data"], *job.get("more_data", ())] if "data" in job else []


class RunFolderCopy:
    """A run folder on the node's own disk; `changes` are what the driver's folder lacks."""

    def __init__(
        self, path: Path, original: str, sent: Mapping[str, bytes], data: Mapping[str, str]
    ) -> None:
        self.path = path
        self._original = original
        self._known: dict[str, tuple[int, int]] = {}
        self._beats = 0
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        StepFolder(path).prepare(json.loads(sent[STEP])["nodes"])
        for name, content in sent.items():
            table = json.loads(content)
            table["run_folder"] = str(path)
            if "lifeline" in table:
                table["lifeline"] = str(self.lifeline)
            for file in data_files(table):
                file["path"] = data[file["path"]]
            write_json(path / name, table)
            self._known[name] = self._state(path / name)
        self.beat()

    @property
    def lifeline(self) -> Path:
        """The copy of the driver's heartbeat file."""
        return self.path.with_name(f"{self.path.name}.lifeline")

    def beat(self) -> None:
        """Pass on the driver's sign of life."""
        self._beats += 1
        self.lifeline.write_text(str(self._beats), encoding="ascii")

    def put(self, name: str, content: bytes) -> None:
        """Take over a file of the driver's folder."""
        if (self.path / name).read_bytes() != content:
            write_bytes(self.path / name, content)
            self._known[name] = self._state(self.path / name)

    def changes(self, *, at_last: bool) -> list[Change]:
        """Return what has changed since the last call; files that are neither logs nor JSON only
        once all has ended.

        Nodes' reports come last, and are read first: they may state ends of ranks whose files must
        be there by then.
        """
        paths = [
            path
            for path in self.path.iterdir()
            if path.is_file() and not UNFINISHED.fullmatch(path.name)
        ]
        found: list[Change] = []
        for path in sorted(paths, key=lambda path: not path.name.startswith("node-")):
            with contextlib.suppress(FileNotFoundError):
                if at_last or path.suffix in (*_GROWING, ".json"):
                    found += self._change(path)
        return found[::-1]

    def _change(self, path: Path) -> list[Change]:
        before, now = self._known.get(path.name, (0, 0)), self._state(path)
        if now == before or path.name == CANCEL:
            return []
        if path.suffix in _GROWING:
            with path.open("rb") as file:
                file.seek(before[0])
                content = file.read()
            self._known[path.name] = before[0] + len(content), now[1]
            return [(path.name, before[0], content)] if content else []
        self._known[path.name] = now
        content = path.read_bytes()
        if path.suffix == ".json":
            content = content.replace(_in_json(str(self.path)), _in_json(self._original))
        return [(path.name, None, content)] if content else []

    @staticmethod
    def _state(path: Path) -> tuple[int, int]:
        found = path.stat()
        return found.st_size, found.st_mtime_ns


def _in_json(text: str) -> bytes:
    """Return a text as it is written within a JSON string."""
    return json.dumps(text).encode()[1:-1]


class RayAgent:
    """The actor: `run` runs a step's part of the node to its end, other calls do not wait for
    it.
    """

    def __init__(self) -> None:
        self._guard, self._root = start_guard(os.getpid(), SILENCE_S)
        self._servers: dict[str, ForkClient] = {}
        self._copy: RunFolderCopy | None = None

    def hello(self, visible: str) -> dict[str, Any]:
        """Return what this node is, once nothing of an earlier agent is left on it."""
        orphans = Orphans()
        while not orphans.have_ended():
            time.sleep(POLL_S)
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
            pid = folder.name.removeprefix(PREFIX).partition("-")[0]
            if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)
        return {
            "host": os.environ.get(NODE_VARIABLE) or socket.gethostname(),
            "node_id": ray.get_runtime_context().get_node_id(),
            "sees_files": Path(visible).exists(),
            "versions": own_versions(),
        }

    @ray.method(concurrency_group=LIFE_GROUP)
    def live(self) -> None:
        """Return never: the call fails when Ray has lost this actor."""
        threading.Event().wait()

    @ray.method(concurrency_group=LIFE_GROUP)
    def beat(self) -> None:
        """Take note that the holder lives; end this actor if its guard does not."""
        try:
            self._guard.write(b".")
        except BrokenPipeError:
            os._exit(1)
        if self._copy is not None:
            self._copy.beat()

    def data_here(self, path: str, size_bytes: int) -> str | None:
        """Return where a data file is on this node; None if it has to be sent."""
        sent = self._sent_data(path)
        for found in (Path(path), sent):
            if found.is_file() and found.stat().st_size == size_bytes:
                return str(found)
        sent.parent.mkdir(parents=True, exist_ok=True)
        sent.write_bytes(b"")
        return None

    def receive(self, path: str, chunk: bytes) -> None:
        """Append to a data file that is sent."""
        with self._sent_data(path).open("ab") as file:
            file.write(chunk)

    def _sent_data(self, path: str) -> Path:
        folder = hashlib.sha256(path.encode()).hexdigest()[:16]
        return self._root / "data" / folder / Path(path).name

    def run(
        self,
        folder: str,
        node: int,
        host: str,
        sent: Mapping[str, bytes] | None,
        data: Mapping[str, str],
    ) -> None:
        """Run this node's part of a step.

        Where this node does not see the run folder, `sent` are its files, and `data` says where
        data files are here.
        """
        path = Path(folder)
        if sent is not None:
            self._copy = RunFolderCopy(self._root / path.name, folder, sent, data)
            path = self._copy.path
        step = Step.read(path / STEP)
        if step.agent == AGENT:
            self._run_warm(step, node, host)
        else:
            agent_of(step.agent)(step, node, host).run()

    def _run_warm(self, step: Step, node: int, host: str) -> None:
        key = json.dumps([step.environment, step.engines], sort_keys=True)
        server = self._servers.pop(key, None)
        log = self._root / f"servers-{len(self._servers)}" / "fork-server.log"
        if server is None:
            log.parent.mkdir(exist_ok=True)
            server = ForkClient(log, step.server)
        agent = ProgramAgent(step, node, host, server=server)
        agent.run()
        if agent.is_clean:
            self._servers[key] = server
        else:
            server.close()

    @ray.method(concurrency_group=FILES_GROUP)  # type: ignore[arg-type]
    def exchange(
        self, folder: str, *, cancelled: bool, meeting: bytes, at_last: bool
    ) -> list[Change]:
        """Pass on the driver's part of a run folder, and return what has changed in this node's."""
        copy = self._copy
        if copy is None or copy.path.name != Path(folder).name:
            return []
        if cancelled:
            StepFolder(copy.path).cancel()
        if meeting:
            copy.put(MEETING, meeting)
        return copy.changes(at_last=at_last)

    @ray.method(concurrency_group=FILES_GROUP)
    def close(self) -> None:
        """End the fork servers, and have the guard end this actor and remove its files."""
        for server in self._servers.values():
            server.close()
        self._guard.close()
