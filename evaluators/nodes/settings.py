"""Where probes run and how nodes for them are obtained: the section [dispatch] of a campaign
file.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

from frontrunner.evaluators.nodes.environment import Allocation
from frontrunner.spaces.errors import (
    InvalidInput,
    bad_value,
    require_above_zero,
    require_at_least,
    require_one_of,
)

BACKENDS = {
    "allocation": "frontrunner.evaluators.nodes.parsl_allocation:HELD_JOB",
    "parsl": "frontrunner.evaluators.nodes.parsl_allocation:BATCH_SYSTEM",
    "ray": "frontrunner.evaluators.nodes.ray_allocation:RAY_CLUSTER",
}
"""Values of `dispatch.backend` beside `LOCAL`, and where the `Backend` of each is: the nodes of the
driver's own job; nodes requested from a batch system, or from Ray.
"""
LOCAL = "local"
"""The backend that is this machine alone."""
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
"""How each launcher starts one process per node. No launcher binds the process to a part of its
node: all ranks share the node.
"""
SCHEDULER_LAUNCHERS = {"slurm": "srun", "pbs": "mpiexec", "flux": "flux"}


class RequestFormat(NamedTuple):
    """For one batch system: Parsl's provider, what a line of options begins with, and Parsl's names
    for keys of [dispatch].
    """

    provider: str
    option_prefix: str
    request: dict[str, str]


SCHEDULERS = {
    "slurm": RequestFormat(
        "SlurmProvider",
        "#SBATCH",
        {"account": "account", "queue": "partition", "qos": "qos", "constraint": "constraint"}
        | {"scheduler_options": "scheduler_options", "processors_per_node": "cores_per_node"},
    ),
    "pbs": RequestFormat(
        "PBSProProvider",
        "#PBS",
        {"account": "account", "queue": "queue", "scheduler_options": "scheduler_options"}
        | {"select_options": "select_options", "processors_per_node": "cpus_per_node"},
    ),
}
REFUSED_SCHEDULERS = {
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
"""How much longer than a probe's deadline an allocation lasts: workers and ranks have to start, and
a probe must end some time before its allocation does.
"""
REACH_S = 5.0
"""How long a Ray cluster may take to accept a connection."""

_REQUEST_KEYS = {key for system in SCHEDULERS.values() for key in system.request}
HIDDEN_LINES = ("worker_init", "scheduler_options", "launcher_options")
"""Keys with lines of a site that may hold secrets; a service never sends them."""
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


def _read_by(*backends: str) -> Mapping[str, Any]:
    """Return the metadata of a key of [dispatch] that only these backends read."""
    return {"backends": backends}


_RAY = _read_by("ray")
_PARSL = _read_by("parsl")
_REQUESTED = _read_by("parsl", "ray")
_LAUNCHED = _read_by("allocation", "parsl")
_DISPATCHED = _read_by("allocation", "parsl", "ray")


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
    the driver runs in a job of several. By default, a command of another trainer is started once,
    on this machine, and starts ranks on other nodes itself.
    """
    address: str | None = field(default=None, metadata=_RAY)
    """`ray` only: `auto` (the default), the cluster that this machine is in, or that of
    `RAY_ADDRESS`; `HOST:PORT` of its head, from a machine of the cluster; `ray://HOST:PORT` from
    elsewhere; `local` starts one on this machine.
    """
    shared_files: bool | None = field(default=None, metadata=_RAY)
    """`ray` only: whether run folders and data are on a file system that all nodes share, as by
    default. With `false` files travel through Ray's object store.
    """
    resources: Mapping[str, float] = field(default_factory=dict, metadata=_RAY)
    """`ray` only: what each node needs of Ray's other resources, as `{"accelerator_type:H100" =
    0.001}`.
    """
    scheduler: str | None = field(default=None, metadata=_PARSL)
    """`slurm` or `pbs`, for `parsl`."""
    account: str | None = field(default=None, metadata=_PARSL)
    """Account that is charged."""
    queue: str | None = field(default=None, metadata=_PARSL)
    """Queue; under Slurm the partition."""
    qos: str | None = field(default=None, metadata=_PARSL)
    """`slurm` only."""
    constraint: str | None = field(default=None, metadata=_PARSL)
    """`slurm` only."""
    walltime: str | None = field(default=None, metadata=_PARSL)
    """`"HH:MM:00"`, for `parsl`: how long an allocation is held; at least `probe.deadline_s` plus
    two minutes.
    """
    nodes_per_allocation: int | None = field(default=None, metadata=_REQUESTED)
    """Nodes of an allocation; `cluster.nodes` is the default and the minimum. With more, and
    `search.parallel_probes` above 1, probes run side by side.
    """
    allocations: int | None = field(default=None, metadata=_REQUESTED)
    """Allocations at a time, at most (by default 1); one that ends is replaced while probes
    wait.
    """
    processors_per_node: int | None = field(default=None, metadata=_PARSL)
    """Processors to request per node (`slurm`: `--cpus-per-task`; `pbs`: `ncpus`)."""
    scheduler_options: tuple[str, ...] = field(default=(), metadata=_PARSL)
    """More lines for the head of the submit script, each with its `#SBATCH` or `#PBS`."""
    select_options: str | None = field(default=None, metadata=_PARSL)
    """`pbs` only: what follows `-l select=N:ncpus=M:`, as `ngpus=4`."""
    queue_limit_minutes: float | None = field(default=None, metadata=_REQUESTED)
    """The campaign pauses if an allocation waits longer in the queue."""
    driver_address: str | None = field(default=None, metadata=_PARSL)
    """Name or address of the driver's host, as compute nodes reach it."""
    launcher: str | None = field(default=None, metadata=_LAUNCHED)
    """What starts a process per node: `srun`, `mpiexec` (MPICH's or Cray's), `mpirun` (Open MPI's),
    `flux`, or `none` for one node; by default the scheduler's.
    """
    launcher_options: tuple[str, ...] = field(default=(), metadata=_LAUNCHED)
    """Arguments for the launcher."""
    worker_init: tuple[str, ...] = field(default=(), metadata=_LAUNCHED)
    """Lines of shell that an allocation runs first: modules, environments."""
    network_interface: str | None = field(default=None, metadata=_DISPATCHED)
    """Interface that ranks communicate over, as `hsn0`."""
    lifeline_s: float | None = field(default=None, metadata=_DISPATCHED)
    """The nodes of a probe end it when the driver has been silent for this long; at least 10, by
    default 60.
    """
    quarantine_after: int | None = field(default=None, metadata=_DISPATCHED)
    """A node is set aside after so many lost attempts in a row, or after so many that hung, crashed
    or were slow there while other nodes did well. By default 2; 0 sets no node aside.
    """
    quarantine_minutes: float | None = field(default=None, metadata=_DISPATCHED)
    """After this time a node that was set aside is checked, and used again if it is fine. By
    default 30; twice as long each further time.
    """

    def __post_init__(self) -> None:
        for key, known in (("backend", (LOCAL, *BACKENDS)), ("launcher", LAUNCHERS)):
            if getattr(self, key) is not None:
                require_one_of("dispatch", key, getattr(self, key), known)
        given = {
            key: value
            for key, value in vars(self).items()
            if value not in (None, (), {}) and key != "backend"
        }
        for key, value in given.items():  # none is ignored
            if not self.reads(key):
                backends = " or ".join(f'"{one}"' for one in _backends_of(key))
                expected = f"no such key unless dispatch.backend = {backends}"
                raise bad_value(f"dispatch.{key}", value, expected)
            _check_value(key, value)
        if self.backend == "parsl":
            self._check_request(given)

    def reads(self, key: str) -> bool:
        """Return whether the backend reads a key of [dispatch]."""
        # Without a backend it follows from the cluster and the job, which are not known here.
        return (self.backend or "allocation") in _backends_of(key)

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
        return self.backend not in (None, LOCAL)

    @property
    def shares_files(self) -> bool:
        """Return whether nodes see the driver's files."""
        return self.shared_files is not False

    @property
    def walltime_s(self) -> float:
        """`walltime` in seconds; 0 if missing or invalid."""
        found = _WALLTIME.fullmatch(self.walltime or "")
        return 0.0 if found is None else 3600.0 * int(found[1]) + 60.0 * int(found[2])


def _backends_of(key: str) -> tuple[str, ...]:
    """Return the backends that read a key of [dispatch]."""
    (found,) = (one.metadata["backends"] for one in fields(DispatchSettings) if one.name == key)
    return cast("tuple[str, ...]", found)


def require_scheduler(settings: DispatchSettings) -> DispatchSettings:
    """Return the settings; raise `InvalidInput` where they request nodes from a batch system that
    this version does not know.

    Stored campaigns of earlier versions may name one: they are read, and cannot be resumed.
    """
    scheduler = settings.scheduler
    if scheduler in REFUSED_SCHEDULERS:
        raise InvalidInput(f'dispatch.scheduler = "{scheduler}": {REFUSED_SCHEDULERS[scheduler]}')
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

    `end_s` is when that job ends, by the monotonic clock. `node_resources` is what Ray reserves on
    each node. Nodes with the names in `excluded` should not be used; only Slurm accepts this.
    """

    backend: str
    nodes: int
    allocations: int
    launcher: str
    settings: DispatchSettings
    scheduler: str = ""
    held: Allocation | None = None
    excluded: tuple[str, ...] = ()
    end_s: float | None = None
    node_resources: Mapping[str, float] = field(default_factory=dict)


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
