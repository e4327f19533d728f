"""What a tool is started with for a recipe, and the reasons for which it cannot be.

Two choices of a recipe never travel: `engine` and `replication` name whose code trains and whose wrapper keeps
replicas equal, and another tool brings its own of both. Every other choice is expressed, or refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields

from frontrunner.spaces.problem import Problem
from frontrunner.spaces.reasons import Reason
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.wording import shown

NEVER_TRAVEL = ("engine", "replication")


@dataclass(frozen=True, kw_only=True)
class Export:
    """A recipe in a tool's words.

    `arguments` follow the name of the training script on its command line. Those that name a file name one of
    `files` (name -> text), which belong into the folder that the tool is started in. `notes` say in a sentence each
    what the tool does in a way of its own.
    """

    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def why_unsaid(recipe: Recipe, tool: str, says: Collection[str]) -> Reason | None:
    """The first choice off its default for which the tool has no setting; `says` names those that it has."""
    for choice in fields(Recipe):
        if choice.default is MISSING or choice.name in (*NEVER_TRAVEL, *says):
            continue
        value = getattr(recipe, choice.name)
        if choice.name == "sharding":
            if value.degrees == (1, 1, 1):
                continue
            value = recipe.sharding_name
        elif value == choice.default:
            continue
        return Reason(
            f"{choice.name.replace('_', '-')}-unsaid", f"{tool} has no setting for {choice.name} = {shown(value)}"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How many processes a launcher starts: on `nodes` equal nodes `per_node` each."""

    nodes: int
    per_node: int


def launch_of(problem: Problem, recipe: Recipe) -> Launch | None:
    """The nodes that a recipe's devices fill, or None where they fill none equally."""
    per_node = problem.cluster.devices_per_node
    if recipe.devices <= per_node:
        return Launch(nodes=1, per_node=recipe.devices)
    return None if recipe.devices % per_node else Launch(nodes=recipe.devices // per_node, per_node=per_node)


def why_no_launch(problem: Problem, recipe: Recipe) -> Reason | None:
    """Launchers start the same number of processes on every node."""
    if launch_of(problem, recipe) is not None:
        return None
    per_node = problem.cluster.devices_per_node
    return Reason("unequal-nodes", f"{recipe.devices} devices do not fill nodes of {per_node} equally")
