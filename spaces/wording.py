"""How keys and values are shown in messages: as a campaign file would write them, short, and safe to print."""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST_CHARACTERS = 80
"""Longer values are cut; a message is one line that a person reads."""
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def shown(value: object) -> str:
    """A value in TOML's words: true, "text", [1, 2], {key = 1}; cut after `MOST_CHARACTERS`."""
    return _cut(_written(value))


def shown_key(key: str) -> str:
    """A key, dotted or not; one that TOML needs quotes for is quoted."""
    return _cut(key if BARE_KEY.fullmatch(key) else _quoted(key))


def _written(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quoted(value[:MOST_CHARACTERS])
    if isinstance(value, int) and value.bit_length() > 4 * MOST_CHARACTERS:
        return f"{value:x}"[:MOST_CHARACTERS]  # decimal digits of very long numbers take quadratic time
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item) for item in value[:MOST_CHARACTERS])}]"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:MOST_CHARACTERS]
        return "{" + ", ".join(f"{shown_key(str(key))} = {_written(item)}" for key, item in pairs) + "}"
    return str(value)


def _quoted(text: str) -> str:
    r"""Text in double quotes; whatever would move the cursor or hide is an escape, as \n or \u001b."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."
