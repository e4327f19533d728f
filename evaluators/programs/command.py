"""Commands: what is run for a recipe, arguments written with recipe fields, and checks that they
agree with the recipe.

    {tensor_parallel}                       the field's value
    {sequence_parallel?--sequence-parallel} a whole argument: the text if the field is true, else no
    argument {recompute=full?--recompute}            a whole argument: the text if the field has
    this value {trainer_arguments}                     a whole argument: the list that the
    ready-made trainer makes {node_rank}                             what is known on a node alone,
    as %{node_rank} until then: see `PLACE` {custom_arguments}                      a whole
    argument: the flags of the user's own knobs {{ and }}                               braces

Each argument becomes one list item, never a shell's line: no variables, no globs, no quotes.

A trainer that gets one value in its arguments and another in a file runs one of them at full speed.
In one log of the Frontier study (arXiv 2312.12705, gpt175b_megatron_16N) the command line has
micro-batch 1 and DeepSpeed's JSON has 4, and 149 TFLOPS per device are reported where about 37 were
computed.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from frontrunner.evaluators.export.deepspeed import BATCH, zero_stage
from frontrunner.evaluators.export.reading import json_table
from frontrunner.evaluators.export.torchtitan import VERSION as TORCHTITAN
from frontrunner.evaluators.nodes.backends import node_source
from frontrunner.evaluators.nodes.supervisor import PLACE, RANK_PLACE, place_field
from frontrunner.evaluators.programs.command_settings import CommandSettings
from frontrunner.evaluators.programs.logs import STATEMENTS, Statement
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.settings import ProbeSettings
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.model.model import KEYS
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import Survey

RECIPE_FIELDS = tuple(
    f.name for f in fields(Recipe) if f.name not in ("sharding", "layers_per_stage", "custom")
)
MODEL_FIELDS = tuple(name for name in KEYS if name != "name")
SPLICED, CUSTOM = "trainer_arguments", "custom_arguments"
PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
CONDITION = re.compile(r"\{([a-z_]+)(?:=([^?{}]*))?\?((?:\{\{|\}\}|[^{}])*)\}")
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
"""Options of Megatron-LM, Megatron-DeepSpeed and the transformers Trainer, with the figure that
they state.
"""
DEEPSPEED_FILES = ("deepspeed", "deepspeed-config", "deepspeed-config-file")
DEEPSPEED_KEYS = BATCH | {"zero_stage": "zero_optimization.stage"}
ANYWHERE = Path("run")
VARIABLES = {
    "NNODES": "nodes",
    "NODE_RANK": "node_rank",
    "MASTER_ADDR": "master_address",
    "MASTER_PORT": "master_port",
    "FRONTRUNNER_NODE_LIST": "node_list",
    "FRONTRUNNER_DEVICES_PER_NODE": "devices_per_node",
    "FRONTRUNNER_ATTEMPT": "attempt",
    "RANK": "rank",
    "LOCAL_RANK": "local_rank",
    "LOCAL_WORLD_SIZE": "local_world_size",
    "WORLD_SIZE": "world_size",
}
"""Variables of a command, with the fields of the same values."""
RANK_FIELDS = (*RANK_PLACE, "world_size")
"""Fields, and so variables, of a command that is started once per rank."""


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """Request for the command of a recipe, which starts in `campaign_folder` and writes its files
    to `run_folder`.

    It is started once per node, or once per rank (`start_per`). A replay ends by itself after the
    probe's steps; `attempt` numbers its starts.
    """

    problem: Problem
    recipe: Recipe
    probe: ProbeSettings
    run_folder: Path
    campaign_folder: Path
    seed: int = 0
    start_per: str = "node"
    is_replay: bool = False
    attempt: int = 1


@dataclass(frozen=True, kw_only=True)
class Command:
    """One run of a trainer: an argument list, `files` for the run folder, additional environment,
    log patterns.
    """

    arguments: tuple[str, ...]
    log_patterns: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


MakeCommand = Callable[[CommandRequest], Command | Reason]


def request_of(
    setup: ProbeSetup, recipe: Recipe, run_folder: Path, **replay: Any
) -> CommandRequest:
    """Return the request for the command of a campaign's recipe; `replay` are its fields of a
    replay.
    """
    return CommandRequest(
        problem=setup.problem,
        recipe=recipe,
        probe=setup.probe,
        run_folder=run_folder,
        campaign_folder=setup.command.start_folder,
        seed=setup.seed,
        start_per=setup.command.start_per,
        **replay,
    )


def environment_of(
    command: Command, request: CommandRequest, settings: CommandSettings
) -> dict[str, str]:
    """Return what is set for the command, in addition to the variables passed from the driver's
    environment.
    """
    values = field_values(request)
    chosen = {name: filled_text(text, values) for name, text in settings.environment.items()}
    return places(values) | dict(command.environment) | chosen | request.recipe.custom_environment()


def places(values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that tell a command its place among nodes, ranks and starts, of the
    values of its fields.
    """
    return {name: values[field] for name, field in VARIABLES.items() if field in values}


