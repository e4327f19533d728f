"""Users of a service: invitations, the sign-in page, sessions that end, and whose name stands in a
history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer

import pytest
from fastapi.testclient import TestClient

from frontrunner.results.store import open_store
from frontrunner.server.auth import Access, Role, owner
from frontrunner.server.pages.account import TRIES
from frontrunner.server.settings import Limits, ServiceSettings
from frontrunner.spaces.errors import NameTaken, NotFound
from frontrunner.spaces.validation import dump_json
from support.campaigns import spec_of, tiny
from support.services import ORIGIN, UNLIMITED, bearer, browser, filled, remote, settings, tokens_of

CAMPAIGNS = "/api/v1/campaigns"
HTML = {"accept": "text/html,*/*"}
OURS = HTML | {"origin": ORIGIN, "content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def chosen(tmp_path: Path) -> ServiceSettings:
    filled(tmp_path)
    return settings(tmp_path)


@pytest.fixture
def client(chosen: ServiceSettings) -> Iterator[TestClient]:
    with browser(chosen) as service:
        service.follow_redirects = False
        yield service


def operator(chosen: ServiceSettings) -> dict[str, str]:
    return bearer(tokens_of(chosen).operator)


def invited(
    client: TestClient, chosen: ServiceSettings, name: str = "ada", role: str = "operator"
) -> str:
    made = client.post("/api/v1/users", headers=operator(chosen), json={"name": name, "role": role})
    assert made.status_code == 201, made.text
    return str(made.json()["path"]).partition("code=")[2]


def joined(client: TestClient, code: str) -> tuple[dict[str, str], str]:
    """Accept an invitation in a browser; return the session's cookie as a header, and the token
    that was shown.
    """
    page = client.post("/join", headers=OURS, content=f"code={code}")
    assert page.status_code == 200, page.text
    cookie = page.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    found = re.search(r"FRONTRUNNER_TOKEN=(\S+)", page.text)
    assert found
    client.cookies.clear()
    return {"cookie": cookie.partition(";")[0]}, found[1]


def test_an_invitation_makes_a_user_of_the_first_who_accepts_it(
    client: TestClient, chosen: ServiceSettings
) -> None:
    code = invited(client, chosen)
    for _ in range(2):  # a program that looks at links in messages uses nothing up
        asked = client.get(f"/join?code={code}", headers=HTML)
        assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
        assert "<b>ada</b>" in asked.text
    session, token = joined(client, code)
    assert client.post("/join", headers=OURS, content=f"code={code}").status_code == 422
    assert client.get(f"/join?code={code}", headers=HTML).status_code == 403
    assert client.get("/join?code=", headers=HTML).status_code == 403
    assert ">ada</a>" in client.get("/", headers=HTML | session).text
    for sent in (session | {"origin": ORIGIN}, bearer(token)):
        assert client.post(f"{CAMPAIGNS}/none/stop", headers=sent).status_code == 404
    kept = chosen.token_file.read_text()
    assert "ada" in kept
    assert code not in kept
    assert token not in kept
    assert chosen.token_file.stat().st_mode & 0o777 == 0o600


def test_an_invitation_is_accepted_by_a_program_too(
    client: TestClient, chosen: ServiceSettings
) -> None:
    code = invited(client, chosen, "grace", "reader")
    answer = client.post("/api/v1/join", json={"code": code})
    assert (answer.status_code, answer.json()["name"]) == (201, "grace")
    assert client.post("/api/v1/join", json={"code": code}).status_code == 422
    mine = bearer(answer.json()["token"])
    assert client.get(CAMPAIGNS, headers=mine).status_code == 200
    for method, path in (
        ("POST", f"{CAMPAIGNS}/first/stop"),
        ("GET", "/api/v1/users"),
        ("POST", "/account/users"),
    ):
        assert client.request(method, path, headers=mine).status_code == 403
    assert "Invite" not in client.get("/account", headers=HTML | mine).text


def test_an_invitation_ends_after_seven_days(
    client: TestClient, chosen: ServiceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = invited(client, chosen)
    for days, status in ((8, 422), (6, 201)):
        monkeypatch.setattr(
            "frontrunner.server.auth.utc_now", lambda days=days: datetime.now(UTC) + timedelta(days)
        )
        assert client.post("/api/v1/join", json={"code": code}).status_code == status


def test_a_user_who_is_removed_is_out_at_once(client: TestClient, chosen: ServiceSettings) -> None:
    session, token = joined(client, invited(client, chosen))
    other = Access(chosen.token_file)  # another service with the same file
    assert other.caller_of(token=token) == other.tokens.caller("ada")
    pending, ada = invited(client, chosen, "grace"), other.tokens.caller("ada")
    assert other.lets_in(ada), "as a stream asks"
    for name in ("ada", "grace"):
        assert client.delete(f"/api/v1/users/{name}", headers=operator(chosen)).status_code == 200
    for sent in (session, bearer(token)):
        assert client.get(CAMPAIGNS, headers=sent).status_code == 401
    assert client.post("/api/v1/join", json={"code": pending}).status_code == 422
    assert other.caller_of(token=token) is None
    assert client.delete("/api/v1/users/ada", headers=operator(chosen)).status_code == 404
    joined(
        client, invited(client, chosen)
    )  # another ada, to whom the first one's session is no good
    assert not other.lets_in(ada)
    assert other.lets_in(other.tokens.caller("ada"))
    assert other.lets_in(owner())
    assert client.get(CAMPAIGNS, headers=session).status_code == 401


@pytest.mark.timeout(60)
def test_an_open_stream_ends_with_its_user(client: TestClient, chosen: ServiceSettings) -> None:
    _, token = joined(client, invited(client, chosen))
    removal = Timer(1.0, Access(chosen.token_file).remove, ["ada"])
    removal.start()
    answer = client.get(f"{CAMPAIGNS}/first/events", headers=bearer(token))  # the whole of it
    removal.join()
    assert (answer.status_code, "event: outcome" in answer.text) == (200, True)


def test_users_have_names_of_their_own(client: TestClient, chosen: ServiceSettings) -> None:
    team = remote(client, tokens_of(chosen).operator)
    assert team.invite("ada").startswith(f"{ORIGIN}/join?code=")
    for name in ("ada", owner().name, "reader"):
        with pytest.raises(NameTaken):
            team.invite(name)
    for name in ("", "-x", "a b", "<b>", "x" * 65):
        refused = client.post("/api/v1/users", headers=operator(chosen), json={"name": name})
        assert (refused.status_code, "name" in refused.json()["detail"]) == (422, True)
    assert [(user.name, user.role, user.added_by) for user in team.users()] == [
        ("ada", Role.OPERATOR, owner().name)
    ]
    team.remove_user("ada")
    with pytest.raises(NotFound):
        team.remove_user("ada")


def test_a_new_token_ends_the_earlier_one_and_no_session(
    client: TestClient, chosen: ServiceSettings
) -> None:
    session, token = joined(client, invited(client, chosen))
    page = client.post("/account/token", headers=OURS | session)
    found = re.search(r"FRONTRUNNER_TOKEN=(\S+)", page.text)
    assert found
    statuses = [
        client.get(CAMPAIGNS, headers=sent).status_code
        for sent in (bearer(token), bearer(found[1]), session)
    ]
    assert statuses == [401, 200, 200]
    own = client.post("/account/token", headers=operator(chosen) | HTML)
    assert (own.status_code, "token file" in own.text) == (422, True)


def test_signing_in_leads_on_to_the_page_that_was_wanted(
    client: TestClient, chosen: ServiceSettings
) -> None:
    page = client.get("/campaigns/first?x=1&y=2", headers=HTML)
    assert page.status_code == 401
    place = re.search(r'name="place" value="([^"]*)"', page.text)
    assert place
    assert place[1].startswith("/campaigns/first?x=1")
    style = re.search(r'href="(/static/style[^"]*)"', page.text)
    assert style
    assert client.get(style[1]).status_code == 200  # so that it looks like the others
    token = tokens_of(chosen).reader
    entered = client.post(
        "/login", headers=OURS, content=f"place=%2Fplan%3Fnodes%3D8&token={token}"
    )
    assert (entered.status_code, entered.headers["location"]) == (303, "/plan?nodes=8")
    session = {"cookie": entered.headers["set-cookie"].partition(";")[0]}
    client.cookies.clear()
    assert client.get("/plan", headers=HTML | session).status_code == 200
    wrong = client.post("/login", headers=OURS, content="place=%2Fplan&token=wrong")
    assert (wrong.status_code, "set-cookie" in wrong.headers, "not valid" in wrong.text) == (
        401,
        False,
        True,
    )
    assert 'value="/plan"' in wrong.text
    evil = OURS | {"origin": "http://evil.example"}
    assert client.post("/login", headers=evil, content=f"token={token}").status_code == 403


@pytest.mark.parametrize(
    "place",
    [
        "//evil.example",
        "https://evil.example/",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "/login",
        "/a\r\nb",
    ],
)
def test_signing_in_leads_nowhere_else(
    client: TestClient, chosen: ServiceSettings, place: str
) -> None:
    form = {"place": place, "token": tokens_of(chosen).reader}
    entered = client.post("/login", headers=HTML | {"origin": ORIGIN}, data=form)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")


def test_signing_out_ends_the_session_for_whoever_has_its_cookie(
    client: TestClient, chosen: ServiceSettings
) -> None:
    session, _ = joined(client, invited(client, chosen))
    assert client.post("/logout", headers=session).status_code == 403  # not from a page of ours
    assert client.get(CAMPAIGNS, headers=session).status_code == 200
    out = client.post("/logout", headers=session | {"origin": ORIGIN})
    assert (out.status_code, out.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert client.get(CAMPAIGNS, headers=session).status_code == 401
    assert client.get("/login", headers=HTML).status_code == 200


def test_tokens_cannot_be_tried_one_after_the_other(tmp_path: Path) -> None:
    chosen = settings(tmp_path, UNLIMITED)
    with browser(chosen) as client:
        statuses = [
            client.post("/login", headers=OURS, content=f"token={n}").status_code
            for n in range(TRIES + 1)
        ]
        assert statuses == [401] * TRIES + [429]
        assert client.get("/login").status_code == 200


def test_without_the_token_file_nobody_is_let_in(
    client: TestClient, chosen: ServiceSettings
) -> None:
    sent = operator(chosen)
    assert client.get(CAMPAIGNS, headers=sent).status_code == 200
    chosen.token_file.rename(chosen.token_file.with_suffix(".aside"))
    assert client.get(CAMPAIGNS, headers=sent).status_code == 401
    chosen.token_file.with_suffix(".aside").rename(chosen.token_file)
    assert client.get(CAMPAIGNS, headers=sent).status_code == 200


def test_a_page_is_not_shown_under_another_s_name(tmp_path: Path) -> None:
    filled(tmp_path)
    chosen = settings(tmp_path, Limits(cache_s=1000.0))
    with browser(chosen) as client:
        session, _ = joined(client, invited(client, chosen))
        ada = client.get("/", headers=HTML | session).text
        other = client.get("/", headers=HTML | operator(chosen)).text
    assert (">ada</a>" in ada, ">ada</a>" in other) == (True, False)


def test_who_asked_for_what_stands_in_the_history(
    client: TestClient, chosen: ServiceSettings
) -> None:
    with open_store(chosen.store) as store:
        spec = dump_json(spec_of(tiny(budget={"probes": 4})))
        store.create_campaign(name="second", spec_json=spec, legal_recipes=9, problem_summary={})
    session, token = joined(client, invited(client, chosen))
    ada, own = remote(client, token), remote(client, tokens_of(chosen).operator)
    ada.rename("second", "third")
    own.change_budget("third", {"probes": 40})
    found = own.history("third")
    assert [(event.kind, event.user) for event in found.items] == [
        ("budget", owner().name),
        ("renamed", "ada"),
    ]
    assert own.history("third", page=2, page_size=1).items == found.items[1:]
    assert found.total == 2
    page = client.get("/campaigns/third", headers=HTML | session).text
    rows = re.findall(
        r'col-user">([^<]*)</td><td class="col-what">([^<]*)<', page.replace("\n", "")
    )
    assert rows == [
        (owner().name, "budget: probes 40, was 4"),
        ("ada", "renamed from second to third"),
    ]
    ada.delete("third")
    with pytest.raises(NotFound) as gone:
        own.status("third")
    assert str(gone.value.hint).startswith("ada deleted it on")
