"""Cached responses: made once for many who ask, never another role's, emptied by a change."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.responses import Response

from frontrunner.results.states import CampaignState
from frontrunner.results.store import open_store
from frontrunner.server.service import Cache, Service
from support.page_stores import page_store
from support.rankings import measurement, record, start
from support.services import UNLIMITED, bearer, browser, filled, settings, tokens_of


def test_cache_makes_a_response_once_for_all_who_ask_at_the_same_time() -> None:
    cache, made = Cache(60.0, 10_000), []

    async def make() -> Response:
        made.append(1)
        await asyncio.sleep(0)
        return Response(b"x" * 10)

    async def ask() -> list[Response]:
        return await asyncio.gather(*(cache.response(key, make) for key in ("a", "a", "b", "a")))

    found = asyncio.run(ask())
    assert found[0] is found[1] is found[3] is not found[2]
    assert len(made) == 2
    cache.clear()
    assert asyncio.run(cache.response("a", make)) is not found[0]


def test_no_start_waits_for_figures(tmp_path: Path) -> None:
    service, drawn = Service(settings(tmp_path)), threading.Event()

    async def ask() -> str:
        drawing = [asyncio.create_task(service.slowly(lambda: drawn.wait(600))) for _ in range(3)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(service.slowly(lambda: "begun", starts=True), 600)
        finally:
            drawn.set()
            await asyncio.gather(*drawing)

    assert asyncio.run(ask()) == "begun"
    service.store.close()


def test_cache_keeps_neither_failures_nor_responses_beyond_its_size_or_time() -> None:
    async def fail() -> Response:
        raise ZeroDivisionError

    async def make() -> Response:
        return Response(b"x" * 10)

    async def ask(cache: Cache) -> bool:
        return await cache.response("a", make) is await cache.response("a", make)

    cache = Cache(60.0, 10)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(cache.response("a", fail))
    assert asyncio.run(ask(cache))
    assert not asyncio.run(ask(Cache(60.0, 9)))
    assert not asyncio.run(ask(Cache(0.0, 100)))


def test_cached_response_is_of_one_role_and_ends_with_a_change(tmp_path: Path) -> None:
    filled(tmp_path)
    chosen = settings(tmp_path, replace(UNLIMITED, cache_s=60.0))
    with browser(chosen) as client:
        tokens = tokens_of(chosen)

        def total(token: str) -> int:
            return int(client.get("/api/v1/campaigns", headers=bearer(token)).json()["total"])

        assert total(tokens.reader) == 1
        with open_store(str(tmp_path / "store.db")) as store:
            writer = start(store, "second")
            writer.set_state(CampaignState.RUNNING, reason="")
            record(writer, f"{1:012x}", measurement((0.25,), 4_000), number=1)
            writer.release(CampaignState.FINISHED, reason="")
        assert (total(tokens.reader), total(tokens.operator)) == (1, 2)
        assert (
            client.post(
                "/api/v1/campaigns/second/stop", headers=bearer(tokens.operator)
            ).status_code
            == 409
        )
        assert total(tokens.reader) == 2


def test_large_answers_are_sent_by_gzip_to_who_accepts_it(tmp_path: Path) -> None:
    filled(tmp_path)
    chosen = settings(tmp_path, replace(UNLIMITED, cache_s=60.0))
    with browser(chosen) as client:
        sender = bearer(tokens_of(chosen).reader)
        path = "/api/v1/campaigns/first/best"
        zipped = client.get(path, headers=sender | {"accept-encoding": "gzip"})
        plain = client.get(path, headers=sender | {"accept-encoding": "identity"})
    assert (zipped.headers["content-encoding"], plain.headers.get("content-encoding")) == (
        "gzip",
        None,
    )
    assert int(zipped.headers["content-length"]) < int(plain.headers["content-length"])
    assert zipped.json() == plain.json()


def test_what_figures_show_is_read_again_after_a_write_only(tmp_path: Path) -> None:
    page_store(tmp_path)
    service = Service(settings(tmp_path))
    first = service.report("first")
    assert service.report("first") is service.report("first", "of a page") is first
    with open_store(str(tmp_path / "store.db")) as store:
        store.rename("first", "another")
    assert service.report("another", "of a page") is first, (
        "a page sees a new version when it asks for one"
    )
    assert service.report("another") is not first
