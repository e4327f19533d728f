"""Checks of the surroundings: batch system and job, network, and the disks of store and run folders."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from frontrunner.evaluators.cluster.environment import RENDEZVOUS_PORT, JobEnvironment
from frontrunner.evaluators.diagnostics.doctor.check import Check, Examination, Needs, Section

JOB, NETWORK, STORAGE = Section("job"), Section("network"), Section("storage")
GIB = 2**30
VERSION_TIMEOUT_S = 20.0
PROGRAMS = {
    "slurm": ("sbatch", "--version"),
    "pbs": ("qsub", "--version"),
    "lsf": ("bsub", "-V"),
    "flux": ("flux", "version"),
}
"""By scheduler, the command that submits to it, with the option that prints its version."""
MAX_NAMED_NODES = 4
FABRICS = {"/sys/class/cxi": "Slingshot", "/sys/class/infiniband": "InfiniBand or RoCE"}
PLUGINS = ("librccl-net*.so", "libnccl-net*.so")
"""Names by which NCCL and RCCL look for a network plug-in in the library path: github.com/aws/aws-ofi-nccl."""
SETTINGS = {
    "FI_MR_CACHE_MONITOR": "userfaultfd, or kdreg2 where the site has it: the default can deadlock with NCCL and RCCL",
    "FI_CXI_DEFAULT_CQ_SIZE": "131072: the default overflows with many messages",
}
"""What the guides of Frontier (PyTorch page) and Polaris (NCCL page) both ask for on Slingshot."""
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "daos", "dfuse", "dvs", "fuse.ceph", "fuse.daos", "fuse.dfuse",
    "fuse.glusterfs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
})  # fmt: skip
"""Kinds that several machines may write to at once; locks and shared memory do not work on them as SQLite needs.

