"""What a campaign on few nodes says of the whole cluster: the predicted ranking, and where it is kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from frontrunner.results.predictions import PREDICTION, Predicted, prediction_data
from frontrunner.results.process_identity import this_host
from frontrunner.results.records import Campaign
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.spec import CampaignSpec
from frontrunner.search.strategy import Evidence, Predictor, make_strategy
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.space import Survey

MOST_PREDICTED = 10
"""Recipes of a predicted ranking, at most."""


def predicted_ranking(spec: CampaignSpec, survey: Survey, evidence: Sequence[Evidence]) -> tuple[Predicted, ...]:
    """The best recipes of a campaign as evidence of others predicts them; empty where nothing was measured there.

    Raises TypeError for a strategy that does not predict, which a spec with `search.probe_nodes` refuses.
    """
    strategy = make_strategy(spec.search.strategy, survey, spec.search.seed)
    if not isinstance(strategy, Predictor):
        raise TypeError(f"strategy {spec.search.strategy} does not predict")
    strategy.remember(evidence)
    return tuple(
        Predicted(
            recipe_id=recipe_id(spec.problem, one.recipe),
            recipe=one.recipe,
            tokens_per_s=one.tokens_per_s,
            low=one.low,
            high=one.high,
            chance=one.chance,
        )
        for one in strategy.forecasts(MOST_PREDICTED)
    )


def keep_predictions(store: Store, campaign: Campaign, predicted: Sequence[Predicted], *, take_over: bool) -> None:
    """Write a predicted ranking to its campaign's history; the campaign is left stopped, to be confirmed."""
    with _writing(store, campaign, take_over=take_over) as writer, writer.together():
        writer.set_state(CampaignState.RUNNING, reason="")
        for one in predicted:
            writer.event(PREDICTION, **prediction_data(one))
        writer.release(CampaignState.STOPPED, reason="predicted, and not confirmed yet")


def keep_conclusion(store: Store, campaign: Campaign, reason: str, *, take_over: bool) -> None:
    """Leave a campaign finished for a reason, without a probe."""
    with _writing(store, campaign, take_over=take_over) as writer, writer.together():
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.release(CampaignState.FINISHED, reason=reason)


@contextmanager
def _writing(store: Store, campaign: Campaign, *, take_over: bool) -> Iterator[CampaignWriter]:
    lease = store.acquire_lease(campaign.id, host=this_host(), pid=os.getpid(), take_over=take_over)
    yield store.drive(lease)
