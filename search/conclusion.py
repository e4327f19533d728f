"""How a campaign was left."""

from __future__ import annotations

from dataclasses import dataclass

from frontrunner.notebook import Displayed
from frontrunner.results.outcome import Failure
from frontrunner.results.states import CampaignState
from frontrunner.search.budget import Limit
from frontrunner.search.objectives import TOKENS_ALONE
from frontrunner.search.strategy import Outlook


@dataclass(frozen=True, kw_only=True)
class Conclusion(Displayed):
    """How a driver left its campaign, with `measured` recipes.

    `last_failure` is set where failures made it pause, `outlook` where the strategy predicts what is left to gain.
    `limits` are the budget's, `objectives` the search's; `trainer` is `CampaignSpec.trainer`.
    """

    state: CampaignState
    reason: str
    measured: int
    last_failure: Failure | None = None
    outlook: Outlook | None = None
    limits: tuple[Limit, ...] = ()
    objectives: tuple[str, ...] = TOKENS_ALONE
    trainer: tuple[str, ...] = ()
