"""Tokens of operator, reader and named users, their file, browser sessions and one-time links."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, TypeAdapter, ValidationError

from frontrunner.results.process_identity import acting_user, system_user
from frontrunner.results.records import timestamp, utc_now
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NameTaken,
    NotFound,
    did_you_mean,
)

if TYPE_CHECKING:
    from itsdangerous import URLSafeTimedSerializer

TOKEN_VARIABLE = "FRONTRUNNER_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "FRONTRUNNER_TOKEN_FILE"  # noqa: S105
PLAIN_HTTP_VARIABLE = "FRONTRUNNER_PLAIN_HTTP"
"""Set to 1, a client may send its token over a network without encryption."""
TOKEN_BYTES = 32
MOST_FILE_BYTES = 1_000_000
MOST_USERS = 1000
SESSION_S = 12 * 3600
LINK_S = 600.0
MOST_LINKS = 32
INVITED_DAYS = 7
MOST_SIGNED_OUT = 10_000
USER_NAME = r"[A-Za-z0-9][A-Za-z0-9._@\-]{0,63}"  # \- for the forms of browsers
READER_NAME = "reader"
Token = Annotated[str, Field(min_length=TOKEN_BYTES)]


class Role(StrEnum):
    """What the holder of a token may do."""

    READER = "reader"
    OPERATOR = "operator"


CALLER = "frontrunner.caller"
"""Key of an ASGI scope that holds the `Caller` of an authenticated request."""
logger = logging.getLogger("frontrunner.server")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who sends a request; `key` is a named user's (`User`), and empty for the holders of the
    file's own tokens.
    """

    name: str
    role: Role
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class User:
    """Someone who was invited. Sessions hold `key` and end with it; token and invitation are kept
    as hashes.
    """

    role: Role
    key: str
    added_at: str
    added_by: str
    token_sha256: str | None = None
    invitation_sha256: str | None = None
    invited_until: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The two tokens of one service, which belong to whoever runs it, and the users that were
    invited, by name.
    """

    operator: Token
    reader: Token
    users: Mapping[str, User] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.operator == self.reader:
            raise ValueError("the tokens are the same")

    def caller_of(self, presented: str) -> Caller | None:
        """Return who holds a token; it is compared with every one."""
        given = presented.encode()
        is_operator = hmac.compare_digest(given, self.operator.encode())
        is_reader = hmac.compare_digest(given, self.reader.encode())
        name = self._whose("token_sha256", presented)
        if name is not None:
            return self.caller(name)
        return (
            owner()
            if is_operator
            else Caller(name=READER_NAME, role=Role.READER)
            if is_reader
            else None
        )

    def caller(self, name: str) -> Caller:
        """Return a named user as a caller."""
        return Caller(name=name, role=self.users[name].role, key=self.users[name].key)

    def invited(self, code: str) -> str | None:
        """Return the name of the user whose invitation this is; None for one that was used, or has
        expired.
        """
        name = self._whose("invitation_sha256", code)
        until = None if name is None else self.users[name].invited_until
        return name if until is not None and datetime.fromisoformat(until) > utc_now() else None

    def _whose(self, column: str, secret: str) -> str | None:
        given, found = hash_of(secret), None
        for name, user in self.users.items():
            if hmac.compare_digest(given, getattr(user, column) or ""):
                found = name
        return found

    @property
    def cookie(self) -> str:
        """The name of the session cookie: browsers send cookies to every port of a host, so each
        pair has its own.
        """
        digest = hashlib.sha256(f"{self.operator}.{self.reader}".encode()).hexdigest()
        return f"frontrunner_{digest[:16]}"

    def session(self, caller: Caller) -> str:
        """Return the value of a cookie that is a caller's for `SESSION_S`; it ends with the tokens
        and the user.
        """
        nonce = secrets.token_urlsafe(8)  # or another session of the same second would end with it
        return self._signer().dumps([caller.name, caller.role.value, caller.key, nonce])

    def caller_of_session(self, cookie: str) -> Caller | None:
        """Return whose cookie of `session` this is; None for any other, for an expired one and for
        a removed user's.
        """
        from itsdangerous import BadData

        try:
            name, role, key, _ = self._signer().loads(cookie, max_age=SESSION_S)
        except (BadData, ValueError, TypeError):
            return None
        if not key:
            return Caller(name=name, role=Role(role))
        user = self.users.get(name)
        return None if user is None or not hmac.compare_digest(user.key, key) else self.caller(name)

    def _signer(self) -> URLSafeTimedSerializer:
        from itsdangerous import URLSafeTimedSerializer

        return URLSafeTimedSerializer(f"{self.operator}.{self.reader}", salt="session")


def owner() -> Caller:
    """Return the holder of the operator's token: the user of the operating system who runs the
    service.
    """
    return Caller(name=system_user(), role=Role.OPERATOR)


def hash_of(secret: str) -> str:
    """Return the hash by which a token or an invitation is kept: random as they are, it gives
    nothing away.
    """
    return hashlib.sha256(secret.encode()).hexdigest()


class LoginLinks:
    """Codes that log one browser in, once, within `LINK_S`; kept in memory, so that a restart ends
    them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from cachetools import TTLCache

        self._callers: TTLCache[str, Caller] = TTLCache(MOST_LINKS, LINK_S, timer=clock)

    def make(self, caller: Caller) -> str:
        """Return a new code; the oldest one ends where there would be more than `MOST_LINKS`."""
        code = secrets.token_urlsafe(TOKEN_BYTES)
        self._callers[code] = caller
        return code

    def spend(self, code: str) -> Caller | None:
        """Return whose code it is and end it; None for one that was used, has expired or never
        existed.
        """
        return self._callers.pop(code, None)


