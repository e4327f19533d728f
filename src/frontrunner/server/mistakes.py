"""Validation errors of requests, in the words of a campaign file's errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frontrunner.config.validation import invalid_input
from frontrunner.spaces.errors import FrontrunnerError

PLACES = ("body", "query", "path", "header")
"""First part of an error's location: where in the request the value is."""


def mistake_in(errors: Sequence[Mapping[str, Any]]) -> FrontrunnerError:
    """Convert FastAPI's validation errors into one of ours."""
    first = errors[0]
    place = first["loc"]
    return invalid_input([{**first, "loc": place[1:] if place[:1] and place[0] in PLACES else place}])
