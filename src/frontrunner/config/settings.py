"""Locations of the store and the run folders: defaults < campaign file < environment < flags."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_STORE = "frontrunner.db"
STORE_VARIABLE = "FRONTRUNNER_STORE"
RUNS_VARIABLE = "FRONTRUNNER_RUNS"


def store_url(flag: str | None = None, *, from_file: str | None = None) -> str:
    """Return the store's URL, or a path for SQLite. An empty flag counts: opening it fails with the reason."""
    if flag is not None:
        return flag
    return os.environ.get(STORE_VARIABLE) or from_file or DEFAULT_STORE


def shown_store(url: str) -> str:
    """Return the store's URL or path for printing, without the password of a database."""
    from frontrunner.results.redaction import redact

    return redact([url])[0]


def run_root(url: str, *, from_file: str | None = None) -> Path:
    """Return the parent of the folders of probes and replays: next to an SQLite store, else in the working folder."""
    chosen = os.environ.get(RUNS_VARIABLE) or from_file
    if chosen:
        return Path(chosen).resolve()
    path = url.removeprefix("sqlite:///")
    return (Path.cwd() if "://" in path else Path(path).resolve().parent) / "frontrunner-runs"
