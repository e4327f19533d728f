"""Reading of a user's files; every problem with a file is one message that names it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from frontrunner.spaces.errors import InvalidInput, read_bytes

Table = dict[str, Any]

MAX_FILE_BYTES = 1_000_000
MOST_PARTS = 64
"""Parts of a dotted key, at most; the parser's memory grows with their square."""
_LONG_KEY = re.compile(
    rf"""(?<![\w.'"-])(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{MOST_PARTS}}}"""
)


def read_text(
    path: Path, what: str, hint: str | None = None, *, most_bytes: int = MAX_FILE_BYTES
) -> str:
    """Return the text of a file that messages call `what`; `hint` says where to get one."""
    content = read_bytes(path, what, hint, most=most_bytes)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not text in UTF-8: byte {error.start + 1} does not fit"
        ) from None


def read_toml(
    path: Path, what: str = "campaign file", hint: str = "`frontrunner init` writes one"
) -> Table:
    """Return the content of a TOML file, read as by `read_text`."""
    return parse_toml(read_text(path, what, hint), str(path))


def parse_toml(text: str, name: str) -> Table:
    """Parse a text that messages call `name`; raises `InvalidInput` for one that is not usable
    TOML.
    """
    if _LONG_KEY.search(text):
        raise InvalidInput(
            f"{name} is not usable TOML: a key of more than {MOST_PARTS} parts, nested more than 8"
            " deep"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why = str(error)  # may quote a long key, and ends with the position
        why = why if len(why) <= 200 else f"{why[:120]} ... {why[-60:]}"
        raise InvalidInput(f"{name} is not valid TOML: {why}") from None
    except RecursionError:
        raise InvalidInput(
            f"{name} is not usable TOML: its lists or tables are nested too deeply"
        ) from None
    except ValueError:  # Python converts no more than 4,300 decimal digits
        raise InvalidInput(
            f"{name} is not usable TOML: one of its numbers has thousands of digits"
        ) from None


def toml_value(value: object) -> str:
    """Return a value that TOML has as TOML writes it."""
    if isinstance(value, dict):
        return (
            f"{{ {', '.join(f'{key} = {toml_value(inside)}' for key, inside in value.items())} }}"
        )
    return json.dumps(value, ensure_ascii=False)


def value_of(table: Table, key: str) -> Any:
    """Return a value of a parsed file by its dotted key; None where it has none."""
    found: Any = table
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def set_value(table: Table, key: str, text: str) -> None:
    """Set one value of a parsed file by its dotted key; a text that is no TOML value is a
    string.
    """
    *sections, last = key.split(".")
    place: Any = table
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise InvalidInput(f"--set {key}: {section} is a value, not a section")
    try:
        found = parse_toml(f"value = {text}", f"--set {key}")
    except InvalidInput:
        found = {"value": text}
    place[last] = found["value"] if len(found) == 1 else text
