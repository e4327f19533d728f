"""The file system that a path lies on, from /proc/mounts (proc(5): device, folder, kind, options, in octal escapes)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "daos", "dfuse", "dvs", "fuse.ceph", "fuse.daos", "fuse.dfuse",
    "fuse.glusterfs", "fuse.sshfs", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncp", "nfs", "nfs4", "ocfs2",
    "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs",
})  # fmt: skip
"""Kinds that several machines may write to at once; locks and shared memory do not work on them as SQLite needs.

https://www.sqlite.org/wal.html: "WAL does not work over a network filesystem".
"""
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
"""Kinds that are gone with the machine's power, and on clusters with the job."""


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A mounted file system: where, of what kind, from which device or server."""

    folder: PurePosixPath
    kind: str
    device: str

    @property
    def is_network(self) -> bool:
        """Whether other machines may hold it too."""
        return self.kind in NETWORK

    @property
    def is_in_memory(self) -> bool:
        """Whether it holds files in memory alone."""
        return self.kind in IN_MEMORY


def parse_mounts(text: str) -> tuple[Mount, ...]:
    """The mounts of a /proc/mounts; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 3 and words[1].startswith("/"):
            folder = PurePosixPath(_unescaped(words[1]))
            found.append(Mount(folder=folder, kind=words[2], device=_unescaped(words[0])))
    return tuple(found)


def mount_of(path: PurePosixPath, mounts: tuple[Mount, ...]) -> Mount | None:
    """The mount that an absolute path without links lies on: the deepest, and of equal ones the last, which hides."""
    best: Mount | None = None
    for mount in mounts:
        deeper = best is None or len(mount.folder.parts) >= len(best.folder.parts)
        if deeper and path.is_relative_to(mount.folder):
            best = mount
    return best


def mounted_on(path: Path) -> Mount | None:
    """The mount that a path of this machine lies on, or would lie on; None where the system does not tell."""
    table = Path("/proc/self/mounts")
    if not table.is_file():
        return None
    return mount_of(PurePosixPath(path.resolve()), parse_mounts(table.read_text(encoding="utf-8", errors="replace")))


def _unescaped(text: str) -> str:
    """Spaces, tabs, line ends and backslashes, which stand there as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
