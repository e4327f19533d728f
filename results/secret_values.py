"""Secrets of the environment: which variables hold one, and text without their values."""

from __future__ import annotations

import os
from collections.abc import Mapping

from frontrunner.results.provenance import REDACTED, TOKEN_SHAPES, URL_PASSWORD, names_a_secret

MAYBE_PATHS = ("CREDENTIALS", "_PWD")
"""Ends of names whose value may be a path, as of GOOGLE_APPLICATION_CREDENTIALS."""
SHORTEST = 8
"""Characters of a value that is looked for in text; shorter ones are words of any log."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable, by its name or the form of its value, holds a secret."""
    return bool(_is_named_so(name, value) or TOKEN_SHAPES.match(value) or URL_PASSWORD.search(value))


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with the values of this environment's secrets, and passwords in URLs, replaced."""
    found = {
        value
        for name, value in environment.items()
        if len(value) >= SHORTEST and value in text and _is_named_so(name, value)
    }
    for value in sorted(found, key=len, reverse=True):  # one may begin with another
        text = text.replace(value, REDACTED)
    return URL_PASSWORD.sub(rf"\g<before>{REDACTED}", text) if "://" in text else text


def _is_named_so(name: str, value: str) -> bool:
    """Whether the name says secret; those in `MAYBE_PATHS` also name files, and a secret itself may begin with "/"."""
    name = name.upper()
    return names_a_secret(name) and not (name.endswith(MAYBE_PATHS) and value.startswith(("/", "~")))
