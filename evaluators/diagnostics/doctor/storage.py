"""The disks under the store and the run folders: of which kind, shared or not, writable, with room."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from frontrunner.evaluators.diagnostics.doctor.checks import Check, Status, Titled, examination
from frontrunner.evaluators.diagnostics.doctor.mounts import Mount, mounted_on
from frontrunner.evaluators.diagnostics.doctor.wanted import Wanted

SECTION = "storage"
GIB = 2**30
FREE_BYTES = {"store": (GIB // 10, GIB), "run folder": (GIB, 10 * GIB)}
"""Assumed: below the first a campaign is likely to fill the disk, below the second it may."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """A folder's file system: `folder` is the nearest one that exists; None for a mount that the system hides."""

    path: Path
    folder: Path
    mount: Mount | None
    free_bytes: int
    is_writable: bool

    @property
    def where(self) -> str:
        """The path with the kind of its file system."""
        return f"{self.path}" + (f", on {self.mount.kind} at {self.mount.folder}" if self.mount else "")


def storage_checks(wanted: Wanted) -> list[Titled]:
    """The examinations of this file."""
    found = []
    if wanted.store_path is not None:
        store = wanted.store_path
        found.append(examination(SECTION, "store", lambda: gather_disk(store), judge_store))
    runs = wanted.run_folder
    found.append(
        examination(SECTION, "run folder", lambda: gather_disk(runs), lambda disk: judge_runs(disk, wanted.nodes))
    )
    if wanted.disk_folder is not None:
        offload = wanted.disk_folder
        found.append(examination(SECTION, "offload", lambda: gather_disk(offload), judge_offload))
    return found


def gather_disk(path: Path) -> Disk:
    """The file system that a path lies on or, where it does not exist yet, will."""
    path = path.absolute()
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    return Disk(
        path=path,
        folder=folder,
        mount=mounted_on(folder),
        free_bytes=shutil.disk_usage(folder).free,
        is_writable=os.access(folder, os.W_OK | os.X_OK),
    )


def judge_store(disk: Disk) -> Iterable[Check]:
    """An SQLite file must lie on a disk of this machine alone."""
    yield from _refusals("store", disk)
    if disk.mount is not None and disk.mount.is_network:
        yield Check(
            section=SECTION,
            name="store",
            status=Status.PROBLEM,
            found=f"{disk.where}: several machines can hold it, and SQLite's locks and shared memory need one",
            remedy="name a file on a local disk (--store, FRONTRUNNER_STORE or [store] url), or a postgresql:// URL; "
            "run folders may stay where they are",
        )
    elif disk.mount is not None and disk.mount.is_in_memory:
        found, remedy = f"{disk.where}: it is gone when this machine or its job ends", "name a file on a disk"
        yield Check(section=SECTION, name="store", status=Status.WARNING, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="store", status=Status.OK, found=disk.where)
    yield from _room("store", disk)


def judge_runs(disk: Disk, nodes: int) -> Iterable[Check]:
    """Run folders must be seen by every node that runs probes."""
    yield from _refusals("run folder", disk)
    local = disk.mount is not None and not disk.mount.is_network
    if nodes > 1 and local:
        yield Check(
            section=SECTION,
            name="run folder",
            status=Status.PROBLEM,
            found=f"{disk.where}: a disk of this machine, which {nodes} nodes do not share",
            remedy="name a folder on the shared file system: FRONTRUNNER_RUNS or [store] run_folder",
        )
    elif disk.mount is not None and disk.mount.is_in_memory:
        found, remedy = f"{disk.where}: logs and traces will take memory", "name a folder on a disk"
        yield Check(section=SECTION, name="run folder", status=Status.WARNING, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="run folder", status=Status.OK, found=disk.where)
    yield from _room("run folder", disk)


def judge_offload(disk: Disk) -> Iterable[Check]:
    """What is offloaded to a disk should go to one of this machine's own."""
    yield from _refusals("offload", disk)
    if disk.mount is not None and (disk.mount.is_network or disk.mount.is_in_memory):
        found, remedy = f"{disk.where}: not a disk of this machine", "name a folder on an NVMe disk: cluster.nvme_path"
        yield Check(section=SECTION, name="offload", status=Status.WARNING, found=found, remedy=remedy)
    else:
        yield Check(section=SECTION, name="offload", status=Status.OK, found=f"{disk.where}, {_free(disk)}")


def _refusals(name: str, disk: Disk) -> Iterable[Check]:
    if not disk.is_writable:
        found, remedy = f"{disk.folder} cannot be written to", "name another folder, or ask its owner for the right to"
        yield Check(section=SECTION, name=name, status=Status.PROBLEM, found=found, remedy=remedy)


def _room(name: str, disk: Disk) -> Iterable[Check]:
    least, enough = FREE_BYTES[name]
    if disk.free_bytes >= enough:
        yield Check(section=SECTION, name=f"{name}'s room", status=Status.OK, found=_free(disk))
        return
    status = Status.PROBLEM if disk.free_bytes < least else Status.WARNING
    remedy = "free some space, or name another folder"
    yield Check(section=SECTION, name=f"{name}'s room", status=status, found=_free(disk), remedy=remedy)


def _free(disk: Disk) -> str:
    return f"{disk.free_bytes / GIB:,.1f} GiB free"