class Access:
    """Who may use a service: tokens and users of a file, which is read again when it changes, and
    ended sessions.
    """

    def __init__(self, path: Path) -> None:
        """Create the file if missing; raise as `make_tokens` does."""
        from cachetools import TTLCache

        seen = _signature(path)  # before it is read, so that what changes meanwhile is read again
        self._path, self._read = path, (make_tokens(path), seen)
        self.cookie = self._read[0].cookie
        self._signed_out: TTLCache[str, bool] = TTLCache(MOST_SIGNED_OUT, SESSION_S)

    @property
    def tokens(self) -> Tokens:
        """The file's content now. Raises as `read_tokens` does: without the file nobody is let
        in.
        """
        kept, was = self._read
        seen = _signature(self._path)
        if seen is None or seen != was:
            kept = read_tokens(self._path)
            self._read = kept, seen  # together: other threads read them, too
        return kept

    def caller_of(self, *, token: str | None = None, cookie: str | None = None) -> Caller | None:
        """Return whose token or, without one, whose session cookie it is."""
        try:
            tokens = self.tokens
        except FrontrunnerError as error:
            logger.warning("nobody is let in: %s", error.message)
            return None
        if token is not None:
            return tokens.caller_of(token)
        if cookie is None or hash_of(cookie) in self._signed_out:
            return None
        return tokens.caller_of_session(cookie)

    def lets_in(self, caller: Caller) -> bool:
        """Return whether a caller who was let in still is: its user was not removed, and the file
        is there.
        """
        try:
            user = self.tokens.users.get(caller.name)
        except FrontrunnerError:
            return False
        return not caller.key or (user is not None and hmac.compare_digest(user.key, caller.key))

    def sign_out(self, cookie: str) -> None:
        """End the session of a cookie; a restart forgets that, and a copied cookie is then good
        again for its time.
        """
        self._signed_out[hash_of(cookie)] = True

    def invite(self, name: str, role: Role) -> str:
        """Add a user, and return the code that makes the first to send it that user. Raises
        `NameTaken`.
        """
        code = secrets.token_urlsafe(TOKEN_BYTES)
        now = utc_now()
        with self._changing() as users:
            if name in (owner().name, READER_NAME):
                raise NameTaken(
                    f"{name} is who has a token of the token file", hint="choose another name"
                )
            if name in users:
                raise NameTaken(
                    f"there is a user {name} already", hint=f"frontrunner users remove {name}"
                )
            if len(users) >= MOST_USERS:
                raise InvalidInput(
                    f"there are {MOST_USERS} users: no more may be", hint="remove one"
                )
            users[name] = User(
                role=role,
                key=secrets.token_urlsafe(TOKEN_BYTES),
                added_at=timestamp(now),
                added_by=acting_user(),
                invitation_sha256=hash_of(code),
                invited_until=timestamp(now + timedelta(days=INVITED_DAYS)),
            )
        return code

    def join(self, code: str) -> tuple[Caller, str]:
        """End an invitation; return the user and a new token. Raises `InvalidInput`."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._changing() as users:
            name = self.tokens.invited(code)
            if name is None:
                raise InvalidInput(
                    "this invitation was used already, or has expired", hint="ask for a new one"
                )
            users[name] = replace(
                users[name], token_sha256=hash_of(token), invitation_sha256=None, invited_until=None
            )
        return self.tokens.caller(name), token

    def renew_token(self, caller: Caller) -> str:
        """Return a new token of a named user, whose earlier one ends; sessions go on. Raises
        `InvalidInput`.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._changing() as users:
            if not caller.key or caller.name not in users:
                raise InvalidInput(
                    f"{caller.name} is not a user who was invited",
                    hint="the token file has the token",
                )
            users[caller.name] = replace(users[caller.name], token_sha256=hash_of(token))
        return token

    def remove(self, name: str) -> None:
        """End a user's token, sessions and invitation. Raises `NotFound`."""
        with self._changing() as users:
            if name not in users:
                raise NotFound(
                    f"there is no user {name}",
                    hint=did_you_mean(name, users) or "frontrunner users list",
                )
            del users[name]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        """Pass the users to be changed, and write them back: other services may use the same
        file.
        """
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = self.tokens
            users = dict(tokens.users)
            yield users
            with tempfile.NamedTemporaryFile(
                "w", dir=self._path.parent, delete=False
            ) as file:  # of mode 0600
                json.dump(asdict(replace(tokens, users=users)), file)
                file.flush()
                os.fsync(file.fileno())
            Path(file.name).replace(self._path)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def default_token_file() -> Path:
    """Return $FRONTRUNNER_TOKEN_FILE, else frontrunner/tokens.json in the user's configuration
    folder.
    """
    named = os.environ.get(TOKEN_FILE_VARIABLE)
    if named:
        return Path(named)
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "frontrunner"
        / "tokens.json"
    )


