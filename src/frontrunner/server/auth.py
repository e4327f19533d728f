"""Tokens of operator and reader, their file, browser sessions and one-time login links."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter, ValidationError

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
Token = Annotated[str, Field(min_length=TOKEN_BYTES)]


class Role(StrEnum):
    """What the holder of a token may do."""

    READER = "reader"
    OPERATOR = "operator"


ROLE = "frontrunner.role"
"""Key of an ASGI scope that holds the role of an authenticated request."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The two tokens of one service."""

    operator: Token
    reader: Token

    def __post_init__(self) -> None:
        if self.operator == self.reader:
            raise ValueError("the tokens are the same")

    def role_of(self, presented: str) -> Role | None:
        """Return the role of a token; both comparisons are always made."""
        given = presented.encode()
        is_operator = hmac.compare_digest(given, self.operator.encode())
        is_reader = hmac.compare_digest(given, self.reader.encode())
        return Role.OPERATOR if is_operator else Role.READER if is_reader else None

    @property
    def cookie(self) -> str:
        """The name of the session cookie: browsers send cookies to every port of a host, so each pair has its own."""
        return f"frontrunner_{hashlib.sha256(f'{self.operator}.{self.reader}'.encode()).hexdigest()[:16]}"

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
    """Return the tokens of a file, creating it if missing. Raises as `read_tokens` does for one that is there."""
    if os.path.lexists(path):
        return read_tokens(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Tokens(operator=secrets.token_urlsafe(TOKEN_BYTES), reader=secrets.token_urlsafe(TOKEN_BYTES))
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 0600
        json.dump(asdict(fresh), file)
        file.flush()
        try:
            os.link(file.name, path)  # whole at once, and never over a file that another service has just made
        except FileExistsError:
            return read_tokens(path)
    return fresh


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file that only its owner can read; raise for any other."""
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
        return TypeAdapter(Tokens).validate_json(content)
    except ValidationError:
        raise InvalidInput(
            f"the token file {path} does not hold two tokens", hint="remove it: `frontrunner serve` creates a new one"
        ) from None
