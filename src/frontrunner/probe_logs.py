"""Logs of failed trials, read only from their own run folders."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from frontrunner.results.redaction import without_secrets
from frontrunner.results.status import last_failure
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import FrontrunnerError, NotFound

LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\.log")


def log_tail(store: Store, campaign: str, trial_number: int, *, most_bytes: int) -> str:
    """Return the end of the log of a failed trial's last attempt; where the file is gone, what the store kept of it.

    `most_bytes` 0 means what the store kept: the driver, which knows the trainer's secrets, removed them from that.
    From the file only the secrets in this process's own environment are removed. Only a regular file in the attempt's
    own folder under the campaign's folder is opened, through no link. Raises `NotFound` where the trial has not failed
    or left no log.
    """
    failure = last_failure(store, campaign, trial_number)
    if failure is None:
        raise NotFound(f"trial {trial_number} of campaign {campaign} has no failure to read the log of")
    found = None
    try:
        root = stored_spec(store.campaign(campaign)).run_folder
    except FrontrunnerError:  # an imported table, which has none, or another version's
        root = None
    if most_bytes and failure.log_path is not None and root is not None:
        found = read_end(root, Path(failure.log_path), most_bytes=most_bytes)
    if found is None and not failure.log_tail:
        raise NotFound(f"trial {trial_number} of campaign {campaign} left no log")
    return failure.log_tail if found is None else without_secrets(found)


def read_end(root: Path, path: Path, *, most_bytes: int) -> str | None:
    """Return the last bytes of `root`/FOLDER/NAME.log as text; None for another path, a link, or a missing file."""
    try:
        folder, name = path.relative_to(root).parts
    except ValueError:  # it is not below the root, or not two steps below it
        return None
    if folder in ("", ".", "..") or not LOG_NAME.fullmatch(name):
        return None
    try:
        return _read_beneath(root, folder, name, most_bytes)
    except OSError:
        return None  # gone, or a link, which O_NOFOLLOW refuses


def _read_beneath(root: Path, folder: str, name: str, most_bytes: int) -> str | None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    base = os.open(root, flags | os.O_DIRECTORY)
    try:
        inner = os.open(folder, flags | os.O_DIRECTORY, dir_fd=base)
    finally:
        os.close(base)
    try:
        descriptor = os.open(name, flags | os.O_NONBLOCK, dir_fd=inner)  # a pipe must not make it wait
    finally:
        os.close(inner)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        file.seek(max(0, found.st_size - most_bytes))
        return file.read(most_bytes).decode("utf-8", errors="replace")
