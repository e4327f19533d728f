"""The job that this process is part of, with its devices: what doctor, calibrate and dispatch ask before they start.

`job_environment` puts the launcher's and the batch system's words together with what torch sees. All of it is passed
in, so that every machine can be tried without one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from frontrunner.evaluators.cluster.job_environment import (
    RENDEZVOUS_PORT,
    Allocation,
    Environment,
    LaunchedRank,
    allocation,
    launched_rank,
)
from frontrunner.evaluators.probe.jobs import TORCH_DEVICES

COLLECTIVES = {"cpu": ("gloo", "gloo"), "cuda": ("nccl", "NCCL"), "rocm": ("nccl", "RCCL"), "xpu": ("xccl", "oneCCL")}
"""By backend of a cluster: torch's name for the collective back end, and the library that is behind it."""
MASKS = {
    "cuda": ("CUDA_VISIBLE_DEVICES",),
    "rocm": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    "xpu": ("ZE_AFFINITY_MASK",),
}
"""The variables that hide devices from a process: batch systems set them where a task gets devices of its own."""
TOLD_DEVICES = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
"""Variables in which a batch system tells the devices of a node: `4`, or with their kind, `a100:4`."""


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """A process's place among the others, the nodes of its allocation, and the devices that it sees.

    `launched` is None for a process that no launcher started, `allocation` outside a batch job. `backend` is cpu, cuda,
    rocm or xpu. `told_devices_per_node` is what the batch system says of a node, None where it says nothing;
    `masked_by` the variable that hides devices from this process, None where none does.
    """

    launched: LaunchedRank | None
    allocation: Allocation | None
    backend: str
    device_name: str
    visible_devices: int
    told_devices_per_node: int | None
    masked_by: str | None

    @property
    def rank(self) -> int:
        """This process's rank; 0 for one that no launcher started."""
        return self.launched.rank if self.launched else 0

    @property
    def world_size(self) -> int:
        """The processes that the launcher started; 1 without one."""
        return self.launched.world_size if self.launched else 1

    @property
    def local_rank(self) -> int:
        """The rank within its node."""
        return self.launched.local_rank if self.launched else 0

    @property
    def local_world_size(self) -> int:
        """The launcher's processes on a node."""
        return self.launched.local_world_size if self.launched else 1

    @property
    def nodes(self) -> tuple[str, ...]:
        """The allocation's nodes by name; empty outside one."""
        return self.allocation.nodes if self.allocation else ()

    @property
    def master_address(self) -> str:
        """Where rank 0 listens."""
        return self.launched.master_address if self.launched else "127.0.0.1"

    @property
    def master_port(self) -> int:
        """The port that rank 0 listens on where nothing else is agreed on."""
        return self.launched.master_port if self.launched else RENDEZVOUS_PORT

    @property
    def devices_per_node(self) -> int:
        """What is visible; or that times the node's processes, where each has been given devices of its own."""
        if self.backend == "cpu":
            return self.local_world_size if self.launched else self.visible_devices
        has_its_own = self.masked_by is not None and self.visible_devices < self.local_world_size
        return self.visible_devices * (self.local_world_size if has_its_own else 1)

    @property
    def device_index(self) -> int:
        """The device of this rank among those that it sees: 0 where its launcher shows it one."""
        return self.local_rank % max(1, self.visible_devices)

    @property
    def torch_device(self) -> str:
        """Torch's word for the devices: cpu, cuda or xpu."""
        return TORCH_DEVICES[self.backend]

    @property
    def collective_backend(self) -> str:
        """Torch's word for the back end of collectives on the devices: gloo, nccl or xccl."""
        return COLLECTIVES[self.backend][0]

    @property
    def collective_library(self) -> str:
        """The library behind it: gloo, NCCL, RCCL or oneCCL."""
        return COLLECTIVES[self.backend][1]


def job_environment(environment: Environment, machine: Mapping[str, Any]) -> JobEnvironment:
    """The job that a process with this environment is part of, on a machine as `this_machine.detect` tells it.

    Raises `InvalidInput` for an environment that is incomplete or contradicts itself.
    """
    backend = machine["backend"]
    masks = (name for name in MASKS.get(backend, ()) if environment.get(name, "").strip())
    return JobEnvironment(
        launched=launched_rank(environment),
        allocation=allocation(environment),
        backend=backend,
        device_name=machine["device"],
        visible_devices=machine["devices_per_node"],
        told_devices_per_node=_told_devices(environment),
        masked_by=next(masks, None),
    )


def _told_devices(environment: Environment) -> int | None:
    """The devices of a node in the batch system's words; None for words that are not understood."""
    for name in TOLD_DEVICES:
        found = re.fullmatch(r"(?:[^:,\s]+:)?(\d{1,4})", environment.get(name, ""), re.ASCII)
        if found:
            return int(found[1])
    return None
