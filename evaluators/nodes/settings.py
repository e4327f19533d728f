"""Where probes run and how nodes for them are obtained: the section [dispatch] of a campaign
file.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, NamedTuple

from frontrunner.evaluators.nodes.batch_jobs import seconds_left
from frontrunner.evaluators.nodes.environment import Allocation, allocation
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import (
    InvalidInput,
    bad_value,
    installing,
    require_above_zero,
    require_at_least,
    require_one_of,
)

BACKENDS = ("local", "allocation", "parsl", "ray")
"""This machine alone; the nodes of the driver's own job; nodes requested from a batch system, or
from Ray.
"""
RAY = "ray"
RAY_AUTO, RAY_LOCAL = "auto", "local"
"""Addresses: the Ray cluster that this machine is in (or RAY_ADDRESS); one that is started here for
the campaign.
"""

LAUNCHERS: dict[str, str] = {
    # Overlap: the driver may itself run in a step of the job. The agents of a failed step end by
    # themselves.
    "srun": (
        "srun --nodes {count} --ntasks {count} --ntasks-per-node 1 --nodelist {hosts} "
        "--overlap --cpu-bind=none --mpi=none --kill-on-bad-exit=1"
    ),
    "mpiexec": "mpiexec -n {count} -ppn 1 -hosts {hosts}",  # of MPICH's Hydra and of Cray PALS
    "mpirun": "mpirun -np {count} --map-by ppr:1:node --bind-to none --host {hosts}",  # of Open MPI
    "flux": "flux run -N {count} -n {count} --requires=hosts:{hosts} -o cpu-affinity=off",
    "none": "",  # for one node
}
"""How each launcher starts one process per node. None binds it to a part of its node, which all
ranks share.
"""
SCHEDULER_LAUNCHERS = {"slurm": "srun", "pbs": "mpiexec", "flux": "flux"}


class BatchSystem(NamedTuple):
    """Parsl's provider, what begins a line of options, and Parsl's names for the keys of [dispatch]
    in a request.
    """

    provider: str
    option_prefix: str
    request: dict[str, str]


SCHEDULERS = {
    "slurm": BatchSystem(
        "SlurmProvider",
        "#SBATCH",
        {"account": "account", "queue": "partition", "qos": "qos", "constraint": "constraint"}
        | {"scheduler_options": "scheduler_options", "processors_per_node": "cores_per_node"},
    ),
    "pbs": BatchSystem(
        "PBSProProvider",
        "#PBS",
        {"account": "account", "queue": "queue", "scheduler_options": "scheduler_options"}
        | {"select_options": "select_options", "processors_per_node": "cpus_per_node"},
    ),
}
UNSUITED_SCHEDULERS = {
    "flux": (
        'Parsl has no MPI executor over Flux: start within a Flux job, with backend = "allocation"'
    ),
    "kubernetes": (
        "Parsl's MPI executor reads its nodes from a batch system, and pods have none; "
        'dispatch.backend = "ray" uses pods'
    ),
    "lsf": (
        "frontrunner requests no nodes from LSF any more: start a Ray cluster in an LSF job, with"
        ' dispatch.backend = "ray"'
    ),
}

SPARE_WALLTIME_S = 120.0
"""What an allocation lasts beyond a probe's deadline: starting workers and ranks, and what packing
leaves over.
"""
REACH_S = 5.0
THIS_MACHINE = "this-machine"
"""Scheduler of an allocation that is this machine alone, without any job."""

_REQUEST_KEYS = {key for system in SCHEDULERS.values() for key in system.request}
_QUARANTINE_KEYS = ("quarantine_after", "quarantine_minutes")
_STEP_KEYS = (
    "launcher", "launcher_options", "worker_init", "network_interface", "lifeline_s",
    *_QUARANTINE_KEYS
)  # fmt: skip
HIDDEN_LINES = ("worker_init", "scheduler_options", "launcher_options")
"""Lines of a site, which may hold secrets: a service sends none of them."""
_RAY_KEYS = ("address", "shared_files", "resources")
_KEYS_WITH_RAY = (
    *_RAY_KEYS, *_QUARANTINE_KEYS, "nodes_per_allocation", "allocations", "queue_limit_minutes",
    "network_interface",
    "lifeline_s",
)  # fmt: skip
_WORDS = (
    "account",
    "queue",
    "qos",
    "constraint",
    "select_options",
    "driver_address",
    "network_interface",
)
_LEAST = {
    "nodes_per_allocation": 1,
    "allocations": 1,
    "processors_per_node": 1,
    "lifeline_s": 10,
    "quarantine_after": 0,
}
_WALLTIME = re.compile(r"(\d{1,3}):([0-5]\d):00")
"""Whole minutes: Slurm counts in them."""
_RAY_ADDRESS = re.compile(
    r"(?:ray://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", re.ASCII
)
_WORD = re.compile(r"[\w@%+=:,./&|*\[\]()-]+", re.ASCII)
"""Words that reach a submit script or a command line of a batch system: no blank, quote, `;`, `$`
or newline.
"""


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Where probes run, and how nodes are requested. Keys that the backend or scheduler does not
    use are errors.

    `worker_init` comes from the campaign's own file only.
    """

    backend: str | None = None
    """`local`: this machine. `allocation`: the nodes of the job that the driver runs in (`salloc`,
    `qsub -I`, a batch script). `parsl`: nodes requested from a batch system. `ray`: nodes of a [Ray
    cluster](clusters.md#ray). By default `local` for one node, and `allocation` for several where
    the driver runs in one. Commands of other trainers start once on this machine by default, and
    start ranks on other nodes themselves.
    """
    address: str | None = None
    """`ray` only: `auto` (the default), the cluster that this machine is in, or that of
    `RAY_ADDRESS`; `HOST:PORT` of its head, from a machine of the cluster; `ray://HOST:PORT` from
    elsewhere; `local` starts one on this machine.
    """
    shared_files: bool | None = None
    """`ray` only: whether run folders and data are on a file system that all nodes share, as by
    default. With `false` files travel through Ray's object store.
    """
    resources: Mapping[str, float] = field(default_factory=dict)
    """`ray` only: what each node needs of Ray's other resources, as `{"accelerator_type:H100" =
    0.001}`.
    """
    scheduler: str | None = None
    """`slurm` or `pbs`, for `parsl`."""
    account: str | None = None
    """Account that is charged."""
    queue: str | None = None
    """Queue; under Slurm the partition."""
    qos: str | None = None
    """`slurm` only."""
    constraint: str | None = None
    """`slurm` only."""
    walltime: str | None = None
    """`"HH:MM:00"`, for `parsl`: how long an allocation is held; at least `probe.deadline_s` plus
    two minutes.
    """
    nodes_per_allocation: int | None = None
    """Nodes of an allocation, by default and at least `cluster.nodes`; with more, and
    `search.parallel_probes` above 1, probes run side by side.
    """
    allocations: int | None = None
    """Allocations at a time, at most (by default 1); one that ends is replaced while probes
    wait.
    """
    processors_per_node: int | None = None
    """Processors to request per node (`slurm`: `--cpus-per-task`; `pbs`: `ncpus`)."""
    scheduler_options: tuple[str, ...] = ()
    """More lines for the head of the submit script, each with its `#SBATCH` or `#PBS`."""
    select_options: str | None = None
    """`pbs` only: what follows `-l select=N:ncpus=M:`, as `ngpus=4`."""
    queue_limit_minutes: float | None = None
    """The campaign pauses if an allocation waits longer in the queue."""
    driver_address: str | None = None
    """Name or address of the driver's host, as compute nodes reach it."""
    launcher: str | None = None
    """What starts a process per node: `srun`, `mpiexec` (MPICH's or Cray's), `mpirun` (Open MPI's),
    `flux`, or `none` for one node; by default the scheduler's.
    """
    launcher_options: tuple[str, ...] = ()
    """Arguments for the launcher."""
    worker_init: tuple[str, ...] = ()
    """Lines of shell that an allocation runs first: modules, environments."""
    network_interface: str | None = None
    """Interface that ranks communicate over, as `hsn0`."""
    lifeline_s: float | None = None
    """The nodes of a probe end it when the driver has been silent for this long; at least 10, by
    default 60.
    """
    quarantine_after: int | None = None
    """A node that lost this many attempts in a row, or on which as many hung, crashed or were held
    up while others did well, is set aside; by default 2, and never with 0.
    """
    quarantine_minutes: float | None = None
    """After this time a node that was set aside is checked, and used again if it is fine; by
    default 30, and twice as long each further time.
    """

    def __post_init__(self) -> None:
        for key, known in (("backend", BACKENDS), ("launcher", LAUNCHERS)):
            if getattr(self, key) is not None:
                require_one_of("dispatch", key, getattr(self, key), known)
        given = {
            key: value
            for key, value in vars(self).items()
            if value not in (None, (), {}) and key != "backend"
        }
        for key, value in given.items():  # none is ignored
            if (expected := self._why_unused(key)) is not None:
                raise bad_value(f"dispatch.{key}", value, expected)
            _check_value(key, value)
        if self.backend == "parsl":
            self._check_request(given)

    def _why_unused(self, key: str) -> str | None:
        if self.backend == "local" or (self.backend == RAY and key not in _KEYS_WITH_RAY):
            return f'no such key with dispatch.backend = "{self.backend}"'
        if key in _RAY_KEYS and self.backend != RAY:
            return 'no such key unless dispatch.backend = "ray"'
        if self.backend not in ("parsl", RAY) and key not in _STEP_KEYS:
            return 'no such key unless dispatch.backend = "parsl"' + (
                ' or "ray"' if key in _KEYS_WITH_RAY else ""
            )
        return None

    def _check_request(self, given: Mapping[str, Any]) -> None:
        if self.scheduler is None:
            raise bad_value("dispatch.scheduler", None, f"one of {', '.join(SCHEDULERS)}")
        if self.scheduler not in SCHEDULERS:
            return  # of a stored campaign: `require_scheduler` refuses it where nodes are requested
        if self.walltime_s < 60:
            expected = '"HH:MM:00", whole minutes: how long to hold nodes'
            raise bad_value("dispatch.walltime", self.walltime, expected)
        _, prefix, known = SCHEDULERS[self.scheduler]
        for key in given.keys() & (_REQUEST_KEYS - known.keys()):
            raise bad_value(
                f"dispatch.{key}", given[key], f"a key for {self.scheduler}: {', '.join(known)}"
            )
        for line in self.scheduler_options:
            if not line.startswith(f"{prefix} "):
                raise bad_value(
                    "dispatch.scheduler_options", line, f"lines that begin with {prefix}"
                )

    @property
    def has_nodes(self) -> bool:
        """Return whether the backend names nodes beside this machine."""
        return self.backend not in (None, "local")

    @property
    def shares_files(self) -> bool:
        """Return whether nodes see the driver's files."""
        return self.shared_files is not False

    @property
    def walltime_s(self) -> float:
        """`walltime` in seconds; 0 if missing or invalid."""
        found = _WALLTIME.fullmatch(self.walltime or "")
        return 0.0 if found is None else 3600.0 * int(found[1]) + 60.0 * int(found[2])


