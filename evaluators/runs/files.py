"""Small files that are whole or absent, log tails, and room on their disk."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import IO, Any

from frontrunner.results.redaction import without_secrets
from frontrunner.spaces.document import write_bytes

LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\.log")
MIN_FREE_BYTES = 8 * 2**20
"""Room that a probe needs for its job, logs and results. Assumed: they take less than 1 MiB."""

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A full disk, an exhausted quota, and a limit on file size (`RLIMIT_FSIZE`)."""

DISK_FULL_SIGNS = tuple(os.strerror(number) for number in DISK_FULL_ERRORS)


def write_json(path: Path, value: object) -> None:
    """Write a JSON file as `write_bytes` does; dataclasses become objects of their fields."""
    # Unlike `dataclasses.asdict`, this copies no tuple entry by entry.
    write_bytes(path, json.dumps(value, allow_nan=False, default=vars).encode())


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def read_json(path: Path) -> Any | None:
    """Return the content of a JSON file, or None if there is no file; raise ValueError for a file
    that is not JSON.
    """
    return json.loads(path.read_bytes()) if path.exists() else None


class LineReader:
    """Reads the whole lines that are added to a growing file, from `offset` on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def new_lines(self) -> list[bytes]:
        """Return the lines completed since the last call; empty if there is no file."""
        try:
            with self._path.open("rb") as file:
                text = self._read(file)
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()

    def _read(self, file: IO[bytes]) -> bytes:
        """Return what follows `_offset` in the file."""
        file.seek(self._offset)
        return file.read()


def tail(path: Path, lines: int = 15, max_bytes: int = 16_384) -> str:
    """Return the last lines of a log without control characters and secrets; empty if there is no
    log.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return last_lines(text, lines)


def last_lines(text: str, lines: int) -> str:
    """Return the last lines of a log's text without control characters and secrets."""
    printable = [
        "".join(c for c in line if c.isprintable() or c == "\t")
        for line in text.splitlines()[-lines:]
    ]
    return without_secrets("\n".join(printable))


def read_end(root: Path, path: Path, *, most_bytes: int) -> str | None:
    """Return the last bytes of `root`/FOLDER/NAME.log as text; None for another path, a link, or a
    missing file.
    """
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


def why_disk_full(folder: Path) -> str | None:
    """Return why nothing more should be started in a folder, which need not exist yet, or None."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    disk = shutil.disk_usage(existing)
    if disk.free >= MIN_FREE_BYTES or disk.total == 0:  # some file systems report nothing
        return None
    return f"the disk of the run folder {folder} is full: {disk.free / 2**20:.1f} MiB are free"


def is_disk_full(error: OSError) -> bool:
    """Return whether an error means that there is no room to write to."""
    return error.errno in DISK_FULL_ERRORS
