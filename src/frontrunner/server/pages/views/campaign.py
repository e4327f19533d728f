"""What the page of one campaign shows: budget, best, trials, failures, and when each probe ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from frontrunner.results.driving import Stamp, drivers
from frontrunner.results.known import probes_made
from frontrunner.results.outlooks import outlook_shares
from frontrunner.results.pages import TrialPage, trial_page
from frontrunner.results.pareto import pareto
from frontrunner.results.ranking import RankedRecipe, rank
from frontrunner.results.records import CUT_OFF, IMPORTED
from frontrunner.results.spans import AttemptSpan, newest_spans
from frontrunner.results.states import CampaignState, TrialState
from frontrunner.results.status import FailedTrial, Status, failures, status
from frontrunner.results.store import Store
from frontrunner.search.budget import Limit, Spent, limits
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.stopping import STOPPING, outlook_in_words
from frontrunner.search.strategy import Outlook
from frontrunner.spaces.recipe import Recipe
from frontrunner.starting import stored_spec
from frontrunner.views.charts.campaign import Span, timeline
from frontrunner.views.columns import ORIGINS

TOP = 10
MOST_SPANS = 160
"""Of the timeline; more would be too thin to see."""
TRIALS_A_PAGE = 25
MOST_FAILURES = 40


@dataclass(frozen=True, kw_only=True)
class TrialsTable:
    """One page, counted from 1, of the table of a campaign's trials: the newest are on the first."""

    campaign: str
    page: int
    found: TrialPage

    @property
    def pages(self) -> int:
        """How many there are, at least 1."""
        return max(1, -(-self.found.total // TRIALS_A_PAGE))


@dataclass(frozen=True, kw_only=True)
class CampaignView:
    """One campaign at one moment.

    `ending` says that its driver was told to end and which probes it waits for, empty where it was not; `rows_ahead` is
    how many more rows the ranking may come to have, 0 where nobody drives. `limits` are those of its budget, with what
    is used of each; `front_ids` the recipes of the ranking that no other beats in both speed and memory; `failed` the
    newest failures first, `failed_in_all` how many there are.
    """

    status: Status
    spec: CampaignSpec
    limits: tuple[Limit, ...]
    ending: str
    outlook: str
    ranking: tuple[RankedRecipe, ...]
    rows_ahead: int
    front_ids: frozenset[str]
    trials: TrialsTable
    failed: tuple[FailedTrial, ...]
    failed_in_all: int
    timeline: dict[str, Any] | None
    timeline_left_out: int

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.status.campaign.name

    @property
    def notice(self) -> str:
        """What to say of figures that this campaign did not measure; empty where it did."""
        return ORIGINS.get(self.status.campaign.figures, "")

    @property
    def is_cut_off(self) -> bool:
        """Whether it counts as running, and nobody drives it."""
        return self.status.state_in_words == CUT_OFF

    @property
    def can_be_driven(self) -> bool:
        """Whether a driver could go on with it; a table's rows have none."""
        return self.status.campaign.figures != "imported" and not self.status.driver_is_live


def campaign_view(store: Store, name: str) -> CampaignView:
    """What the page shows, all of it as it was at one moment."""
    with store.database.reading():
        return _view(store, name)


def trials_table(store: Store, name: str, page: int = 1) -> TrialsTable:
    """One page of a campaign's trials."""
    found = trial_page(store, name, newest_first=True, page=page, page_size=TRIALS_A_PAGE)
    return TrialsTable(campaign=name, page=page, found=found)


def _view(store: Store, name: str) -> CampaignView:
    found = status(store, name)
    campaign = found.campaign
    spec = stored_spec(campaign)
    failed_in_all = sum(count for state, count in found.trials.items() if state == "failed")
    spent = Spent(
        probes=probes_made(store, campaign),
        driver_seconds=campaign.driver_seconds,
        node_seconds=campaign.node_seconds_spent,
    )
    newest = newest_spans(store, campaign.id, MOST_SPANS)
    with store.database.read() as connection:
        ranking = rank(connection, campaign, top=TOP)
    front = pareto(store, campaign, least_tokens_per_s=ranking[-1].standing.tokens_per_s) if ranking else []
    failed = failures(store, campaign, limit=MOST_FAILURES, offset=max(0, failed_in_all - MOST_FAILURES))
    return CampaignView(
        status=found,
        spec=spec,
        limits=tuple(limits(spec.budget, spent)),
        ending=_ending(store, found),
        outlook=_outlook(found),
        ranking=tuple(ranking),
        rows_ahead=_most_rows(found, spec) - len(ranking) if found.driver_is_live else 0,
        front_ids=frozenset(row.recipe_id for row in front),
        trials=trials_table(store, name),
        failed=tuple(reversed(failed)),
        failed_in_all=failed_in_all,
        timeline=_timeline(store, found, newest.items),
        timeline_left_out=newest.total - len(newest.items),
    )


def _most_rows(found: Status, spec: CampaignSpec) -> int:
    """How many recipes the ranking of a campaign may come to show."""
    probes = spec.budget.probes
    return min(TOP, found.campaign.legal_recipes, TOP if probes is None else probes)


def _outlook(found: Status) -> str:
    """What is left to gain; empty where nobody says, and where the reason for which the campaign ended says it."""
    if found.outlook is None:
        return ""
    words = outlook_in_words(Outlook(**outlook_shares(found.outlook)))
    expected, _, _ = words.partition("; ")
    return "" if found.campaign.state_reason.startswith(expected) else words


def _ending(store: Store, found: Status) -> str:
    """In words that the driver of now was told to pause or to stop, and what it waits for."""
    told = next((event for event in reversed(found.last_events) if event.kind == STOPPING), None)
    driver = next((one for one in drivers(store) if one.campaign == found.campaign.name), None)
    if told is None or driver is None or not driver.is_live or told.at < driver.since:
        return ""
    word = "pausing" if told.data.get("leaves") == CampaignState.PAUSED else "stopping"
    left = found.trials[TrialState.RUNNING]
    return f"{word}, {left} probe{'s' if left > 1 else ''} to finish" if left else word


def moment(now: Stamp) -> str:
    """A campaign's stamp in words, for a page to say what it has seen: cheap, so that a page may ask often.

    A driver that is killed writes nothing more: the page changes when its lease runs out.
    """
    return f"{now.version} {'driven' if now.is_driven else 'left'}"


@lru_cache(maxsize=4096)
def _described(recipe: Recipe) -> str:
    """A recipe on one line; a page that is live draws the same recipes again and again."""
    return recipe.describe()


def _timeline(store: Store, found: Status, attempts: Sequence[AttemptSpan]) -> dict[str, Any] | None:
    """The newest attempts; one that runs reaches up to this moment, one whose driver is gone has no length.

    None where none has begun, and of an imported table, whose rows have the moment of the import.
    """
    if found.campaign.figures == IMPORTED:
        return None
    now = store.now() if found.driver_is_live else None
    spans = []
    for row in attempts:
        begun = datetime.fromisoformat(row.started_at)
        ended = datetime.fromisoformat(row.finished_at) if row.finished_at else max(begun, now or begun)
        words = f"{row.trial_number}.{row.number} {_described(row.recipe)}"
        spans.append(Span(started_at=begun, ended_at=ended, outcome=row.ended, words=words, recipe_id=row.recipe_id))
    return timeline(spans)
