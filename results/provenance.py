"""Provenance: the versions, machine, checkout and command line of one driver run."""

from __future__ import annotations

import platform
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from frontrunner.results.redaction import redact

PACKAGES = ("frontrunner", "torch", "deephyper", "optuna", "deepspeed", "numpy", "sqlalchemy")
LIBRARIES = tuple(f"nvidia-{name}-cu{cuda}" for name in ("cudnn", "nccl") for cuda in (12, 13))
"""Packages of torch's libraries, where they are installed as such; earlier versions did not record
them.
"""
GPU_DRIVER_FILES = {
    "nvidia-driver": "proc/driver/nvidia/version",
    "amdgpu-driver": "sys/module/amdgpu/version",
    "i915-driver": "sys/module/i915/version",
    "xe-driver": "sys/module/xe/version",
}
"""Files in which the kernel states a GPU driver's version: the first number with dots."""
DOTTED = re.compile(r"\b\d+\.\d[\d.]*")
GIT_TIMEOUT_S = 10.0


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """A file that was trained on: its path, None for the built-in text, its size, and the SHA-256
    of the first MiB.

    Of a token file that `frontrunner prepare` wrote also the tokenizer, a file beside it, and the
    held-out part. Of several files each has its weight.
    """

    path: str | None
    size_bytes: int
    head_sha256: str
    tokenizer: str | None = None
    tokenizer_sha256: str | None = None
    held_out_tokens: int | None = None
    weight: float = 1.0


def _as_files(given: Any) -> Any:
    if isinstance(given, list):
        return tuple(given)
    return () if given is None else (given,)


DataFiles = Annotated[tuple[TrainingData, ...], BeforeValidator(_as_files)]
"""The files that were trained on; empty where they are not recorded. Earlier versions wrote the one
file, or null.
"""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Environment of one run of a driver: where it was started, with what versions and (redacted)
    command line.

    `data` is empty where nothing was trained, and in stores of earlier versions.
    """

    versions: Mapping[str, str]
    host: str
    platform: str
    device: str
    git_revision: str | None
    git_dirty: bool | None
    command_line: tuple[str, ...]
    data: DataFiles = ()


def collect(device: str, data: tuple[TrainingData, ...] = ()) -> Provenance:
    """Return the provenance of this process; `device` names what its probes run on. Imports none of
    the packages.
    """
    revision, dirty = git_state(Path.cwd())
    installed = {
        name: version(name) for name in (*PACKAGES, *LIBRARIES) if any(distributions(name=name))
    }
    return Provenance(
        versions={"python": platform.python_version(), **installed, **gpu_driver_versions()},
        host=socket.gethostname(),
        platform=platform.platform(),
        device=device,
        git_revision=revision,
        git_dirty=dirty,
        command_line=redact(sys.argv),
        data=data,
    )


def gpu_driver_versions(root: Path = Path("/")) -> dict[str, str]:
    """Return the versions of the loaded GPU drivers, by name, without starting a program."""
    found = {}
    for name, file in GPU_DRIVER_FILES.items():
        with suppress(OSError):  # the driver is not loaded
            stated = DOTTED.search((root / file).read_text(encoding="utf-8", errors="replace"))
            if stated:
                found[name] = stated[0]
    return found


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Return (commit, whether files differ from it) of the checkout around `folder`; None for what
    git cannot state.
    """

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(folder), *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    revision = git("rev-parse", "HEAD")
    changes = (
        git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
        if revision
        else None
    )
    return revision, None if changes is None else bool(changes)
