"""Whether this machine can run a campaign's probes at all: asked before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from frontrunner.evaluators.async_io import prepare_disk
from frontrunner.evaluators.this_machine import detect
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import Problem


def prepare_here(problem: Problem, *, engines: Sequence[str], offloads: Sequence[str]) -> None:
    """Raise `InvalidInput` if probes of these engines and offloads cannot run here; see the functions below.

    What can be made ready is: an operator that offload to a disk needs is compiled, for minutes, the first time.
    """
    refuse_elsewhere(problem)
    refuse_missing_engines(engines)
    prepare_disk(problem.cluster, offloads)


def refuse_missing_engines(engines: Sequence[str]) -> None:
    """Raise `InvalidInput` if an engine is an optional package that is not installed."""
    for engine in engines:
        if engine == "deepspeed" and find_spec(engine) is None:
            raise bad_value(
                "space.engine", engine, "an engine that is installed", hint="pip install 'frontrunner[deepspeed]'"
            )


def refuse_elsewhere(problem: Problem) -> None:
    """Raise `InvalidInput` if the cluster's probes cannot run here: more nodes, other or more devices.

    A CPU cluster runs anywhere: its devices are processes.
    """
    cluster = problem.cluster
    if cluster.nodes > 1:
        raise bad_value(
            "cluster.nodes",
            cluster.nodes,
            "1: probes run on the machine that the driver is on",
            hint="`frontrunner space` works for any cluster; to probe one node of it, set nodes = 1 there",
        )
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
