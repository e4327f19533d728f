"""Reading of a user's files; every problem with a file is one message that names it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frontrunner.spaces.errors import InvalidInput, NotFound

Table = dict[str, Any]

MAX_FILE_BYTES = 1_000_000
MOST_PARTS = 64
"""Parts of a dotted key, at most; the parser's memory grows with their square."""
_LONG_KEY = re.compile(rf"""(?<![\w.'"-])(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MOST_PARTS}}}""")


def read_text(path: Path, what: str, hint: str | None = None, *, most_bytes: int = MAX_FILE_BYTES) -> str:
    """Return the text of a file that messages call `what`; `hint` says where to get one."""
    if not holds(path.is_file):
        why = "it is a device, a pipe or a socket" if holds(path.exists) else "there is no such file"
        raise NotFound(f"no {what} at {path}: {'it is a folder' if holds(path.is_dir) else why}", hint=hint)
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > most_bytes:
        raise InvalidInput(f"{path} is too long: a {what} has at most {most_bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8: byte {error.start + 1} does not fit") from None


def read_toml(path: Path, what: str, hint: str) -> Table:
    """Return the content of a TOML file, read as by `read_text`."""
    return parse_toml(read_text(path, what, hint), str(path))


def parse_toml(text: str, name: str) -> Table:
    """Parse a text that messages call `name`; raises `InvalidInput` for one that is not usable TOML."""
    if _LONG_KEY.search(text):
        raise InvalidInput(f"{name} is not usable TOML: a key of more than {MOST_PARTS} parts, nested more than 8 deep")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why = str(error)  # may quote a long key, and ends with the position
        why = why if len(why) <= 200 else f"{why[:120]} ... {why[-60:]}"
        raise InvalidInput(f"{name} is not valid TOML: {why}") from None
    except RecursionError:
        raise InvalidInput(f"{name} is not usable TOML: its lists or tables are nested too deeply") from None
    except ValueError:  # Python converts no more than 4,300 decimal digits
        raise InvalidInput(f"{name} is not usable TOML: one of its numbers has thousands of digits") from None


def holds(question: Callable[[], bool]) -> bool:
    """Evaluate a path's `is_file` or `is_dir`; False for an impossible path (too long, with a NUL)."""
    try:
        return question()
    except (OSError, ValueError):
        return False
