"""How the best rate of campaigns rose, for lists of many campaigns: read once, and then kept up to
date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from cachetools import LRUCache
from sqlalchemy import Connection, and_, func, or_, select

from frontrunner.results.prior_results import REUSED
from frontrunner.results.records import CampaignSummary
from frontrunner.results.schema import EventRow, StandingRow, TrialRow
from frontrunner.results.store import Store

MOST_KEPT = 2000


@dataclass
class Course:
    """The outcomes of a campaign that were faster than all before, as their number and tokens/s,
    oldest first.

    `reused` is how many outcomes are an earlier campaign's; `outcomes` and `last_event` are what
    was read so far.
    """

    best: list[tuple[int, float]] = field(default_factory=list)
    reused: int = 0
    outcomes: int = 0
    last_event: int = 0


class Courses:
    """The courses of campaigns. For any number of them, three queries read what was added since the
    last time.
    """

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[int, str], Course] = LRUCache(MOST_KEPT)
        self._lock = Lock()

    def of(self, store: Store, campaigns: Sequence[CampaignSummary]) -> dict[int, Course]:
        """Return the course of each campaign by its id."""
        with self._lock, store.database.read() as connection:
            found = {
                one.id: self._kept.setdefault((one.id, one.created_at), Course())
                for one in campaigns
            }
            for one in campaigns:
                course = found[one.id]
                # A recipe that was measured once more may have lost its lead, or failed.
                if course.best and course.best[-1][1] > (one.best_tokens_per_s or 0.0):
                    course.best, course.outcomes = [], 0
            behind = [one for one in campaigns if one.outcomes > found[one.id].outcomes]
            self._read_best(connection, {one.id: found[one.id] for one in behind})
            for one in behind:
                found[one.id].outcomes = one.outcomes
            self._read_events(connection, found)
            return found

    @staticmethod
    def _read_best(connection: Connection, behind: dict[int, Course]) -> None:
        if not behind:
            return
        number = TrialRow.outcome_number
        new = (
            and_(TrialRow.campaign_id == key, number > one.outcomes) for key, one in behind.items()
        )
        before = func.max(StandingRow.tokens_per_s).over(
            partition_by=TrialRow.campaign_id, order_by=number, rows=(None, -1)
        )
        of_trials = (
            select(TrialRow.campaign_id, number, StandingRow.tokens_per_s, before.label("before"))
            .join(StandingRow, StandingRow.trial_id == TrialRow.id)
            .where(or_(*new))
            .subquery()
        )
        led = of_trials.c.tokens_per_s > func.coalesce(of_trials.c.before, 0.0)
        for key, place, rate, _ in connection.execute(
            select(of_trials).where(led).order_by(of_trials.c[1])
        ):
            course = behind[key]
            if not course.best or rate > course.best[-1][1]:
                course.best.append((place, rate))

    @staticmethod
    def _read_events(connection: Connection, found: dict[int, Course]) -> None:
        newest = connection.execute(select(func.max(EventRow.id))).scalar() or 0
        behind = {key: one for key, one in found.items() if one.last_event < newest}
        if not behind:
            return
        new = (
            and_(EventRow.campaign_id == key, EventRow.id > one.last_event)
            for key, one in behind.items()
        )
        counts = select(EventRow.campaign_id, func.count()).where(
            EventRow.kind == REUSED, EventRow.id <= newest
        )
        for key, count in connection.execute(
            counts.where(or_(*new)).group_by(EventRow.campaign_id)
        ):
            behind[key].reused += count
        for one in behind.values():
            one.last_event = newest


def steps(course: Course, campaign: CampaignSummary) -> Iterable[tuple[float, float]]:
    """Yield where the best so far rose: the share of the outcomes before, and that of the way from
    its first rate.
    """
    first, top = course.best[0][1] if course.best else 0.0, campaign.best_tokens_per_s or 0.0
    for number, rate in course.best:
        yield (
            (number - 1) / max(1, campaign.outcomes),
            (rate - first) / (top - first) if top > first else 1.0,
        )
