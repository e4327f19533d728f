"""Evaluators by name: the built-in ones, and plug-ins of other distributions.

A plug-in is an entry point of the group `frontrunner.evaluators`. Its name is the value of
`evaluator` in a campaign file. Its object is a class, used as an `Evaluator` that is constructed
with a `ProbeSetup`; or a function from a `CommandRequest` to a `Command`, or to a `Reason` if its
trainer cannot run the recipe. docs/other-trainers.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.protocol import Evaluator, ProbeSetup
from frontrunner.results.records import IMPORTED
from frontrunner.spaces.errors import (
    CAMPAIGN_NAME,
    FrontrunnerError,
    InvalidInput,
    bad_value,
    did_you_mean,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from frontrunner.evaluators.programs.command import Command, CommandRequest, MakeCommand
    from frontrunner.evaluators.programs.command_settings import CommandSettings
    from frontrunner.evaluators.runs.probes import Probes
    from frontrunner.spaces.legality import Reason


@dataclass(frozen=True, kw_only=True)
class EvaluatorKind:
    """What an evaluator does and accepts; nothing else compares its name."""

    factory: str = ""
    """What constructs it, as MODULE:NAME."""
    trains: bool = False
    """It runs the built-in trainer: [data], the space's engines and [probe] in full apply."""
    runs_commands: bool = False
    """It runs a command of another trainer, which takes arguments and replays by itself."""
    has_section: bool = False
    """Its command is that of the section [command]."""
    uses_nodes: bool = False
    """It runs on the nodes of [dispatch]."""
    looks_up: bool = False
    """It measures nothing but looks up the rows of [table], and no other recipes exist."""
    simulates: bool = False
    """Its figures are simulated."""


EVALUATORS: dict[str, EvaluatorKind] = {
    "probe": EvaluatorKind(
        factory="frontrunner.evaluators.registry:training_probe", trains=True, uses_nodes=True
    ),
    "simulated": EvaluatorKind(
        factory="frontrunner.evaluators.analytic.simulated:Simulated", simulates=True
    ),
    "table": EvaluatorKind(
        factory="frontrunner.evaluators.tables.lookup:TableLookup", looks_up=True
    ),
    "command": EvaluatorKind(
        factory="frontrunner.evaluators.registry:command_probe",
        runs_commands=True,
        has_section=True,
        uses_nodes=True,
    ),
}
PLUG_IN = EvaluatorKind(runs_commands=True, uses_nodes=True)
"""A plug-in, until it is loaded: most make commands."""
GROUP = "frontrunner.evaluators"


def make_evaluator(name: str, setup: ProbeSetup) -> Evaluator:
    """Construct the named evaluator, built in or a plug-in; raise `InvalidInput` for an unknown
    name.
    """
    make: Callable[..., Evaluator]
    if name in EVALUATORS:
        module, factory = EVALUATORS[name].factory.split(":")
        make = getattr(import_module(module), factory)
        return make(setup)
    if (command := commands_of(name, setup.command)) is not None:
        return command_probe(setup, command)
    if setup.dispatch.has_nodes:
        raise bad_value(
            "dispatch.backend",
            setup.dispatch.backend,
            f"local: the plug-in {name} is its own evaluator",
        )
    make = _load(name)
    return make(setup)


def training_probe(setup: ProbeSetup) -> Probes:
    """Construct the evaluator that trains on this machine, or on the nodes configured in
    [dispatch].
    """
    from frontrunner.evaluators.nodes.backends import node_source
    from frontrunner.evaluators.programs.ranks import RankProgram
    from frontrunner.evaluators.runs.probes import probes_on

    return probes_on(node_source(setup.dispatch, setup.problem.cluster), RankProgram(setup))


def command_probe(setup: ProbeSetup, make_command: MakeCommand | None = None) -> Probes:
    """Construct the evaluator that runs commands on this machine, or on the nodes that [dispatch]
    names.
    """
    from frontrunner.evaluators.nodes.backends import node_source
    from frontrunner.evaluators.programs.command_program import CommandProgram
    from frontrunner.evaluators.runs.probes import probes_on

    source = (
        node_source(setup.dispatch, setup.problem.cluster) if setup.dispatch.has_nodes else None
    )
    return probes_on(source, CommandProgram(setup, make_command))


