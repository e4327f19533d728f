"""Small files that must be whole or absent: written aside, flushed to the disk, then renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from frontrunner.results.redaction import without_secrets

MOST_JSON_BYTES = 64 * 2**20
"""What ranks write of ten thousands of ranks and steps is shorter."""


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
    """The file's content, or None where there is no file.

    Raises ValueError for a file that is not JSON, is too long, or is nested too deeply.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_JSON_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(content) > MOST_JSON_BYTES:
        raise ValueError(f"{path} has more than {MOST_JSON_BYTES:,} bytes")
    return parsed_json(content)


def parsed_json(content: bytes) -> Any:
    """What JSON in UTF-8 holds; raises ValueError for what is none, and for what is nested too deeply."""
    try:
        return json.loads(content.decode())
    except RecursionError:
        raise ValueError("not usable JSON: nested too deeply") from None


def tail(path: Path, lines: int = 15, max_bytes: int = 16_384) -> str:
    """The last lines of a log, without terminal control characters and the environment's secrets.

    Empty where there is no log.
    """
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    kept = ["".join(c for c in line if c.isprintable() or c == "\t") for line in text.splitlines()]
    return without_secrets("\n".join(line for line in kept[-lines:]))
