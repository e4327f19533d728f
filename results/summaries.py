"""Summaries of campaigns, one line each, by a few queries for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, func, select

from frontrunner.results.lease import is_held
from frontrunner.results.records import CampaignSummary
from frontrunner.results.rows import cell, to_campaign
from frontrunner.results.schema import CampaignRow, StandingRow, TrialRow
from frontrunner.results.states import TrialState

SummaryCache = dict[int, CampaignSummary]
"""Summaries by campaign id, kept by a caller that asks often."""


class Stamped(Protocol):
    """A campaign by its id, and when it was last written to."""

    @property
    def id(self) -> int:
        """Its id."""

    @property
    def updated_at(self) -> str:
        """When it was last written to."""


def summaries(
    connection: Connection,
    campaigns: Sequence[Stamped],
    *,
    now: datetime,
    file: Path | None,
    known: SummaryCache | None = None,
) -> list[CampaignSummary]:
    """Return a summary of each campaign, in the given order; `now` and `file` are as in `lease.is_held`.

    For a campaign that was not written to since, the one in `known` is used; new ones are added there. Whether it is
    driven is looked up every time: a driver that was killed writes nothing more.
    """
    kept = {} if known is None else known
    held = {campaign.id: kept.get(campaign.id) for campaign in campaigns}  # others may replace entries meanwhile
    changed = [one.id for one in campaigns if (old := held[one.id]) is None or old.updated_at != one.updated_at]
    for summary in _made(connection, changed) if changed else ():
        held[summary.id] = kept[summary.id] = summary
    driven = _driven(connection, list(held), now, file)
    return [
        replace(found, is_driven=True) if found.id in driven else found
        for campaign in campaigns
        if (found := held[campaign.id]) is not None
    ]


def _driven(connection: Connection, ids: Sequence[int], now: datetime, file: Path | None) -> frozenset[int]:
    """Return those of the campaigns whose lease is held; few have one at all."""
    leased = select(CampaignRow).where(CampaignRow.id.in_(ids), CampaignRow.lease_until.is_not(None))
    rows = connection.execute(leased).all()
    return frozenset(row.id for row in rows if is_held(connection, row, now, file=file))


def _made(connection: Connection, ids: Sequence[int]) -> list[CampaignSummary]:
    campaigns = [to_campaign(row) for row in connection.execute(select(CampaignRow).where(CampaignRow.id.in_(ids)))]
    counted = connection.execute(
        select(TrialRow.campaign_id, TrialRow.state, func.count().label("trials"), func.min(TrialRow.id).label("first"))
        .where(TrialRow.campaign_id.in_(ids))
        .group_by(TrialRow.campaign_id, TrialRow.state)
    )
    trials = {campaign_id: dict.fromkeys(TrialState, 0) for campaign_id in ids}
    for row in counted:
        trials[row.campaign_id][cell(TrialRow.state, row.state, row.first)] = row.trials
    # A search of the index for each campaign reads one entry; grouping would read them all.
    fastest = select(func.max(StandingRow.tokens_per_s)).where(StandingRow.campaign_id == CampaignRow.id)
    found = select(CampaignRow.id, fastest.scalar_subquery().label("best")).where(CampaignRow.id.in_(ids))
    best = {row.id: row.best for row in connection.execute(found)}
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
