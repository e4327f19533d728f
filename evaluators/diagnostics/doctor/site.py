"""Checks of the surroundings: batch system, job or Ray cluster, network, and the disks of store and
run folders.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import psutil

from frontrunner.evaluators.diagnostics.doctor.check import (
    NOTE,
    OK,
    PROBLEM,
    WARNING,
    Check,
    Examination,
    Needs,
    judge,
)
from frontrunner.evaluators.nodes.environment import JobEnvironment
from frontrunner.evaluators.nodes.ray_allocation import look_at_ray
from frontrunner.evaluators.nodes.settings import (
    RAY_AUTO,
    RAY_LOCAL,
    NodeSource,
    has_resources,
    in_words,
)
from frontrunner.spaces.cluster import GIB

VERSION_TIMEOUT_S = 20.0
PROGRAMS = {
    "slurm": ("sbatch", "--version"),
    "pbs": ("qsub", "--version"),
    "flux": ("flux", "version"),
}
"""By scheduler, the command that submits to it, with the option that prints its version."""
MAX_NAMED_NODES = 4
START_ONE = "start it (`ray start`), or correct dispatch.address"
FABRICS = {"/sys/class/cxi": "Slingshot", "/sys/class/infiniband": "InfiniBand or RoCE"}
PLUGINS = ("librccl-net*.so", "libnccl-net*.so")
"""Names by which NCCL and RCCL look for a network plug-in in the library path:
github.com/aws/aws-ofi-nccl.
"""
SETTINGS = {
    "FI_MR_CACHE_MONITOR": (
        "userfaultfd, or kdreg2 where the site has it: the default can deadlock with NCCL and RCCL"
    ),
    "FI_CXI_DEFAULT_CQ_SIZE": "131072: the default overflows with many messages",
}
"""What the guides of Frontier (PyTorch page) and Polaris (NCCL page) both ask for on Slingshot."""
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "daos", "dfuse", "dvs", "fuse.ceph", "fuse.daos",
    "fuse.dfuse",
    "fuse.glusterfs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "nfs",
    "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
})  # fmt: skip
"""Kinds that several machines may write to at once; locks and shared memory do not work on them as
SQLite needs.

https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem".
"""
IN_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
FREE_BYTES = {"store": (GIB // 10, GIB), "run folder": (GIB, 10 * GIB)}
"""Assumed: below the first a campaign is likely to fill the disk, below the second it may."""
ANOTHER_DISK = "name a folder on a disk"
UNFIT = {
    ("store", "network"): (
        PROBLEM,
        "several machines can hold it, and SQLite's locks and shared memory need one",
        (
            "name a file on a local disk (--store, FRONTRUNNER_STORE or [store] url), or a"
            " postgresql:// URL; run folders may stay where they are"
        ),
    ),
    ("store", "memory"): (
        WARNING,
        "it is lost when this machine or its job ends",
        "name a file on a disk",
    ),
    ("run folder", "unshared"): (
        PROBLEM,
        "a disk of this machine, which {nodes} nodes do not share",
        "name a folder on the shared file system: FRONTRUNNER_RUNS or [store] run_folder",
    ),
    ("run folder", "memory"): (WARNING, "logs and traces will take memory", ANOTHER_DISK),
    ("offload", "network"): (
        WARNING,
        "not a disk of this machine",
        f"{ANOTHER_DISK} (NVMe): cluster.nvme_path",
    ),
    ("offload", "memory"): (
        WARNING,
        "not a disk of this machine",
        f"{ANOTHER_DISK} (NVMe): cluster.nvme_path",
    ),
}
"""By use of a folder and kind of its file system: how bad that is, why, and the remedy."""


class Fabric(NamedTuple):
    """Networks that move memory themselves (RDMA), the plug-in by which NCCL uses them, and
    variables that tune it.
    """

    kinds: Sequence[str]
    cards: int = 0
    plugin: str | None = None
    environment: Mapping[str, str] = {}


class Mount(NamedTuple):
    """A mounted file system."""

    folder: PurePosixPath
    kind: str

    @property
    def place(self) -> str:
        """Where its files are: network, memory, or local."""
        in_memory = "memory" if self.kind in IN_MEMORY_FILE_SYSTEMS else "local"
        return "network" if self.kind in NETWORK_FILE_SYSTEMS else in_memory


class Disk(NamedTuple):
    """A folder's file system: `folder` is the nearest one that exists; `mount` is None where the
    system hides it.
    """

    path: Path
    folder: Path
    mount: Mount | None
    free_bytes: int
    is_writable: bool


# Batch system, job and Ray cluster


def gather_schedulers() -> dict[str, str]:
    """Return the batch systems whose programs are on PATH, with the first line of their
    versions.
    """
    found = {}
    for name, command in PROGRAMS.items():
        if shutil.which(command[0]):
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=True
                )
                found[name] = (done.stdout.strip() or done.stderr.strip()).split("\n", maxsplit=1)[
                    0
                ]
            except (OSError, subprocess.SubprocessError):
                found[name] = ""
    return found


def check_schedulers(found: Mapping[str, str], needed: str | None) -> Iterator[Check]:
    """List batch systems; none is fine for one machine, but a campaign's own must be here."""
    if needed is not None and needed not in found:
        program = PROGRAMS[needed][0]
        what = f"the campaign requests nodes from {needed}, and {program} is not on PATH"
        yield Check(
            "scheduler",
            what,
            PROBLEM,
            f"start it where {program} works: on a login node of the cluster",
        )
    elif not found:
        remedy = (
            "nothing to do for one machine; on a cluster, run this on a login node or inside a job"
        )
        yield Check("scheduler", "none is on PATH", NOTE, remedy)
    for name, version in found.items():
        what = f"{name}: {version or 'its program prints no version'}"
        yield judge(
            "scheduler",
            what,
            fine=bool(version),
            otherwise=NOTE,
            remedy="check that it works at all",
        )


