"""HTTP as the client needs it: one request at a time, a stream, and errors in our words."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import quote, urlsplit

from frontrunner.server.processes import error_from
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, ServiceUnreachable, bad_value

API = "/api/v1"
TIMEOUT_S = 150.0
"""A launch may compile before it answers; everything else takes milliseconds."""
STREAM_TIMEOUT_S = 60.0
MOST_ANSWER_BYTES = 200_000_000


@dataclass(frozen=True, kw_only=True)
class ServiceAddress:
    """A service's URL in parts; `port` None is the scheme's own."""

    host: str
    port: int | None
    prefix: str
    is_tls: bool


def address_of(url: str) -> ServiceAddress:
    """Raises `InvalidInput` for a URL that is not http(s)://HOST[:PORT][/PREFIX]."""
    expected = "http://HOST:PORT, or https://HOST"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise bad_value("--server", url, expected) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise bad_value("--server", url, expected)
    return ServiceAddress(host=parts.hostname, port=port, prefix=parts.path.rstrip("/"), is_tls=parts.scheme == "https")


def recipe_path(recipe_id: str) -> str:
    """The path of a recipe, whose id may be written as a command takes it: in capitals, with spaces around."""
    return f"/recipes/{part_of_path(recipe_id.strip().lower())}"


def part_of_path(name: str) -> str:
    """A name as one part of a path; raises `InvalidInput` for what would be none, or several."""
    if name in ("", ".", "..") or "/" in name:
        raise InvalidInput(f"{name!r} names no campaign and no recipe")
    return quote(name, safe="")


class Connection:
    """Where a service is, and the token to show it."""

    def __init__(self, url: str, token: str) -> None:
        """Raises `InvalidInput` where `address_of` does, and for a token that is no text."""
        address = address_of(url)
        if not token.isascii() or not token.isprintable():
            raise bad_value("the token", "...", "the characters of a token file")
        self.url = url.rstrip("/")
        self._host, self._port, self._is_tls = address.host, address.port, address.is_tls
        self._prefix = address.prefix + API
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of an answer; raises the error that the service answers with.

        Raises `ServiceUnreachable` where nothing answers.
        """
        headers = self._headers | ({} if body is None else {"Content-Type": "application/json"})
        with self._answer(method, path, body, headers) as answer:
            return answer.read(MOST_ANSWER_BYTES)

    def stream(self, path: str, after: str | None) -> Iterator[dict[str, str]]:
        """The fields of each server-sent event, until the service ends or the connection is cut."""
        headers = self._headers | ({} if after is None else {"Last-Event-ID": after})
        with self._answer("GET", path, None, headers, timeout_s=STREAM_TIMEOUT_S) as answer:
            fields: dict[str, str] = {}
            for line in answer:
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name and value:
                    fields[name] = value
                elif "data" in fields:
                    yield fields
                    fields = {}

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], *, timeout_s: float = TIMEOUT_S
    ) -> Iterator[HTTPResponse]:
        connection = self._connection(timeout_s)
        try:
            connection.request(method, self._prefix + path, body=body, headers=headers)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise self._refused(answer)
            yield answer
        except (OSError, HTTPException) as error:
            raise ServiceUnreachable(
                f"no service answers at {self.url}: {error or type(error).__name__}",
                hint="is `frontrunner serve` running there?",
            ) from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
        return HTTPConnection(self._host, self._port, timeout=timeout_s)

    def _refused(self, answer: HTTPResponse) -> FrontrunnerError:
        try:
            return error_from(json.loads(answer.read(MOST_ANSWER_BYTES))["error"])
        except (ValueError, KeyError, TypeError, AttributeError):
            return ServiceUnreachable(f"{self.url} answers {answer.status}, which no frontrunner service does here")
