"""The pages in a real browser: launch a campaign, see it progress, open its best recipe, replay
it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frontrunner.remote import RemoteStore
from frontrunner.results.predictions import Expected
from frontrunner.server.auth import read_tokens
from support.browsers import IN_A_BROWSER, api, window
from support.live_campaigns import LiveCampaign, driven, write_steps
from support.page_stores import page_store
from support.services import Served, served

pytestmark = IN_A_BROWSER
CAMPAIGN = """
name = "seen"

[model]
layers = 4
hidden = 128
heads = 8
vocabulary = 257

[cluster]
preset = "this-machine"
devices_per_node = 2
memory_gib_per_device = 1.0

[problem]
sequence_length = 64
global_batch = 8
precision = "fp32"

[space]
tensor_parallel = [1, 2]
pipeline_parallel = [1, 2]
micro_batch_seqs = [1, 2, 4]

[search]
strategy = "random"

[probe]
foreign_load_limit = 1.0

[budget]
probes = 4
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    with served(folder) as found:
        found.start()
        yield found


def recipe_ids(page: api.Page) -> list[str]:
    """The recipes of the ranking, the fastest first."""
    links = page.locator("#ranking tbody a[href^='/recipes/']")
    return [
        str(href).rpartition("/")[2]
        for href in links.evaluate_all("(all) => all.map((one) => one.pathname)")
    ]


def wait_for_figures(page: api.Page) -> None:
    api.expect(page.locator("[data-chart]:not([data-drawn])")).to_have_count(0)


