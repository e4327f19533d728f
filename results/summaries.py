"""Summaries of campaigns, one line each, by a few queries for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Row, func, select

from frontrunner.results.lease import is_held
from frontrunner.results.records import Campaign, CampaignSummary
from frontrunner.results.rows import to_campaign, trials_by_state
from frontrunner.results.schema import CampaignRow, StandingRow

SummaryCache = dict[int, CampaignSummary]
"""Summaries by campaign id, kept by a caller that asks often."""


def summaries(
    connection: Connection,
    campaigns: Sequence[Campaign | Row[int, str]],
    *,
    now: datetime,
    file: Path | None,
    known: SummaryCache | None = None,
) -> list[CampaignSummary]:
    """Return a summary of each campaign, given as a value or as a row of `id` and `updated_at`, in the given order.

    `now` and `file` are as in `lease.is_held`. For a campaign that was not written to since, the summary in `known` is
    used; new ones are added there. Whether it is driven is looked up every time: a driver that was killed writes
    nothing more.
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
    trials = trials_by_state(connection, ids)
    # A search of the index for each campaign reads one entry; grouping would read them all.
    fastest = select(func.max(StandingRow.tokens_per_s)).where(StandingRow.campaign_id == CampaignRow.id)
    found = select(CampaignRow.id, fastest.scalar_subquery().label("best")).where(CampaignRow.id.in_(ids))
    best = {row.id: row.best for row in connection.execute(found)}
    copied = {field.name for field in fields(CampaignSummary)} - {"probes", "best_tokens_per_s", "is_driven"}
    return [
        CampaignSummary(
            **{name: getattr(campaign, name) for name in copied},
            probes=trials[campaign.id],
            best_tokens_per_s=best[campaign.id],
        )
        for campaign in campaigns
    ]
