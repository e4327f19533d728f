"""Where the store and the run folders are: defaults < campaign file < environment < flags."""

from __future__ import annotations

import os
from pathlib import Path

DEFAULT_STORE = "frontrunner.db"
STORE_VARIABLE = "FRONTRUNNER_STORE"
RUNS_VARIABLE = "FRONTRUNNER_RUNS"


def store_url(flag: str | None = None, *, from_file: str | None = None) -> str:
    """The store's URL, or a path for SQLite. An empty flag is a flag: opening it says what is wrong with it."""
    if flag is not None:
        return flag
    return os.environ.get(STORE_VARIABLE) or from_file or DEFAULT_STORE


def shown_store(url: str) -> str:
    """The store's URL or path as it may be printed: without the password of a database."""
    from frontrunner.results.redaction import redact

    return redact([url])[0]


def run_root(url: str, *, from_file: str | None = None) -> Path:
    """The folder under which each probe and replay has its own: beside an SQLite store, else the working one."""
    chosen = os.environ.get(RUNS_VARIABLE) or from_file
    if chosen:
        return Path(chosen).resolve()
    path = url.removeprefix("sqlite:///")
    return (Path.cwd() if "://" in path else Path(path).resolve().parent) / "frontrunner-runs"
