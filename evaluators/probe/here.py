"""Whether this machine can run a campaign's probes, or one stored recipe: asked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from frontrunner.evaluators.cluster.settings import DispatchSettings
from frontrunner.evaluators.cluster.sources import node_source
from frontrunner.evaluators.probe.async_io import prepare_disk
from frontrunner.evaluators.probe.this_machine import detect
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

Doing = Literal["replay", "profile", "launch"]
"""Running a recipe here, or only readying it for a launcher of one's own, which may start several nodes."""


def prepare_here(
    problem: Problem, dispatch: DispatchSettings, *, engines: Sequence[str], offloads: Sequence[str]
) -> None:
    """Raise `InvalidInput` if probes of these engines and offloads cannot run here; see the functions below.

    `dispatch` may send them to other nodes; those are not at hand to be asked. What can be made ready is: an operator
    that offload to a disk needs is compiled, for minutes, the first time.
    """
    if node_source(dispatch, problem.cluster) is not None:
        refuse_missing_engines(engines)
        return
    refuse_elsewhere(problem)
    refuse_missing_engines(engines)
    prepare_disk(problem.cluster, offloads)


def prepare_recipe_here(
    recipe_id: str, recipe: Recipe, measured: Cluster, *, doing: Doing, anyway: bool
) -> tuple[str, ...]:
    """How this machine differs from the one that a stored recipe was measured on; what it needs is made ready.

    Raises `InvalidInput` for any difference, unless `anyway`, if the recipe needs more than one node and is not only
    launched from here, and if its engine is not installed.
    """
    differences = machine_differences(measured, recipe, detect(), one_node=doing != "launch")
    if differences and not anyway:
        raise InvalidInput(
            f"recipe {recipe_id} was measured on other hardware: {'; '.join(differences)}",
            hint=f"--anyway will {doing} it here all the same; throughput will not be that of its campaign",
        )
    if recipe.devices > measured.devices_per_node and doing != "launch":
        raise InvalidInput(
            f"recipe {recipe_id} needs {recipe.devices} devices on nodes of {measured.devices_per_node}: "
            f"`{doing}` does not run on several nodes yet",
            hint=f"{doing} a recipe of one node",
        )
    refuse_missing_engines((recipe.engine,))
    prepare_disk(measured, (recipe.offload,))
    return differences


def machine_differences(
    measured: Cluster, recipe: Recipe, here: Mapping[str, Any], *, one_node: bool = True
) -> tuple[str, ...]:
    """How the machine at hand, one node of those needed or all, differs from the measured one, in words."""
    found = []
    if here["backend"] != measured.backend:
        found.append(f"backend {measured.backend} there, {here['backend']} here")
    elif here["device"] != measured.device:
        found.append(f"device {measured.device} there, {here['device']} here")
    needed = recipe.devices if one_node else min(recipe.devices, measured.devices_per_node)
    if here["backend"] != "cpu" and here["devices_per_node"] < needed:
        found.append(f"world size {needed} there, {here['devices_per_node']} devices here")
    return tuple(found)


def refuse_missing_engines(engines: Sequence[str]) -> None:
    """Raise `InvalidInput` if an engine is an optional package that is not installed."""
    for engine in engines:
        if engine == "deepspeed" and find_spec(engine) is None:
            raise bad_value("space.engine", engine, "an engine that is installed", hint="pip install deepspeed")


def refuse_elsewhere(problem: Problem) -> None:
    """Raise `InvalidInput` if the cluster's probes cannot run on this machine: other or more devices.

    A CPU cluster runs anywhere: its devices are processes.
    """
    cluster = problem.cluster
    if cluster.backend == "cpu":
        return
    here = detect()
    if here["backend"] != cluster.backend:
        raise bad_value(
            "cluster.backend", cluster.backend, f"{here['backend']}, which is what this machine has ({here['device']})"
        )
    if here["devices_per_node"] < cluster.devices_per_node:
        raise bad_value(
            "cluster.devices_per_node", cluster.devices_per_node, f"at most the {here['devices_per_node']} found here"
        )