https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem".
"""
IN_MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""Kinds that are lost with the machine's power, and on clusters with the job."""
FREE_BYTES = {"store": (GIB // 10, GIB), "run folder": (GIB, 10 * GIB)}
"""Assumed: below the first a campaign is likely to fill the disk, below the second it may."""


@dataclass(frozen=True, kw_only=True)
class Scheduler:
    """A batch system whose program is on PATH, with the first line of its version; None if it prints none."""

    name: str
    version: str | None


@dataclass(frozen=True, kw_only=True)
class Host:
    """This machine's name, the addresses that it resolves to, or why it does not."""

    name: str
    addresses: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Loopback:
    """A message sent to this machine and back: the free port that was used, or why it failed.

    `rendezvous_free`: torchrun's default port, which ranks use where nothing else is agreed on, is free.
    """

    port: int | None
    error: str | None
    rendezvous_free: bool


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Networks that move memory themselves (RDMA), the plug-in by which NCCL uses them, and variables that tune it."""

    kinds: tuple[str, ...]
    cards: int
    plugin: str | None
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mounted file system: where, of what kind, from which device or server."""

    folder: PurePosixPath
    kind: str
    device: str

    @property
    def is_network(self) -> bool:
        """Whether other machines may hold it too."""
        return self.kind in NETWORK_FILE_SYSTEMS

    @property
    def is_in_memory(self) -> bool:
        """Whether it holds files only in memory."""
        return self.kind in IN_MEMORY_FILE_SYSTEMS


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A folder's file system: `folder` is the nearest one that exists; `mount` is None where the system hides it."""

    path: Path
    folder: Path
    mount: Mount | None
    free_bytes: int
    is_writable: bool

    @property
    def where(self) -> str:
        """The path with the kind of its file system."""
        return f"{self.path}" + (f", on {self.mount.kind} at {self.mount.folder}" if self.mount else "")

    @property
    def free(self) -> str:
        """The free space in words."""
        return f"{self.free_bytes / GIB:,.1f} GiB free"


# Batch system and job


def gather_schedulers() -> tuple[Scheduler, ...]:
    """Return the batch systems whose programs are on PATH."""
    return tuple(
        Scheduler(name=name, version=_first_line(command))
        for name, command in PROGRAMS.items()
        if shutil.which(command[0])
    )


def _first_line(command: tuple[str, ...]) -> str | None:
    """Return what a command prints first, on either stream; None if it fails, prints nothing or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else None


def check_schedulers(found: tuple[Scheduler, ...], needed: str | None) -> Iterator[Check]:
    """List batch systems; none is fine for one machine, but a campaign's own must be here."""
    if needed is not None and needed not in [each.name for each in found]:
        program = PROGRAMS[needed][0]
        yield JOB.problem(
            "scheduler",
            f"the campaign requests nodes from {needed}, and {program} is not on PATH",
            f"start it where {program} works: on a login node of the cluster",
        )
    elif not found:
        remedy = "nothing to do for one machine; on a cluster, run this on a login node or inside a job"
        yield JOB.note("scheduler", "none is on PATH", remedy)
    for each in found:
        if each.version is None:
            yield JOB.note("scheduler", f"{each.name}: its program prints no version", "check that it works at all")
        else:
            yield JOB.ok("scheduler", f"{each.name}: {each.version}")


def check_job(job: JobEnvironment, needs: Needs) -> Iterator[Check]:
    """Check the allocation, the launcher, and whether the devices that the batch system assigned are there."""
    yield _check_allocation(job, needs)
    if job.launched is not None:
        place = job.launched
        found = f"{place.launcher}: rank {place.rank} of {place.world_size}, {place.local_world_size} per node"
        yield JOB.ok("launcher", f"{found}, rank 0 on {place.master_address}")
    if job.masked_by is not None:
        yield JOB.note("visible devices", f"{job.masked_by} shows this process {job.visible_devices} devices")
    assigned = job.stated_devices_per_node
    if assigned and job.backend == "cpu":
        found = f"the batch system gave this node {assigned} devices, and none is seen here"
        remedy = "see the checks of torch and of the driver, and start this on a compute node (srun, mpiexec)"
        yield JOB.problem("devices", found, remedy)


def _check_allocation(job: JobEnvironment, needs: Needs) -> Check:
    held = job.allocation
    if held is None:
        remedy = f"its probes need {needs.nodes} nodes: submit jobs, or start inside one" if needs.nodes > 1 else None
        return JOB.note("allocation", "none is held", remedy)
    named = ", ".join(held.nodes[:MAX_NAMED_NODES]) + (", ..." if len(held.nodes) > MAX_NAMED_NODES else "")
    found = f"{held.scheduler} job {held.job_id}: {len(held.nodes)} nodes, {named}"
    if len(held.nodes) < needs.nodes:
        return JOB.warning("allocation", found, f"request {needs.nodes} nodes, or probe recipes of fewer")
    return JOB.ok("allocation", found)


# Network


def gather_host() -> Host:
    """Return this machine's name and the addresses that it resolves to."""
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)
    except OSError as error:
        return Host(name=name, addresses=(), error=error.strerror or str(error))
    return Host(name=name, addresses=tuple(dict.fromkeys(str(entry[4][0]) for entry in found)), error=None)


def check_host(host: Host) -> Iterator[Check]:
    """Require a host name that resolves: gloo binds to that address."""
    found = f"{host.name} is {', '.join(host.addresses)}"
    if host.error is not None:
        remedy = f"add a line '127.0.0.1 {host.name}' (one machine) or its address to /etc/hosts"
        yield NETWORK.problem("host name", f"{host.name} does not resolve: {host.error}", remedy)
    elif all(address.startswith("127.") or address == "::1" for address in host.addresses):
        remedy = "fine for one machine; for several, let the name resolve to an address that the others reach"
        yield NETWORK.note("host name", found, remedy)
    else:
        yield NETWORK.ok("host name", found)


def gather_loopback() -> Loopback:
    """Listen on a free port of 127.0.0.1, connect, and send a byte."""
    free = _is_free(RENDEZVOUS_PORT)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5) as here, server.accept()[0] as there:
                here.sendall(b"!")
                there.settimeout(5)
                arrived = there.recv(1)
    except OSError as error:
        return Loopback(port=None, error=error.strerror or str(error), rendezvous_free=free)
    return Loopback(port=port, error=None if arrived == b"!" else "the byte was lost", rendezvous_free=free)


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def check_loopback(loopback: Loopback) -> Iterator[Check]:
    """Require the loopback interface, over which the ranks of a machine connect."""
    if loopback.error is not None:
        remedy = "bring the loopback interface up (ip link set lo up), or check the firewall"
        yield NETWORK.problem("loopback", loopback.error, remedy)
        return
    yield NETWORK.ok("loopback", f"connected over free port {loopback.port}")
    if not loopback.rendezvous_free:
        found = f"port {RENDEZVOUS_PORT}, torchrun's default, is in use"
        yield NETWORK.note("ports", found, "set MASTER_PORT to a free one for launchers that name none")