def kind_of(name: str) -> EvaluatorKind:
    """Return what an evaluator does; the rows of an imported table are of none."""
    return EvaluatorKind() if name == IMPORTED else EVALUATORS.get(name, PLUG_IN)


def require_evaluator_name(name: str) -> None:
    """Raise `InvalidInput` if the syntax of an evaluator's name is wrong; it need not be
    installed.
    """
    if name != IMPORTED and not CAMPAIGN_NAME.fullmatch(name):
        raise bad_value("evaluator", name, "a known evaluator", hint=did_you_mean(name, EVALUATORS))


def require_evaluator(name: str) -> None:
    """Raise `InvalidInput` unless one evaluator has this name: a built-in one, or a single
    plug-in.
    """
    if name not in EVALUATORS:
        _plug_in(name)


def commands_of(name: str, settings: CommandSettings) -> MakeCommand | None:
    """Return the function that makes an evaluator's commands; None for those that run none; raises
    `InvalidInput`.
    """
    kind = kind_of(name)
    if kind.has_section:
        from frontrunner.evaluators.programs.trainers import configured

        return configured(settings)
    if not kind.runs_commands:
        return None
    found = _load(name)
    return None if isinstance(found, type) else _checked(name, found)


def code_of(name: str, settings: CommandSettings) -> str | None:
    """Return the training code that an evaluator runs, `unknown` where nothing says so; None for
    our own engines.

    DeepSpeed's own name says nothing of the model that a script trains with it.
    """
    kind = kind_of(name)
    if not kind.runs_commands:
        return None
    known = (settings.trainer or settings.log) if kind.has_section else None
    return "unknown" if known in (None, "deepspeed") else known


def _plug_in(name: str) -> EntryPoint:
    from importlib.metadata import entry_points

    installed = entry_points(group=GROUP)
    found = [one for one in installed if one.name == name]
    if not found:
        known = {*EVALUATORS, *installed.names}
        raise bad_value("evaluator", name, "a known evaluator", hint=did_you_mean(name, known))
    if len(found) > 1:
        owners = " and ".join(sorted(one.dist.name if one.dist else one.value for one in found))
        raise InvalidInput(
            f"evaluator = {name!r}: {owners} both install a plug-in of that name",
            hint="uninstall one",
        )
    return found[0]


def _load(name: str) -> Any:
    one = _plug_in(name)
    what = f"evaluator = {name!r}: the plug-in {one.value}"
    try:
        found = one.load()
    except Exception as error:  # a plug-in may raise anything
        why = (
            f"{what} of {one.dist and one.dist.name} cannot be imported: {type(error).__name__}:"
            f" {error}"
        )
        raise InvalidInput(why, hint=f"try: python -c 'import {one.module}'") from error
    if not callable(found):
        expected = "a class that is an Evaluator, or a function from a CommandRequest to a Command"
        raise InvalidInput(f"{what} cannot be called: expected {expected}")
    return found


def _checked(name: str, make: MakeCommand) -> MakeCommand:
    """Wrap a plug-in's function so that its mistakes become errors that name the plug-in."""
    from frontrunner.evaluators.programs.command import Command
    from frontrunner.evaluators.programs.logs import patterns_of
    from frontrunner.spaces.legality import Reason

    def checked(request: CommandRequest) -> Command | Reason:
        recipe = request.recipe.describe()
        try:
            found = make(request)
        except Exception as error:  # a plug-in may raise anything
            what = f"{type(error).__name__}: {error}"
            raise FrontrunnerError(
                f"the plug-in {name} made no command for {recipe}: {what}"
            ) from error
        if isinstance(found, Reason):
            return found
        is_command = isinstance(found, Command) and found.arguments
        if not is_command or not all(isinstance(argument, str) for argument in found.arguments):
            message = (
                f"the plug-in {name} returned no Command with arguments for {recipe}, but {found!r}"
            )
            raise FrontrunnerError(message[:300])
        patterns_of(found.log_patterns)
        return found

    return checked
