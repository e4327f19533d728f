"""Small files that must be whole or absent: written aside, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: object) -> None:
    """Write a JSON file so that a reader, or a crash at any moment, sees the old file or the whole new one."""
    write_text(path, json.dumps(value, allow_nan=False))


def write_text(path: Path, text: str) -> None:
    """Write a text file, in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old file or the whole new one.

    Nothing is left aside if the disk is full.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def read_json(path: Path) -> Any | None:
    """The file's content, or None where there is no file; raises ValueError for a file that is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def tail(path: Path, lines: int = 15, max_bytes: int = 16_384) -> str:
    """The last lines of a log, without terminal control characters; empty where there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    kept = ["".join(c for c in line if c.isprintable() or c == "\t") for line in text.splitlines()]
    return "\n".join(line for line in kept[-lines:])
