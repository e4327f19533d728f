"""Network file systems, on which SQLite loses stores when two hosts open one."""

from __future__ import annotations

import os
import re
from pathlib import Path

from frontrunner.spaces.errors import StoreUnusable

OVERRIDE = "FRONTRUNNER_NETWORK_STORE"
"""Environment variable that, set to 1, says that only one host opens the stores on network file systems."""

NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "panfs", "wekafs"),
        *(
            "orangefs",
            "pvfs2",
            "glusterfs",
            "gfs2",
            "ocfs2",
            "fuse.sshfs",
            "fuse.glusterfs",
            "fuse.ceph",
            "fuse.rclone",
        ),
    }
)
"""Types, as /proc/self/mountinfo names them, whose files several hosts see."""
MOUNTS = Path("/proc/self/mountinfo")


def refuse_network(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Raise `StoreUnusable` where a store at this path would lie on a network file system, unless it is allowed."""
    kind = file_system_of(path, mounts=mounts)
    if kind not in NETWORK_TYPES or os.environ.get(OVERRIDE) == "1":
        return
    raise StoreUnusable(
        f"{path} lies on a network file system ({kind}): SQLite's log needs memory that its users share, and its locks "
        "do not hold between hosts, so that two of them would corrupt the store",
        hint=f"use a local disk or PostgreSQL; or, if one host alone opens it, set {OVERRIDE}=1",
    )


def file_system_of(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that holds a path, or would; None where this machine does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return None
    found, depth = None, -1
    real = path.resolve()
    for line in lines:
        # Fields: id, parent, device, root, mount point, options, some optional ones, a dash, type (proc(5)).
        before, dash, after = line.partition(" - ")
        fields = before.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_unescaped(fields[4]))
        if real.is_relative_to(point) and len(point.parts) >= depth:  # a later mount at one point hides the earlier
            found, depth = after.split(" ", 1)[0], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    """A mount point as it is called: blanks and such are written as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
