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
SECRET_WORDS = re.compile(
    r"secret|passw|passphrase|credential|(?:api|access|private)[-_.]?key|(?:^|[-_.])(?:pass|o?auth2?)(?:$|[-_.])|_pwd$"
    r"|(?<!(?:bos|cls|eos|pad|sep|unk)[-_.])token(?:[-_.]?\d+)?$|(?-i:(?:^|_)TOKEN_)",
    re.IGNORECASE,
)
"""Of names of secrets. Trainers count tokens too: `--train-tokens` and `--token-dispatcher-type` name none."""
PATH_NAME = re.compile(r"[-_.](?:path|file|dir|sock)$", re.IGNORECASE)
ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?:=|:\s+|(?P<space>\s+)(?=[^\s-]))")
"""A name and what parts it from its value: of an option, white space does too."""
VALUE = re.compile(r"""(?:"(?:\\.?|[^"\\])*(?:"|$)|'[^']*(?:'|$)|[^\s,;&'"])*""", re.DOTALL)
"""A value among others, as a shell or a list quotes and ends it."""
AUTHORIZATION = re.compile(
    r"(?P<before>authorization:\s*(?:(?:basic|bearer|digest|token)\s+)?)[^\s'\"]+", re.IGNORECASE
)
URL_PASSWORD = re.compile(r"(?P<before>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE)
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


def names_a_secret(name: str) -> bool:
    """Whether an option or a variable of this name holds a secret itself, rather than the path of one."""
    return SECRET_WORDS.search(name) is not None and not PATH_NAME.search(name)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """The arguments, with values of secret-looking names, passwords in URLs and known token shapes replaced."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        if (hide_next and not argument.startswith("--")) or TOKEN_SHAPES.match(argument):
            shown.append(REDACTED)
        else:
            shown.append(_without_passwords(_without_assigned(argument)))
        hide_next = argument.startswith("-") and "=" not in argument and names_a_secret(argument)
    return tuple(shown)


def _without_assigned(argument: str) -> str:
    """Each value of a secret's name replaced: to the argument's end where it begins with the name, which is no list."""
    shown, read = "", 0
    for found in ASSIGNED.finditer(argument):
        is_secret = names_a_secret(found["name"]) and (found["space"] is None or found["name"].startswith("-"))
        if not is_secret or found.start() < read:
            continue
        shown += argument[read : found.end()] + REDACTED
        if found.start() == 0:
            return shown
        ended = VALUE.match(argument, found.end())
        read = ended.end() if ended else found.end()
    return shown + argument[read:]


def _without_passwords(argument: str) -> str:
    """A URL's password, before its host or among its parameters, and what a header authorizes by, replaced."""
    for pattern in (URL_PASSWORD, QUERY_PASSWORD, AUTHORIZATION):
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
