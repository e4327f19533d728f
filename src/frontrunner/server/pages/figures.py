"""The figures of a campaign's page, from one reading of the store for all that are asked for at one moment."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from frontrunner.plain_json import to_json
from frontrunner.results.driving import stamp
from frontrunner.results.records import Campaign
from frontrunner.results.store import Store
from frontrunner.server.pace import Pace
from frontrunner.spaces.space import Survey
from frontrunner.starting import stored_spec, stored_survey
from frontrunner.views.charts import FIGURES
from frontrunner.views.charts.data import Collected, Missing, collect

SHOWN = {
    name: FIGURES[name][0] for name in ("history", "speed-memory", "feasibility", "sensitivity", "parallel-coordinates")
}
"""The report's figures that a campaign's page draws too; the others take seconds."""
ACROSS = ("feasibility", "sensitivity", "parallel-coordinates")
"""Those that take the page's whole width; the others stand in pairs."""
MOST_KEPT = 8
MOST_EDITIONS = 1000
PACE = Pace(least_s=15.0, most_s=300.0)
"""How often figures are drawn anew while a driver runs: outcomes may come many times a second."""
EARLY = 10
"""Outcomes up to which each makes a new edition at once: figures that say that nothing was measured, under a ranking
that has a first row, would be wrong. That is drawn ten times in a campaign's life, whatever it costs."""


@dataclass(kw_only=True)
class Edition:
    """What the figures of a campaign show: its first `outcomes` outcomes, since `began_s` of a clock.

    `node_seconds` are those that it had spent: lost attempts cost some, and are no outcomes. `cost_s` is the processor
    time that drawing the figures has taken so far.
    """

    outcomes: int
    node_seconds: float
    began_s: float
    cost_s: float = 0.0

    @property
    def lasts_s(self) -> float:
        """How long it is shown while a driver runs."""
        return PACE.age_s(self.cost_s)


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

        How long ago `PACE` says, once there are more than `EARLY` outcomes.
        """
        now_s = self.clock()
        with self._lock:
            found = self._newest.get(campaign.id)
            if found is None or not is_live or found.outcomes < EARLY or now_s - found.began_s >= found.lasts_s:
                found = Edition(outcomes=campaign.outcomes, node_seconds=campaign.node_seconds_spent, began_s=now_s)
                _keep(self._newest, campaign.id, found, most=MOST_EDITIONS)
            return found.outcomes, found.node_seconds

    def charge(self, campaign: Campaign, cost_s: float) -> None:
        """Count the processor time of a drawing for the edition that it was made for."""
        with self._lock:
            if campaign.id in self._newest:
                self._newest[campaign.id].cost_s += cost_s


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """The figures of one edition, and those that were drawn of them, as they are sent."""

    collected: Collected
    drawn: dict[str, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class FigureShelf:
    """What was drawn last of a few campaigns; a survey of a space stays good as long as its campaign.

    `spent` tells the seconds of processor time that this thread has used.
    """

    editions: Editions = field(default_factory=Editions)
    spent: Callable[[], float] = time.thread_time
    _sheets: OrderedDict[tuple[int, tuple[int, float]], Sheet] = field(default_factory=OrderedDict)
    _surveys: OrderedDict[int, Survey] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def drawn(self, store: Store, name: str, wanted: str, draw: Callable[[Collected], str]) -> bytes:
        """The figure called `wanted` of a campaign in its edition of now, which `draw` draws once for all who ask.

        Raises `NotFound` where there is no such campaign.
        """
        (now,) = stamp(store, (name,))
        campaign = store.campaign(name)
        key = (campaign.id, self.editions.of(campaign, is_live=now.is_driven))
        with self._lock:  # a page asks for all of its figures at once: one of them reads
            before_s = self.spent()
            if key not in self._sheets:
                _keep(self._sheets, key, Sheet(collected=self._read(store, campaign)))
            sheet = self._sheets[key]
            if wanted not in sheet.drawn:
                sheet.drawn[wanted] = draw(sheet.collected).encode()
                self.editions.charge(campaign, self.spent() - before_s)
            return sheet.drawn[wanted]

    def _read(self, store: Store, campaign: Campaign) -> Collected:
        survey = self._surveys.get(campaign.id) or stored_survey(stored_spec(campaign))
        _keep(self._surveys, campaign.id, survey)
        return collect(store, campaign, survey)


def _keep(shelf: OrderedDict[Any, Any], key: object, value: object, *, most: int = MOST_KEPT) -> None:
    shelf[key] = value
    while len(shelf) > most:
        shelf.popitem(last=False)


def figure(found: Collected, name: str) -> str:
    """Return one of `SHOWN` as JSON for charts.js: what to read in it, and its specification, null if there is none."""
    _, draw = FIGURES[name]
    chart = draw(found)
    if isinstance(chart, Missing):
        return to_json({"reading": f"Not drawn: {chart.reason}", "spec": None})
    return to_json({"reading": " ".join((chart.reading, *chart.remarks)), "spec": chart.spec})
