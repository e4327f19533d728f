"""Tokens of operator and reader, their file, browser sessions and one-time login links.

A token is 32 random bytes. The operator's may launch and stop, the reader's only read. The file is readable by its
owner only; tokens are compared in constant time and never appear in a URL.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from frontrunner.spaces.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from itsdangerous import URLSafeTimedSerializer

TOKEN_VARIABLE = "FRONTRUNNER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "FRONTRUNNER_TOKEN_FILE"  # noqa: S105
TOKEN_BYTES = 32
MOST_FILE_BYTES = 4096
SESSION_S = 12 * 3600
LINK_S = 600.0
MOST_LINKS = 32


class Role(StrEnum):
    """What the holder of a token may do."""

    READER = "reader"
    OPERATOR = "operator"


ROLE = "frontrunner.role"
"""Key of an ASGI scope that holds the role of an authenticated request."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The two tokens of one service."""

    operator: str
    reader: str

    def role_of(self, presented: str) -> Role | None:
        """Return the role of a token; both comparisons are always made."""
        given = presented.encode()
        is_operator = hmac.compare_digest(given, self.operator.encode())
        is_reader = hmac.compare_digest(given, self.reader.encode())
        return Role.OPERATOR if is_operator else Role.READER if is_reader else None

    def session(self, role: Role) -> str:
        """Return the value of a cookie that grants a role for `SESSION_S`; it ends with the tokens."""
        return self._signer().dumps(role.value)

    def role_of_session(self, cookie: str) -> Role | None:
        """Return the role of a cookie that `session` made; None for any other, and for an expired one."""
        from itsdangerous import BadData

        try:
            return Role(self._signer().loads(cookie, max_age=SESSION_S))
        except BadData:
            return None

    def _signer(self) -> URLSafeTimedSerializer:
        from itsdangerous import URLSafeTimedSerializer

        return URLSafeTimedSerializer(f"{self.operator}.{self.reader}", salt="session")


class LoginLinks:
    """Codes that log one browser in, once, within `LINK_S`; kept in memory, so that a restart ends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from cachetools import TTLCache

        self._roles: TTLCache[str, Role] = TTLCache(MOST_LINKS, LINK_S, timer=clock)

    def make(self, role: Role) -> str:
        """Return a new code; the oldest one ends where there would be more than `MOST_LINKS`."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        self._roles[code] = role
        return code

    def spend(self, code: str) -> Role | None:
        """Return the role of a code and end it; None for one that was used, has expired or never existed."""
        return self._roles.pop(code, None)


def default_token_file() -> Path:
    """Return $FRONTRUNNER_TOKEN_FILE, else frontrunner/tokens.json in the user's configuration folder."""
    named = os.environ.get(TOKEN_FILE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "frontrunner" / "tokens.json"


def make_tokens(path: Path) -> Tokens:
    """Return the tokens of a file, creating it if missing. Raises `InvalidInput` for a file that others may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Tokens(operator=secrets.token_urlsafe(TOKEN_BYTES), reader=secrets.token_urlsafe(TOKEN_BYTES))
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(asdict(fresh), file)
        os.link(unfinished, path)  # whole at once, and never over a file that another service has just made
    except FileExistsError:
        return read_tokens(path)
    finally:
        unfinished.unlink()
    return fresh


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file that only its owner can read.

    Raises `NotFound` for a missing file, and `InvalidInput` for a link, another user's file, one that others may read,
    or one with other content.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"there is no token file at {path}", hint="`frontrunner serve` creates one") from None
    except OSError as error:
        raise InvalidInput(f"the token file {path} cannot be opened: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InvalidInput(
                f"the token file {path} can be read by others, or is not yours: mode {found.st_mode & 0o777:o}",
                hint=f"remove it, and stop the service if others may have read it; or: chmod 600 {path}",
            )
        content = file.read(MOST_FILE_BYTES)
    try:
        table = json.loads(content)
        tokens = Tokens(operator=table["operator"], reader=table["reader"])
        usable = all(isinstance(token, str) and len(token) >= TOKEN_BYTES for token in asdict(tokens).values())
    except (ValueError, KeyError, TypeError):
        usable = False
    if not usable or tokens.operator == tokens.reader:
        raise InvalidInput(
            f"the token file {path} does not hold two tokens", hint="remove it: `frontrunner serve` creates a new one"
        )
    return tokens
