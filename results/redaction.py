"""Redaction of secrets in command lines, environment variables and text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

REDACTED = "[redacted]"
SECRET_WORDS = re.compile(
    r"secret|passw|passphrase|credential|(?:api|access|private)[-_.]?key|(?:^|[-_.])(?:pass|o?auth2?)(?:$|[-_.])|_pwd$"
    r"|(?<!(?:bos|cls|eos|pad|sep|unk)[-_.])token(?:[-_.]?\d+)?$|(?-i:(?:^|_)TOKEN_)",
    re.IGNORECASE,
)
"""Names of secrets. Trainers count tokens too: `--train-tokens` and `--token-dispatcher-type` are
none.
"""
PATH_NAME = re.compile(r"[-_.](?:path|file|dir|sock)$", re.IGNORECASE)
ASSIGNED = re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)(?:=|:\s+|(?P<space>\s+)(?=[^\s-]))")
"""A name and what separates it from its value."""
VALUE = re.compile(r"""(?:"(?:\\.?|[^"\\])*(?:"|$)|'[^']*(?:'|$)|[^\s,;&'"])*""", re.DOTALL)
"""A value among others, as a shell or a list quotes and ends it."""
AUTHORIZATION = re.compile(
    r"(?P<before>authorization:\s*(?:(?:basic|bearer|digest|token)\s+)?)[^\s'\"]+", re.IGNORECASE
)
URL_PASSWORD = re.compile(
    r"(?P<before>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]*+://[^\s/:@]*:)[^\s/@]+(?=@)", re.IGNORECASE
)
QUERY_PASSWORD = re.compile(r"(?P<before>[?&](?:ssl)?password=)[^&#\s]+", re.IGNORECASE)
TOKEN_SHAPES = re.compile(
    r"^(hf_|ghp_|gho_|glpat-|github_pat_|sk-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{8,}$"
)
MAYBE_PATHS = ("CREDENTIALS", "_PWD")
SHORTEST = 8
"""Characters of a value that is looked for in text; shorter ones are words of any log."""


def names_a_secret(name: str) -> bool:
    """Return whether an option or a variable of this name holds a secret itself, rather than the
    path of one.
    """
    return SECRET_WORDS.search(name) is not None and not PATH_NAME.search(name)


def redact(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments with secrets replaced: values of secret names, passwords in URLs and
    known token shapes.
    """
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        if (hide_next and not argument.startswith("--")) or TOKEN_SHAPES.match(argument):
            shown.append(REDACTED)
        else:
            shown.append(_without_passwords(_without_assigned(argument)))
        hide_next = argument.startswith("-") and "=" not in argument and names_a_secret(argument)
    return tuple(shown)


def _without_assigned(argument: str) -> str:
    """Replace each value of a secret's name, to the argument's end where that begins with the
    name.
    """
    shown, read = "", 0
    for found in ASSIGNED.finditer(argument):
        is_secret = names_a_secret(found["name"]) and (
            found["space"] is None or found["name"].startswith("-")
        )
        if not is_secret or found.start() < read:
            continue
        shown += argument[read : found.end()] + REDACTED
        if found.start() == 0:
            return shown
        ended = VALUE.match(argument, found.end())
        read = ended.end() if ended else found.end()
    return shown + argument[read:]


def _without_passwords(argument: str) -> str:
    for pattern in (URL_PASSWORD, QUERY_PASSWORD, AUTHORIZATION):
        argument = pattern.sub(rf"\g<before>{REDACTED}", argument)
    return argument


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable, by its name or the form of its value, holds a secret."""
    return bool(
        _is_named_so(name, value) or TOKEN_SHAPES.match(value) or URL_PASSWORD.search(value)
    )


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the text with the values of this environment's secrets, and passwords in URLs,
    replaced.
    """
    found = {
        value
        for name, value in environment.items()
        if len(value) >= SHORTEST and value in text and _is_named_so(name, value)
    }
    for value in sorted(found, key=len, reverse=True):  # one may begin with another
        text = text.replace(value, REDACTED)
    return URL_PASSWORD.sub(rf"\g<before>{REDACTED}", text) if "://" in text else text


def _is_named_so(name: str, value: str) -> bool:
    """Return whether the name says secret; one in `MAYBE_PATHS` whose value is a path does not."""
    name = name.upper()
    return names_a_secret(name) and not (
        name.endswith(MAYBE_PATHS) and value.startswith(("/", "~"))
    )
