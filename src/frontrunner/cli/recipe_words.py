"""How commands name one recipe: a stored id, or, of a campaign file, an id or choices."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from frontrunner.spaces.errors import InvalidInput

FLAGS = {"true": True, "false": False}
MOST_CHARACTERS = 200
MOST_DIGITS = 18
ID = re.compile("[0-9a-fA-F]{4,12}")


def named(words: tuple[str, ...], campaign: Path | None) -> str | Mapping[str, object]:
    """The recipe id, or the choices, that the words are."""
    if campaign is not None and not (len(words) == 1 and ID.fullmatch(words[0])):
        return choices(words)
    if len(words) != 1:
        raise InvalidInput(
            f"expected the id of a stored recipe, not {len(words)} words",
            hint="choices such as tensor_parallel=8 go with --campaign FILE",
        )
    return words[0]


def choices(words: tuple[str, ...]) -> dict[str, object]:
    """The choices that words such as tensor_parallel=8 make; raises `InvalidInput` for other words."""
    found: dict[str, object] = {}
    for key, value in map(_choice, words):
        if key in found:
            raise InvalidInput(f"{key} is chosen more than once: {' '.join(words)}"[:MOST_CHARACTERS])
        found[key] = value
    return found


def _choice(word: str) -> tuple[str, object]:
    key, separator, value = word.partition("=")
    if not separator:
        raise InvalidInput(
            f"{word!r} is no choice", hint="with --campaign a recipe is named by its id, or by words as sharding=zero-1"
        )
    is_number = value.isdecimal() and value.isascii() and len(value) <= MOST_DIGITS
    return key, FLAGS.get(value, int(value) if is_number else value)
