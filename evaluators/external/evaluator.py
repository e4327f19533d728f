"""Evaluator that runs a trainer's command for each recipe and measures it by its log."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TypeVar

from frontrunner.evaluators.external import CommandSettings
from frontrunner.evaluators.external import command as commands
from frontrunner.evaluators.external.command import Command, CommandRequest, MakeCommand
from frontrunner.evaluators.external.supervisor import (
    END_S,
    ORDER,
    RUN_TAG,
    Place,
    Supervised,
    reserved_port,
)
from frontrunner.evaluators.external.trainers import configured
from frontrunner.evaluators.external.watch import CommandWatch
from frontrunner.evaluators.probe.files import write_json, write_text
from frontrunner.evaluators.probe.processes import driver_tags
from frontrunner.evaluators.probe.watch import QueuedProbes
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.results.outcome import FailureKind
from frontrunner.spaces.legality import Reason

LOOPBACK = "127.0.0.1"
AnyRun = TypeVar("AnyRun", bound=CommandWatch)


class CommandProbes(QueuedProbes[AnyRun]):
    """Base of evaluators over a function from requests to commands; by default that of the
    campaign's [command].
    """

    def __init__(self, setup: ProbeSetup, make_command: MakeCommand | None = None) -> None:
        super().__init__(setup)
        self._make = make_command or configured(setup.command)
        self._commands: dict[str, Command] = {}

    def start(self, order: ProbeOrder) -> None:
        """Accept an order, unless its recipe is refused or its own files disagree with one
        another.
        """
        request = commands.request_of(self._setup, order.recipe, order.run_folder)
        command = self._make(request)
        if isinstance(command, Reason):
            self._refuse(order, FailureKind.ILLEGAL_FOR_ENGINE, command.text)
            return
        doubt = write_run(request, command, self._setup.command)
        if doubt is not None:
            self._refuse(order, FailureKind.IMPLAUSIBLE, doubt)
            return
        self._commands[order.token] = command
        super().start(order)


class CommandEvaluator(CommandProbes["CommandRun"]):
    """The `Evaluator` that runs commands on this machine."""

    def start(self, order: ProbeOrder) -> None:
        """Start one command; see `CommandProbes.start`."""
        super().start(order)
        for token, (waiting, _) in self._waiting.items():
            self._running[token] = CommandRun(waiting, self._setup, self._commands.pop(token))
        self._waiting.clear()

    def _poll(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        """End what still runs, and every process behind it."""
        for run in self._running.values():
            run.end()
        for run in self._running.values():
            run.wait()


class CommandRun(CommandWatch):
    """Starts a command on this machine and follows it."""

    def __init__(self, order: ProbeOrder, setup: ProbeSetup, command: Command) -> None:
        super().__init__(order, setup, command)
        self._took_s: float | None = None
        self.begin()
        self._port = reserved_port()
        place = Place(
            node=0,
            nodes=(socket.gethostname(),),
            address=LOOPBACK,
            port=self._port.getsockname()[1],
        )
        self._supervised = Supervised(order.run_folder, place, driver_tags(order.run_folder.parent))

    @property
    def seconds(self) -> float:
        """Return the time since the command was started, or what it has taken."""
        return super().seconds if self._took_s is None else self._took_s

    @property
    def running(self) -> set[int]:
        """Return whether the command has not ended, as the nodes where it runs."""
        return set() if self._supervised.has_ended else {0}

    def look(self) -> bool:
        """Note progress, and whether the command has ended."""
        if self._supervised.has_ended:
            self.wait()
            self.log.advance()
            end = self._supervised.ending()
            self._took_s = self.seconds if end is None else end["seconds"]
            return True
        self.follow()
        if self.end_requested_s is not None and time.monotonic() - self.end_requested_s > END_S:
            self._supervised.kill()
        return False

    def end(self) -> None:
        """Have the supervisor end the command."""
        super().end()
        self._supervised.end()

    def wait(self) -> None:
        """Wait for the end of every process of the command."""
        self._supervised.wait()
        self._port.close()


def write_run(
    request: CommandRequest,
    command: Command,
    settings: CommandSettings,
    *,
    folder: Path | None = None,
    stop_file: Path | None = None,
) -> str | None:
    """Write the command's files and its supervisors' order, which holds only the names of variables
    passed to it.

    The order goes to `folder`, by default the run folder. Return where the files disagree with the
    recipe, or None.
    """
    run_folder, recipe, cluster = request.run_folder, request.recipe, request.problem.cluster
    folder = folder or run_folder
    for path in (run_folder, folder):
        path.mkdir(parents=True, exist_ok=True)
    for name, text in command.files.items():
        write_text(run_folder / Path(name).name, text)
    order = {
        "arguments": list(command.arguments),
        "environment": {
            **commands.environment_of(command, request, settings),
            RUN_TAG: str(folder),
        },
        "passed": list(settings.pass_environment),
        "folder": str(request.campaign_folder),
        "devices": recipe.devices,
        "devices_per_node": cluster.devices_per_node,
        "starts_ranks": request.start_per == "rank",
        "stop_file": None if stop_file is None else str(stop_file),
    }
    write_json(folder / ORDER, order)
    stated = commands.stated_before(command.arguments, request.campaign_folder)
    return commands.why_disagreeing(stated, recipe, request.problem)
