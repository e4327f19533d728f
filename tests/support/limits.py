"""Limits that the kernel sets for real: small disks, and control groups that kill for memory or
hold processes.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

CONTROL_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def small_disk(folder: Path, *, mib: int) -> Iterator[Path]:
    """A file system of its own in a new folder; skips the test where mounting is not permitted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """A file that takes all room on the disk, but for what is to be left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 65536)
    with ballast.open("r+b") as file:
        file.truncate(max(0, ballast.stat().st_size - leave_bytes))
    return ballast


@contextmanager
def control_group(kind: str, name: str) -> Iterator[Path]:
    """A new control group of version 1; skips the test where none can be made. It must be empty in
    the end.
    """
    group = CONTROL_GROUPS / kind / name
    if not (CONTROL_GROUPS / kind / "cgroup.procs").exists():
        pytest.skip(f"there are no control groups of kind {kind} here")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield group
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()


@contextmanager
def held_in_the_kernel(pid: int) -> Iterator[None]:
    """A process that waits uninterruptibly in the kernel, so that not even SIGKILL ends it before
    this does.
    """
    with control_group("freezer", f"frontrunner-{pid}") as group:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        try:
            yield
        finally:
            (group / "freezer.state").write_text("THAWED")
