"""The pages as HTML: all text escaped, nothing from elsewhere, changes alone sent, readers kept from buttons."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from frontrunner.service.app import create_app
from frontrunner.service.pages.router import router
from support.page_stores import SCRIPT, page_store
from support.services import ORIGIN, bearer, settings, tokens_of


@pytest.fixture(scope="module")
def ids(folder: Path) -> list[str]:
    return page_store(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def client(folder: Path, ids: list[str]) -> Iterator[TestClient]:
    chosen = settings(folder)
    app = create_app(chosen, pages=(router,))
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as found:
        found.headers.update(bearer(tokens_of(chosen).operator) | {"accept": "text/html"})
        yield found


def shown(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture(scope="module")
def every_page(client: TestClient, ids: list[str]) -> dict[str, str]:
    paths = [
        "/",
        "/campaigns/first",
        "/campaigns/first/coordinates",
        "/campaigns/first/trials?page=1",
        f"/recipes/{ids[0]}",
        "/compare",
        "/compare?campaign=first&campaign=second",
        f"/compare?recipe={ids[0]}&recipe={ids[1]}",
        "/launch",
        "/plan?model=gpt2-small&cluster=dgx-a100-80gb&nodes=1&global_batch=64&sequence_length=1024",
    ]
    return {path: shown(client, path) for path in paths}


def test_text_from_outside_never_becomes_a_part_of_a_page(every_page: dict[str, str]) -> None:
    for path, text in every_page.items():
        assert SCRIPT not in text, path
        assert "\x1b" not in text, path
    assert "&lt;script&gt;alert(1)" in every_page["/campaigns/first"]
    assert "\\x1b[31m" in every_page["/campaigns/first"]


def test_pages_hold_no_inline_script_or_style_and_name_no_other_place(every_page: dict[str, str]) -> None:
    for path, text in every_page.items():
        assert not re.search(r"<script(?![^>]* src=\"/static/)", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text), path
        assert not re.search(r"(src|href|action)=\"(https?:)?//", text), path


def test_every_file_that_a_page_names_is_there_and_may_be_kept(client: TestClient, every_page: dict[str, str]) -> None:
    named = {path for text in every_page.values() for path in re.findall(r"/static/[^\"]+", text)}
    assert any("htmx" in path for path in named)
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/style.css").status_code == 404  # its name holds its content's mark
    assert client.get("/static/..%2frendering.py").status_code == 404


def test_a_page_that_has_seen_everything_is_sent_nothing(client: TestClient) -> None:
    seen = re.search(r'hx-get="(/campaigns/first/live[^"]+)"', shown(client, "/campaigns/first"))
    assert seen is not None
    assert client.get(seen[1]).status_code == 204


def test_only_the_pieces_that_changed_are_sent(client: TestClient) -> None:
    page = shown(client, "/campaigns/first")
    seen = re.search(r'hx-get="(/campaigns/first/live\?seen=[^"]+)"', page)
    assert seen is not None
    *known, _events = seen[1].split("~")
    answer = client.get("~".join([known[0].split("=")[0] + "=earlier", *known[1:], "older"]))
    assert re.findall(r'<section id="([a-z-]+)" hx-swap-oob="true"', answer.text) == ["events"]
    assert "hx-trigger" not in answer.headers  # no new outcome: figures stay as they are
    answer = client.get("/campaigns/first/live?seen=earlier~0~x")
    assert answer.headers["hx-trigger"] == "outcomes"
    assert answer.text.count("<section") == 6


def test_figures_come_as_json_and_others_are_refused(client: TestClient) -> None:
    found = client.get("/campaigns/first/figures/speed-memory").json()
    assert found["figure"]["data"]
    assert "front" in found["reading"]
    assert client.get("/campaigns/first/figures/importance").status_code == 422


def test_a_reader_sees_no_buttons_and_may_press_none(client: TestClient, folder: Path, ids: list[str]) -> None:
    reader = bearer(tokens_of(settings(folder)).reader)
    for path in ("/", "/campaigns/first", f"/recipes/{ids[0]}"):
        text = client.get(path, headers=reader).text
        assert "hx-post" not in text
        assert "hx-post" in client.get(path).text or path == "/"
    for path in ("/campaigns/first/resume", "/campaigns/first/cancel", f"/recipes/{ids[0]}/replay", "/launch"):
        assert client.post(path, headers=reader, json={"steps": 1, "campaign": ""}).status_code in (403, 422), path
    assert client.post("/campaigns/first/cancel", headers=reader, json={}).status_code == 403


def test_a_recipe_page_says_how_far_off_the_estimate_is(every_page: dict[str, str], ids: list[str]) -> None:
    text = every_page[f"/recipes/{ids[0]}"]
    assert "Rank 1 of 3 in second" in text
    assert "measured were 105 ms" in text
    assert "How the model is cut" in text


def test_a_campaign_file_is_checked_before_it_is_launched(client: TestClient) -> None:
    def said(text: str) -> str:
        return client.post("/launch/check", json={"campaign": text}).text

    assert "is no TOML" in said("[model")
    assert "expected no path from the wire" in said(
        "[model]\npreset='gpt2-small'\n[cluster]\nfile='/etc/passwd'\n[problem]\n[space]\n"
    )
    assert "extra" in said("[data]\npath='/etc/passwd'\n[model]\n[cluster]\n[problem]\n[space]\n").lower()
    assert client.post("/launch", json={"campaign": "[model"}).status_code == 422


def test_a_plan_that_cannot_be_made_says_why_in_its_place(client: TestClient) -> None:
    text = shown(client, "/plan/answer?model=gpt2-small&sequence_length=99999")
    assert "at most model.max_positions = 1024" in text
    assert "did you mean" in shown(client, "/plan/answer?model=gpt2-smal")


def test_reading_pages_loads_neither_torch_nor_the_searches(folder: Path, ids: list[str]) -> None:
    script = f"""
import sys
from fastapi.testclient import TestClient
from pathlib import Path
from frontrunner.service.app import create_app
from frontrunner.service.settings import ServiceSettings
from frontrunner.service.tokens import read_tokens
from frontrunner.service.pages.router import router
tokens = Path({str(folder / "tokens" / "tokens.json")!r})
app = create_app(ServiceSettings(store={str(folder / "store.db")!r}, token_file=tokens), pages=(router,))
with TestClient(app, base_url={ORIGIN!r}) as client:
    client.headers["authorization"] = "Bearer " + read_tokens(tokens).operator
    for path in ("/", "/campaigns/first", "/recipes/{ids[0]}", "/campaigns/first/figures/history"):
        assert client.get(path).status_code == 200, path
print(sorted({{"torch", "optuna", "deephyper", "sklearn", "matplotlib"}} & set(sys.modules)))
"""
    found = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
