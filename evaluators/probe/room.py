"""Room on the disk of the run folders: whether there is enough to begin a probe, and what a full disk says."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

LEAST_FREE_BYTES = 8 * 2**20
"""What a probe needs for its job, logs and results. Assumed: they take below 1 MiB, and a store grows beside."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, a used up quota, and a limit on the size of a file (`RLIMIT_FSIZE`)."""

FULL_SIGNS = tuple(os.strerror(number) for number in FULL)
"""How the system words these errors, in the message of a rank."""


def why_no_room(folder: Path) -> str | None:
    """Why nothing more is to be begun in a folder, or None; the folder need not be there yet.

    A used up quota does not show here: writing then fails with an error that `is_full` knows.
    """
    there = next(place for place in (folder, *folder.parents) if place.exists())
    disk = shutil.disk_usage(there)
    if disk.free >= LEAST_FREE_BYTES or disk.total == 0:  # some file systems do not tell
        return None
    return f"the disk of the run folder {folder} is full: {disk.free / 2**20:.1f} MiB are free"


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room to write to."""
    return error.errno in FULL