def require_scheduler(settings: DispatchSettings) -> DispatchSettings:
    """Return the settings; raise `InvalidInput` where they request nodes from a batch system that
    this version does not know.

    Stored campaigns of earlier versions may name one: they are read, and cannot be resumed.
    """
    scheduler = settings.scheduler
    if scheduler in UNSUITED_SCHEDULERS:
        raise InvalidInput(f'dispatch.scheduler = "{scheduler}": {UNSUITED_SCHEDULERS[scheduler]}')
    if scheduler is not None:
        require_one_of("dispatch", "scheduler", scheduler, SCHEDULERS)
    return settings


def _check_value(key: str, value: Any) -> None:
    if key in _WORDS and not _WORD.fullmatch(value):
        raise bad_value(
            f"dispatch.{key}", value, "one word, without blanks, quotes or signs of a shell"
        )
    if isinstance(value, tuple) and not all(line.strip() and line.isprintable() for line in value):
        raise bad_value(
            f"dispatch.{key}", value, "a list of lines of printable text, none of them empty"
        )
    if (
        key == "address"
        and value not in (RAY_AUTO, RAY_LOCAL)
        and not _RAY_ADDRESS.fullmatch(value)
    ):
        raise bad_value("dispatch.address", value, "auto, local, HOST:PORT or ray://HOST:PORT")
    if key == "resources":
        for name, amount in value.items():
            require_above_zero(f"dispatch.resources.{name}", amount, "an amount above 0")
    if key in _LEAST:
        require_at_least("dispatch", _LEAST[key], **{key: value})
    if key in ("queue_limit_minutes", "quarantine_minutes"):
        require_above_zero(f"dispatch.{key}", value, "minutes above 0, or no entry")


