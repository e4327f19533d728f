"""The figures of a campaign's page, from one reading of the store for all that are asked for at one moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frontrunner.evaluators.insight.collected import Missing, collect
from frontrunner.evaluators.insight.figures import Figures
from frontrunner.plain_json import to_json
from frontrunner.results.active_drivers import stamp
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec, stored_survey
from frontrunner.server.pages.drawings.coordinates import MOST_LINES, parallels
from frontrunner.server.pages.rendering import render
from frontrunner.spaces.space import Survey
from frontrunner.views.charts.catalogue import drawn
from frontrunner.views.charts.chart import Chart
from frontrunner.views.charts.landscape import parallel_chart
from frontrunner.views.charts.plotly_figure import plotly_figure

SHOWN = {
    "history": "Best so far",
    "speed-memory": "Speed against memory",
    "feasibility": "What fits and what fails",
    "sensitivity": "One knob at a time around the best",
}
"""The report's figures that the page draws as well: the others take seconds, or are drawn by the page itself."""
ACROSS = ("feasibility", "sensitivity")
"""Those of many panels, which take the page's whole width; the others stand in pairs."""
MOST_KEPT = 8
MOST_EDITIONS = 1000
LASTS_S = 15.0
"""How long figures are shown while a driver runs: outcomes may come many times a second."""
EARLY = 10
"""Outcomes up to which each makes a new edition at once: figures that say that nothing was measured, under a ranking
that has a first row, would be wrong. That is drawn ten times in a campaign's life, whatever it costs."""


@dataclass(kw_only=True)
class Edition:
    """What the figures of a campaign show: its first `outcomes` outcomes, since `began_s` of a clock.

    `node_seconds` are those that it had spent: lost attempts cost some, and are no outcomes.
    """

    outcomes: int
    node_seconds: float
    began_s: float


@dataclass(kw_only=True)
class Editions:
    """Of each campaign the edition that everybody is shown, so that one reading of the store serves them all.

    `clock` tells seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _newest: OrderedDict[int, Edition] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, campaign: Campaign, *, is_live: bool) -> tuple[int, float]:
        """The outcomes and node-seconds to show: all of them, but while a driver runs those of some time ago.

        At most `LASTS_S` ago, once there are more than `EARLY` outcomes.
        """
        now_s = self.clock()
        with self._lock:
            found = self._newest.get(campaign.id)
            if found is None or not is_live or found.outcomes < EARLY or now_s - found.began_s >= LASTS_S:
                found = Edition(outcomes=campaign.outcomes, node_seconds=campaign.node_seconds_spent, began_s=now_s)
                _keep(self._newest, campaign.id, found, most=MOST_EDITIONS)
            return found.outcomes, found.node_seconds


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The figures of one edition, and those that were drawn of them, as they are sent."""

    figures: Figures
    drawn: dict[str, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class FigureShelf:
    """What was drawn last of a few campaigns; a survey of a space stays good as long as its campaign."""

    editions: Editions = field(default_factory=Editions)
    _sheets: OrderedDict[tuple[int, tuple[int, float]], Sheet] = field(default_factory=OrderedDict)
    _surveys: OrderedDict[int, Survey] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def drawn(self, store: Store, name: str, wanted: str, draw: Callable[[Figures], str]) -> bytes:
        """The figure called `wanted` of a campaign in its edition of now, which `draw` draws once for all who ask.

        Raises `NotFound` where there is no such campaign.
        """
        (now,) = stamp(store, (name,))
        campaign = store.campaign(name)
        key = (campaign.id, self.editions.of(campaign, is_live=now.is_driven))
        with self._lock:  # a page asks for all of its figures at once: one of them reads
            if key not in self._sheets:
                _keep(self._sheets, key, Sheet(figures=self._read(store, campaign)))
            sheet = self._sheets[key]
            if wanted not in sheet.drawn:
                sheet.drawn[wanted] = draw(sheet.figures).encode()
            return sheet.drawn[wanted]

    def _read(self, store: Store, campaign: Campaign) -> Figures:
        survey = self._surveys.get(campaign.id) or stored_survey(stored_spec(campaign))
        _keep(self._surveys, campaign.id, survey)
        return Figures(collected=collect(store, campaign, survey))


def _keep(shelf: OrderedDict[Any, Any], key: object, value: object, *, most: int = MOST_KEPT) -> None:
    shelf[key] = value
    while len(shelf) > most:
        shelf.popitem(last=False)


def figure(found: Figures, name: str) -> str:
    """One of `SHOWN` as JSON for the page's script: what to read in it, and Plotly's figure, null if there is none."""
    chart = drawn(found, name)[0].chart
    if isinstance(chart, Chart):
        return to_json({"reading": " ".join((chart.reading, *chart.remarks)), "figure": plotly_figure(chart)})
    return to_json({"reading": f"Not drawn: {chart.reason}", "figure": None})


def coordinates(found: Figures) -> str:
    """The parallel coordinates of a campaign, as HTML."""
    values, template = found.parallel, "campaign/coordinates.html"
    if isinstance(values, Missing):
        return render(template, d=None, reason=values.reason, reading="")
    recipes = [(row.recipe_id, row.recipe.describe()) for row in values.recipes[:MOST_LINES]]
    drawing = parallels(parallel_chart(values).coordinates, recipes)
    return render(template, d=drawing, reason="", reading="measured recipes over their choices")
