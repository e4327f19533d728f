"""Evaluators of other distributions: entry points of the group `frontrunner.evaluators`.

An entry point's name is what a campaign file says as `evaluator`. Its object is a class, taken for an `Evaluator` that
is made with a `ProbeSetup`; or a function from a `CommandRequest` to a `Command`, or to a `Reason` where its trainer
cannot run the recipe. docs/other-trainers.md has an example.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from frontrunner.evaluators.protocol import EVALUATORS, Evaluator, EvaluatorFactory, ProbeSetup
from frontrunner.results.records import IMPORTED
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.names import CAMPAIGN_NAME

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from frontrunner.evaluators.external.command import Command, CommandRequest, MakeCommand
    from frontrunner.evaluators.external.settings import CommandSettings
    from frontrunner.spaces.legality import Reason

GROUP = "frontrunner.evaluators"


def require_evaluator_name(name: str) -> None:
    """Raise `InvalidInput` for what cannot be an evaluator's name; whether there is one is asked where it is used."""
    if not CAMPAIGN_NAME.fullmatch(name):
        raise bad_value("evaluator", name, "a known evaluator", hint=did_you_mean(name, EVALUATORS))


def require_evaluator(name: str) -> None:
    """Raise `InvalidInput` unless the name is one evaluator's: a built-in one's, or of exactly one plug-in."""
    found = _entry_points(name)
    if name in EVALUATORS:
        if found:
            raise InvalidInput(
                f"evaluator = {name!r} is built in, and {_owner(found[0])} installs a plug-in of that name",
                hint=f"uninstall {_owner(found[0])}, or have its entry point renamed",
            )
    elif len(found) != 1:
        _refuse_count(name, found)


def _entry_points(name: str) -> list[EntryPoint]:
    return [one for one in _installed() if one.name == name]


def _installed() -> tuple[EntryPoint, ...]:
    """The plug-ins that are installed now. A folder changes with what is installed into it."""
    return _looked_up(tuple((folder, _changed_ns(folder)) for folder in sys.path))


def _changed_ns(folder: str) -> int | None:
    try:
        return Path(folder).stat().st_mtime_ns
    except OSError:
        return None  # not every entry of the search path is there


@functools.lru_cache(maxsize=1)
def _looked_up(_path: tuple[tuple[str, int | None], ...]) -> tuple[EntryPoint, ...]:
    """The plug-ins on this search path; looking through every distribution takes longer than all else in a file."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _refuse_count(name: str, found: list[EntryPoint]) -> None:
    if found:
        owners = " and ".join(sorted(_owner(one) for one in found))
        raise InvalidInput(f"evaluator = {name!r}: {owners} both install a plug-in of that name", hint="uninstall one")
    known = {*EVALUATORS, *(one.name for one in _installed())}
    raise bad_value("evaluator", name, "a known evaluator", hint=did_you_mean(name, known))


def _owner(one: EntryPoint) -> str:
    return one.dist.name if one.dist is not None else one.value


def loaded(name: str) -> object:
    """The object of a plug-in; raises `InvalidInput` for an unknown one, and for one that cannot be imported."""
    require_evaluator(name)
    (one,) = _entry_points(name)
    try:
        found = one.load()
    except Exception as error:  # whatever a stranger's module raises
        raise InvalidInput(
            f"evaluator = {name!r}: the plug-in {one.value} of {_owner(one)} cannot be imported: "
            f"{type(error).__name__}: {error}",
            hint=f"try: python -c 'import {one.module}'",
        ) from error
    if not callable(found):
        expected = "a class that is an Evaluator, or a function from a CommandRequest to a Command"
        raise InvalidInput(f"evaluator = {name!r}: the plug-in {one.value} is no callable: expected {expected}")
    return found


def made_by_plugin(name: str, setup: ProbeSetup) -> Evaluator:
    """The evaluator of a plug-in."""
    make = commands_of(name, setup.command)
    if make is None:
        return cast("EvaluatorFactory", loaded(name))(setup)
    from frontrunner.evaluators.external.evaluator import CommandEvaluator

    return CommandEvaluator(setup, make)


def commands_of(name: str, settings: CommandSettings) -> MakeCommand | None:
    """The function that makes an evaluator's commands; None for evaluators that run none.

    Raises `InvalidInput` for settings of [command] that make none, and for a plug-in that cannot be used.
    """
    if name == "command":
        from frontrunner.evaluators.external.trainers import configured

        return configured(settings)
    if name in EVALUATORS or name == IMPORTED:
        return None
    found = loaded(name)
    return None if isinstance(found, type) else _checked(name, cast("MakeCommand", found))


def _checked(name: str, make: MakeCommand) -> MakeCommand:
    """A plug-in's function, whose mistakes become errors that name the plug-in."""
    from frontrunner.evaluators.external.command import Command
    from frontrunner.evaluators.external.patterns import patterns_of
    from frontrunner.spaces.legality import Reason

    def checked(request: CommandRequest) -> Command | Reason:
        recipe = request.recipe.describe()
        try:
            found = make(request)
        except Exception as error:  # whatever a stranger's function raises
            what = f"{type(error).__name__}: {error}"
            raise FrontrunnerError(f"the plug-in {name} made no command for {recipe}: {what}") from error
        if isinstance(found, Reason):
            return found
        if (
            not isinstance(found, Command)
            or not found.arguments
            or not all(isinstance(a, str) for a in found.arguments)
        ):
            raise FrontrunnerError(
                f"the plug-in {name} gave no Command with arguments for {recipe}, but {found!r}"[:300]
            )
        patterns_of(found.log_patterns)
        return found

    return checked
