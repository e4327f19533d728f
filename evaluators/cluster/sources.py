"""Where a campaign's nodes come from: this machine, the job that the driver runs in, or allocations yet to be had."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from frontrunner.evaluators.cluster.job_environment import Allocation, allocation
from frontrunner.evaluators.cluster.schedulers import seconds_left
from frontrunner.evaluators.cluster.settings import SCHEDULER_LAUNCHERS, DispatchSettings
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value

THIS_MACHINE = "this-machine"
"""Stands for the scheduler of an allocation that is this machine alone, without any job."""


@dataclass(frozen=True, kw_only=True)
class NodeSource:
    """How nodes are had: `nodes` an allocation, `allocations` at a time.

    `held` is the job that the driver runs in; None where a batch system is asked, whose allocations then last
    `walltime_s`. `seconds_left` is what is left of the held job; None where nobody knows. `launcher` starts a process
    on each node of a step.
    """

    scheduler: str
    nodes: int
    allocations: int
    launcher: str
    settings: DispatchSettings
    held: Allocation | None = None
    walltime_s: float | None = None
    seconds_left: float | None = None


def backend_of(settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str]) -> str:
    """The backend that a campaign's probes use.

    Raises `InvalidInput` for a cluster of several nodes where neither the campaign nor a job says where they are.
    """
    if settings.backend is not None:
        return settings.backend
    if cluster.nodes == 1:
        return "local"
    held = allocation(environment)
    if held is not None and len(held.nodes) > 1:
        return "allocation"
    raise bad_value(
        "cluster.nodes",
        cluster.nodes,
        "1: probes run on the machine that the driver is on",
        hint='dispatch.backend = "parsl" asks a batch system for nodes; within a job of several (salloc, qsub -I) they '
        "are found; `frontrunner space` works for any cluster",
    )


def node_source(
    settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str] | None = None
) -> NodeSource | None:
    """The campaign's source of nodes; None where its probes run on this machine alone.

    Raises `InvalidInput` where the settings, the cluster and the job at hand do not fit together, and where Parsl is
    needed and not installed.
    """
    environment = os.environ if environment is None else environment
    backend = backend_of(settings, cluster, environment)
    if backend == "local":
        if cluster.nodes > 1:
            raise bad_value("dispatch.backend", "local", f"allocation or parsl for cluster.nodes = {cluster.nodes}")
        return None
    if find_spec("parsl") is None:
        install = "pip install 'frontrunner[hpc]'"
        raise bad_value("dispatch.backend", backend, "local: Parsl is not installed", hint=install)
    return _held(settings, cluster, environment) if backend == "allocation" else _asked_for(settings, cluster)


def _asked_for(settings: DispatchSettings, cluster: Cluster) -> NodeSource:
    scheduler = settings.scheduler or ""
    nodes = settings.nodes_per_allocation or cluster.nodes
    return NodeSource(
        scheduler=scheduler,
        nodes=nodes,
        allocations=settings.most_allocations,
        launcher=settings.launcher or SCHEDULER_LAUNCHERS[scheduler],
        settings=settings,
        walltime_s=settings.walltime_s,
    )


def _held(settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str]) -> NodeSource:
    held = allocation(environment)
    if held is None and cluster.nodes > 1:
        raise InvalidInput(
            'dispatch.backend = "allocation": this process is in no job whose nodes it could tell',
            hint="start it within salloc, qsub -I or a batch script",
        )
    if held is None:
        held = Allocation(scheduler=THIS_MACHINE, job_id=str(os.getpid()), nodes=(socket.gethostname(),))
    if len(held.nodes) < cluster.nodes:
        expected = f"at most the {len(held.nodes)} of {held.scheduler} job {held.job_id}"
        raise bad_value("cluster.nodes", cluster.nodes, expected)
    launcher = settings.launcher or SCHEDULER_LAUNCHERS.get(held.scheduler, "none")
    if launcher == "none" and cluster.nodes > 1:
        raise bad_value("dispatch.launcher", launcher, "a launcher for several nodes, as srun or mpiexec")
    return NodeSource(
        scheduler=held.scheduler,
        nodes=len(held.nodes),
        allocations=1,
        launcher=launcher,
        settings=settings,
        held=held,
        seconds_left=seconds_left(held.scheduler, held.job_id),
    )