def field_values(request: CommandRequest) -> dict[str, str]:
    """Return every field that a template may name, as text; what is not set is empty."""
    recipe, problem, probe = request.recipe, request.problem, request.probe
    values: dict[str, object] = problem.model.keys()
    del values["name"]
    values |= {name: getattr(recipe, name) for name in RECIPE_FIELDS}
    values |= {
        "data_parallel": recipe.data_parallel,
        "sharding": recipe.sharding_name,
        "zero_stage": zero_stage(recipe),
        "layers_per_stage": ",".join(map(str, recipe.layers_per_stage)),
        "global_batch": recipe.global_batch_seqs,
        "sequence_length": problem.sequence_length,
        "precision": problem.precision,
        "padded_vocabulary": problem.model.embedding.padded_vocabulary,
        "nodes": nodes_used(recipe, problem),
        "devices_per_node": min(recipe.devices, problem.cluster.devices_per_node),
        "steps": probe.most_steps,
        "warm_up_steps": probe.warm_up_steps,
        "optimizer": probe.optimizer,
        "learning_rate": probe.learning_rate,
        "seed": request.seed,
        "run_folder": request.run_folder,
        "campaign_folder": request.campaign_folder,
        "python": sys.executable,
        "replay": request.is_replay,
        "attempt": request.attempt,
    }
    values |= {name: place_field(name) for name in PLACE}
    if request.start_per == "rank":
        values |= {name: place_field(name) for name in RANK_PLACE} | {"world_size": recipe.devices}
    words = {None: "", True: "true", False: "false"}
    return {n: words[v] if v is None or isinstance(v, bool) else str(v) for n, v in values.items()}


