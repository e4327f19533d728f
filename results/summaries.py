"""Campaigns in one line each, by a few queries for all of them together."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, func, select

from frontrunner.results.records import Campaign, CampaignSummary
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.states import TrialState


def summaries(connection: Connection, campaigns: Sequence[Campaign]) -> list[CampaignSummary]:
    """A summary of each campaign, in the given order."""
    ids = [campaign.id for campaign in campaigns]
    counted = connection.execute(
        select(TrialRow.campaign_id, TrialRow.state, func.count().label("trials"))
        .where(TrialRow.campaign_id.in_(ids))
        .group_by(TrialRow.campaign_id, TrialRow.state)
    )
    trials = {campaign_id: dict.fromkeys(TrialState, 0) for campaign_id in ids}
    for row in counted:
        trials[row.campaign_id][TrialState(row.state)] = row.trials
    # A search of the index for each campaign reads one entry; grouping would read them all.
    fastest = select(func.max(StandingRow.tokens_per_s))
    best = {id_: connection.execute(fastest.where(StandingRow.campaign_id == id_)).scalar() for id_ in ids}
    return [
        CampaignSummary(
            id=campaign.id,
            name=campaign.name,
            state=campaign.state,
            strategy=campaign.strategy,
            figures=campaign.figures,
            legal_recipes=campaign.legal_recipes,
            probes=trials[campaign.id],
            best_tokens_per_s=best[campaign.id],
            node_seconds_spent=campaign.node_seconds_spent,
            created_at=campaign.created_at,
            updated_at=campaign.updated_at,
        )
        for campaign in campaigns
    ]
