"""How backups of a store are called: beside it, so that they sort by the time they were made."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

MARK = ".backup-"
TIME = re.compile(r"\d{8}T\d{6}Z")
"""What follows the mark in a backup's name, and in that of no file that lies beside a backup."""


def backup_beside(path: Path, now: datetime) -> Path:
    """The name of a backup made now: STORE.backup-20260301T120000Z, in UTC."""
    return path.with_name(f"{path.name}{MARK}{now:%Y%m%dT%H%M%SZ}")


def newest_backup(path: Path) -> Path | None:
    """The newest backup that lies beside a store under such a name; None too where the folder may not be listed."""
    try:
        beside = [entry for entry in path.parent.iterdir() if _is_backup(entry.name, path.name)]
    except PermissionError:
        return None
    return max(beside, key=lambda entry: entry.name, default=None)


def _is_backup(name: str, store: str) -> bool:
    return name.startswith(store + MARK) and TIME.fullmatch(name.removeprefix(store + MARK)) is not None
