"""The recipes that no other beats in both speed and memory."""

from __future__ import annotations

from sqlalchemy import func, or_, select

from frontrunner.results.ranking import RankedRecipe, resolve, to_ranked
from frontrunner.results.records import Campaign
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.store import Store


def pareto(
    store: Store, campaign: Campaign | str | None, *, least_tokens_per_s: float | None = None
) -> list[RankedRecipe]:
    """The front of tokens/s (more is better) against the peak memory of the neediest rank (less is better).

    Fastest first, so that memory falls along the list. Of recipes equal in both, the one with the smallest
    recipe id stands for all. With `least_tokens_per_s` the part of the front that is at least so fast: slower recipes
    have no say in it.
    """
    memory = StandingRow.peak_memory_bytes_max_rank
    fastest_first = (StandingRow.tokens_per_s.desc(), memory, StandingRow.recipe_id)
    with store.database.read() as connection:
        found = resolve(connection, store, campaign)
        # Walking from the fastest down, a recipe is on the front if it needs less than all before it.
        least_before = func.min(memory).over(order_by=fastest_first, rows=(None, -1))
        wanted = [StandingRow.campaign_id == found.id]
        if least_tokens_per_s is not None:
            wanted.append(StandingRow.tokens_per_s >= least_tokens_per_s)
        walked = (
            select(StandingRow.trial_id, memory.label("memory"), least_before.label("least_before"))
            .where(*wanted)
            .subquery()
        )
        query = (
            select(StandingRow, TrialRow.recipe_json, TrialRow.number)
            .join(TrialRow, TrialRow.id == StandingRow.trial_id)
            .join(walked, walked.c.trial_id == StandingRow.trial_id)
            .where(or_(walked.c.least_before.is_(None), walked.c.memory < walked.c.least_before))
            .order_by(*fastest_first)
        )
        rows = connection.execute(query).all()
        return [
            to_ranked(row, found, rank=place, better=rows[0].tokens_per_s) for place, row in enumerate(rows, start=1)
        ]
