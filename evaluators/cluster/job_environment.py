"""The job that this process is part of: which launcher started it, its rank, and the nodes of its allocation.

Launchers tell their processes where they are by environment variables, each in its own words. `LAUNCHERS` holds those
words, `SCHEDULERS` those by which a batch system names an allocation's nodes. Everything is read from a mapping that is
passed in, so that every launcher can be tried without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.cluster.host_lists import expand
from frontrunner.spaces.errors import InvalidInput, bad_value

Environment = Mapping[str, str]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch.distributed reads, and torchrun sets."""
RENDEZVOUS_PORT = 29500
"""torchrun's own default, where the launcher names none."""
FIRST_SPECIAL_STEP = 0xFFFFFFFA
"""SLURM_INTERACTIVE_STEP: from here on steps are salloc's shell, the batch script and what Slurm adds to a job."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The variables by which a launcher tells a process its place; the first that is set of each counts.

    Sizes of a node may be left out: they then follow from the world size and the number of nodes.
    """

    name: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    local_world_size: tuple[str, ...] = ()


LAUNCHERS = (
    Launcher(
        name="torchrun",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
    ),
    Launcher(  # mpirun of Open MPI, also under a batch system
        name="open-mpi",
        rank=("OMPI_COMM_WORLD_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    Launcher(  # jsrun of LSF machines
        name="jsrun",
        rank=("JSM_NAMESPACE_RANK",),
        world_size=("JSM_NAMESPACE_SIZE",),
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
    ),
    Launcher(  # mpiexec of Cray PALS and of MPICH's Hydra; PALS leaves the world size to PMI
        name="mpich",
        rank=("PALS_RANKID", "PMI_RANK"),
        world_size=("PMI_SIZE", "PALS_SIZE"),
        local_rank=("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "MPI_LOCALRANKID"),
        local_world_size=("PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    ),
    Launcher(name="flux", rank=("FLUX_TASK_RANK",), world_size=("FLUX_JOB_SIZE",), local_rank=("FLUX_TASK_LOCAL_ID",)),
    Launcher(  # srun; a batch script itself has SLURM_PROCID 0 too, but no step
        name="srun",
        rank=("SLURM_PROCID",),
        world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        local_rank=("SLURM_LOCALID",),
    ),
)
"""In the order of asking: torchrun may run under each of the others, and mpirun under srun."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What a batch system gave this job: its nodes by name, in its order."""

    scheduler: str
    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LaunchedRank:
    """This process among those that a launcher started; ranks count from 0, local ones within their node."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int

    @property
    def torch_environment(self) -> dict[str, str]:
        """The same in the variables that torch.distributed reads."""
        counts = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        values = (*map(str, counts), self.master_address, str(self.master_port))
        return dict(zip(TORCHRUN, values, strict=True))


def allocation(environment: Environment) -> Allocation | None:
    """The allocation that this process runs in; None outside a batch job, and where a job does not name its nodes.

    Raises `InvalidInput` for a list of nodes that cannot be read.
    """
    for scheduler, (job_variable, read_nodes) in SCHEDULERS.items():
        if job_variable in environment:
            nodes = tuple(dict.fromkeys(read_nodes(environment)))
            return Allocation(scheduler=scheduler, job_id=environment[job_variable], nodes=nodes) if nodes else None
    return None


def launched_rank(environment: Environment) -> LaunchedRank | None:
    """This process's place among a launcher's processes, or None for one that no launcher started.

    Raises `InvalidInput` for an environment that is incomplete or contradicts itself.
    """
    launcher = next((found for found in LAUNCHERS if _started(found, environment)), None)
    if launcher is None:
        return None
    if launcher.name == "torchrun":
        _refuse_incomplete(environment)
    rank, world, local_rank = (
        _number(name, environment[name])
        for name in (_first(names, environment) for names in (launcher.rank, launcher.world_size, launcher.local_rank))
    )
    held = allocation(environment)
    local_world = _local_world_size(launcher, environment, world, held)
    if not (rank < world and local_rank < local_world and world % local_world == 0):
        raise InvalidInput(
            f"{launcher.name} says rank {rank} of {world}, {local_world} a node, local rank {local_rank}: expected "
            "equal nodes"
        )
    return LaunchedRank(
        launcher=launcher.name,
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=local_world,
        master_address=_master_address(launcher, environment, world // local_world, held),
        master_port=_number("MASTER_PORT", environment.get("MASTER_PORT", str(RENDEZVOUS_PORT))),
    )


def _started(launcher: Launcher, environment: Environment) -> bool:
    """Whether the launcher told this process its place.

    srun may set PMI_RANK for MPICH's sake, and a batch script has a SLURM_PROCID without a step, so the others' words
    count only together. torchrun's RANK counts alone: whoever sets it by hand and forgets the rest should hear of it.
    """
    if launcher.name == "torchrun":
        return "RANK" in environment
    if launcher.name == "srun" and not _is_ordinary_step(environment.get("SLURM_STEP_ID", "")):
        return False
    told = (launcher.rank, launcher.world_size, launcher.local_rank)
    return all(any(name in environment for name in names) for names in told)


def _is_ordinary_step(step: str) -> bool:
    """Whether srun started this process, rather than sbatch or salloc, whose steps have the numbers of slurm.h."""
    return step.isdecimal() and int(step) < FIRST_SPECIAL_STEP


def _refuse_incomplete(environment: Environment) -> None:
    """Torchrun sets all of its variables, so one that is missing was forgotten by hand."""
    missing = [name for name in TORCHRUN if name not in environment]
    if missing:
        raise InvalidInput(
            f"RANK is set, but not {', '.join(missing)}", hint="start with torchrun, or unset RANK for this machine"
        )


def _first(names: tuple[str, ...], environment: Environment) -> str:
    return next(name for name in names if name in environment)


def _local_world_size(launcher: Launcher, environment: Environment, world: int, held: Allocation | None) -> int:
    """The processes of a node: as the launcher says, else the world over the nodes of its step or allocation."""
    for name in launcher.local_world_size:
        if name in environment:
            return _number(name, environment[name])
    for name in ("SLURM_STEP_NUM_NODES", "FLUX_JOB_NNODES"):
        if name in environment:
            return max(1, world // max(1, _number(name, environment[name])))
    return max(1, world // len(held.nodes)) if held else world


def _master_address(launcher: Launcher, environment: Environment, nodes: int, held: Allocation | None) -> str:
    """Where rank 0 listens: as MASTER_ADDR says, this host for one node, else the first node of the step or the job.

    SLURM_LAUNCH_NODE_IPADDR is no answer: it is where srun was typed, which may be a login node.
    """
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    if nodes == 1:
        return "127.0.0.1"
    first = next(iter(expand(environment.get("SLURM_STEP_NODELIST", ""))), None) or (held and held.nodes[0])
    if not first:
        raise InvalidInput(
            f"{launcher.name} started processes on {nodes} nodes and does not say where rank 0 is",
            hint="set MASTER_ADDR to the host of rank 0",
        )
    return first


def _number(name: str, text: str) -> int:
    if not (text.isdecimal() and text.isascii()):
        raise bad_value(name, text, "a whole number")
    return int(text)


def _slurm_nodes(environment: Environment) -> Iterator[str]:
    yield from expand(environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST", ""))


def _file_nodes(variable: str) -> Callable[[Environment], Iterator[str]]:
    """The nodes of a file of one host a line, a line for each slot or node."""

    def read(environment: Environment) -> Iterator[str]:
        path = Path(environment.get(variable, ""))
        if not path.is_file():
            return iter(())
        lines = path.read_text(encoding="utf-8").split("\n")
        return (line.split()[0] for line in lines if line.strip())

    return read


def _lsf_nodes(environment: Environment) -> Iterator[str]:
    """LSB_MCPU_HOSTS names host and slots in turns; the host of the batch script, of one slot, computes nothing."""
    words = environment.get("LSB_MCPU_HOSTS", "").split()
    pairs = list(zip(words[::2], words[1::2], strict=False))
    computing = [host for host, slots in pairs if slots != "1"]
    return iter(computing or [host for host, _ in pairs])


def _flux_nodes(environment: Environment) -> Iterator[str]:
    yield from expand(environment.get("FLUX_JOB_NODELIST", ""))


SCHEDULERS: dict[str, tuple[str, Callable[[Environment], Iterator[str]]]] = {
    "slurm": ("SLURM_JOB_ID", _slurm_nodes),
    "pbs": ("PBS_JOBID", _file_nodes("PBS_NODEFILE")),
    "lsf": ("LSB_JOBID", _lsf_nodes),
    "flux": ("FLUX_JOB_ID", _flux_nodes),
}
"""For each batch system the variable with the job's id, and how the environment tells the nodes."""