def make_tokens(path: Path) -> Tokens:
    """Return the tokens of a file, creating it if missing. Raises as `read_tokens` does for one
    that is there.
    """
    if os.path.lexists(path):
        return read_tokens(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = Tokens(
        operator=secrets.token_urlsafe(TOKEN_BYTES), reader=secrets.token_urlsafe(TOKEN_BYTES)
    )
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as file:  # of mode 0600
        json.dump(asdict(fresh), file)
        file.flush()
        try:
            os.link(
                file.name, path
            )  # whole at once, and never over a file that another service has just made
        except FileExistsError:
            return read_tokens(path)
    return fresh


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file that only its owner can read; raise for any other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(
            f"there is no token file at {path}", hint="`frontrunner serve` creates one"
        ) from None
    except OSError as error:
        raise InvalidInput(f"the token file {path} cannot be opened: {error.strerror}") from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InvalidInput(
                f"the token file {path} can be read by others, or is not yours: mode"
                f" {found.st_mode & 0o777:o}",
                hint=(
                    "remove it, and stop the service if others may have read it; or: chmod 600"
                    f" {path}"
                ),
            )
        content = file.read(MOST_FILE_BYTES)
    try:
        return TypeAdapter(Tokens).validate_json(content)
    except ValidationError:
        raise InvalidInput(
            f"the token file {path} does not hold two tokens",
            hint="remove it: `frontrunner serve` creates a new one",
        ) from None
