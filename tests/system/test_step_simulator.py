"""The step simulator in a real browser: drawn, scrubbed, played, redrawn for other choices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from frontrunner.evaluators.diagnostics.profile import MEASURED_STEP
from frontrunner.store import LocalStore
from support.browsers import IN_A_BROWSER, api, window
from support.page_stores import TABLE, page_store
from support.services import Served, served

pytestmark = IN_A_BROWSER


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    folder = tmp_path_factory.mktemp("simulator")
    recipe = page_store(folder, table={**TABLE, "store": {"run_folder": str(folder / "runs")}})[0]
    profile = folder / "runs" / "profiles" / recipe / "1"
    profile.mkdir(parents=True)
    whole = 2 * LocalStore(str(folder / "store.db")).step(recipe).step_time_s
    parts = [["compute", 0, whole / 2], ["all-reduce", whole / 2, whole]]
    (profile / MEASURED_STEP).write_text(json.dumps({"step_time_s": whole, "ranks": [parts]}))
    with served(folder) as found:
        found.start()
        yield found, recipe


def painted(page: api.Page, canvas: str) -> int:
    """The number of colors on a canvas."""
    return page.evaluate(f"""() => {{
        const canvas = document.querySelector("{canvas}"), context = canvas.getContext("2d");
        const data = new Uint32Array(context.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
        return new Set(data).size;
        }}""")  # noqa: E501


def test_a_step_is_drawn_scrubbed_played_and_redrawn_with_other_choices(
    service: tuple[Served, str],
) -> None:
    found, recipe = service
    with window(found, width=360, scheme="dark") as page:
        page.goto(f"{found.url}/recipes/{recipe}?campaign=first")
        step = page.locator("#step[data-drawn]")
        step.wait_for()
        assert page.locator("#step").evaluate("one => one.scrollWidth <= one.clientWidth")
        for canvas in (".step-lanes", ".step-memory", ".step-devices"):
            assert painted(page, canvas) > 3, canvas
        readout = page.locator(".step-readout")
        api.expect(readout).to_contain_text("At 0 s rank 0")

        page.locator("input[name=pipeline_parallel]").focus()
        page.keyboard.press("ArrowRight")
        api.expect(page.locator(".step-notes")).to_contain_text("pp2")
        assert page.locator(".step-rank option").count() == 2
        bubble = page.locator(".step-numbers b").first
        few = float(bubble.inner_text().removesuffix(" %"))
        assert few > 0
        page.locator("input[name=micro_batch_seqs]").focus()
        page.keyboard.press("Home")
        api.expect(page.locator(".step-notes")).to_contain_text("mb1")
        assert float(bubble.inner_text().removesuffix(" %")) <= few

        page.locator(".step-scrub input").focus()
        page.keyboard.press("End")
        api.expect(readout).not_to_contain_text("At 0 s")
        page.locator(".step-play").click()
        api.expect(page.locator(".step-play")).to_have_attribute("aria-pressed", "true")
        page.locator(".step-play").click()
        page.locator(".step-pick input").fill("1")
        api.expect(page.locator(".step-groups li").first).to_contain_text("of 2")
        page.locator(".step-choices button").click()
        api.expect(page.locator(".step-notes")).not_to_contain_text("Not the recipe itself")


def test_a_profiled_step_is_drawn_on_the_axis_of_the_estimate(service: tuple[Served, str]) -> None:
    found, recipe = service

    def colors(canvas: str) -> list[list[int]]:
        """What is painted of the first rank at an eighth of the axis, beyond its middle, and
        shortly before its end.
        """
        return page.evaluate(f"""() => {{
            const canvas = document.querySelector("{canvas}"), context = canvas.getContext("2d");
            const at = (share) => [...context.getImageData(62 + share * (canvas.width - 62), 8, 1, 1).data];
            return [0.13, 0.7, 0.97].map(at);
            }}""")  # noqa: E501

    with window(found, width=1280) as page:
        page.goto(f"{found.url}/recipes/{recipe}?campaign=first")
        page.locator("#step[data-drawn]").wait_for()
        api.expect(page.locator(".step-profile")).to_be_visible()
        api.expect(page.locator(".step-profile li")).to_have_text(["compute", "all-reduce"])
        computing, reducing, also = colors(".step-measured")
        estimated, *beyond = colors(".step-lanes")
    assert computing[3] == estimated[3] == 255
    assert reducing == also != computing
    assert beyond == [[0, 0, 0, 0]] * 2, "the profiled step took twice as long"
