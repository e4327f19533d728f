"""A real browser that looks at a service."""

from __future__ import annotations

import json
import shutil
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.request import Request, urlopen

import pytest

from frontrunner.server.auth import read_tokens
from support.services import Served
from support.starting import DidNotStart, retried

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
IN_A_BROWSER = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on PATH"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # playwright's own, of asyncio
]
PATIENCE_MS = 300_000
api.expect.set_options(timeout=PATIENCE_MS)


@contextmanager
def _chromium(driver: Any) -> Iterator[Any]:
    try:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE_MS
        )
    except api.Error as error:
        raise DidNotStart(str(error)) from error
    yield browser
    browser.close()


@contextmanager
def window(
    service: Served,
    *,
    width: int = 1280,
    scheme: Literal["light", "dark"] = "light",
    refused: Container[str] = (),
) -> Iterator[api.Page]:
    """A browser's window that has followed a one-time link; its errors fail the test, except at
    `refused` URLs.
    """
    errors: list[str] = []

    def is_error(said: api.ConsoleMessage) -> bool:
        return said.type == "error" and said.location["url"] not in refused

    headers = {"Authorization": f"Bearer {read_tokens(service.token_file).operator}"}
    asked = Request(f"{service.url}/api/v1/links", method="POST", headers=headers)
    with urlopen(asked) as answer:
        link = json.load(answer)["path"]
    with (
        api.sync_playwright() as driver,
        retried("Chromium", lambda _: _chromium(driver)) as chromium,
    ):
        page = chromium.new_page(viewport={"width": width, "height": 860}, color_scheme=scheme)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(service.url + link)
        page.wait_for_url(f"{service.url}/")
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "console",
            lambda said: (
                errors.append(f"{said.location['url']}: {said.text}") if is_error(said) else None
            ),
        )
        yield page
    assert not errors, errors
