"""What is wrong with a request, in the words that a file or an option of ours would be refused with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.config.validation import EXPECTED
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, bad_value
from frontrunner.spaces.wording import shown_key

PLACES = ("body", "query", "path", "header")
"""Where in a request a value stood, as the first part of a complaint's place."""
PARSED = {"int_parsing": "a whole number", "float_parsing": "a number", "bool_parsing": "true or false"}
"""What was expected of text that should have been something else, by pydantic's name of the complaint."""


def mistake_in(complaints: Sequence[Mapping[str, Any]]) -> FrontrunnerError:
    """The first of pydantic's complaints about a request; one of ours is told as it is."""
    first = complaints[0]
    original = first.get("ctx", {}).get("error")
    if isinstance(original, FrontrunnerError):
        return original
    if first["type"] == "json_invalid":
        return InvalidInput(f"the body is not JSON: {original}")
    parts = first["loc"][1:] if first["loc"][:1] and first["loc"][0] in PLACES else first["loc"]
    key = ".".join(shown_key(str(part)) for part in parts) or "the body"
    if first["type"] == "missing":
        return InvalidInput(f"{key} is missing")
    return bad_value(key, first.get("input"), _expected(first))


def _expected(complaint: Mapping[str, Any]) -> str:
    known = EXPECTED | PARSED
    if complaint["type"] in known:
        return known[complaint["type"]]
    subject, _, rest = str(complaint["msg"]).partition(" should ")
    return rest.removeprefix("be ") if rest.startswith("be ") else f"a {subject.lower()} to {rest}".removesuffix(" to ")
