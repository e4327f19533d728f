"""Provenance: with what, where and by which command line a driver ran."""

from __future__ import annotations

import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from frontrunner.results.drivers import driver_versions

PACKAGES = ("frontrunner", "torch", "deephyper", "optuna", "deepspeed", "numpy", "sqlalchemy")
"""Distributions whose versions can change a measurement or a choice."""

GIT_TIMEOUT_S = 10.0
REDACTED = "[redacted]"
SECRET_WORDS = re.compile(r"(token|secret|passw|api[-_]?key|credential|private[-_]?key|auth)", re.IGNORECASE)
URL_PASSWORD = re.compile(r"(?P<before>[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)
QUERY_PASSWORD = re.compile(r"(?P<before>[?&](?:ssl)?password=)[^&#\s]+", re.IGNORECASE)
TOKEN_SHAPES = re.compile(r"^(hf_|ghp_|gho_|glpat-|github_pat_|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{8,}$")


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """What one run of a driver ran with.

    `versions` holds Python's, those of the installed `PACKAGES`, and those of the accelerators' drivers in the kernel.
    `git_revision` is the commit of the checkout that the driver was started in, None outside of one; `git_dirty`
    whether it had changes. `command_line` has values that look like secrets redacted.
    """

    versions: Mapping[str, str]
    host: str
    platform: str
    device: str
    git_revision: str | None
    git_dirty: bool | None
    command_line: tuple[str, ...]


def collect(device: str) -> Provenance:
    """The provenance of this process; `device` is the name of what its probes run on. Imports none of the packages."""
    revision, dirty = git_state(Path.cwd())
    return Provenance(
        versions=installed_versions() | driver_versions(),
        host=socket.gethostname(),
        platform=platform.platform(),
        device=device,
        git_revision=revision,
        git_dirty=dirty,
        command_line=redact(sys.argv),
    )


def installed_versions() -> dict[str, str]:
    """Versions by name: Python's, and those of the `PACKAGES` that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """(commit, whether files differ from it) of the checkout around `folder`; None for what git cannot say."""
    revision = _git(folder, "rev-parse", "HEAD")
    if revision is None:
        return None, None
    changes = _git(folder, "--no-optional-locks", "status", "--porcelain", "--untracked-files=no")
    return revision, None if changes is None else bool(changes)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments, with values of secret-looking names, passwords in URLs and known token shapes replaced."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        if (hide_next and not argument.startswith("--")) or TOKEN_SHAPES.match(argument):
            shown.append(REDACTED)
        elif equals and SECRET_WORDS.search(name):
            shown.append(f"{_without_passwords(name)}={REDACTED}")
        else:
            shown.append(_without_passwords(argument))
        hide_next = argument.startswith("-") and not equals and SECRET_WORDS.search(argument) is not None
    return tuple(shown)


def _without_passwords(argument: str) -> str:
    """A URL's password, before its host or among its parameters, replaced."""
    for pattern in (URL_PASSWORD, QUERY_PASSWORD):
        argument = pattern.sub(rf"\g<before>{REDACTED}", argument)
    return argument


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where there is no git, no checkout, or no answer in time."""
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, "-C", str(folder), *arguments], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
