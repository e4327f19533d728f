"""What the page of one campaign shows: budget, best, trials, failures, and when each probe ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from frontrunner.api import stored_spec
from frontrunner.results.clock import timestamp
from frontrunner.results.outcome import Failure
from frontrunner.results.outlooks import outlook_shares
from frontrunner.results.pages import TrialPage, trial_page
from frontrunner.results.pareto import pareto
from frontrunner.results.probed import probed
from frontrunner.results.ranking import RankedRecipe, best
from frontrunner.results.status import FailedTrial, Status, failures, status
from frontrunner.results.store import Store
from frontrunner.search.budget import Limit, Spent, limits
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.stopping import outlook_in_words
from frontrunner.search.strategy import Outlook
from frontrunner.service.pages.drawings.timeline import Span, Timeline, timeline

TOP = 10
TRIALS_A_PAGE = 25
MOST_FAILURES = 40
MEASURED, RUNNING = "measured", "running"
NOTICES = {
    "simulated": "Simulated: these figures come from rough formulas. Nothing was trained, nothing was measured.",
    "imported": "Imported: these figures come from a table that was measured elsewhere. This campaign ran nothing.",
}


@dataclass(frozen=True, kw_only=True)
class CampaignView:
    """One campaign at one moment.

    `limits` are those of its budget, with what is used of each; `front_ids` the recipes of the ranking that no other
    beats in both speed and memory; `failed` the newest failures first, `failed_in_all` how many there are.
    """

    status: Status
    spec: CampaignSpec
    limits: tuple[Limit, ...]
    outlook: str
    ranking: tuple[RankedRecipe, ...]
    front_ids: frozenset[str]
    trials: TrialPage
    trials_page: int
    failed: tuple[FailedTrial, ...]
    failed_in_all: int
    timeline: Timeline | None

    @property
    def name(self) -> str:
        """The campaign's name."""
        return self.status.campaign.name

    @property
    def notice(self) -> str:
        """What to say of figures that this campaign did not measure; empty where it did."""
        return NOTICES.get(self.status.campaign.figures, "")

    @property
    def trial_pages(self) -> int:
        """Pages of trials, at least 1."""
        return max(1, -(-self.trials.total // TRIALS_A_PAGE))

    @property
    def is_cut_off(self) -> bool:
        """Whether it counts as running, and nobody drives it."""
        return self.status.campaign.state == "running" and not self.status.driver_is_live

    @property
    def can_be_driven(self) -> bool:
        """Whether a driver could go on with it; a table's rows have none."""
        return self.status.campaign.figures != "imported" and not self.status.driver_is_live


def campaign_view(store: Store, name: str, *, trials_page: int | None = None) -> CampaignView:
    """What the page shows; `trials_page` None is the last, where the newest trials are."""
    found = status(store, name)
    campaign = found.campaign
    spec = stored_spec(campaign)
    last = max(1, -(-sum(found.trials.values()) // TRIALS_A_PAGE))
    page = last if trials_page is None else trials_page
    failed_in_all = sum(count for state, count in found.trials.items() if state == "failed")
    spent = Spent(
        probes=campaign.outcomes,
        driver_seconds=campaign.driver_seconds,
        node_seconds=campaign.node_seconds_spent,
    )
    failed = failures(store, campaign, limit=MOST_FAILURES, offset=max(0, failed_in_all - MOST_FAILURES))
    return CampaignView(
        status=found,
        spec=spec,
        limits=tuple(limits(spec.budget, spent)),
        outlook="" if found.outlook is None else outlook_in_words(Outlook(**outlook_shares(found.outlook))),
        ranking=tuple(best(store, campaign, top=TOP)),
        front_ids=frozenset(row.recipe_id for row in pareto(store, campaign)),
        trials=trial_page(store, name, page=page, page_size=TRIALS_A_PAGE),
        trials_page=page,
        failed=tuple(reversed(failed)),
        failed_in_all=failed_in_all,
        timeline=timeline(list(_spans(store, campaign.name))),
    )


def moment(store: Store, name: str) -> str:
    """What changes whenever the page of a campaign would: cheap to ask for, so that a page may ask often."""
    campaign = store.campaign(name)
    events = store.events(campaign.id, after=0, limit=1)
    del events
    return f"{campaign.state}-{campaign.outcomes}-{campaign.updated_at}"


def _spans(store: Store, name: str) -> Iterator[Span]:
    """Every attempt of the campaign, those that run now up to this moment."""
    campaign = store.campaign(name)
    trials = {trial.id: trial for trial in store.trials(campaign.id)}
    for row in probed(store, campaign):
        outcome = row.outcome
        yield Span(
            started_at=datetime.fromisoformat(row.attempt.started_at),
            ended_at=datetime.fromisoformat(row.attempt.finished_at or row.attempt.started_at),
            outcome=outcome.kind.value if isinstance(outcome, Failure) else MEASURED,
            words=f"{row.trial.number}.{row.attempt.number} {row.trial.recipe.describe()}",
            recipe_id=row.trial.recipe_id,
        )
    now = datetime.fromisoformat(timestamp(store.now()))
    for attempt in store.open_attempts(campaign.id):
        trial = trials[attempt.trial_id]
        begun = datetime.fromisoformat(attempt.started_at)
        yield Span(
            started_at=begun,
            ended_at=max(begun, now) if store_is_driven(store, name) else begun,
            outcome=RUNNING,
            words=f"{trial.number}.{attempt.number} {trial.recipe.describe()}",
            recipe_id=trial.recipe_id,
        )
