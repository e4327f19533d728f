"""Who may ask: two tokens in a file, the cookies made of them, and the links that open a browser once.

A token is 32 random bytes. The operator's may launch and stop, the reader's only look. The file is its owner's alone
(mode 0600); tokens are compared in constant time and never stand in an address.
"""

from __future__ import annotations

import hashlib
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

from frontrunner.spaces.errors import InvalidInput, NotFound

TOKEN_VARIABLE = "FRONTRUNNER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "FRONTRUNNER_TOKEN_FILE"  # noqa: S105 - likewise
TOKEN_BYTES = 32
MOST_FILE_BYTES = 4096
SESSION_S = 12 * 3600
LINK_S = 600.0
MOST_LINKS = 32


class Role(StrEnum):
    """What a token lets its holder do."""

    READER = "reader"
    OPERATOR = "operator"


ROLE = "frontrunner.role"
"""Key of a request's scope under which the role of its sender stands, once it has shown a token."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The two tokens of one service."""

    operator: str
    reader: str

    def role_of(self, presented: str) -> Role | None:
        """The role of a token; both are compared whatever the first comparison says."""
        given = presented.encode()
        is_operator = hmac.compare_digest(given, self.operator.encode())
        is_reader = hmac.compare_digest(given, self.reader.encode())
        return Role.OPERATOR if is_operator else Role.READER if is_reader else None

    def session(self, role: Role, *, now_s: float) -> str:
        """The value of a cookie that stands for a role for `SESSION_S`; it dies with the tokens."""
        claim = f"{role}.{int(now_s) + SESSION_S}"
        return f"{claim}.{self._sign(claim)}"

    def role_of_session(self, cookie: str, *, now_s: float) -> Role | None:
        """The role of a cookie that `session` made; None for any other, and for one whose time is over."""
        claim, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign(claim).encode(), signature.encode()):
            return None
        role, _, until = claim.partition(".")
        return Role(role) if int(until) > now_s else None

    def _sign(self, claim: str) -> str:
        key = f"{self.operator}.{self.reader}".encode()
        return hmac.new(key, f"session.{claim}".encode(), hashlib.sha256).hexdigest()


class OneTimeLinks:
    """Codes that are good once, for `LINK_S`; kept in memory, so that a restart ends them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._open: dict[str, tuple[Role, float]] = {}

    def make(self, role: Role) -> str:
        """A new code; the oldest ends where there would be more than `MOST_LINKS`."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        self._open[_digest(code)] = (role, self._clock() + LINK_S)
        while len(self._open) > MOST_LINKS:
            del self._open[next(iter(self._open))]
        return code

    def spend(self, code: str) -> Role | None:
        """The role of a code, which is good no more; None for one that was spent, is too old or never was."""
        role, until = self._open.pop(_digest(code), (None, 0.0))
        return role if until > self._clock() else None


def _digest(code: str) -> str:
    """What a code is kept under: looking up a digest tells nothing, by its time, about the code."""
    return hashlib.sha256(code.encode()).hexdigest()


def default_token_file() -> Path:
    """FRONTRUNNER_TOKEN_FILE, else frontrunner/tokens.json in the user's configuration folder."""
    named = os.environ.get(TOKEN_FILE_VARIABLE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "frontrunner" / "tokens.json"


def make_tokens(path: Path) -> Tokens:
    """The tokens of a file; new ones where there is none. Raises `InvalidInput` for a file that others may read."""
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
    """The tokens of a file that is its owner's alone.

    Raises `NotFound` where there is none, and `InvalidInput` for a link, somebody else's file, one that others may
    read, or one that holds anything else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"there is no token file at {path}", hint="`frontrunner serve` makes one") from None
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
        raise InvalidInput(f"the token file {path} holds no two tokens", hint="remove it: `serve` makes a new one")
    return tokens
