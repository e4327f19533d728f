"""Rows of the explorer, and fronts: chosen by a campaign's arrays, then read in full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import select

from frontrunner.results.arrays import Trials
from frontrunner.results.pages import TrialOutcome, with_outcomes
from frontrunner.results.ranking import RankedRecipe, gap_percent, rank
from frontrunner.results.records import Campaign
from frontrunner.results.schema import StandingRow, TrialRow
from frontrunner.results.snapshot import attempts_of
from frontrunner.results.store import Store
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ExploredRecipe:
    """One trial with its recipe, how it ended, and its place in the ranking, None where it has
    none.
    """

    recipe_id: str
    recipe: Recipe
    outcome: str
    tried: TrialOutcome
    ranked: RankedRecipe | None


def explored(store: Store, columns: Trials, wanted: Sequence[int]) -> list[ExploredRecipe]:
    """Read these rows of the columns in full, in their order."""
    ids = [int(columns.trial_ids[row]) for row in wanted]
    with store.database.reading(), store.read(columns.campaign) as (connection, found):
        query = select(TrialRow).where(TrialRow.id.in_(ids))
        tried = {
            one.trial.id: one for one in with_outcomes(connection, connection.execute(query).all())
        }
        ranking = rank(connection, found, StandingRow.trial_id.in_(ids))
    by_number = {one.trial_number: one for one in ranking}
    best = float(np.nanmax(columns.rates, initial=math.nan)) if len(ranking) else math.nan
    shown = []
    for row, trial_id in zip(wanted, ids, strict=True):
        one = tried[trial_id]
        ranked = by_number.get(one.trial.number)
        if ranked is not None:
            gap = gap_percent(float(columns.rates[row]), best)
            ranked = replace(ranked, rank=int(columns.ranks[row]), gap_percent=gap)
        made = ExploredRecipe(
            recipe_id=one.trial.recipe_id,
            recipe=one.trial.recipe,
            outcome=columns.outcome(row),
            tried=one,
            ranked=ranked,
        )
        shown.append(made)
    return shown


def may_be_on_front(
    store: Store, campaign: Campaign, problem: Problem, objectives: Sequence[str]
) -> list[RankedRecipe]:
    """Return, in the ranking by tokens/s, of each number of nodes the recipes that no other beats
    in the rest.

    `objectives` are some of tokens, memory and nodes; with memory, recipes whose peak is unknown
    are left out.
    """
    trials = attempts_of(store, campaign).trials
    tokens, flat = trials.figures["tokens_per_s"], np.zeros(len(trials))

    cluster = problem.cluster
    nodes = (
        trials.recipes.each_recipe(
            ("devices",), lambda one: math.ceil(one.devices / cluster.devices_per_node)
        )
        if "nodes" in objectives
        else flat
    )
    free = (
        cluster.memory_bytes_per_device - trials.figures["peak_memory_bytes_max_rank"]
        if "memory" in objectives
        else flat
    )
    speed = tokens if "tokens" in objectives else flat
    known = np.flatnonzero(np.isfinite(tokens))
    ranked = known[np.lexsort((trials.recipe_ids[known], -tokens[known]))]
    places = np.zeros(len(trials), dtype=np.intp)
    places[ranked] = np.arange(1, len(ranked) + 1)
    rows = known[np.isfinite(free[known])]
    rows = rows[np.lexsort((-free[rows], -speed[rows], nodes[rows]))]
    kept: list[int] = []
    for part in np.split(rows, np.flatnonzero(np.diff(nodes[rows])) + 1):
        room, rates = free[part], speed[part]
        is_more = room > np.concatenate([[-math.inf], np.maximum.accumulate(room)[:-1]])
        leader = np.maximum.accumulate(np.where(is_more, np.arange(len(part)), 0))
        # Equal ones too: of these the first in the ranking is on the front.
        kept.extend(part[(room == room[leader]) & (rates == rates[leader])].tolist())
    kept.sort(key=places.__getitem__)
    if not kept:
        return []
    with store.read(campaign) as (connection, found):
        return rank(
            connection,
            found,
            StandingRow.trial_id.in_(trials.trial_ids[kept].tolist()),
            ranks=places[kept].tolist(),
            better=float(tokens[ranked[0]]),
        )
