"""Names of campaigns: they are typed in a shell and name a folder, so they are short and plain."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from frontrunner.spaces.errors import bad_value

CAMPAIGN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
MOST_CHARACTERS = 64
FALLBACK = "campaign"


def require_campaign_name(key: str, name: str) -> None:
    """Raise `InvalidInput` naming `key` unless `name` may be a campaign's name."""
    if not CAMPAIGN_NAME.fullmatch(name):
        raise bad_value(key, name, "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a-z or 0-9")


def campaign_name_from(text: str) -> str:
    """Return the campaign name nearest to any text, such as a file's name: `22B run (2)` gives `22b-run-2`."""
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._")
    return plain[:MOST_CHARACTERS].rstrip("-._") or FALLBACK


def free_among(taken: Collection[str], wanted: str) -> str:
    """Return `wanted`, or the first of wanted-2, wanted-3, ... that is not `taken`."""
    numbered = (f"{wanted[: MOST_CHARACTERS - 6]}-{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([wanted], numbered) if name not in taken)
