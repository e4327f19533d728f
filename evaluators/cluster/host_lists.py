"""Host lists as Slurm and Flux shorten them: `frontier[00001-00003,00010],login1` is five hosts.

A list is names with commas between them; a name may hold brackets with numbers and ranges of numbers. A range counts in
the width of its first number. Several brackets in a name give every combination, the last one varying fastest (Slurm's
manual of scontrol, "show hostlist"; RFC 29 of Flux).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from frontrunner.spaces.errors import bad_value

MOST_HOSTS = 1_000_000
"""More are a mistake, not a machine."""

_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expand(text: str) -> list[str]:
    """The hosts of a shortened list, in its order; none for an empty one.

    Raises `InvalidInput` for a list that cannot be read.
    """
    found: list[str] = []
    place = 0
    text = text.strip()
    while place < len(text):
        name = _NAME.match(text, place)
        if name is None or (name.end() < len(text) and text[name.end()] != ","):
            raise bad_value("host list", text, "names with commas between them, as node[1-4],login1")
        found += itertools.islice(_hosts(name[0], text), MOST_HOSTS + 1 - len(found))
        place = name.end() + 1
    if len(found) > MOST_HOSTS or text.endswith(","):
        raise bad_value("host list", text, f"at most {MOST_HOSTS:,} names with commas between them")
    return found


def _hosts(name: str, text: str) -> Iterator[str]:
    """Every host of one name with brackets."""
    pieces = re.split(r"\[([^\]]*)\]", name)
    choices = [[piece] if place % 2 == 0 else list(_numbers(piece, text)) for place, piece in enumerate(pieces)]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _numbers(ranges: str, text: str) -> Iterator[str]:
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (found[1], found[2] or found[1]) if found else ("1", "0")
        if not 0 <= int(last) - int(first) < MOST_HOSTS:
            raise bad_value("host list", text, f"ranges such as 1-4 in brackets, not {part!r}")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
