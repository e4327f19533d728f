"""Every page that the service's router lists, in a real browser: accessible, no wider than a phone,
and light.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI

from frontrunner.server.app import create_app
from frontrunner.server.middleware import OPEN_PATHS
from frontrunner.server.pages.rendering import assets
from frontrunner.spaces.document import recipe_id
from support.browsers import IN_A_BROWSER, api, window
from support.live_campaigns import driven
from support.page_stores import page_store
from support.page_walk import address, is_page, page_routes, planned
from support.services import Served, served, settings

axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed"
)
pytestmark = IN_A_BROWSER
WIDTHS = (1440, 820, 360)
MOST_BYTES = 1_500_000
"""Of a page with its files, as they are sent to a browser that has none of them."""
WEIGHT = """() => [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .reduce((sum, entry) => sum + entry.encodedBodySize, 0)"""  # noqa: E501
TOO_WIDE = """() => [...document.querySelectorAll('body *')]
  .filter((one) => one.getBoundingClientRect().right > window.innerWidth).slice(0, 5)
  .map((one) => one.outerHTML.slice(0, 90))"""
DRAWN_ANEW = """() => [...document.querySelectorAll('[data-chart][data-width]')]
  .every((one) => Number(one.dataset.width) === one.clientWidth)"""
LONG_NAME = "a-campaign-with-a-name-that-is-as-long-as-the-names-may-be-".ljust(64, "x")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A service and its pages: by the examples that its routes' parameters take, at more addresses,
    and refused.
    """

    service: Served
    app: FastAPI
    examples: tuple[dict[str, str], ...] = ()
    more: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def addresses(self, page: api.Page) -> list[str]:
        """The addresses of whole pages; one that the service refuses fails the test."""
        routes = [route for route in page_routes(self.app) if route.path not in OPEN_PATHS]
        if not self.examples:
            routes = [route for route in routes if "{" not in str(route.path)]
        queries = planned(page.request.get(f"{self.service.url}/plan").text())
        examples = self.examples or ({},)
        found = dict.fromkeys(
            address(route, example, queries) for route in routes for example in examples
        )
        return [one for one in (*found, *self.more) if self._is_page(page, one)]

    def _is_page(self, page: api.Page, path: str) -> bool:
        answer = page.request.get(self.service.url + path, headers={"accept": "text/html"})
        assert answer.status == 200, f"{path}: {answer.status} {answer.text()}"
        return is_page(answer.headers["content-type"], answer.text())


@pytest.fixture(scope="module", params=[pytest.param("empty", marks=pytest.mark.nightly), "filled"])
def shown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp(request.param)
    with served(folder) as service:
        service.start()
        app = create_app(settings(folder))
        if request.param == "empty":
            yield Shown(service=service, app=app)
            return
        ids = page_store(folder)
        with driven(folder, LONG_NAME) as campaign:
            campaign.go_on(40)
            recipe = campaign.recipes[campaign.done]
            newest = recipe_id(campaign.spec.problem, recipe)
            campaign.writer.start_attempt(
                campaign.writer.propose(newest, recipe), run_folder="/runs/1"
            )
            yield _filled(service, app, folder, (ids[0], newest), ids)


def _filled(
    service: Served, app: FastAPI, folder: Path, recipes: tuple[str, str], ids: list[str]
) -> Shown:
    files = {"wanted": "history", "file": assets()["style.css"].rpartition("/")[2]}
    return Shown(
        service=service,
        app=app,
        examples=tuple(
            {"name": name, "recipe_id": recipe, **files}
            for name, recipe in zip(("first", LONG_NAME), recipes, strict=True)
        ),
        more=(
            f"/compare?campaign=first&campaign={LONG_NAME}",
            f"/compare?recipe={ids[0]}&recipe={ids[1]}&campaign=first",
            f"/campaigns/{LONG_NAME}/recipes?pipeline_parallel=2&columns=why,outcome&sort=-tokens_per_s",
            f"/campaigns/first/recipes?pin={ids[0]}&pin={ids[1]}&tokens_per_s_from=1",
            "/plan?layers=0",
        ),
        refused=(
            "/campaigns/absent",
            "/recipes/0123456789ab",
            "/campaigns/first/recipes?page=0",
            "/absent",
        ),
    )


def complaints(page: api.Page, path: str) -> Iterator[str]:
    """Say what is wrong with a page: its weight, the widths that it does not fit, and what axe
    finds at the narrowest one, where most has to be scrolled; last, its contrast in the dark.
    """
    page.emulate_media(color_scheme="light")
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_load_state("networkidle")
    api.expect(page.locator("[data-chart]:not([data-drawn])")).to_have_count(0)
    weight = page.evaluate(WEIGHT)
    if not 0 < weight < MOST_BYTES:
        yield f"{path}: {weight:,} bytes"
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 860})
        page.wait_for_function(
            DRAWN_ANEW
        )  # until then a chart of the last width may have to be scrolled
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            yield f"{path} at {width}: wider than its window: {page.evaluate(TOO_WIDE)}"
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(DRAWN_ANEW)
        found = axe.Axe().run(page, options={"resultTypes": ["violations"], **rules})
        if found.violations_count:
            yield f"{path} at {WIDTHS[-1]}, {scheme}: {found.generate_report()}"


@pytest.mark.timeout(1200)
def test_every_page_is_accessible_and_light_and_fits_a_phone(shown: Shown) -> None:
    root, found = shown.service.url, []
    with window(shown.service, refused=[root + path for path in shown.refused]) as page:
        paths = shown.addresses(page)
        assert {"/", "/plan", "/compare", "/launch"} <= set(paths)
        for path in (*paths, *shown.refused):
            page.goto(root + path)
            found += complaints(page, path)
        stranger = page.context.browser.new_page()
        for path in ("/", *sorted(OPEN_PATHS)):
            stranger.goto(root + path)
            if is_page("text/html", stranger.content().lower()):
                found += complaints(stranger, f"{path} without a session")
    assert not found, "\n".join(found)
