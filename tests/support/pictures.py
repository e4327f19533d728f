"""Pictures of every page that the service's router lists, for the documents: `make pictures`.

    PYTHONPATH=tests .venv/bin/python tests/support/pictures.py STORE FOLDER CAMPAIGN_FILE

Pages show the newest campaign of a copy of STORE and its best recipe; the campaign of CAMPAIGN_FILE
is launched in the copy, and pictured as it runs. A page's picture has the name of its route's
function.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from frontrunner.remote import RemoteStore
from frontrunner.server.app import create_app
from support.browsers import api, window
from support.page_walk import address, is_page, page_routes, planned
from support.services import Served, served, settings

WIDTH, PHONE = 1440, 390
MOST_HIGH = 1500
"""Pixels of a picture; what is below on a page is left out."""
COLORS = 256
"""Of a picture: they are drawings, which more make little better but much larger."""
PARTS = {"one_campaign": "figures", "one_recipe": "step"}
"""The part of a page, by its id, that has a picture of its own."""
ON_A_PHONE = ("one_campaign", "one_recipe")
PLANNED = "?model=frontier-175b&nodes=64&global_batch=1024"


def drawn(page: api.Page, url: str) -> None:
    """Open a page, and wait until its figures are there."""
    page.goto(url)
    page.wait_for_load_state("networkidle")
    api.expect(page.locator("[data-chart]:not([data-drawn])")).to_have_count(0)


def picture(page: api.Page, folder: Path, name: str, place: str = "body") -> None:
    """Write the picture of a part of a page."""
    box: Any = page.locator(place).evaluate(
        "one => ({x: 0, y: one.getBoundingClientRect().top + scrollY, width:"
        " document.documentElement.clientWidth, height: one.getBoundingClientRect().height})"
    )
    taken = page.screenshot(
        clip={**box, "height": min(box["height"], MOST_HIGH)}, full_page=True, animations="disabled"
    )
    few = (
        Image.open(io.BytesIO(taken))
        .convert("RGB")
        .quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.save(folder / f"{name}.png", optimize=True)


def addresses(
    service: Served, team: RemoteStore, page: api.Page, campaign: str
) -> Iterator[tuple[str, str]]:
    """The name and the address of every page, with a campaign, its best recipe, and the two best
    compared.
    """
    first, second, *_ = team.best(campaign, top=2)
    examples = {"name": campaign, "recipe_id": first.recipe_id, "wanted": "history", "file": "none"}
    more = planned(page.request.get(f"{service.url}/plan{PLANNED}").text()) | {
        "/plan": PLANNED,
        "/compare": f"?recipe={first.recipe_id}&recipe={second.recipe_id}&campaign={campaign}",
        "/recipes/{recipe_id}": f"?campaign={campaign}",
    }
    for route in page_routes(create_app(settings(service.folder))):
        path = address(route, examples, more)
        answer = page.request.get(service.url + path, headers={"accept": "text/html"})
        if answer.ok and is_page(answer.headers["content-type"], answer.text()):
            yield str(route.name), path


def every_picture(service: Served, folder: Path, file: Path) -> None:
    """Write the pictures of all pages, of parts of them, of a phone's window, and of a campaign
    that runs.
    """
    team = service.start()
    campaign = team.campaigns()[0].name
    with window(service, width=WIDTH) as page:
        for name, path in [*addresses(service, team, page, campaign)]:
            drawn(page, service.url + path)
            picture(page, folder, name)
            if part := PARTS.get(name):
                page.locator(f"#{part}").scroll_into_view_if_needed()
                page.wait_for_load_state("networkidle")
                page.evaluate("scrollTo(0, 0)")  # else the bar of sections lies over it
                picture(page, folder, part, f"#{part}")
            if name in ON_A_PHONE:
                page.set_viewport_size({"width": PHONE, "height": 844})
                drawn(page, service.url + path)
                picture(page, folder, f"{name}_phone")
                page.set_viewport_size({"width": WIDTH, "height": 860})
        running = team.launch(str(file), name="running")
        page.goto(f"{service.url}/campaigns/{running}")
        api.expect(page.locator("#ranking tbody a").nth(2)).to_be_visible()
        api.expect(page.locator("#now")).to_contain_text("step")
        picture(page, folder, "running", "#now")
        team.cancel(running)
    with window(service, width=WIDTH, scheme="dark") as page:
        for name, path in [*addresses(service, team, page, campaign)]:
            if name == "one_recipe":
                drawn(page, service.url + path)
                picture(page, folder, f"{name}_dark")


if __name__ == "__main__":
    store, pictures, file = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as copied:
        shutil.copy(store, Path(copied) / "store.db")
        with served(Path(copied)) as found:
            every_picture(found, pictures, file)