def filled(
    arguments: Sequence[str],
    values: Mapping[str, str],
    spliced: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Return an argument list with its fields filled in, and lists in place of the arguments that
    `spliced` names.

    Raises `InvalidInput` for an unknown field.
    """
    found: list[str] = []
    for text in arguments:
        condition = CONDITION.fullmatch(text)
        if text in spliced:
            found += spliced[text]
        elif condition is None:
            found.append(filled_text(text, values))
        elif condition[1] in (*PLACE, *RANK_PLACE):
            raise bad_value(
                "command.arguments",
                text,
                f"a condition on the recipe: {condition[1]} is known later",
            )
        elif _value(condition[1], text, values) == (
            "true" if condition[2] is None else condition[2]
        ):
            found.append(condition[3].replace("{{", "{").replace("}}", "}"))
    return tuple(found)


def filled_text(text: str, values: Mapping[str, str]) -> str:
    """Return one text with its fields replaced by their values."""

    def replacement(match: re.Match[str]) -> str:
        piece = match[0]
        if piece in ("{{", "}}"):
            return piece[0]
        if match[1] is None:
            raise bad_value(
                "command",
                text,
                f"a field between {{ and }}; a single {piece} is written {piece * 2}",
            )
        return _value(match[1], text, values)

    return PIECE.sub(replacement, text)


def _value(name: str, text: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name in (SPLICED, CUSTOM):
        raise bad_value("command.arguments", text, f"{{{name}}} as an argument of its own")
    hint = 'with command.start_per = "rank"' if name in RANK_FIELDS else did_you_mean(name, values)
    raise InvalidInput(f"command: no field is called {{{name}}} in {text!r}", hint=hint)


def stated_before(arguments: Sequence[str], folder: Path) -> Iterator[Statement]:
    """Yield what the arguments state, and the DeepSpeed files that they name, by their path from
    `folder`.
    """
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
    with suppress(OSError, ValueError):  # the trainer will report what is wrong with it
        table = json_table(path.read_text(encoding="utf-8"))
        for figure, key in DEEPSPEED_KEYS.items():
            if type(value := table.get(key)) is int:  # not "auto"
                yield Statement(figure, float(value), f"{key} = {value} of {path.name}")


def why_disagreeing(
    statements: Iterable[Statement], recipe: Recipe, problem: Problem
) -> str | None:
    """Return the first statement that differs from the recipe, with both values; None if all
    agree.
    """
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
            return (
                f"{statement.figure} is {ours} in the recipe and {statement.value:g} to the"
                f" trainer: {source}"
            )
    return None


def expressible(survey: Survey, setup: ProbeSetup, make: MakeCommand) -> Survey:
    """Return the survey without the recipes that the trainer cannot run, which count as refused.

    Raises `InvalidInput` if two recipes make the same command: one would be measured under the
    other's name.
    """
    refused, seen = dict[int, Reason](), dict[object, Recipe]()
    for row, recipe in enumerate(survey.recipes):
        request = request_of(setup, recipe, ANYWHERE)
        command = make(request)
        if isinstance(command, Reason):
            refused[row] = command
            continue
        variables = (
            environment_of(command, request, setup.command).items()
            - places(field_values(request)).items()
        )
        starts = (
            nodes_used(recipe, setup.problem) if request.start_per == "node" else recipe.devices
        )
        twin = seen.setdefault(
            (
                command.arguments,
                frozenset(command.files.items()),
                frozenset(variables),
                starts,
            ),
            recipe,
        )
        if twin != recipe:
            differing = [
                f.name for f in fields(Recipe) if getattr(twin, f.name) != getattr(recipe, f.name)
            ]
            both = f"{twin.describe()} and {recipe.describe()}"
            raise InvalidInput(
                f"the command is the same for {both}, which differ in {', '.join(differing)}",
                hint=(
                    "name the field in command.arguments or command.environment, or leave one value"
                    " of it in [space]"
                ),
            )
    return survey.refuse(refused)


def check_program(setup: ProbeSetup, make: MakeCommand, recipe: Recipe) -> None:
    """Raise `InvalidInput` if there are no nodes for a recipe's command, or no program or start
    folder.
    """
    command = make(request_of(setup, recipe, ANYWHERE))
    if isinstance(command, Reason):
        return
    folder = setup.command.start_folder
    if not folder.is_dir():
        raise bad_value("command.folder", str(folder), "a folder")
    if setup.dispatch.has_nodes:
        node_source(setup.dispatch, setup.problem.cluster)
    if setup.dispatch.worker_init:  # which sets the nodes' PATH
        return
    program = command.arguments[0]
    path = setup.command.passed(os.environ).get("PATH", os.defpath)
    if setup.command.trainer == "torchtitan":
        check_torchtitan(command, path)
    if not (shutil.which(folder / program) if "/" in program else shutil.which(program, path=path)):
        where = f"in {folder}" if "/" in program else f"on the PATH {path[:60]}"
        raise bad_value(
            "command.arguments", program, f"a program that can be run first; there is none {where}"
        )


def check_torchtitan(command: Command, path: str) -> None:
    """Raise `InvalidInput` if the Python environment of a program in the command has another
    version of torchtitan.
    """
    programs = (
        shutil.which(argument, path=path) for argument in command.arguments if "=" not in argument
    )
    for program in filter(None, programs):
        folders = [
            str(one) for one in Path(program).parent.parent.glob("lib/python3*/site-packages")
        ]
        for found in metadata.distributions(name="torchtitan", path=folders):
            if found.version != TORCHTITAN and not found.version.startswith(f"{TORCHTITAN}."):
                raise InvalidInput(
                    f"torchtitan {found.version} is installed next to {program}: the arguments are"
                    f" for {TORCHTITAN}",
                    hint=(
                        f"pip install 'torchtitan=={TORCHTITAN}.*', or write command.arguments"
                        " without the trainer"
                    ),
                )