def fits(page: api.Page) -> bool:
    """Whether the page is no wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_browser_launches_watches_and_replays_a_campaign(service: Served) -> None:
    with window(service) as page:
        page.goto(f"{service.url}/launch")
        page.get_by_label("campaign file").fill(CAMPAIGN.replace("[budget]", "[budgets]"))
        api.expect(page.locator("#checked")).to_contain_text("budgets")
        page.get_by_label("campaign file").fill(CAMPAIGN)
        api.expect(page.locator("#checked")).to_contain_text("are legal recipes")
        page.get_by_role("button", name="Launch").click()
        page.wait_for_url(f"{service.url}/campaigns/seen")
        top = page.evaluate("document.querySelector('.charts').offsetTop")

        api.expect(
            page.locator("#trials .dot.measured").first
        ).to_be_visible()  # without a reload: it is live
        api.expect(page.locator("#numbers .state")).to_have_text("finished")
        # Four probes are three or four recipes: the last may measure a leading recipe in full.
        api.expect(page.locator("#numbers .meter")).to_contain_text("4 of 4")
        api.expect(page.locator("#trials tbody tr").nth(2)).to_be_visible()
        wait_for_figures(page)
        api.expect(page.locator("#chart-history[data-drawn=yes]")).to_have_count(1)
        assert page.evaluate("document.querySelector('.charts').offsetTop") >= top

        page.locator("#ranking tbody a").first.click()
        api.expect(page.get_by_role("heading", name="How the model is cut")).to_be_visible()
        wait_for_figures(page)
        assert page.locator("#chart-cut text", has_text="replica").count() == 2
        with page.expect_download() as begun:
            page.locator("a[href$='to=recipe']").click()
        exported = json.loads(begun.value.path().read_text(encoding="utf-8"))
        recipe = exported["content"]["recipe_id"]
        assert begun.value.suggested_filename == f"{recipe}.json"
        assert page.url.endswith(f"/recipes/{recipe}?campaign=seen")

        page.get_by_label("steps").fill("4")
        page.get_by_role("button", name="Start a replay").click()
        api.expect(page.locator("#replay")).to_contain_text("reached its last step")
        api.expect(page.locator("#replay")).to_contain_text("4 of 4")


TOUCHING = """(shapes) => {
  const boxes = [...document.querySelectorAll(shapes)].map((shape) => shape.getBoundingClientRect());
  const over = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  return boxes.flatMap((one, place) => boxes.slice(place + 1).filter((other) => over(one, other))).length;
}"""  # noqa: E501
"""How many pairs of the shapes of a figure lie over one another by more than a pixel."""
FROM_WINDOW = "(section) => section.getBoundingClientRect().top"
SQUARES = "#chart-feasibility .mark-rect.child_layer_0_marks path"
TITLES_AND_TICKS = (
    ":is(#chart-sensitivity, #chart-feasibility) :is(.role-axis-label, .role-title-text) text"
)


def assert_nothing_is_covered(page: api.Page) -> None:
    """Squares of the map stand apart, and titles of panels are clear of the axes above them."""
    assert page.locator(SQUARES).count() > 40
    assert page.evaluate(TOUCHING, SQUARES) == 0
    assert page.evaluate(TOUCHING, TITLES_AND_TICKS) == 0


def see(page: api.Page, campaign: LiveCampaign, outcomes: int) -> None:
    """Have the campaign go on, and wait until its live page shows it."""
    newest = campaign.go_on(outcomes)
    page.locator(f"#trial-{newest}").wait_for(state="attached")


def focused(page: api.Page) -> str:
    return str(page.evaluate("document.activeElement.id"))


def test_live_page_keeps_its_reader_s_place(service: Served) -> None:
    with driven(service.folder, "wide") as campaign, window(service) as page:
        page.goto(f"{service.url}/campaigns/wide")
        wait_for_figures(page)
        top = "document.querySelector('.charts').offsetTop"
        before = page.evaluate(top)
        api.expect(page.locator("#ranking")).to_contain_text("Nothing has been measured yet")
        page.locator("#trials").evaluate("(section) => section.scrollIntoView()")
        seen_at = page.locator("#trials").evaluate(FROM_WINDOW)
        for outcomes in (1, 30):
            see(page, campaign, outcomes)
            api.expect(page.locator("#chart-sensitivity[data-drawn=yes]")).to_have_count(1)
            assert page.evaluate(top) == before
            assert abs(page.locator("#trials").evaluate(FROM_WINDOW) - seen_at) <= 1
        assert page.locator("#older").inner_text() == "older"

        page.set_viewport_size({"width": 700, "height": 860})
        page.locator("#failures summary").first.click()
        scrolled = page.locator("#ranking .wide, #trials .wide, #failures details[open] pre")
        scrolled.evaluate_all("(places) => places.forEach((place) => place.scrollTo(50, 70))")
        where = "(places) => places.map((place) => [place.scrollLeft, place.scrollTop])"
        assert scrolled.evaluate_all(where) == [[50, 0], [50, 0], [0, 70]]
        for place in ("#cancel", "#ranking tbody a", "#trials-table"):
            page.locator(place).first.focus()
            held = focused(page)
            see(page, campaign, 1)
            assert held
            assert focused(page) == held
            assert scrolled.evaluate_all(where) == [[50, 0], [50, 0], [0, 70]]

        campaign.writer.event("stopping", leaves="paused", probes_to_finish=0)
        api.expect(page.locator(".ending")).to_have_text("pausing")


def test_a_chart_keeps_what_its_reader_zoomed_to_while_outcomes_arrive(service: Served) -> None:
    with driven(service.folder, "zoomed") as campaign, window(service) as page:
        page.goto(f"{service.url}/campaigns/zoomed")
        see(page, campaign, 8)
        marks = page.locator("#chart-history .concat_0_layer_1_marks path")
        api.expect(marks).to_have_count(8)
        ticks = page.locator("#chart-history .concat_0_group .role-axis-label").first  # of probes
        ends = ticks.locator("text", has_text=re.compile("^[08]$"))
        api.expect(ends).to_have_text(["0", "8"])
        page.locator("#chart-history").scroll_into_view_if_needed()
        box = page.locator("#chart-history").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 4, box["y"] + box["height"] / 3
        page.mouse.move(x, y)
        page.keyboard.down("Control")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Control")
        api.expect(ends).to_have_count(0)
        zoomed = str(ticks.text_content())

        see(page, campaign, 1)
        api.expect(marks).to_have_count(9)
        assert ticks.text_content() == zoomed

        page.mouse.dblclick(x, y)
        api.expect(ends).to_have_text(["0", "8"])
        before = page.evaluate("scrollY")
        page.mouse.wheel(0, 100)  # the page's
        page.wait_for_function("before => scrollY > before", arg=before)
        api.expect(ends).to_have_text(["0", "8"])
        mark = marks.nth(4).bounding_box()
        assert mark is not None
        page.mouse.move(mark["x"] + 4, mark["y"] + 4)
        page.mouse.down()
        page.mouse.move(mark["x"] - 150, mark["y"] + 4, steps=4)
        page.mouse.up()
        api.expect(ends).to_have_text(["8"])
        marks.nth(4).click()  # as a drag does not
        page.wait_for_url(f"{service.url}/recipes/*")


def test_live_view_follows_the_probe_that_runs(service: Served) -> None:
    expected = Expected(tokens_per_s=9000.0, chance=0.8, expected_improvement=0.02)
    with driven(service.folder, "watched") as campaign, window(service, width=360) as page:
        campaign.go_on(4)
        folder = campaign.begin(expected)
        write_steps(folder, 1)
        page.goto(f"{service.url}/campaigns/watched")
        now = page.locator("#now")
        api.expect(now).to_contain_text("step 1 of at most")
        api.expect(now).to_contain_text("chance to run 80 %, expected 9,000 tokens/s")
        api.expect(page.locator("#now-end-5")).to_contain_text("rank 0 says 40")
        wait_for_figures(page)
        assert fits(page)
        at_end = (
            "(log) => log.scrollTop > 100 && log.scrollHeight - log.clientHeight -"
            " log.scrollTop < 4"
        )
        page.wait_for_function(f"({at_end})(document.querySelector('#now-end-5'))")
        write_steps(folder, 2)
        api.expect(now).to_contain_text("step 2 of at most")
        assert page.locator("#now-end-5").evaluate(at_end)
        page.locator("#now-end-5").focus()
        page.locator("#now-end-5").evaluate("(log) => log.scrollTo(0, 30)")
        write_steps(folder, 3)
        api.expect(now).to_contain_text("step 3 of at most")
        assert focused(page) == "now-end-5"
        assert page.locator("#now-end-5").evaluate("(log) => log.scrollTop") == 30
        page.locator("#now-summary-5").click()
        api.expect(page.locator("#now-end-5")).to_be_hidden()
        write_steps(folder, 4)
        api.expect(now).to_contain_text("step 4 of at most")
        api.expect(page.locator("#now-end-5")).to_be_hidden()
        campaign.finish()
        api.expect(page.locator("#last-5")).to_be_visible()
        page.locator(".jump a", has_text="Report").click()
        api.expect(page.locator("#report")).to_be_in_viewport()
        api.expect(page.locator(".jump a[aria-current]")).to_have_text("Report, CSV, Python")
        with page.expect_download() as begun:
            page.locator("#measurements-csv").click()
        assert begun.value.suggested_filename == "watched-measurements.csv"
        page.locator("#last-5").click()
        page.wait_for_url(re.compile(r"campaign=watched$"))
        api.expect(page.get_by_role("heading", level=1)).to_contain_text("parallel")
        wait_for_figures(page)
        assert fits(page)


def test_figures_stay_apart_and_messages_lie_over_the_page(service: Served) -> None:
    with driven(service.folder, "drawn") as campaign, window(service) as page:
        campaign.go_on(120)
        page.goto(f"{service.url}/campaigns/drawn")
        wait_for_figures(page)
        for width in (1280, 1000, 640):
            page.set_viewport_size({"width": width, "height": 860})
            room = page.locator(".feasibility .plot").evaluate("(place) => place.clientWidth")
            api.expect(page.locator(".feasibility .plot")).to_have_attribute(
                "data-width", str(room)
            )
            assert_nothing_is_covered(page)
        page.set_viewport_size({"width": 1280, "height": 800})
        why = page.locator("#trials td.col-why", has_text="rank 3").first
        assert why.evaluate(
            "(cell) => cell.scrollWidth <= cell.clientWidth && cell.getBoundingClientRect().right <"
            " 1280"
        )

        page.route(
            "**/pause", lambda route: route.fulfill(status=200, body="<p class='fine'>told</p>")
        )
        page.locator("#trials").scroll_into_view_if_needed()
        top = page.evaluate("document.querySelector('#trials').offsetTop")
        page.locator("#pause").dispatch_event("click")
        api.expect(page.locator("#notice")).to_have_text("told")
        api.expect(page.locator("#notice")).to_be_in_viewport()
        assert page.evaluate("document.querySelector('#trials').offsetTop") == top
        page.get_by_role("button", name="close the message").click()
        api.expect(page.locator("#notice")).to_be_empty()


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1440, "dark")])
def test_pages_fit_their_window_in_light_and_dark(service: Served, width: int, scheme: Any) -> None:
    name = RemoteStore(service.url, read_tokens(service.token_file).operator).launch(
        {**tomllib.loads(CAMPAIGN), "name": f"fits-{scheme}", "evaluator": "simulated"}
    )
    with window(service, width=width, scheme=scheme) as page:
        assert fits(page)
        page.locator(f"tbody a[href='/campaigns/{name}']").click()
        wait_for_figures(page)
        assert fits(page)
        page.locator("#ranking tbody a").first.click()
        api.expect(page.get_by_role("heading", name="Where the memory goes")).to_be_visible()
        page.locator("#step[data-drawn]").wait_for()
        assert fits(page)
        slider = page.locator(".step-choices input:enabled").first
        slider.press("Home" if slider.evaluate("one => one.value === one.max") else "End")
        api.expect(page.locator(".step-notes")).to_contain_text("Not the recipe itself")
        page.locator(".step-scrub input").fill("400")
        assert fits(page)
        page.goto(f"{service.url}/plan?model=frontier-175b&nodes=128&global_batch=1024")
        page.get_by_label("nodes", exact=True).fill("64")
        page.keyboard.press("Tab")
        api.expect(page.locator("tr.here")).to_contain_text("512")
        assert fits(page)
        page.goto(service.url)
        page.locator(f"tbody a[href='/campaigns/{name}']").click()
        api.expect(page.locator("#ranking tbody a").nth(1)).to_be_visible()
        first, second, *_ = recipe_ids(page)
        page.goto(f"{service.url}/compare?recipe={first}&recipe={second}")
        api.expect(page.locator("table.pairs")).to_be_visible()
        assert fits(page)
        page.goto(f"{service.url}/launch")
        api.expect(page.locator("#checked")).to_contain_text("are legal recipes")
        assert fits(page)


def test_pages_are_usable_by_keyboard(service: Served) -> None:
    with window(service) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for name in ("frontrunner", "Campaigns", "Plan"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == name
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/plan"))


@pytest.mark.parametrize("width", [800, pytest.param(1280, marks=pytest.mark.nightly)])
def test_plan_page_updates_while_typing_without_jumps(service: Served, width: int) -> None:
    with window(service, width=width) as page:
        page.goto(
            f"{service.url}/plan?model=gpt2-small&cluster=dgx-h100&nodes=1&sequence_length=1024&global_batch=64"
        )
        answer = page.locator("#answer")
        place = "document.querySelector('#answer').offsetTop"
        before = page.evaluate(place)
        page.get_by_label("layers").fill("0")
        api.expect(page.locator("#error-layers")).to_have_text("at least 1")
        api.expect(answer).to_contain_text("12 layers")
        assert page.evaluate(place) == before
        page.keyboard.press("Control+a")
        page.keyboard.type("18")
        api.expect(answer).to_contain_text("18 layers")
        api.expect(page.locator("#error-layers")).to_be_empty()
        assert page.evaluate("document.activeElement.id") == "plan-layers"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "plan-hidden"
        page.get_by_label("preset").first.select_option("llama-3-8b")
        api.expect(page.get_by_label("vocabulary")).to_have_attribute("placeholder", "128256")
        api.expect(answer).to_contain_text("18 layers, hidden 4,096")
        assert page.evaluate(place) == before
        assert "layers=18" in page.url
        assert fits(page)


def test_explorer_keeps_its_state_in_its_address(service: Served) -> None:
    with driven(service.folder, "explored") as campaign, window(service, width=360) as page:
        campaign.go_on(40)
        page.goto(f"{service.url}/campaigns/explored/recipes")
        explorer = page.locator("#explorer")
        api.expect(explorer).to_have_attribute("data-drawn", "40")
        assert fits(page)
        page.set_viewport_size({"width": 1440, "height": 860})
        page.locator("#filters-box > summary").click()
        page.locator("#only-outcome-1").check()
        api.expect(explorer).to_have_attribute("data-drawn", "30")
        assert page.url.endswith("/recipes?outcome=measured")
        assert focused(page) == "only-outcome-1"
        for order in ("descending", "ascending"):
            page.locator("#by-tokens_per_s").click()
            api.expect(page.locator(f"th[aria-sort={order}]")).to_contain_text("tokens/s")
        slowest = str(page.locator("tr[data-recipe]").first.get_attribute("data-recipe"))
        page.locator(f"#pin-{slowest}").press(
            "Space"
        )  # a click may meet the column that stays in place
        api.expect(page.locator("tbody.pinned tr")).to_have_count(1)
        held = page.url
        assert f"pin={slowest}" in held
        page.go_back()
        api.expect(page.locator("tbody.pinned")).to_have_count(0)
        page.goto(held)
        api.expect(page.locator("tbody.pinned tr")).to_have_count(1)
        api.expect(explorer).to_have_attribute("data-drawn", "30")
        page.locator(f"#recipe-{slowest}").click()
        page.wait_for_url(re.compile(rf"/recipes/{slowest}\?campaign=explored"))


def test_list_is_searched_labeled_and_compared(tmp_path: Path) -> None:
    page_store(tmp_path, ("one", "two", "three"))
    with served(tmp_path) as service:
        service.start()
        with window(service) as page:
            page.goto(service.url)
            links = page.locator("a[id^=campaign-]")
            api.expect(links).to_have_count(3)
            page.locator("#edit-two").click()
            page.get_by_label("tags").fill("paper, table 4")
            page.get_by_role("button", name="Save").click()
            page.wait_for_url(f"{service.url}/")
            api.expect(page.locator("a.tag")).to_have_count(2)
            page.get_by_label("search").fill("paper")
            api.expect(links).to_have_count(1)
            page.wait_for_url(re.compile("search=paper"))
            page.reload()
            api.expect(links).to_have_count(1)
            page.locator("#all-campaigns").click()
            api.expect(links).to_have_count(3)
            for name in ("one", "two", "three"):
                page.locator(f"#vs-{name}").check()
                api.expect(page.locator(f"#vs-{name}")).to_be_checked()
            page.get_by_role("button", name="Compare the selected").click()
            api.expect(
                page.get_by_role("heading", name="What differs in what was asked")
            ).to_be_visible()
            wait_for_figures(page)
            assert fits(page)

            page.goto(f"{service.url}/campaigns/three/edit")
            page.on("dialog", lambda asked: asked.accept())
            page.locator("#delete").click()
            page.wait_for_url(f"{service.url}/")
            api.expect(links).to_have_count(2)


def test_an_invited_user_signs_in_and_out(service: Served) -> None:
    """Invited on the operator's page, signed in by the invitation, out, and in again by the token
    that it showed.
    """
    with window(service) as page:
        page.goto(f"{service.url}/account")
        page.get_by_label("Name").fill("ada")
        page.get_by_role("button", name="Invite").click()
        link = page.locator("#invitation").inner_text().strip()
        api.expect(page.locator("#users-table")).to_contain_text("invited until")

        page.context.clear_cookies()
        page.goto(link)
        page.get_by_role("button", name="Accept as ada").click()
        api.expect(page.get_by_role("heading", name="ada", exact=True)).to_be_visible()
        assert "code" not in page.url
        token = re.findall(r"FRONTRUNNER_TOKEN=(\S+)", page.locator("#token-text").inner_text())[0]
        page.get_by_role("button", name="Sign out").click()
        api.expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        api.expect(page.get_by_role("link", name="Campaigns")).to_have_count(0)
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 860})
            assert fits(page)
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{service.url}/")
        api.expect(page.get_by_role("link", name="ada", exact=True)).to_be_visible()