def check_job(job: JobEnvironment, needs: Needs) -> Iterator[Check]:
    """Check the allocation, the launcher, and whether the devices that the batch system assigned
    are there.
    """
    held, place, assigned = job.allocation, job.launched, job.stated_devices_per_node
    if held is None:
        remedy: str | None = (
            f"its probes need {needs.nodes} nodes: submit jobs, or start inside one"
        )
        remedy = remedy if needs.nodes > 1 and not needs.ray else None
        yield Check("allocation", "none is held", NOTE, remedy)
    else:
        named = ", ".join(held.nodes[:MAX_NAMED_NODES]) + (
            ", ..." if len(held.nodes) > MAX_NAMED_NODES else ""
        )
        found = f"{held.scheduler} job {held.job_id}: {len(held.nodes)} nodes, {named}"
        remedy = f"request {needs.nodes} nodes, or probe recipes of fewer"
        yield judge(
            "allocation",
            found,
            fine=len(held.nodes) >= needs.nodes,
            otherwise=WARNING,
            remedy=remedy,
        )
    if place is not None:
        found = (
            f"{place.launcher}: rank {place.rank} of {place.world_size}, {place.local_world_size}"
            " per node"
        )
        yield Check("launcher", f"{found}, rank 0 on {place.master_address}")
    if job.masked_by is not None:
        yield Check(
            "visible devices",
            f"{job.masked_by} shows this process {job.visible_devices} devices",
            NOTE,
        )
    if assigned and job.backend == "cpu":
        found = f"the batch system gave this node {assigned} devices, and none is seen here"
        remedy = (
            "see the checks of torch and of the driver, and start this on a compute node (srun,"
            " mpiexec)"
        )
        yield Check("devices", found, PROBLEM, remedy)


def check_ray(source: NodeSource, found: Mapping[str, Any] | str) -> Iterator[Check]:
    """Require a cluster with enough nodes, each with the campaign's devices and the driver's
    versions.
    """
    address = source.settings.address or RAY_AUTO
    if isinstance(found, str):
        yield Check("ray", f"{address}: {found}", PROBLEM, START_ONE)
        return
    needed = source.node_resources
    fitting = {
        name: node
        for name, node in found["nodes"].items()
        if has_resources(node["resources"], needed)
    }
    what = f"{address}: {len(found['nodes'])} nodes, {len(fitting)} of them with {in_words(needed)}"
    remedy = (
        f"start nodes with so many until there are {source.nodes}, or let Ray's autoscaler do it"
    )
    yield judge("ray", what, fine=len(fitting) >= source.nodes, otherwise=WARNING, remedy=remedy)
    for name, node in fitting.items():
        ours, theirs = found["versions"], node["versions"]
        if isinstance(theirs, str):
            yield Check(
                "ray node",
                f"{name}: {theirs}",
                PROBLEM,
                "install frontrunner on it, in Ray's environment",
            )
        elif theirs != ours:
            named = (
                ", ".join(f"{key} {value}" for key, value in sorted(each.items()))
                for each in (theirs, ours)
            )
            what = "{} has {}; the driver {}".format(name, *named)
            yield Check("ray node", what, PROBLEM, "install the same versions on it")


def ray_checks(source: NodeSource) -> Iterator[Check]:
    """Look at the cluster and judge it; one that a campaign starts itself is not there yet."""
    address = source.settings.address or RAY_AUTO
    if address == RAY_LOCAL:
        yield Check("ray", "the campaign starts a cluster on this machine", NOTE)
        return
    yield from check_ray(source, look_at_ray(address))


# Network


