"""The figures of a campaign's page, from one reading of the store for all that are asked for at one moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frontrunner.drawing.catalogue import drawn
from frontrunner.drawing.chart import Chart
from frontrunner.drawing.landscape import parallel_chart
from frontrunner.drawing.plotly_figure import plotly_figure
from frontrunner.evaluators.insight.collected import Missing, collect
from frontrunner.evaluators.insight.figures import Figures
from frontrunner.results.driving import stamp
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.service.pages.drawings.coordinates import Parallels, parallels
from frontrunner.spaces.space import Survey
from frontrunner.starting import stored_spec, stored_survey

SHOWN = {
    "history": "Best so far",
    "speed-memory": "Speed against memory",
    "feasibility": "What fits and what fails",
    "sensitivity": "One knob at a time around the best",
}
"""The report's figures that the page draws as well: the others take seconds, or are drawn by the page itself."""
MOST_KEPT = 8
MOST_EDITIONS = 1000
EDITION_S = 15.0
"""While a driver runs, figures are drawn anew no more often than this: outcomes may come many times a second."""


@dataclass(frozen=True, kw_only=True)
class Edition:
    """What the figures of a campaign show: its first `outcomes` outcomes, since `began_s` of a clock."""

    outcomes: int
    began_s: float


@dataclass(kw_only=True)
class Editions:
    """Of each campaign the edition that everybody is shown, so that one reading of the store serves them all.

    `clock` tells seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _newest: OrderedDict[int, Edition] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, campaign: Campaign, *, is_live: bool) -> int:
        """The outcomes to show: all of them, but while a driver runs those of at most `EDITION_S` ago."""
        now_s = self.clock()
        with self._lock:
            found = self._newest.get(campaign.id)
            if found is None or not is_live or now_s - found.began_s >= EDITION_S:
                found = Edition(outcomes=campaign.outcomes, began_s=now_s)
                _keep(self._newest, campaign.id, found, most=MOST_EDITIONS)
            return found.outcomes


@dataclass(kw_only=True)
class FigureShelf:
    """What was read last of a few campaigns; a survey of a space stays good as long as its campaign."""

    editions: Editions = field(default_factory=Editions)
    _figures: OrderedDict[tuple[int, int], Figures] = field(default_factory=OrderedDict)
    _surveys: OrderedDict[int, Survey] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def figures(self, store: Store, name: str) -> Figures:
        """The figures of a campaign in its edition of now; raises `NotFound` where there is no such campaign."""
        (now,) = stamp(store, (name,))
        campaign = store.campaign(name)
        key = (campaign.id, self.editions.of(campaign, is_live=now.is_driven))
        with self._lock:  # the page asks for all of its figures at once: one of them reads
            if key not in self._figures:
                survey = self._surveys.get(campaign.id) or stored_survey(stored_spec(campaign))
                _keep(self._surveys, campaign.id, survey)
                _keep(self._figures, key, Figures(collected=collect(store, campaign, survey)))
            return self._figures[key]


def _keep(shelf: OrderedDict[Any, Any], key: object, value: object, *, most: int = MOST_KEPT) -> None:
    shelf[key] = value
    while len(shelf) > most:
        shelf.popitem(last=False)


def figure(found: Figures, name: str) -> dict[str, Any]:
    """One of `SHOWN` for the page's script: what to read in it, and Plotly's figure, None where there is none."""
    chart = drawn(found, name)[0].chart
    if isinstance(chart, Chart):
        return {"reading": " ".join((chart.reading, *chart.remarks)), "figure": plotly_figure(chart)}
    return {"reading": f"Not drawn: {chart.reason}", "figure": None}


def coordinates(found: Figures) -> Parallels | Missing:
    """The parallel coordinates of a campaign."""
    values = found.parallel
    if isinstance(values, Missing):
        return values
    recipes = [(row.recipe_id, row.recipe.describe()) for row in values.recipes]
    return parallels(parallel_chart(values).coordinates, recipes)
