"""A control group (cgroup v2) for what an order starts. A process only leaves one if it is moved,
which needs rights that ranks and commands rarely have.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

PREFIX = "frontrunner-"
REMOVE_S = 1.0


class ControlGroup:
    """A group below this process's own. Its name has the id of the process that made it, and a
    label.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, label: str = "") -> ControlGroup | None:
        """Make a group; return None where this process may not, or the kernel cannot kill one."""
        path = _path_of(os.getpid(), label)
        if path is None:
            return None
        _remove_abandoned(path.parent)
        with contextlib.suppress(OSError):
            path.mkdir()
            if (path / "cgroup.kill").exists():  # since Linux 5.14
                return cls(path)
            path.rmdir()
        return None

    @classmethod
    def remove_those_of(cls, pid: int) -> None:
        """Kill and remove what is left in the groups of a process that has ended."""
        path = _path_of(pid)
        if path is not None:
            for left in (path, *path.parent.glob(f"{path.name}.*")):
                cls(left).remove()

    def join(self) -> None:
        """Move this process into the group; called in a process that was just forked."""
        with contextlib.suppress(OSError):  # then it is ended like other descendants
            (self._path / "cgroup.procs").write_bytes(b"0")

    def kill(self) -> None:
        """Kill every process in the group, at once."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.kill").write_bytes(b"1")

    def remove(self) -> None:
        """Kill what is left, and remove the group once nothing is."""
        end_s = time.monotonic() + REMOVE_S
        while self._path.is_dir() and time.monotonic() < end_s:
            self.kill()
            with contextlib.suppress(OSError):  # a killed process has not ended yet
                self._path.rmdir()
                return
            time.sleep(REMOVE_S / 100)


def _remove_abandoned(parent: Path) -> None:
    """Remove the groups of processes that were killed, in which nothing runs any more."""
    with contextlib.suppress(OSError):
        for path in parent.glob(f"{PREFIX}*"):
            if not Path("/proc", path.name.removeprefix(PREFIX).partition(".")[0]).exists():
                with contextlib.suppress(OSError):
                    path.rmdir()


def _path_of(pid: int, label: str = "") -> Path | None:
    """Return where a group that a process makes is or would be; None without a unified
    hierarchy.
    """
    try:
        own = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    inside = next((line.removeprefix("0::") for line in own if line.startswith("0::")), None)
    for mount in mounts:
        left, _, right = mount.partition(" - ")
        if inside is not None and right.startswith("cgroup2 "):
            root, point = left.split()[3:5]
            if root == "/" or Path(inside).is_relative_to(root):
                below = Path(inside).relative_to(root) if root != "/" else Path(inside.lstrip("/"))
                return Path(point) / below / ".".join(filter(None, (f"{PREFIX}{pid}", label)))
    return None