def gather_host() -> tuple[str, tuple[str, ...], str]:
    """Return this machine's name, the addresses that it resolves to, and why it does not."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        return name, (), error.strerror or str(error)
    return name, tuple(dict.fromkeys(str(entry[4][0]) for entry in found)), ""


def check_host(name: str, addresses: Sequence[str], error: str) -> Iterator[Check]:
    """Require a host name that resolves: gloo binds to that address."""
    if error:
        remedy = f"add a line '127.0.0.1 {name}' (one machine) or its address to /etc/hosts"
        yield Check("host name", f"{name} does not resolve: {error}", PROBLEM, remedy)
        return
    is_reached = not all(address.startswith("127.") or address == "::1" for address in addresses)
    remedy = (
        "fine for one machine; for several, let the name resolve to an address that the others"
        " reach"
    )
    yield judge(
        "host name",
        f"{name} is {', '.join(addresses)}",
        fine=is_reached,
        otherwise=NOTE,
        remedy=remedy,
    )


def gather_fabric() -> Fabric:
    """Return cards under /sys/class, plug-ins in the library path, and the variables of this
    process.
    """
    cards = {kind: len(list(Path(path).glob("*"))) for path, kind in FABRICS.items()}
    folders = [
        Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder
    ]
    plugins = (
        str(path) for folder in folders for pattern in PLUGINS for path in folder.glob(pattern)
    )
    kinds = [kind for kind, count in cards.items() if count]
    return Fabric(kinds, sum(cards.values()), next(plugins, None), os.environ)


def check_fabric(fabric: Fabric, backend: str) -> Iterator[Check]:
    """Check that NCCL or RCCL will use the cards of a Slingshot network, with the settings that it
    needs.
    """
    if fabric.kinds:
        yield Check("fabric", f"{fabric.cards} cards of {' and '.join(fabric.kinds)}")
    if "Slingshot" not in fabric.kinds or backend not in ("cuda", "rocm"):
        return
    if fabric.plugin is None and "NCCL_NET_PLUGIN" not in fabric.environment:
        found = (
            "no NCCL or RCCL network plug-in in LD_LIBRARY_PATH: collectives between nodes go over"
            " sockets"
        )
        remedy = "load the site's module for aws-ofi-nccl or aws-ofi-rccl, or build it"
        yield Check("plug-in", found, WARNING, remedy)
    for name, value in SETTINGS.items():
        if name not in fabric.environment:
            yield Check("settings", f"{name} is not set", WARNING, f"set it to {value}")


# Storage


def storage_checks(needs: Needs) -> Iterator[Examination]:
    """Yield the examinations of the folders that are needed."""

    def examine(use: str, path: Path) -> Iterator[Check]:
        sends_files = needs.ray is not None and not needs.ray.settings.shares_files
        return check_disk(use, gather_disk(path), 1 if sends_files else needs.nodes)

    folders = {
        "store": needs.store_path,
        "run folder": needs.run_folder,
        "offload": needs.disk_folder,
    }
    for use, path in folders.items():
        if path is not None:
            yield "storage", use, partial(examine, use, path)


def mount_of(path: PurePosixPath, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount of an absolute path without links: the deepest, and of equal ones the last,
    which hides.
    """
    holding = [mount for mount in mounts if path.is_relative_to(mount.folder)]
    return max(reversed(holding), key=lambda mount: len(mount.folder.parts), default=None)


def gather_disk(path: Path) -> Disk:
    """Return the file system that a path is on or, where it does not exist yet, will be on."""
    path = path.absolute()
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    mounts = [
        Mount(PurePosixPath(each.mountpoint), each.fstype)
        for each in psutil.disk_partitions(all=True)
    ]
    mount = mount_of(PurePosixPath(folder.resolve()), mounts)
    return Disk(
        path, folder, mount, shutil.disk_usage(folder).free, os.access(folder, os.W_OK | os.X_OK)
    )


def check_disk(use: str, disk: Disk, nodes: int = 1) -> Iterator[Check]:
    """Require a disk that is fit for its use, may be written to, and has room."""
    if not disk.is_writable:
        remedy = "name another folder, or ask its owner for write permission"
        yield Check(use, f"{disk.folder} cannot be written to", PROBLEM, remedy)
    where = f"{disk.path}" + (
        f", on {disk.mount.kind} at {disk.mount.folder}" if disk.mount else ""
    )
    place = disk.mount.place if disk.mount else ""
    if use == "run folder" and nodes > 1 and place in ("memory", "local"):
        place = "unshared"
    status, why, remedy = UNFIT.get((use, place), (OK, "", ""))
    yield Check(
        use, f"{where}: {why.format(nodes=nodes)}" if why else where, status, remedy or None
    )
    least, enough = FREE_BYTES.get(use, (0, 0))
    status = PROBLEM if disk.free_bytes < least else WARNING
    free, remedy = (
        f"{disk.free_bytes / GIB:,.1f} GiB free",
        "free some space, or name another folder",
    )
    yield judge(
        f"{use}'s room", free, fine=disk.free_bytes >= enough, otherwise=status, remedy=remedy
    )
