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
from frontrunner.evaluators.external.logs import Statement
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
    "tensor-model-parallel-size": "tensor_parallel",
    "pipeline-model-parallel-size": "pipeline_parallel",
    "context-parallel-size": "context_parallel",
    "zero-stage": "zero_stage",
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
    for option, value in options(arguments):
        if option in OPTIONS and value.isdecimal():
            yield Statement(OPTIONS[option], float(value), f"the argument --{option} {value}")
        if option in DEEPSPEED_FILES and value.endswith(".json"):
            yield from _of_deepspeed(folder / value)


def options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (name, value) of `--name value` and `--name=value`, with hyphens in names."""
    for place, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            after = arguments[place + 1] if place + 1 < len(arguments) else ""
            yield name.replace("_", "-"), value if equals else after


def _of_deepspeed(path: Path) -> Iterator[Statement]:
    try:
        with path.open("rb") as file:
            table = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return  # the trainer will report what is wrong with it
    for key, figure in DEEPSPEED_KEYS.items():
        value = _at(table, key.split("."))
        if isinstance(value, int) and not isinstance(value, bool):  # not "auto"
            yield Statement(figure, float(value), f"{key} = {value} of {path.name}")


def _at(table: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        table = table.get(key) if isinstance(table, Mapping) else None
    return table


def why_disagreeing(statements: Iterable[Statement], recipe: Recipe, problem: Problem) -> str | None:
    """Return the first statement that differs from the recipe, with both values; None if all agree."""
    expected = {
        "micro_batch_seqs": recipe.micro_batch_seqs,
        "accumulation": recipe.accumulation,
        "global_batch_seqs": recipe.global_batch_seqs,
        "sequence_length": problem.sequence_length,
        "devices": recipe.devices,
        "tensor_parallel": recipe.tensor_parallel,
        "pipeline_parallel": recipe.pipeline_parallel,
        "context_parallel": recipe.context_parallel,
        "data_parallel": recipe.data_parallel,
        # One copy has nothing to shard: trainers choose the stage for other reasons.
        "zero_stage": zero_stage(recipe) if recipe.copies > 1 else None,
    }
    for statement in statements:
        ours = expected[statement.figure]
        if ours is not None and statement.value != ours:
            source = statement.source[:200]
            return f"{statement.figure} is {ours} in the recipe and {statement.value:g} to the trainer: {source}"
    return None


def expressible(survey: Survey, setup: ProbeSetup, make: MakeCommand) -> Survey:
    """Return the survey without the recipes that the trainer cannot run, which count as refused with its reason.

    Raises `InvalidInput` if two recipes make the same command: one of them would be measured under the other's name.
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
        twin = seen.setdefault(_key(found, setup, recipe), recipe)
        if twin != recipe:
            raise _same_command(twin, recipe)
    counts = {code: survey.refusals.get(code, 0) + count for code, count in refused.items()}
    return replace(survey, legal=legal, refusals=survey.refusals | counts, examples=examples | survey.examples)


def _key(command: Command, setup: ProbeSetup, recipe: Recipe) -> object:
    environment = environment_of(command, request_of(setup, recipe, ANYWHERE), setup.command)
    return command.arguments, tuple(sorted(command.files.items())), tuple(sorted(environment.items()))


def _same_command(one: Recipe, other: Recipe) -> InvalidInput:
    differing = [f.name for f in fields(Recipe) if getattr(one, f.name) != getattr(other, f.name)]
    return InvalidInput(
        f"the command is the same for {one.describe()} and {other.describe()}, which differ in {', '.join(differing)}",
        hint="name the field in command.arguments or command.environment, or leave one value of it in [space]",
    )


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
    found = shutil.which(folder / program) if "/" in program else shutil.which(program, path=path)
    if not found:
        where = f"in {folder}" if "/" in program else f"on the PATH {path[:60]}"
        raise bad_value("command.arguments", program, f"a program that can be run first; there is none {where}")
