"""A campaign's recipes as its command can run them: asked before anything is started."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path

from frontrunner.evaluators.export.torchtitan import VERSION as TORCHTITAN
from frontrunner.evaluators.external.command import Command, MakeCommand, request_of
from frontrunner.evaluators.external.run import environment_of
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

ANYWHERE = Path("run")
"""Stands for the run folder while commands are compared."""


def expressible(survey: Survey, setup: ProbeSetup, make: MakeCommand) -> Survey:
    """The survey without the recipes that the trainer cannot run, which count as refused with its reason.

    Raises `InvalidInput` where two recipes make the same command: one of them would be measured under the other's name.
    """
    refused: Counter[str] = Counter()
    examples: dict[str, str] = {}
    legal, seen = {}, dict[object, Recipe]()
    for point, recipe in survey.legal.items():
        found = make(request_of(setup, recipe, ANYWHERE))
        if isinstance(found, Reason):
            refused[found.code] += 1
            examples.setdefault(found.code, found.text)
            continue
        legal[point] = recipe
        twin = seen.setdefault(_all_of(found, setup, recipe), recipe)
        if twin != recipe:
            raise _same_command(twin, recipe)
    counts = {code: survey.refusals.get(code, 0) + count for code, count in refused.items()}
    return replace(survey, legal=legal, refusals=survey.refusals | counts, examples=examples | survey.examples)


def _all_of(command: Command, setup: ProbeSetup, recipe: Recipe) -> object:
    environment = environment_of(command, request_of(setup, recipe, ANYWHERE), setup.command)
    return command.arguments, tuple(sorted(command.files.items())), tuple(sorted(environment.items()))


def _same_command(one: Recipe, other: Recipe) -> InvalidInput:
    differing = [f.name for f in fields(Recipe) if getattr(one, f.name) != getattr(other, f.name)]
    return InvalidInput(
        f"the command is the same for {one.describe()} and {other.describe()}, which differ in {', '.join(differing)}",
        hint="name the field in command.arguments or command.environment, or leave one value of it in [space]",
    )


def check_version(distribution: str, version: str, command: Command, path: str) -> None:
    """Raise `InvalidInput` where the command's Python environment has another version than the arguments are for.

    An environment is known by a program of its bin folder among the arguments, such as torchrun; what is installed is
    read from its metadata, and nothing is run. Without metadata, as in a checkout, nothing is known.
    """
    programs = (shutil.which(argument, path=path) for argument in command.arguments if "=" not in argument)
    for program in filter(None, programs):
        folders = [str(one) for one in Path(program).parent.parent.glob("lib/python3*/site-packages")]
        for found in metadata.distributions(name=distribution, path=folders):
            if found.version != version and not found.version.startswith(f"{version}."):
                raise InvalidInput(
                    f"{distribution} {found.version} is installed beside {program}: the arguments are for {version}",
                    hint=f"pip install '{distribution}=={version}.*', or write command.arguments without the trainer",
                )


def check_program(setup: ProbeSetup, make: MakeCommand, recipe: Recipe) -> None:
    """Raise `InvalidInput` where the program or the start folder of a recipe's command is not there."""
    command = make(request_of(setup, recipe, ANYWHERE))
    if isinstance(command, Reason):
        return
    folder = setup.command.start_folder
    if not folder.is_dir():
        raise bad_value("command.folder", str(folder), "a folder")
    program = command.arguments[0]
    path = setup.command.passed(os.environ).get("PATH", os.defpath)
    if setup.command.trainer == "torchtitan":
        check_version("torchtitan", TORCHTITAN, command, path)
    found = shutil.which(folder / program) if "/" in program else shutil.which(program, path=path)
    if not found:
        where = f"in {folder}" if "/" in program else f"on the PATH {path[:60]}"
        raise bad_value("command.arguments", program, f"a program that can be run first; there is none {where}")
