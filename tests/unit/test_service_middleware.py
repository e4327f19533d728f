"""Requests that must fail, each for its own reason, and the order in which the reasons are
asked.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi.testclient import TestClient
from uvicorn.server import ServerState

from frontrunner.server.app import Connection, listen
from frontrunner.server.auth import Caller, Role, Tokens, owner
from frontrunner.server.middleware import SECURITY_HEADERS
from frontrunner.server.settings import Limits, ServiceSettings
from frontrunner.spaces.errors import InvalidInput
from support.services import BODY, ORIGIN, bearer, browser, filled, settings, tokens_of

CAMPAIGNS = "/api/v1/campaigns"
JSON = {"content-type": "application/json"}
READER = Caller(name="reader", role=Role.READER)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> ServiceSettings:
    folder = tmp_path_factory.mktemp("service")
    filled(folder)
    return settings(folder)


@pytest.fixture(scope="module")
def client(chosen: ServiceSettings) -> Iterator[TestClient]:
    with browser(chosen) as found:
        yield found


@pytest.fixture(scope="module")
def tokens(client: TestClient, chosen: ServiceSettings) -> Tokens:
    del client  # which has made them
    return tokens_of(chosen)


def test_nothing_answers_without_a_token_but_whether_it_lives(client: TestClient) -> None:
    asked = 0
    for template, methods in client.app.openapi()["paths"].items():  # type: ignore[attr-defined]
        path = (
            template.replace("{name}", "first")
            .replace("{recipe_id}", "0" * 12)
            .replace("{number}", "4")
            .replace("{user}", "ada")
        )
        for method in methods:
            if path != "/api/v1/join":  # whose code is what lets in
                assert client.request(method, path).status_code == 401, (method, path)
                asked += 1
    for path in (f"{CAMPAIGNS}/none", "/nothing/here", "/api/v1/openapi.json", "/", "/metrics"):
        assert client.get(path).status_code == 401
    assert asked > 15
    alive = client.get("/healthz")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})


def test_only_the_tokens_themselves_open(client: TestClient, tokens: Tokens) -> None:
    wrong = [
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {tokens.operator[:-1]}"},
        {"authorization": f"Bearer {tokens.operator}x"},
        {"authorization": f"Basic {tokens.operator}"},
        {"authorization": tokens.operator},
        {"authorization": "Bearer \u00e9".encode("latin-1").decode("latin-1")},
        {"x-token": tokens.operator},
        {"cookie": f"{tokens.cookie}={tokens.operator}"},
    ]
    for headers in wrong:
        raw = {key: value.encode("latin-1") for key, value in headers.items()}
        assert client.get(CAMPAIGNS, headers=raw).status_code == 401, headers  # type: ignore[arg-type]
    assert (
        client.get(
            f"{CAMPAIGNS}?token={tokens.operator}&access_token={tokens.operator}"
        ).status_code
        == 401
    )
    for token in (tokens.operator, tokens.reader):
        assert client.get(CAMPAIGNS, headers=bearer(token)).status_code == 200


def test_session_cookie_is_good_for_its_role_and_time(
    client: TestClient, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tokens.session(READER)
    real = time.time
    with monkeypatch.context() as earlier:
        earlier.setattr(time, "time", lambda: real() - 13 * 3600)
        old = tokens.session(owner())
    elsewhere = replace(tokens, reader="another" * 5)
    assert elsewhere.cookie != tokens.cookie, "two services of one host do not log each other out"
    others = elsewhere.session(owner())
    raised = tokens.session(owner()).partition(".")[0] + "." + good.partition(".")[2]
    for cookie, status in (
        (good, 200),
        (old, 401),
        (others, 401),
        (raised, 401),
        ("", 401),
        ("a.b.c", 401),
    ):
        assert (
            client.get(CAMPAIGNS, headers={"cookie": f"{tokens.cookie}={cookie}"}).status_code
            == status
        )
    both = bearer("wrong") | {"cookie": f"{tokens.cookie}={good}"}
    assert client.get(CAMPAIGNS, headers=both).status_code == 401


@pytest.mark.parametrize("other", ['other={"a":1}', "other=[1,2]", "a b=c", "=", 'x="'])
def test_cookies_of_other_programs_on_this_host_keep_nobody_out(
    client: TestClient, tokens: Tokens, other: str
) -> None:
    ours = f"{tokens.cookie}={tokens.session(READER)}"
    for cookies in (f"{other}; {ours}", f"{ours}; {other}"):
        assert client.get(CAMPAIGNS, headers={"cookie": cookies}).status_code == 200, cookies


@pytest.mark.parametrize(
    ("chosen", "address"),
    [
        ({}, "http://127.0.0.1:9"),
        ({"host": "localhost"}, "http://localhost:9"),
        ({"host": "127.0.0.2"}, "http://127.0.0.2:9"),
        ({"host": "::1"}, "http://[::1]:9"),
        ({"host": "0:0:0:0:0:0:0:1"}, "http://[::1]:9"),
        ({"host": "0.0.0.0", "allowed_hosts": ("tune.example.org",)}, "http://tune.example.org:9"),
        ({"allowed_hosts": ("tune.example.org", "other")}, "http://tune.example.org:9"),
        ({"allowed_hosts": ("tune.example.org",), "behind_tls": True}, "https://tune.example.org"),
    ],
    ids=str,
)
def test_the_link_leads_to_an_address_that_is_answered(
    tmp_path: Path, chosen: dict[str, Any], address: str
) -> None:
    found = settings(tmp_path, **chosen)
    assert found.address(9) == address
    assert urlsplit(address).netloc.removesuffix(":9") in found.host_names


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.2", "http://127.0.0.2:9"),
        ("0.0.0.0", "http://127.0.0.1:9"),
        ("10.0.0.1", "https://tune.example.org"),
    ],
)
def test_programs_of_this_machine_go_around_the_proxy_where_they_can(
    tmp_path: Path, host: str, address: str
) -> None:
    chosen = settings(tmp_path, host=host, allowed_hosts=("tune.example.org",), behind_tls=True)
    assert chosen.here(9) == address


def test_a_proxy_needs_a_name_and_is_told_where_to_connect(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no --allow-host gives its name") as refused:
        settings(tmp_path, behind_tls=True, port=0)
    assert "--allow-host" in (refused.value.hint or "")
    found = settings(tmp_path, behind_tls=True, allowed_hosts=("tune.example.org",), host="::1")
    assert found.listening(45123) == "[::1]:45123"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.", "", "127.0.0.1@evil", "[::2]:1"],
)
def test_another_host_name_is_refused(client: TestClient, tokens: Tokens, host: str) -> None:
    headers = bearer(tokens.operator) | {"host": host}
    assert client.get(CAMPAIGNS, headers=headers).status_code == 400
    assert client.get("/healthz", headers={"host": host}).status_code == 400


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost:9", "LOCALHOST:8787", "[::1]:8787", "[::1]"]
)
def test_this_machine_s_names_are_known_whatever_the_port(
    client: TestClient, tokens: Tokens, host: str
) -> None:
    assert client.get(CAMPAIGNS, headers=bearer(tokens.reader) | {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "NONSENSE"]
)
@pytest.mark.parametrize(
    "sent_from",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "file://127.0.0.1:8787"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": ORIGIN},
    ],
    ids=str,
)
def test_other_pages_change_nothing(
    client: TestClient, tokens: Tokens, method: str, sent_from: dict[str, str]
) -> None:
    headers = bearer(tokens.operator) | JSON | sent_from
    assert client.request(method, CAMPAIGNS, headers=headers, content="{}").status_code == 403


def test_a_cookie_alone_changes_nothing_without_a_page_that_sends_it(
    client: TestClient, tokens: Tokens
) -> None:
    cookie = {"cookie": f"{tokens.cookie}={tokens.session(owner())}"}
    asked = f"{CAMPAIGNS}/none/stop"
    assert client.post(asked, headers=cookie).status_code == 403
    assert client.post(asked, headers=cookie | {"origin": ORIGIN}).status_code == 404
    assert client.post(asked, headers=cookie | {"sec-fetch-site": "same-origin"}).status_code == 404
    assert client.post(asked, headers=bearer(tokens.operator)).status_code == 404


def test_the_questions_are_asked_in_order(client: TestClient, tokens: Tokens) -> None:
    """Each request is wrong in all that follows its reason too."""
    long = b"x" * 1_000_001
    evil = {"host": "evil.example", "origin": "http://evil.example", "content-type": "text/plain"}
    assert client.post(CAMPAIGNS, headers=evil, content=long).status_code == 400
    del evil["host"]
    assert client.post(CAMPAIGNS, headers=evil, content=long).status_code == 403
    del evil["origin"]
    assert client.post(CAMPAIGNS, headers=evil, content=long).status_code == 401
    evil |= bearer(tokens.reader)
    assert client.post(CAMPAIGNS, headers=evil, content=long).status_code == 413
    assert (
        client.post(CAMPAIGNS, headers=bearer(tokens.reader) | JSON, json=BODY).status_code == 403
    )


def test_a_long_body_is_refused_by_what_it_says_and_by_what_arrives(
    client: TestClient, tokens: Tokens
) -> None:
    headers = bearer(tokens.operator) | JSON

    def parts() -> Iterator[bytes]:
        for _ in range(5):
            yield b" " * 250_000

    assert (
        client.post(
            "/api/v1/plan", headers=headers | {"content-length": "99999999"}, content=b"{}"
        ).status_code
        == 413
    )
    assert (
        client.post(
            "/api/v1/plan", headers=headers | {"content-length": "-1"}, content=b"{}"
        ).status_code
        == 413
    )
    assert client.post("/api/v1/plan", headers=headers, content=parts()).status_code == 413


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_body_that_any_page_can_send_is_not_read(
    client: TestClient, tokens: Tokens, kind: str
) -> None:
    headers = bearer(tokens.operator) | {"content-type": kind}
    assert (
        client.post(CAMPAIGNS, headers=headers, content=json.dumps(BODY).encode()).status_code
        == 422
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 200_000,
        b'{"model": ' * 100_000,
        b"1e999",
        b"\xff\xfe",
        b"NaN",
        b"null",
        b"9" * 5000,
    ],
)
def test_broken_json_is_one_message(client: TestClient, tokens: Tokens, body: bytes) -> None:
    refused = client.post("/api/v1/plan", headers=bearer(tokens.operator) | JSON, content=body)
    assert refused.status_code in (400, 422)
    assert refused.json()["detail"]


@pytest.mark.parametrize(
    "path", ["/campaigns", "/campaigns/first/stop", "/campaigns/first/resume", "/replays"]
)
def test_a_reader_may_look_only(client: TestClient, tokens: Tokens, path: str) -> None:
    body = BODY if path == "/campaigns" else {"recipe_id": "0" * 12, "steps": 1}
    refused = client.post(f"/api/v1{path}", headers=bearer(tokens.reader), json=body)
    assert refused.status_code == 403
    assert "reader" in refused.json()["detail"]


def test_a_link_opens_one_browser_once(client: TestClient, tokens: Tokens) -> None:
    path = client.post("/api/v1/links", headers=bearer(tokens.reader)).json()["path"]
    entered = client.get(path)
    assert entered.status_code == 200
    cookie = entered.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert client.get(path).status_code == 403
    assert client.get("/login?code=").status_code == 403
    session = cookie.partition(";")[0]
    client.cookies.clear()
    assert client.get(CAMPAIGNS, headers={"cookie": session}).status_code == 200
    launched = client.post(CAMPAIGNS, headers={"cookie": session, "origin": ORIGIN}, json=BODY)
    assert launched.status_code == 403  # the link was a reader's


def test_every_answer_tells_browsers_to_keep_to_the_page(
    client: TestClient, tokens: Tokens
) -> None:
    answers = [
        client.get("/healthz"),
        client.get(CAMPAIGNS),
        client.get(CAMPAIGNS, headers=bearer(tokens.reader)),
        client.get("/", headers={"host": "evil.example"}),
        client.get("/none", headers=bearer(tokens.reader)),
    ]
    for answer in answers:
        assert SECURITY_HEADERS.items() <= dict(answer.headers).items()
        assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in SECURITY_HEADERS["content-security-policy"]


def test_too_many_requests_are_told_to_wait(tmp_path: Path) -> None:
    with browser(settings(tmp_path, Limits(requests_per_s=0.01, request_burst=3))) as client:
        statuses = [client.get("/healthz").status_code for _ in range(4)]
        refused = client.get("/healthz")
    assert statuses == [200, 200, 200, 429]
    assert refused.json()["kind"] == "TooMany"
    assert 90 <= int(refused.headers["retry-after"]) <= 101


def test_browsers_see_errors_as_pages_with_text_escaped(client: TestClient, tokens: Tokens) -> None:
    headers = bearer(tokens.reader) | {"accept": "text/html,*/*"}
    page = client.get("/no<script>where", headers=headers)
    assert page.headers["content-type"].startswith("text/html")
    assert "<script>" not in page.text
    program = client.get("/api/v1/nowhere", headers=headers)
    assert program.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "tune.example.org"])
def test_other_machines_are_let_in_by_name_only(tmp_path: Path, host: str) -> None:
    with pytest.raises(InvalidInput, match="no --allow-host gives its name"):
        settings(tmp_path, host=host)
    assert (
        "tune.example.org"
        in settings(tmp_path, host=host, allowed_hosts=("Tune.example.org",)).host_names
    )


@pytest.mark.parametrize("name", ["", "*", "http://x", "x:80", "a b", "\u00e9"])
def test_a_host_s_name_is_a_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="--allow-host"):
        settings(tmp_path, allowed_hosts=(name,))


def test_answers_do_not_wait_for_acknowledgements(tmp_path: Path) -> None:
    async def no_delay_of_accepted() -> int:
        async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(
                writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            )
            writer.close()

        found = asyncio.get_running_loop().create_future()
        listener = listen(settings(tmp_path, port=0))
        async with await asyncio.start_server(note, sock=listener):
            with socket.create_connection(listener.getsockname()):
                return int(await found)

    assert asyncio.run(no_delay_of_accepted()) == 1


def test_a_connection_that_sends_no_request_in_time_is_closed_and_one_that_has_sent_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frontrunner.server.app.FIRST_REQUEST_S", 0.05)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        del scope, receive
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def ends() -> tuple[bytes, bytes, bool]:
        config, state = (
            uvicorn.Config(answer, http=Connection, ws="none", limit_concurrency=9),
            ServerState(),
        )
        config.load()
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(config, state, {}), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        asking, its_writer = await asyncio.open_connection("127.0.0.1", port)
        its_writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        first = await asking.readuntil(b"\r\n")
        silent, other_writer = await asyncio.open_connection("127.0.0.1", port)
        told = await asyncio.wait_for(silent.read(), timeout=60)
        found = first, told, its_writer.transport.is_closing()
        is_known = len(state.connections)
        for writer in (its_writer, other_writer):
            writer.close()
        server.close()
        assert is_known == 1
        return found

    first, told, is_closing = asyncio.run(ends())

    assert first.startswith(b"HTTP/1.1 204")
    assert told == b""
    assert not is_closing
