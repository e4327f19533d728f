"""A command of the user's own trainer for each recipe, measured by its log."""

from __future__ import annotations

from pathlib import Path

from frontrunner.evaluators.nodes.base import Processes, Start
from frontrunner.evaluators.nodes.fork_server import ProcessKind
from frontrunner.evaluators.nodes.supervisor import ENDED, LOG, ORDER, RUN_TAG, of_node
from frontrunner.evaluators.programs import command as commands
from frontrunner.evaluators.programs.base import Program
from frontrunner.evaluators.programs.command import Command, CommandRequest, MakeCommand
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.command_watch import CommandWatch
from frontrunner.evaluators.programs.trainers import configured
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.files import write_json, write_text
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.spaces.legality import Reason


class CommandProgram(Program):
    """The command that a function makes for each recipe; by default that of the campaign's
    [command].
    """

    def __init__(self, setup: ProbeSetup, make_command: MakeCommand | None = None) -> None:
        super().__init__(setup)
        self._make = make_command or configured(setup.command)
        self._commands: dict[str, Command] = {}

    def why_refused(self, order: ProbeOrder) -> Failure | None:
        """Make and write the command; return why it is not to be started: its recipe is refused, or
        its own files disagree with one another.
        """
        request = commands.request_of(self.setup, order.recipe, order.run_folder)
        command = self._make(request)
        if isinstance(command, Reason):
            return Failure(kind=FailureKind.ILLEGAL_FOR_ENGINE, message=command.text)
        doubt = write_run(request, command, self.setup.command)
        if doubt is not None:
            return Failure(kind=FailureKind.IMPLAUSIBLE, message=doubt)
        self._commands[order.token] = command
        return None

    def prepare(self, order: ProbeOrder) -> Start:
        """Create the files that are waited for."""
        return start_of_command(order, self.setup)

    def watch(self, order: ProbeOrder, processes: Processes) -> CommandWatch:
        """Follow the command by its log."""
        return CommandWatch(order, self.setup, self._commands.pop(order.token), processes)


def start_of_command(order: ProbeOrder, setup: ProbeSetup) -> Start:
    """Create the files that are waited for, which a network file system may hide for a minute after
    it was looked for in vain, and return how the command of the run folder starts.
    """
    for node in range(nodes_used(order.recipe, setup.problem)):
        for name in (LOG, ENDED):
            (order.run_folder / of_node(name, node)).touch()
    return Start(kind=ProcessKind.COMMAND)


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
