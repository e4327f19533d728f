"""The job that this process is part of, by environment variables: launcher, rank, nodes and
devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from frontrunner.spaces.errors import InvalidInput, bad_value

Environment = Mapping[str, str]
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RENDEZVOUS_PORT = 29500
FIRST_SPECIAL_STEP = 0xFFFFFFFA
"""SLURM_INTERACTIVE_STEP: from here on steps are salloc's shell, the batch script and what Slurm
adds to a job.
"""
COLLECTIVES = {
    "cpu": ("gloo", "gloo"),
    "cuda": ("nccl", "NCCL"),
    "rocm": ("nccl", "RCCL"),
    "xpu": ("xccl", "oneCCL"),
}
DEVICE_MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
}
"""Variables that hide devices from a process: batch systems set them where a task gets devices of
its own.
"""
DEVICE_COUNTS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
"""Variables with the devices of a node: `4`, or with their kind, `a100:4`."""
MAX_HOSTS = 1_000_000


class Launcher(NamedTuple):
    """Names of the variables by which a launcher describes a process's place; the first that is set
    of each counts.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str = ""


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    Launcher(
        "open-mpi",
        *(f"OMPI_COMM_WORLD_{what}" for what in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")),
    ),
    # mpiexec of Cray PALS and of MPICH's Hydra; PALS leaves the world size to PMI.
    Launcher(
        "mpich",
        *(
            "PALS_RANKID PMI_RANK",
            "PMI_SIZE PALS_SIZE",
            "PALS_LOCAL_RANKID PMI_LOCAL_RANK MPI_LOCALRANKID",
        ),
        "PALS_LOCAL_SIZE PMI_LOCAL_SIZE MPI_LOCALNRANKS",
    ),
    Launcher("flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"),
    # A batch script itself has SLURM_PROCID 0 too, but no step.
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS SLURM_NTASKS", "SLURM_LOCALID"),
)
"""In order of precedence: torchrun may run under each of the others, and mpirun under srun."""

