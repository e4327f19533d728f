"""Checks of a command's configuration against its recipe, before it starts and from its log.

A trainer that gets one value in its arguments and another in a file runs one of them at full speed. In one log of the
Frontier study (arXiv 2312.12705, gpt175b_megatron_16N) the command line has micro-batch 1 and DeepSpeed's JSON has 4,
and 149 TFLOPS per device are reported where about 37 were computed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from frontrunner.evaluators.export.deepspeed import zero_stage
from frontrunner.evaluators.export.torchtitan import VERSION as TORCHTITAN
from frontrunner.evaluators.external.command import Command, MakeCommand, environment_of, request_of
from frontrunner.evaluators.external.logs import STATEMENTS, Statement
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

OPTIONS = {
    "micro-batch-size": "micro_batch_seqs",
    "per-device-train-batch-size": "micro_batch_seqs",
    "gradient-accumulation-steps": "accumulation",
    "global-batch-size": "global_batch_seqs",
    "seq-length": "sequence_length",
    "zero-stage": "zero_stage",
} | {
    f"{name.replace('_', middle)}-size": name
    for name in STATEMENTS
    if name.endswith("_parallel")
    for middle in ("-", "-model-")
}
"""Options of Megatron-LM, Megatron-DeepSpeed and the transformers Trainer, with the figure that they state."""
DEEPSPEED_FILES = ("deepspeed", "deepspeed-config", "deepspeed-config-file")
DEEPSPEED_KEYS = {
    "train_micro_batch_size_per_gpu": "micro_batch_seqs",
    "gradient_accumulation_steps": "accumulation",
    "train_batch_size": "global_batch_seqs",
    "zero_optimization.stage": "zero_stage",
}
MOST_BYTES = 1_000_000
ANYWHERE = Path("run")
"""Placeholder for the run folder while commands are compared."""


def stated_before(arguments: Sequence[str], folder: Path) -> Iterator[Statement]:
    """Yield what the arguments state, and the DeepSpeed files that they name, by their path from `folder`."""
    for argument, after in zip(arguments, (*arguments[1:], ""), strict=True):
        name, equals, value = argument.removeprefix("--").partition("=")
        option, value = name.replace("_", "-"), value if equals else after
        if not argument.startswith("--"):
            continue
        if option in OPTIONS and value.isdecimal():
            yield Statement(OPTIONS[option], float(value), f"the argument --{option} {value}")
        if option in DEEPSPEED_FILES and value.endswith(".json"):
            yield from _of_deepspeed(folder / value)


def _of_deepspeed(path: Path) -> Iterator[Statement]:
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return  # the trainer will report what is wrong with it
    for key, figure in DEEPSPEED_KEYS.items():
        value: Any = table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int) and not isinstance(value, bool):  # not "auto"
            yield Statement(figure, float(value), f"{key} = {value} of {path.name}")


def why_disagreeing(statements: Iterable[Statement], recipe: Recipe, problem: Problem) -> str | None:
    """Return the first statement that differs from the recipe, with both values; None if all agree."""
    for statement in statements:
        if statement.figure == "sequence_length":
            ours: int | None = problem.sequence_length
        elif statement.figure == "zero_stage":
            # One copy has nothing to shard: trainers choose the stage for other reasons.
            ours = zero_stage(recipe) if recipe.copies > 1 else None
        else:
            ours = getattr(recipe, statement.figure)
        if ours is not None and statement.value != ours:
            source = statement.source[:200]
            return f"{statement.figure} is {ours} in the recipe and {statement.value:g} to the trainer: {source}"
    return None


def expressible(survey: Survey, setup: ProbeSetup, make: MakeCommand) -> Survey:
    """Return the survey without the recipes that the trainer cannot run, which count as refused with its reason.

    Raises `InvalidInput` if two recipes make the same command: one of them would be measured under the other's name.
    """
    refusals, examples = Counter(survey.refusals), dict(survey.examples)
    legal, seen = {}, dict[object, Recipe]()
    for point, recipe in survey.legal.items():
        request = request_of(setup, recipe, ANYWHERE)
        command = make(request)
        if isinstance(command, Reason):
            refusals[command.code] += 1
            examples.setdefault(command.code, command.text)
            continue
        legal[point] = recipe
        tables = (command.files, environment_of(command, request, setup.command))
        twin = seen.setdefault((command.arguments, *(tuple(sorted(one.items())) for one in tables)), recipe)
        if twin != recipe:
            differing = [f.name for f in fields(Recipe) if getattr(twin, f.name) != getattr(recipe, f.name)]
            both = f"{twin.describe()} and {recipe.describe()}"
            raise InvalidInput(
                f"the command is the same for {both}, which differ in {', '.join(differing)}",
                hint="name the field in command.arguments or command.environment, or leave one value of it in [space]",
            )
    return replace(survey, legal=legal, refusals=refusals, examples=examples)


def check_program(setup: ProbeSetup, make: MakeCommand, recipe: Recipe) -> None:
    """Raise `InvalidInput` if the program or the start folder of a recipe's command does not exist."""
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
    if not (shutil.which(folder / program) if "/" in program else shutil.which(program, path=path)):
        where = f"in {folder}" if "/" in program else f"on the PATH {path[:60]}"
        raise bad_value("command.arguments", program, f"a program that can be run first; there is none {where}")


def check_version(distribution: str, version: str, command: Command, path: str) -> None:
    """Raise `InvalidInput` if the command's Python environment has another version than the arguments are for.

    Find the environment by a program of its bin folder among the arguments, such as torchrun, and read what is
    installed from its metadata. Without metadata, as in a checkout, nothing is known.
    """
    programs = (shutil.which(argument, path=path) for argument in command.arguments if "=" not in argument)
    for program in filter(None, programs):
        folders = [str(one) for one in Path(program).parent.parent.glob("lib/python3*/site-packages")]
        for found in metadata.distributions(name=distribution, path=folders):
            if found.version != version and not found.version.startswith(f"{version}."):
                raise InvalidInput(
                    f"{distribution} {found.version} is installed next to {program}: the arguments are for {version}",
                    hint=f"pip install '{distribution}=={version}.*', or write command.arguments without the trainer",
                )