@dataclass(frozen=True, kw_only=True)
class NodeSource:
    """How nodes are obtained: up to `allocations` at a time, of `nodes` each, or as the job `held`
    by the driver.

    `node_resources` is what Ray reserves on each node.
    Nodes by the names in `excluded` are not wanted, which only Slurm can be told.
    """

    scheduler: str
    nodes: int
    allocations: int
    launcher: str
    settings: DispatchSettings
    held: Allocation | None = None
    excluded: tuple[str, ...] = ()
    seconds_left: float | None = None
    node_resources: Mapping[str, float] = field(default_factory=dict)


def node_source(
    settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str] | None = None
) -> NodeSource | None:
    """Return the campaign's source of nodes; None where its probes run on this machine alone."""
    environment = os.environ if environment is None else environment
    backend, held = settings.backend, allocation(environment)
    if backend is None and cluster.nodes > 1 and (held is None or len(held.nodes) == 1):
        raise bad_value(
            "cluster.nodes",
            cluster.nodes,
            "1: probes run on the machine that the driver is on",
            hint=(
                'dispatch.backend = "parsl" requests nodes from a batch system, "ray" from a Ray'
                " cluster; within a job of several (salloc, qsub -I) they are found; to try the"
                " search here, with simulated outcomes: frontrunner launch FILE --set"
                " evaluator=simulated"
            ),
        )
    backend = backend or ("allocation" if cluster.nodes > 1 else "local")
    if backend == "local":
        if cluster.nodes > 1:
            raise bad_value(
                "dispatch.backend",
                "local",
                f"allocation, parsl or ray for cluster.nodes = {cluster.nodes}",
            )
        return None
    if backend == RAY:
        return _of_ray(settings, cluster)
    if find_spec("parsl") is None:
        install = f"run: {installing('frontrunner[hpc]')}"
        raise bad_value("dispatch.backend", backend, "local: Parsl is not installed", hint=install)
    if backend == "allocation":
        return _held(settings, cluster, held)
    scheduler = require_scheduler(settings).scheduler or ""
    return NodeSource(
        scheduler=scheduler,
        nodes=settings.nodes_per_allocation or cluster.nodes,
        allocations=settings.allocations or 1,
        launcher=settings.launcher or SCHEDULER_LAUNCHERS[scheduler],
        settings=settings,
    )


