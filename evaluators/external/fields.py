"""The fields that a command's template may name: the recipe's, the problem's and the model's, as text."""

from __future__ import annotations

import sys
from dataclasses import fields

from frontrunner.evaluators.export.deepspeed import zero_stage
from frontrunner.evaluators.external.command import CommandRequest
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.spaces.model import Model
from frontrunner.spaces.recipe import Recipe

OF_RECIPE = tuple(f.name for f in fields(Recipe) if f.name not in ("sharding", "layers_per_stage"))
OF_MODEL = tuple(f.name for f in fields(Model) if f.name != "name")


def field_values(request: CommandRequest) -> dict[str, str]:
    """Every field by its name in the campaign file, as the text that a command gets.

    Booleans are `true` and `false`, what is not set is empty. `zero_stage` is 0 to 3, and empty for shardings that have
    no stage; `layers_per_stage` is a list with commas, or empty; `steps` the most that a probe takes.
    """
    recipe, problem, probe = request.recipe, request.problem, request.probe
    values: dict[str, object] = {name: getattr(problem.model, name) for name in OF_MODEL}
    values |= {name: getattr(recipe, name) for name in OF_RECIPE}
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
