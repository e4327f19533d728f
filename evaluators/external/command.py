"""Commands: what is run for a recipe, and arguments written with recipe fields.

    {tensor_parallel}                       the field's value
    {sequence_parallel?--sequence-parallel} a whole argument: the text if the field is true, else no argument
    {recompute=full?--recompute}            a whole argument: the text if the field has this value
    {trainer_arguments}                     a whole argument: the list that the ready-made trainer makes
    {{ and }}                               braces

Each argument becomes one list item, never a shell's line: no variables, no globs, no quotes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from frontrunner.evaluators.export.deepspeed import zero_stage
from frontrunner.evaluators.external.settings import CommandSettings
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.evaluators.probe.settings import ProbeSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean
from frontrunner.spaces.legality import Reason
from frontrunner.spaces.model import Model
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

RECIPE_FIELDS = tuple(f.name for f in fields(Recipe) if f.name not in ("sharding", "layers_per_stage"))
MODEL_FIELDS = tuple(f.name for f in fields(Model) if f.name != "name")
SPLICED = "trainer_arguments"
PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
CONDITION = re.compile(r"\{([a-z_]+)(?:=([^?{}]*))?\?((?:\{\{|\}\}|[^{}])*)\}")


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """Request for the command of a recipe, which is measured for at most `probe.most_steps` steps.

    Files of the command are written to `run_folder`, which exists by the time it runs. The command starts in
    `campaign_folder`.
    """

    problem: Problem
    recipe: Recipe
    probe: ProbeSettings
    run_folder: Path
    campaign_folder: Path
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Command:
    """One run of a trainer.

    `arguments` is the program and its arguments, as a list and never as a shell's line; `files` are written to the run
    folder first, by name; `environment` is added to what the campaign passes. `log_patterns` are searched in each line
    of the log (`logs.Pattern`).
    """

    arguments: tuple[str, ...]
    log_patterns: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


MakeCommand = Callable[[CommandRequest], Command | Reason]
"""Returns the command of a recipe, or the reason why the trainer cannot run it."""


def request_of(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> CommandRequest:
    """Return the request for the command of a campaign's recipe."""
    return CommandRequest(
        problem=setup.problem,
        recipe=recipe,
        probe=setup.probe,
        run_folder=run_folder,
        campaign_folder=setup.command.start_folder,
        seed=setup.seed,
    )


def environment_of(command: Command, request: CommandRequest, settings: CommandSettings) -> dict[str, str]:
    """Return what is set for the command, in addition to the variables passed from the driver's environment."""
    values = field_values(request)
    return dict(command.environment) | {name: filled_text(text, values) for name, text in settings.environment.items()}


def field_values(request: CommandRequest) -> dict[str, str]:
    """Return every field that a template may name, as text.

    Booleans are `true` and `false`, what is not set is empty. `zero_stage` is 0 to 3, and empty for shardings that have
    no stage; `layers_per_stage` is a list with commas, or empty; `steps` the most that a probe takes.
    """
    recipe, problem, probe = request.recipe, request.problem, request.probe
    values: dict[str, object] = {name: getattr(problem.model, name) for name in MODEL_FIELDS}
    values |= {name: getattr(recipe, name) for name in RECIPE_FIELDS}
    values |= {
        "data_parallel": recipe.data_parallel,
        "sharding": recipe.sharding_name,
        "zero_stage": zero_stage(recipe),
        "layers_per_stage": ",".join(map(str, recipe.layers_per_stage)),
        "global_batch": recipe.global_batch_seqs,
        "sequence_length": problem.sequence_length,
        "precision": problem.precision,
        "padded_vocabulary": problem.model.padded_vocabulary,
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
    }
    return {name: _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def filled(arguments: Sequence[str], values: Mapping[str, str], spliced: Sequence[str] = ()) -> tuple[str, ...]:
    """Return an argument list with its fields filled in; raise `InvalidInput` for an unknown field."""
    found: list[str] = []
    for text in arguments:
        condition = CONDITION.fullmatch(text)
        if text == f"{{{SPLICED}}}":
            found += spliced
        elif condition is None:
            found.append(filled_text(text, values))
        elif _value(condition[1], text, values) == ("true" if condition[2] is None else condition[2]):
            found.append(condition[3].replace("{{", "{").replace("}}", "}"))
    return tuple(found)


def filled_text(text: str, values: Mapping[str, str]) -> str:
    """Return one text with its fields replaced by their values."""

    def replacement(match: re.Match[str]) -> str:
        piece = match[0]
        if piece in ("{{", "}}"):
            return piece[0]
        if match[1] is None:
            raise bad_value("command", text, f"a field between {{ and }}; a single {piece} is written {piece * 2}")
        return _value(match[1], text, values)

    return PIECE.sub(replacement, text)


def _value(name: str, text: str, values: Mapping[str, str]) -> str:
    if name in values:
        return values[name]
    if name == SPLICED:
        raise bad_value("command.arguments", text, f"{{{SPLICED}}} as an argument of its own")
    raise InvalidInput(f"command: no field is called {{{name}}} in {text!r}", hint=did_you_mean(name, values))