SCHEDULERS = {
    "slurm": ("SLURM_JOB_ID", "SLURM_JOB_NODELIST SLURM_NODELIST"),
    "pbs": ("PBS_JOBID", "PBS_NODEFILE"),
    "flux": ("FLUX_JOB_ID", "FLUX_JOB_NODELIST"),
}
"""For each batch system the variables with the job's id and its nodes: see `_nodes`."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """The nodes that a batch system gave this job, by name, in its order."""

    scheduler: str
    job_id: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LaunchedRank:
    """This process among those that a launcher started; ranks count from 0, local ones within their
    node.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int

    @property
    def torch_environment(self) -> dict[str, str]:
        """The same as the variables that torch.distributed reads."""
        places = (self.rank, self.world_size, self.local_rank, self.local_world_size)
        return dict(
            zip(TORCHRUN, map(str, (*places, self.master_address, self.master_port)), strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """A process's place among the others, the nodes of its allocation, and the devices that it
    sees.

    `backend` is cpu, cuda, rocm or xpu; `stated_devices_per_node` the batch system's figure;
    `masked_by` the variable that hides devices from this process.
    """

    launched: LaunchedRank | None
    allocation: Allocation | None
    backend: str
    device_name: str
    visible_devices: int
    stated_devices_per_node: int | None
    masked_by: str | None

    @property
    def nodes(self) -> tuple[str, ...]:
        """The allocation's nodes by name; empty outside one."""
        return self.allocation.nodes if self.allocation else ()

    @property
    def devices_per_node(self) -> int:
        """The visible devices; times the processes per node where each has been given devices of
        its own.
        """
        processes = self.launched.local_world_size if self.launched else 1
        if self.backend == "cpu":
            return processes if self.launched else self.visible_devices
        has_its_own = self.masked_by is not None and self.visible_devices < processes
        return self.visible_devices * (processes if has_its_own else 1)


def job_environment(environment: Environment, machine: Mapping[str, Any]) -> JobEnvironment:
    """Return the job of a process with this environment, on a machine as `this_machine.detect`
    describes it.
    """
    backend = machine["backend"]
    counts = (
        re.fullmatch(r"(?:[^:,\s]+:)?(\d{1,4})", environment.get(name, ""), re.ASCII)
        for name in DEVICE_COUNTS
    )
    return JobEnvironment(
        launched=launched_rank(environment),
        allocation=allocation(environment),
        backend=backend,
        device_name=machine["device"],
        visible_devices=machine["devices_per_node"],
        stated_devices_per_node=next((int(found[1]) for found in counts if found), None),
        masked_by=next(
            (name for name in DEVICE_MASKS.get(backend, ()) if environment.get(name, "").strip()),
            None,
        ),
    )


def allocation(environment: Environment) -> Allocation | None:
    """Return the allocation that this process runs in; None outside a batch job and where a job
    names no nodes.
    """
    for scheduler, (job_variable, nodes_variables) in SCHEDULERS.items():
        if job_variable in environment:
            nodes = tuple(
                dict.fromkeys(_nodes(scheduler, _first(environment, nodes_variables) or ""))
            )
            return (
                Allocation(scheduler=scheduler, job_id=environment[job_variable], nodes=nodes)
                if nodes
                else None
            )
    return None


def _nodes(scheduler: str, stated: str) -> list[str]:
    if scheduler == "pbs":  # a file with one line per slot or node, which begins with the host
        lines = (
            Path(stated).read_text(encoding="utf-8").split("\n") if Path(stated).is_file() else []
        )
        return [line.split()[0] for line in lines if line.strip()]
    return expand_hosts(stated)


def launched_rank(environment: Environment) -> LaunchedRank | None:
    """Return this process's place among a launcher's processes, or None if no launcher started
    it.
    """
    launcher = next((found for found in LAUNCHERS if _started(found, environment)), None)
    if launcher is None:
        return None
    missing = [name for name in TORCHRUN if name not in environment]
    if (
        launcher.name == "torchrun" and missing
    ):  # torchrun sets all of them, so RANK was set by hand
        raise InvalidInput(
            f"RANK is set, but not {', '.join(missing)}",
            hint="start with torchrun, or unset RANK for this machine",
        )
    rank, world, local_rank = (_number(environment, names) or 0 for names in launcher[1:4])
    held = allocation(environment)
    local_world = _number(environment, launcher.local_world_size)
    if local_world is None:
        nodes = _number(environment, "SLURM_STEP_NUM_NODES FLUX_JOB_NNODES") or (
            len(held.nodes) if held else 1
        )
        local_world = max(1, world // nodes)
    if not (rank < world and local_rank < local_world and world % local_world == 0):
        raise InvalidInput(
            f"{launcher.name} reports rank {rank} of {world}, {local_world} per node, local rank"
            f" {local_rank}: expected equal nodes"
        )
    return LaunchedRank(
        launcher=launcher.name,
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=local_world,
        master_address=_master_address(launcher, environment, world // local_world, held),
        master_port=_number(environment, "MASTER_PORT") or RENDEZVOUS_PORT,
    )


def _started(launcher: Launcher, environment: Environment) -> bool:
    if launcher.name == "torchrun":  # alone: who sets it by hand and forgets the rest gets an error
        return "RANK" in environment
    step = environment.get("SLURM_STEP_ID", "")
    if launcher.name == "srun" and not (step.isdecimal() and int(step) < FIRST_SPECIAL_STEP):
        return False  # sbatch or salloc started it: their steps have the numbers of slurm.h
    # srun may set PMI_RANK for MPICH's sake, so the variables count only together.
    return all(_first(environment, names) is not None for names in launcher[1:4])


def _master_address(
    launcher: Launcher, environment: Environment, nodes: int, held: Allocation | None
) -> str:
    # SLURM_LAUNCH_NODE_IPADDR does not help: it is where srun was typed, which may be a login node.
    if "MASTER_ADDR" in environment:
        return environment["MASTER_ADDR"]
    if nodes == 1:
        return "127.0.0.1"
    first = [
        *expand_hosts(environment.get("SLURM_STEP_NODELIST", "")),
        *(held.nodes if held else ()),
    ][:1]
    if not first:
        raise InvalidInput(
            f"{launcher.name} started processes on {nodes} nodes and does not state where rank"
            " 0 is",
            hint="set MASTER_ADDR to the host of rank 0",
        )
    return first[0]


def _first(environment: Environment, names: str) -> str | None:
    return next((environment[name] for name in names.split() if name in environment), None)


def _number(environment: Environment, names: str) -> int | None:
    text = _first(environment, names)
    if text is not None and not (text.isdecimal() and text.isascii()):
        raise bad_value(names, text, "a whole number")
    return None if text is None else int(text)


_HOST = re.compile(r"(?:[^\[\],\s]|\[\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\])+", re.ASCII)


def expand_hosts(text: str) -> list[str]:
    """Return the hosts of a list as Slurm and Flux abbreviate it:
    `frontier[00001-00003,00010],login1` is five.

    A range counts in the width of its first number. Several brackets in a name give every
    combination, the last one varying fastest (Slurm's manual of scontrol, "show hostlist"; RFC 29
    of Flux). Raises `InvalidInput` for an invalid list.
    """
    found: list[str] = []
    for name in re.split(r",(?![^\[]*\])", text.strip()) if text.strip() else ():
        pieces = re.split(r"\[([^\]]*)\]", name)
        choices = [_numbers(piece) if odd % 2 else [piece] for odd, piece in enumerate(pieces)]
        if not _HOST.fullmatch(name) or not all(choices):
            raise bad_value(
                "host list", text, "names with commas between them, as node[1-4],login1"
            )
        found += map("".join, itertools.product(*choices))
    return found


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of ranges; none if one of them runs backward or is too long."""
    found: list[str] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
        numbers = range(int(first), int(last or first) + 1)
        if not 0 < len(numbers) <= MAX_HOSTS:
            return []
        found += (f"{number:0{len(first)}d}" for number in numbers)
    return found
