"""Where probes run and how nodes for them are obtained: the section [dispatch] of a campaign file."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from frontrunner.evaluators.cluster.environment import Allocation, allocation
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, require_above_zero, require_at_least, require_one_of

BACKENDS = ("local", "allocation", "parsl")
"""This machine alone; the nodes of the job that the driver runs in; allocations requested from a batch system."""

LAUNCHERS = ("srun", "mpiexec", "mpirun", "flux", "none")
"""Programs that start one process per node: Slurm's; MPICH's Hydra and Cray PALS; Open MPI's; Flux's; none for one
node. See `batch.launch_command`."""

SCHEDULER_LAUNCHERS = {"slurm": "srun", "pbs": "mpiexec", "lsf": "mpirun", "flux": "flux"}
"""Default launcher of each batch system."""

SCHEDULERS = ("slurm", "pbs", "lsf")
"""Batch systems that allocations can be requested from."""

UNSUITED_SCHEDULERS = {
    "flux": 'Parsl has no MPI executor over Flux: start within a Flux job, with backend = "allocation"',
    "kubernetes": "Parsl's MPI executor reads its nodes from a batch system, and pods have none",
}
REQUEST_KEYS = {
    "slurm": ("account", "queue", "qos", "constraint", "scheduler_options", "processors_per_node"),
    "pbs": ("account", "queue", "scheduler_options", "select_options", "processors_per_node"),
    "lsf": ("account", "queue", "scheduler_options"),
}
"""Keys of a request for nodes that each batch system understands."""
OPTION_PREFIXES = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB"}

SPARE_WALLTIME_S = 120.0
"""What an allocation lasts beyond a probe's deadline: starting workers and ranks, and what packing leaves over."""

THIS_MACHINE = "this-machine"
"""Scheduler of an allocation that is this machine alone, without any job."""

_REQUEST_KEYS = tuple(dict.fromkeys(key for keys in REQUEST_KEYS.values() for key in keys))
_PARSL_KEYS = (
    *("scheduler", *_REQUEST_KEYS, "walltime", "nodes_per_allocation", "allocations", "queue_limit_minutes"),
    "driver_address",
)
_STEP_KEYS = ("launcher", "launcher_options", "worker_init", "network_interface", "lifeline_s")
_WORDS = ("account", "queue", "qos", "constraint", "select_options", "driver_address", "network_interface")
_LINES = ("scheduler_options", "launcher_options", "worker_init")
_LEAST = {"nodes_per_allocation": 1, "allocations": 1, "processors_per_node": 1, "lifeline_s": 10}
_WALLTIME = re.compile(r"(\d{1,3}):([0-5]\d):00")
"""Whole minutes: Slurm and LSF count in them."""

_WORD = re.compile(r"[\w@%+=:,./&|*\[\]()-]+", re.ASCII)
"""Words that reach a submit script or a command line of a batch system: no blank, quote, `;`, `$` or newline."""


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Where probes run, and how nodes are requested. Keys that the backend or scheduler does not use are errors.

    `worker_init` comes from the campaign's own file only.
    """

    backend: str | None = None
    """`local`: this machine. `allocation`: the nodes of the job that the driver runs in (`salloc`, `qsub -I`, a
    batch script). `parsl`: nodes requested from a batch system. By default `local` for one node, and `allocation`
    for several where the driver runs in one."""
    scheduler: str | None = None
    """`slurm`, `pbs` or `lsf`, for `parsl`."""
    account: str | None = None
    """Account that is charged (`lsf`: the project)."""
    queue: str | None = None
    """Queue; under Slurm the partition."""
    qos: str | None = None
    """`slurm` only."""
    constraint: str | None = None
    """`slurm` only."""
    walltime: str | None = None
    """`"HH:MM:00"`, for `parsl`: how long an allocation is held; at least `probe.deadline_s` plus two minutes."""
    nodes_per_allocation: int | None = None
    """Nodes of an allocation, by default those of the largest recipe; with more, probes run side by side."""
    allocations: int | None = None
    """Allocations at a time, at most (by default 1); one that ends is replaced while probes wait."""
    processors_per_node: int | None = None
    """Processors to request per node (`slurm`: `--cpus-per-task`; `pbs`: `ncpus`)."""
    scheduler_options: tuple[str, ...] = ()
    """More lines for the head of the submit script, each with its `#SBATCH`, `#PBS` or `#BSUB`."""
    select_options: str | None = None
    """`pbs` only: what follows `-l select=N:ncpus=M:`, as `ngpus=4`."""
    queue_limit_minutes: float | None = None
    """The campaign pauses if an allocation waits longer in the queue."""
    driver_address: str | None = None
    """Name or address of the driver's host, as compute nodes reach it."""
    launcher: str | None = None
    """What starts a process per node: `srun`, `mpiexec` (MPICH's or Cray's), `mpirun` (Open MPI's), `flux`, or
    `none` for one node; by default the scheduler's."""
    launcher_options: tuple[str, ...] = ()
    """Arguments for the launcher."""
    worker_init: tuple[str, ...] = ()
    """Lines of shell that an allocation runs first: modules, environments."""
    network_interface: str | None = None
    """Interface that ranks communicate over, as `hsn0`."""
    lifeline_s: float | None = None
    """The nodes of a probe end it when the driver has been silent for this long; at least 10, by default 60."""

    def __post_init__(self) -> None:
        for key, known in (("backend", BACKENDS), ("launcher", LAUNCHERS)):
            if getattr(self, key) is not None:
                require_one_of("dispatch", key, getattr(self, key), known)
        for key in filter(self._is_given, (*_PARSL_KEYS, *_STEP_KEYS)):  # none is ignored
            if self.backend != "parsl" and key in _PARSL_KEYS:
                raise self._bad(key, 'no such key unless dispatch.backend = "parsl"')
            if self.backend == "local":
                raise self._bad(key, 'no such key with dispatch.backend = "local"')
        self._check_text()
        for key in filter(self._is_given, _LEAST):
            require_at_least("dispatch", _LEAST[key], **{key: getattr(self, key)})
        require_above_zero("dispatch.queue_limit_minutes", self.queue_limit_minutes, "minutes above 0, or no entry")
        if self.backend == "parsl":
            self._check_request()

    def _check_text(self) -> None:
        for key in filter(self._is_given, _WORDS):
            if not _WORD.fullmatch(getattr(self, key)):
                raise self._bad(key, "one word, without blanks, quotes or signs of a shell")
        for key in _LINES:
            if not all(line.strip() and line.isprintable() for line in getattr(self, key)):
                raise self._bad(key, "a list of lines of printable text, none of them empty")

    def _is_given(self, key: str) -> bool:
        return getattr(self, key) not in (None, ())

    def _bad(self, key: str, expected: str) -> InvalidInput:
        return bad_value(f"dispatch.{key}", getattr(self, key), expected)

    def _check_request(self) -> None:
        """Check what Parsl needs to request nodes from a batch system."""
        if self.scheduler is None:
            raise self._bad("scheduler", f"one of {', '.join(SCHEDULERS)}")
        if self.scheduler in UNSUITED_SCHEDULERS:
            raise InvalidInput(f'dispatch.scheduler = "{self.scheduler}": {UNSUITED_SCHEDULERS[self.scheduler]}')
        require_one_of("dispatch", "scheduler", self.scheduler, SCHEDULERS)
        if self.walltime_s < 60:
            raise self._bad("walltime", '"HH:MM:00", whole minutes: how long to hold nodes')
        known = REQUEST_KEYS[self.scheduler]
        for key in _REQUEST_KEYS:
            if self._is_given(key) and key not in known:
                raise self._bad(key, f"a key for {self.scheduler}: {', '.join(known)}")
        prefix = OPTION_PREFIXES[self.scheduler]
        for line in self.scheduler_options:
            if not line.startswith(f"{prefix} "):
                raise bad_value("dispatch.scheduler_options", line, f"lines that begin with {prefix}")

    @property
    def walltime_s(self) -> float:
        """Return `walltime` in seconds; 0 if missing or invalid."""
        found = _WALLTIME.fullmatch(self.walltime or "")
        return 0.0 if found is None else 3600.0 * int(found[1]) + 60.0 * int(found[2])

    @property
    def silence_s(self) -> float:
        """Return how long a probe's nodes go on without a heartbeat of the driver: `lifeline_s`, by default 60 s."""
        return 60.0 if self.lifeline_s is None else self.lifeline_s