def _of_ray(settings: DispatchSettings, cluster: Cluster) -> NodeSource:
    if find_spec("ray") is None:
        install = f"run: {installing('frontrunner[ray]')}"
        raise bad_value("dispatch.backend", RAY, "local: Ray is not installed", hint=install)
    nodes, allocations = settings.nodes_per_allocation or cluster.nodes, settings.allocations or 1
    if settings.address == RAY_LOCAL:
        stated = (
            "cluster.nodes"
            if settings.nodes_per_allocation is None
            else "dispatch.nodes_per_allocation"
        )
        for key, value in ((stated, nodes), ("dispatch.allocations", allocations)):
            if value > 1:
                raise bad_value(
                    key,
                    value,
                    '1 with dispatch.address = "local", a Ray cluster of this machine alone',
                )
    kind = "CPU" if cluster.backend == "cpu" else "GPU"
    if kind in settings.resources:
        raise bad_value(
            f"dispatch.resources.{kind}",
            settings.resources[kind],
            "no entry: cluster.devices_per_node is it",
        )
    return NodeSource(
        scheduler=RAY,
        nodes=nodes,
        allocations=allocations,
        launcher="none",
        settings=settings,
        node_resources={kind: float(cluster.devices_per_node), **settings.resources},
    )


def has_resources(node: Mapping[str, float], needed: Mapping[str, float]) -> bool:
    """Return whether a node of Ray has at least these of its resources, in use or not."""
    return all(node.get(name, 0) >= amount for name, amount in needed.items())


def in_words(resources: Mapping[str, float]) -> str:
    """Return resources of Ray for people."""
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def why_unreachable(address: str) -> str | None:
    """Return why nothing responds at a Ray address; None if something does, or the address names no
    host.
    """
    found = _RAY_ADDRESS.fullmatch(
        os.environ.get("RAY_ADDRESS", "") if address == RAY_AUTO else address
    )
    if found is None:
        return None
    try:
        socket.create_connection(
            (found["host"].strip("[]"), int(found["port"])), timeout=REACH_S
        ).close()
    except (OSError, OverflowError) as error:
        return f"nothing responds there: {error}"
    return None


def _held(settings: DispatchSettings, cluster: Cluster, held: Allocation | None) -> NodeSource:
    if held is None and cluster.nodes > 1:
        raise InvalidInput(
            'dispatch.backend = "allocation": this process is in no job whose nodes are known',
            hint="start it within salloc, qsub -I or a batch script",
        )
    held = held or Allocation(
        scheduler=THIS_MACHINE, job_id=str(os.getpid()), nodes=(socket.gethostname(),)
    )
    if len(held.nodes) < cluster.nodes:
        expected = f"at most the {len(held.nodes)} of {held.scheduler} job {held.job_id}"
        raise bad_value("cluster.nodes", cluster.nodes, expected)
    launcher = settings.launcher or SCHEDULER_LAUNCHERS.get(held.scheduler, "none")
    if launcher == "none" and cluster.nodes > 1:
        raise bad_value(
            "dispatch.launcher", launcher, "a launcher for several nodes, as srun or mpiexec"
        )
    return NodeSource(
        scheduler=held.scheduler,
        nodes=len(held.nodes),
        allocations=1,
        launcher=launcher,
        settings=settings,
        held=held,
        seconds_left=seconds_left(held.scheduler, held.job_id),
    )
