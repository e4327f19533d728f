"""Provenance: the versions, machine, checkout and command line of one driver run."""

from __future__ import annotations

import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from frontrunner.results.redaction import redact

PACKAGES = ("frontrunner", "torch", "deephyper", "optuna", "deepspeed", "numpy", "sqlalchemy")
"""Distributions whose versions can change a measurement or a choice."""
GPU_DRIVER_FILES = {
    "nvidia-driver": "proc/driver/nvidia/version",
    "amdgpu-driver": "sys/module/amdgpu/version",
    "i915-driver": "sys/module/i915/version",
    "xe-driver": "sys/module/xe/version",
}
"""Files in which the kernel states a GPU driver's version. NVIDIA's holds more: the version is the first number with
dots, as in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15`."""
DOTTED = re.compile(r"\b\d+\.\d[\d.]*")
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Environment of one run of a driver.

    `versions` are those of Python, of the installed `PACKAGES` and of the loaded GPU drivers. `git_revision` is the
    commit of the checkout that the driver was started in, None outside of one; `git_dirty` whether it had changes.
    `command_line` has values that look like secrets redacted.
    """

    versions: Mapping[str, str]
    host: str
    platform: str
    device: str
    git_revision: str | None
    git_dirty: bool | None
    command_line: tuple[str, ...]


def collect(device: str) -> Provenance:
    """Return the provenance of this process; `device` names what its probes run on. Imports none of the packages."""
    revision, dirty = git_state(Path.cwd())
    return Provenance(
        versions=installed_versions() | gpu_driver_versions(),
        host=socket.gethostname(),
        platform=platform.platform(),
        device=device,
        git_revision=revision,
        git_dirty=dirty,
        command_line=redact(sys.argv),
    )


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed `PACKAGES`, by name."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def gpu_driver_versions(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of the loaded GPU drivers, by name, without starting a program."""
    found = {}
    for name, file in GPU_DRIVER_FILES.items():
        try:
            text = (root / file).read_text(encoding="utf-8", errors="replace")
        except OSError:  # the driver is not loaded, or states no version
            continue
        version = DOTTED.search(text)
        if version:
            found[name] = version[0]
    return found


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return (commit, whether files differ from it) of the checkout around `folder`; None for what git cannot state."""
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None, None
    changes = _git(folder, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return revision, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints; None without git or a checkout, or after `GIT_TIMEOUT_S`."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
