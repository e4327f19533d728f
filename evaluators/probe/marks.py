"""Marks by which what a driver starts is known again: on processes, and in the names of folders.

Process ids are numbers of one process namespace of one host. Environments travel further: launchers pass them on to
other nodes, and temporary folders may lie on a file system that several hosts share. So a mark names its host.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

MARKER = "FRONTRUNNER_DRIVER"
"""Environment variable that marks every process of a driver with its process id, so that stragglers can be found."""
HOST_MARKER = "FRONTRUNNER_DRIVER_HOST"
"""Likewise with the driver's host, as `this_host` names it."""
FOLDER_MARKER = "FRONTRUNNER_DRIVER_FOLDER"
"""Likewise with the folder of the campaign's runs: a driver may have several campaigns."""
FOLDER_PREFIX = "frontrunner-ranks-"
"""Names of the folders in which ranks meet go on with host, process namespace and process id of their driver."""


def marks(folder: Path) -> dict[str, str]:
    """The environment variables for what this process starts for the campaign whose runs are in `folder`."""
    return {MARKER: str(os.getpid()), HOST_MARKER: this_host(), FOLDER_MARKER: str(folder.resolve())}


def this_host() -> str:
    """What no other host is called: the number of this start of the machine on Linux, elsewhere the host's name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip().replace("-", "")
    except OSError:
        return socket.gethostname()


def meeting_prefix() -> str:
    """How the names of the folders begin in which ranks of this host and process namespace meet."""
    return f"{FOLDER_PREFIX}{this_host()}-{pid_namespace()}-"


def pid_namespace(pid: int | None = None) -> int:
    """The number of the namespace in which a process (by default this one) has its id; 0 where there are none.

    Raises `OSError` for a process that is gone, or of somebody else.
    """
    folder = Path("/proc/self/ns/pid") if pid is None else Path(f"/proc/{pid}/ns/pid")
    return folder.stat().st_ino if Path("/proc/self/ns").exists() else 0
