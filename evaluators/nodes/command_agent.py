"""Node agent of a command, `python -P -m frontrunner.evaluators.nodes.command_agent STEP.json`.

The agent of node 0 reserves a port. Once each node has reported, it writes the nodes' names and
where it can be reached to the file at which ranks meet; then each agent starts the command under a
supervisor. That ends the command when the agent requests it or is gone; the agent does when the
driver cancels the step or is silent.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.agent import POLL_S, NodeAgent, main
from frontrunner.evaluators.nodes.child_processes import driver_tags
from frontrunner.evaluators.nodes.supervisor import END_S, Place, Supervised, reserved_port
from frontrunner.evaluators.runs.files import read_json, write_json
from frontrunner.evaluators.runs.run_folder import MEETING
from frontrunner.evaluators.trainer.hosts import own_hosts
from frontrunner.spaces.errors import FrontrunnerError

LOOPBACK = "127.0.0.1"


class CommandAgent(NodeAgent):
    """Runs a command's part of one node, whose end is reported under the node's number."""

    def _work(self) -> None:
        with contextlib.ExitStack() as stack:
            port = None
            if self._report.node == 0:
                reserved = stack.enter_context(reserved_port())
                port = reserved.getsockname()[1]
            place = self._place(port)
            if place is not None:
                self._supervise(place)

    def _place(self, port: int | None) -> Place | None:
        """Return where this node is among the others, once all are there; None if the command is
        not to start.
        """
        meeting = self._folder.path / MEETING
        while (found := _read(meeting)) is None:
            if self._should_end():
                self._update(killed=(self._report.node,))
                return None
            reports = self._folder.reports() if port is not None else [None]
            hosts = [report.host for report in reports if report is not None]
            if len(hosts) == self._step.nodes:
                write_json(meeting, {"nodes": hosts, "address": self._address, "port": port})
            else:
                time.sleep(POLL_S)
        variables = self._step.environment
        return Place(
            node=self._report.node, variables=variables, **found | {"nodes": tuple(found["nodes"])}
        )

    @property
    def _address(self) -> str:
        if self._step.nodes == 1:
            return LOOPBACK
        interface = self._step.environment.get("GLOO_SOCKET_IFNAME")
        try:
            return own_hosts(interface)[0]
        except OSError as error:
            raise FrontrunnerError(
                f"dispatch.network_interface = {interface!r}: {error.strerror}"
            ) from error

    def _supervise(self, place: Place) -> None:
        folder = self._folder.path
        supervised = Supervised(folder, place, driver_tags(folder.parent))
        self._update(running=True)
        ended_s: float | None = None
        while not supervised.has_ended:
            time.sleep(POLL_S)
            if ended_s is None and self._should_end():
                ended_s = time.monotonic()
                self._update(killed=(place.node,))
                supervised.end()
            if ended_s is not None and time.monotonic() - ended_s > END_S:
                supervised.kill()
        supervised.wait()
        ending = supervised.ending()
        self._update(statuses={place.node: -9 if ending is None else ending["status"]})


def _read(meeting: Path) -> dict[str, Any] | None:
    """Return what node 0 has written; None before, and where a network file system shows half of
    it.
    """
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] | None = read_json(meeting)
        return found
    return None


if __name__ == "__main__":
    main(CommandAgent)
