"""Campaigns with `[search] probe_nodes`: a pair, of few nodes first and then of the whole cluster.

The first is an ordinary campaign. Its outcomes predict the second's recipes, and that ranking is kept before anything
is run; then a few probes of the second confirm it, where the budget and the machines at hand allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from frontrunner.earlier import remembered
from frontrunner.results.predictions import SMALL_CAMPAIGN, SMALL_SCALE, small_scale
from frontrunner.results.prior_results import reused_trials
from frontrunner.results.states import CampaignState
from frontrunner.search.small_scale import scale_in_words, small_spec, what_is_left
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.space import Survey
from frontrunner.starting import created, free_name, stored_spec, why_not_here

if TYPE_CHECKING:
    from frontrunner.results.records import Campaign
    from frontrunner.results.store import Store
    from frontrunner.search.conclusion import Conclusion
    from frontrunner.search.listener import Listener


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What the API lends to a pair: `drive` runs a campaign to its end."""

    drive: Callable[[Campaign, CampaignSpec], Conclusion]
    listener: Listener
    take_over: bool = False


def create_pair(store: Store, spec: CampaignSpec, survey: Survey) -> Campaign:
    """Make both campaigns, the small one first, and return the large one, which names the other."""
    legal = len(survey.recipes)
    if any(known.name == spec.name for known in store.campaigns()):
        return created(store, spec, legal)  # raises: the name is taken; the small one is not made then
    small = small_spec(spec, confirmable=why_not_here(spec) is None)
    small = replace(small, name=free_name(store, small.name))
    created(store, small, len(small.survey().recipes))
    more = {SMALL_CAMPAIGN: small.name, SMALL_SCALE: scale_in_words(small.problem, spec.problem)}
    return created(store, replace(spec, confirms=small.name), legal, more | {"nodes": spec.problem.cluster.nodes})


def run_pair(store: Store, record: Campaign, hands: Hands) -> Conclusion:
    """Go on with a pair wherever it stands: measure small, predict large, confirm. `record` is the large campaign."""
    from frontrunner.search.conclusion import Conclusion

    spec = stored_spec(record)
    small = store.campaign(spec.confirms)
    if small.state is not CampaignState.FINISHED:
        conclusion = hands.drive(small, stored_spec(small))
        if conclusion.state is not CampaignState.FINISHED or not conclusion.measured:
            return conclusion
    elif not _measured(store, small):
        return Conclusion(state=CampaignState.FINISHED, reason=f"{small.name} measured nothing", measured=0)
    survey = spec.survey()
    _predict(store, record, spec, survey, hands)
    reused = len(reused_trials(store, small.id))
    left = what_is_left(spec.budget, store.campaign(small.name), spec.search.confirm_probes, reused=reused)
    why_not = why_not_here(spec)
    if left is None or why_not is not None:
        spent = "search.confirm_probes is 0" if not spec.search.confirm_probes else "the budget is used up"
        return _unconfirmed(store, record, len(survey.recipes), f"predicted, not confirmed: {why_not or spent}", hands)
    return hands.drive(store.campaign(record.name), replace(spec, budget=left))


def _predict(store: Store, record: Campaign, spec: CampaignSpec, survey: Survey, hands: Hands) -> None:
    """Keep the predicted ranking, once: what is predicted after a confirmation would not be a prediction of it."""
    from frontrunner.search.predicting import keep_predictions, predicted_ranking

    known = small_scale(store, record)
    if known is not None and known.predicted:
        return
    ranking = predicted_ranking(spec, survey, remembered(store, record, spec).evidence)
    keep_predictions(store, record, ranking, take_over=hands.take_over)


def _unconfirmed(store: Store, record: Campaign, legal_recipes: int, reason: str, hands: Hands) -> Conclusion:
    """End the large campaign without a probe, told like any other end."""
    from frontrunner.search.conclusion import Conclusion
    from frontrunner.search.listener import View
    from frontrunner.search.predicting import keep_conclusion

    view = View(name=record.name, strategy=record.strategy, legal_recipes=legal_recipes, figures=record.figures)
    view.measured = _measured(store, record)
    hands.listener.began(view)
    keep_conclusion(store, record, reason, take_over=hands.take_over)
    hands.listener.ended(view, CampaignState.FINISHED, reason)
    return Conclusion(state=CampaignState.FINISHED, reason=reason, measured=view.measured)


def _measured(store: Store, record: Campaign) -> int:
    """The recipes that a campaign has measured."""
    from frontrunner.results import status

    return next((count for state, count in status.status(store, record).trials.items() if state == "measured"), 0)
