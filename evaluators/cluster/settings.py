"""What a campaign says about the nodes on which its probes run: the section [dispatch] of its file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from frontrunner.spaces.errors import InvalidInput, bad_value, require_above_zero, require_at_least, require_one_of

BACKENDS = ("local", "allocation", "parsl")
"""This machine alone; the nodes of the job that the driver runs in; allocations that a batch system gives."""

SCHEDULERS = ("slurm", "pbs", "lsf")

UNSUITED_SCHEDULERS = {
    "flux": 'Parsl has no MPI executor over Flux: start within a Flux job, with backend = "allocation"',
    "kubernetes": "Parsl's MPI executor reads its nodes from a batch system, and pods have none",
}

LAUNCHERS = ("srun", "mpiexec", "mpirun", "flux", "none")
"""What starts one process a node: Slurm's; MPICH's Hydra and Cray PALS; Open MPI's; Flux's; nothing, for one node."""

SCHEDULER_LAUNCHERS = {"slurm": "srun", "pbs": "mpiexec", "lsf": "mpirun", "flux": "flux"}
"""The launcher of each batch system, unless the campaign names another."""

UNDERSTOOD = {
    "slurm": ("account", "queue", "qos", "constraint", "scheduler_options", "processors_per_node"),
    "pbs": ("account", "queue", "scheduler_options", "select_options", "processors_per_node"),
    "lsf": ("account", "queue", "scheduler_options"),
}
"""Which of the keys that ask for an allocation each batch system has a word for."""

OPTION_PREFIXES = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB"}

SPARE_WALLTIME_S = 120.0
"""What an allocation lasts beyond a probe's deadline: starting workers and ranks, and what packing leaves over."""

_REQUEST_KEYS = ("account", "queue", "qos", "constraint", "scheduler_options", "select_options", "processors_per_node")
_PARSL_KEYS = (
    "scheduler", *_REQUEST_KEYS, "walltime", "nodes_per_allocation", "allocations", "queue_limit_minutes",
    "driver_address",
)  # fmt: skip
_STEP_KEYS = ("launcher", "launcher_options", "worker_init", "network_interface", "lifeline_s")
_WALLTIME = re.compile(r"(\d{1,3}):([0-5]\d):00")
"""Whole minutes: Slurm and LSF count in them."""

_WORD = re.compile(r"[\w@%+=:,./&|*\[\]()-]+", re.ASCII)
"""Words that reach a submit script or a command line of a batch system: no blank, quote, `;`, `$` or line's end."""


@dataclass(frozen=True, kw_only=True)
class DispatchSettings:
    """Where probes run, and how nodes for them are had. `docs/campaign-file.md` has the keys one by one.

    `backend` None is "local" for a cluster of one node, and "allocation" within a job of several nodes.
    `worker_init` are lines of shell that each allocation runs first; they come from the campaign's own file and from
    nowhere else. None stands for a key that is not given.
    """

    backend: str | None = None
    scheduler: str | None = None
    account: str | None = None
    queue: str | None = None
    qos: str | None = None
    constraint: str | None = None
    walltime: str | None = None
    nodes_per_allocation: int | None = None
    allocations: int | None = None
    processors_per_node: int | None = None
    scheduler_options: tuple[str, ...] = ()
    select_options: str | None = None
    queue_limit_minutes: float | None = None
    driver_address: str | None = None
    launcher: str | None = None
    launcher_options: tuple[str, ...] = ()
    worker_init: tuple[str, ...] = ()
    network_interface: str | None = None
    lifeline_s: float | None = None

    def __post_init__(self) -> None:
        if self.backend is not None:
            require_one_of("dispatch", "backend", self.backend, BACKENDS)
        self._refuse_foreign_keys()
        self._check_words()
        self._check_numbers()
        if self.launcher is not None:
            require_one_of("dispatch", "launcher", self.launcher, LAUNCHERS)
        if self.backend == "parsl":
            self._check_request()

    def _given(self, key: str) -> bool:
        return getattr(self, key) not in (None, ())

    def _refuse_foreign_keys(self) -> None:
        """What the chosen backend does not read is refused rather than dropped."""
        needs = "dispatch.backend = "
        foreign = () if self.backend == "parsl" else _PARSL_KEYS
        for key in (*foreign, *(_STEP_KEYS if self.backend == "local" else ())):
            if self._given(key):
                wanted = (
                    f'no such key unless {needs}"parsl"' if key in _PARSL_KEYS else f'no such key with {needs}"local"'
                )
                raise bad_value(f"dispatch.{key}", getattr(self, key), wanted)

    def _check_words(self) -> None:
        for key in ("account", "queue", "qos", "constraint", "select_options", "driver_address", "network_interface"):
            value = getattr(self, key)
            if value is not None and not _WORD.fullmatch(value):
                raise bad_value(f"dispatch.{key}", value, "one word, without blanks, quotes or signs of a shell")
        for key in ("scheduler_options", "launcher_options", "worker_init"):
            for line in getattr(self, key):
                if not line.strip() or not line.isprintable():
                    raise bad_value(f"dispatch.{key}", line, "a list of lines of printable text, none of them empty")

    def _check_numbers(self) -> None:
        for key in ("nodes_per_allocation", "allocations", "processors_per_node"):
            value = getattr(self, key)
            if value is not None:
                require_at_least("dispatch", 1, **{key: value})
        require_above_zero("dispatch.queue_limit_minutes", self.queue_limit_minutes, "minutes above 0, or no entry")
        if self.lifeline_s is not None:
            require_at_least("dispatch", 10, lifeline_s=self.lifeline_s)

    def _check_request(self) -> None:
        """What Parsl needs to ask a batch system for nodes."""
        if self.scheduler is None:
            raise bad_value("dispatch.scheduler", None, f"one of {', '.join(SCHEDULERS)}")
        if self.scheduler in UNSUITED_SCHEDULERS:
            raise InvalidInput(f'dispatch.scheduler = "{self.scheduler}": {UNSUITED_SCHEDULERS[self.scheduler]}')
        require_one_of("dispatch", "scheduler", self.scheduler, SCHEDULERS)
        if self.walltime is None or not _WALLTIME.fullmatch(self.walltime) or self.walltime_s < 60:
            raise bad_value("dispatch.walltime", self.walltime, '"HH:MM:00", whole minutes: how long to hold nodes')
        for key in _REQUEST_KEYS:
            if self._given(key) and key not in UNDERSTOOD[self.scheduler]:
                known = ", ".join(UNDERSTOOD[self.scheduler])
                raise bad_value(f"dispatch.{key}", getattr(self, key), f"a key for {self.scheduler}: {known}")
        prefix = OPTION_PREFIXES[self.scheduler]
        for line in self.scheduler_options:
            if not line.startswith(f"{prefix} "):
                raise bad_value("dispatch.scheduler_options", line, f"lines that begin with {prefix}")

    @property
    def walltime_s(self) -> float:
        """`walltime` in seconds; 0 where none is given."""
        found = _WALLTIME.fullmatch(self.walltime or "")
        return 0.0 if found is None else 3600.0 * int(found[1]) + 60.0 * int(found[2])

    @property
    def most_allocations(self) -> int:
        """Allocations at a time: `allocations`, 1 where none is given."""
        return self.allocations or 1

    @property
    def silence_s(self) -> float:
        """How long the nodes of a probe go on after its driver has fallen silent: `lifeline_s`, else 60 s."""
        return 60.0 if self.lifeline_s is None else self.lifeline_s
