"""Secrets of the environment: which variables hold one, and text without their values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from frontrunner.results.provenance import REDACTED, TOKEN_SHAPES, URL_PASSWORD

SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|SECRET|PASS|PASSWD|PGPASSWORD|PASSWORD|API_?KEY|ACCESS_KEY|PRIVATE_KEY|CREDENTIALS?|AUTH)(?:_|$)",
    re.IGNORECASE,
)
"""Whole words of a variable's name, so that TOKENIZERS_PARALLELISM is none."""
SHORTEST = 8
"""Characters of a value that is looked for in text; shorter ones are words of any log."""


def looks_secret(name: str, value: str) -> bool:
    """Whether a variable, by its name or the form of its value, holds a secret."""
    return bool(SECRET_NAME.search(name) or TOKEN_SHAPES.match(value) or URL_PASSWORD.search(value))


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text with the values of this environment's secrets, and passwords in URLs, replaced."""
    for name, value in environment.items():
        if len(value) >= SHORTEST and value in text and SECRET_NAME.search(name):
            text = text.replace(value, REDACTED)
    return URL_PASSWORD.sub(rf"\g<before>{REDACTED}", text) if "://" in text else text