@dataclass(frozen=True, kw_only=True)
class NodeSource:
    """How nodes are obtained: up to `allocations` at a time, of `nodes` each.

    `held` is the job that the driver runs in, with `seconds_left` if that is known; None where allocations of
    `walltime_s` are requested from a batch system. `launcher` starts a process on each node of a step.
    """

    scheduler: str
    nodes: int
    allocations: int
    launcher: str
    settings: DispatchSettings
    held: Allocation | None = None
    walltime_s: float = 0.0
    seconds_left: float | None = None


def node_source(
    settings: DispatchSettings, cluster: Cluster, environment: Mapping[str, str] | None = None
) -> NodeSource | None:
    """Return the campaign's source of nodes; None where its probes run on this machine alone.

    Raises `InvalidInput` if the settings, the cluster and the current job do not fit together, and if Parsl is needed
    and not installed.
    """
    environment = os.environ if environment is None else environment
    backend, held = settings.backend, allocation(environment)
    if backend is None and cluster.nodes > 1 and (held is None or len(held.nodes) == 1):
        raise bad_value(
            "cluster.nodes",
            cluster.nodes,
            "1: probes run on the machine that the driver is on",
            hint='dispatch.backend = "parsl" requests nodes from a batch system; within a job of several (salloc, '
            "qsub -I) they are found; `frontrunner space` works for any cluster",
        )
    backend = backend or ("allocation" if cluster.nodes > 1 else "local")
    if backend == "local":
        if cluster.nodes > 1:
            raise bad_value("dispatch.backend", "local", f"allocation or parsl for cluster.nodes = {cluster.nodes}")
        return None
    if find_spec("parsl") is None:
        install = "pip install 'frontrunner[hpc]'"
        raise bad_value("dispatch.backend", backend, "local: Parsl is not installed", hint=install)
    if backend == "allocation":
        return _held(settings, cluster, held)
    scheduler = settings.scheduler or ""
    return NodeSource(
        scheduler=scheduler,
        nodes=settings.nodes_per_allocation or cluster.nodes,
        allocations=settings.allocations or 1,
        launcher=settings.launcher or SCHEDULER_LAUNCHERS[scheduler],
        settings=settings,
        walltime_s=settings.walltime_s,
    )


def _held(settings: DispatchSettings, cluster: Cluster, held: Allocation | None) -> NodeSource:
    from frontrunner.evaluators.cluster.batch import seconds_left

    if held is None and cluster.nodes > 1:
        raise InvalidInput(
            'dispatch.backend = "allocation": this process is in no job whose nodes are known',
            hint="start it within salloc, qsub -I or a batch script",
        )
    held = held or Allocation(scheduler=THIS_MACHINE, job_id=str(os.getpid()), nodes=(socket.gethostname(),))
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