def gather_fabric(root: Path = Path("/")) -> Fabric:
    """Return cards under /sys/class, plug-ins in the library path, and the variables of this process."""
    found = {kind: list((root / path.lstrip("/")).glob("*")) for path, kind in FABRICS.items()}
    folders = [Path(folder) for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    plugins = (str(path) for folder in folders for pattern in PLUGINS for path in folder.glob(pattern))
    names = ("NCCL_", "FI_", "CCL_", "RCCL_")
    return Fabric(
        kinds=tuple(kind for kind, cards in found.items() if cards),
        cards=sum(map(len, found.values())),
        plugin=next(plugins, None),
        environment={name: value for name, value in os.environ.items() if name.startswith(names)},
    )


def check_fabric(fabric: Fabric, backend: str) -> Iterator[Check]:
    """Check that NCCL or RCCL will use the cards of a Slingshot network, with the settings that it needs."""
    if not fabric.kinds:
        return
    yield NETWORK.ok("fabric", f"{fabric.cards} cards of {' and '.join(fabric.kinds)}")
    if "Slingshot" not in fabric.kinds or backend not in ("cuda", "rocm"):
        return
    if fabric.plugin is None and "NCCL_NET_PLUGIN" not in fabric.environment:
        found = "no NCCL or RCCL network plug-in in LD_LIBRARY_PATH: collectives between nodes go over sockets"
        remedy = "load the site's module for aws-ofi-nccl or aws-ofi-rccl, or build it"
        yield NETWORK.warning("plug-in", found, remedy)
    for name, value in SETTINGS.items():
        if name not in fabric.environment:
            yield NETWORK.warning("settings", f"{name} is not set", f"set it to {value}")


# Storage


def storage_checks(needs: Needs) -> Iterator[Examination]:
    """Yield the examinations of the folders that are needed."""
    if needs.store_path is not None:
        yield STORAGE, "store", partial(_examine_store, needs.store_path)
    yield STORAGE, "run folder", lambda: check_run_folder(gather_disk(needs.run_folder), needs.nodes)
    if needs.disk_folder is not None:
        yield STORAGE, "offload", partial(_examine_offload, needs.disk_folder)


def _examine_store(path: Path) -> Iterator[Check]:
    return check_store(gather_disk(path))


def _examine_offload(path: Path) -> Iterator[Check]:
    return check_offload(gather_disk(path))


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """Return the mounts of a /proc/mounts (proc(5): device, folder, kind, options, in octal escapes)."""

    def unescaped(word: str) -> str:
        return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)

    rows = [line.split() for line in text.splitlines()]
    return tuple(
        Mount(folder=PurePosixPath(unescaped(row[1])), kind=row[2], device=unescaped(row[0]))
        for row in rows
        if len(row) >= 3 and row[1].startswith("/")
    )


def mount_of(path: PurePosixPath, mounts: tuple[Mount, ...]) -> Mount | None:
    """Return the mount of an absolute path without links: the deepest, and of equal ones the last, which hides."""
    holding = [mount for mount in mounts if path.is_relative_to(mount.folder)]
    return max(reversed(holding), key=lambda mount: len(mount.folder.parts), default=None)


def gather_disk(path: Path) -> Disk:
    """Return the file system that a path is on or, where it does not exist yet, will be on."""
    path = path.absolute()
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    table = Path("/proc/self/mounts")
    text = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""
    return Disk(
        path=path,
        folder=folder,
        mount=mount_of(PurePosixPath(folder.resolve()), parse_mounts(text)),
        free_bytes=shutil.disk_usage(folder).free,
        is_writable=os.access(folder, os.W_OK | os.X_OK),
    )


def check_store(disk: Disk) -> Iterator[Check]:
    """Require a disk of this machine for an SQLite file."""
    yield from _check_writable("store", disk)
    if disk.mount is not None and disk.mount.is_network:
        yield STORAGE.problem(
            "store",
            f"{disk.where}: several machines can hold it, and SQLite's locks and shared memory need one",
            "name a file on a local disk (--store, FRONTRUNNER_STORE or [store] url), or a postgresql:// URL; "
            "run folders may stay where they are",
        )
    elif disk.mount is not None and disk.mount.is_in_memory:
        found = f"{disk.where}: it is lost when this machine or its job ends"
        yield STORAGE.warning("store", found, "name a file on a disk")
    else:
        yield STORAGE.ok("store", disk.where)
    yield _check_room("store", disk)


def check_run_folder(disk: Disk, nodes: int) -> Iterator[Check]:
    """Require a folder that every node that runs probes can see."""
    yield from _check_writable("run folder", disk)
    if nodes > 1 and disk.mount is not None and not disk.mount.is_network:
        found = f"{disk.where}: a disk of this machine, which {nodes} nodes do not share"
        remedy = "name a folder on the shared file system: FRONTRUNNER_RUNS or [store] run_folder"
        yield STORAGE.problem("run folder", found, remedy)
    elif disk.mount is not None and disk.mount.is_in_memory:
        found = f"{disk.where}: logs and traces will take memory"
        yield STORAGE.warning("run folder", found, "name a folder on a disk")
    else:
        yield STORAGE.ok("run folder", disk.where)
    yield _check_room("run folder", disk)


def check_offload(disk: Disk) -> Iterator[Check]:
    """Require a disk of this machine for what is offloaded to a disk."""
    yield from _check_writable("offload", disk)
    if disk.mount is not None and (disk.mount.is_network or disk.mount.is_in_memory):
        found = f"{disk.where}: not a disk of this machine"
        yield STORAGE.warning("offload", found, "name a folder on an NVMe disk: cluster.nvme_path")
    else:
        yield STORAGE.ok("offload", f"{disk.where}, {disk.free}")


def _check_writable(name: str, disk: Disk) -> Iterator[Check]:
    if not disk.is_writable:
        remedy = "name another folder, or ask its owner for write permission"
        yield STORAGE.problem(name, f"{disk.folder} cannot be written to", remedy)


def _check_room(name: str, disk: Disk) -> Check:
    least, enough = FREE_BYTES[name]
    if disk.free_bytes >= enough:
        return STORAGE.ok(f"{name}'s room", disk.free)
    make = STORAGE.problem if disk.free_bytes < least else STORAGE.warning
    return make(f"{name}'s room", disk.free, "free some space, or name another folder")
