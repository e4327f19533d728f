"""Logs of failed trials, read only from their own run folders."""

from __future__ import annotations

import re
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
    From the file only the secrets in this process's own environment are removed. Raises `NotFound` where the trial has
    not failed or left no log.
    """
    failure = last_failure(store, campaign, trial_number)
    if failure is None:
        raise NotFound(f"trial {trial_number} of campaign {campaign} has no failure to read the log of")
    found = None
    if most_bytes and failure.log_path is not None:
        try:
            root = stored_spec(store.campaign(campaign)).run_folder
            found = read_end(root, Path(failure.log_path), most_bytes=most_bytes)
        except FrontrunnerError:  # an imported table, which has no folder, or another version's
            found = None
    if found is None and not failure.log_tail:
        raise NotFound(f"trial {trial_number} of campaign {campaign} left no log")
    return failure.log_tail if found is None else without_secrets(found)


def read_end(root: Path, path: Path, *, most_bytes: int) -> str | None:
    """Return the last bytes of `root`/FOLDER/NAME.log as text; None for another path, a link, or a missing file."""
    try:
        found = path.resolve(strict=True)
        own = root.resolve() / path.parent.name / path.name
        if found != own or not LOG_NAME.fullmatch(path.name) or not found.is_file():
            return None
        with found.open("rb") as file:
            file.seek(max(0, found.stat().st_size - most_bytes))
            return file.read(most_bytes).decode("utf-8", errors="replace")
    except OSError:
        return None
