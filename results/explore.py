"""All trials of a campaign as columns in memory, to filter, sort and sample 100,000 of them in milliseconds.

A trial's recipe never changes, so only what was added or has ended since the last question is read again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, select

from frontrunner.results.pages import TrialOutcome, with_outcomes
from frontrunner.results.ranking import RankedRecipe, gap_percent, rank
from frontrunner.results.records import OBJECTIVE, Campaign
from frontrunner.results.rows import cell
from frontrunner.results.schema import AttemptRow, FailureRow, StandingRow, TrialRow
from frontrunner.results.states import TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import DIMENSIONS, Choice, Recipe
from frontrunner.spaces.sharding import Sharding

Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

OUTCOME, DATA_PARALLEL, CUSTOM = "outcome", "data_parallel", "custom."
"""Columns besides the dimensions: how a trial ended, the derived degree, and knobs of the user's own by their names."""
FIGURES = (
    "tokens_per_s",
    "step_time_s_median",
    "step_time_spread",
    "model_tflops_per_device",
    "mfu",
    "peak_memory_bytes_max_rank",
    "repeats",
)
"""Numbers of a standing, not a number where the recipe has none."""
RANK, NUMBER = "rank", "number"
_DEGREES = [one.name for one in fields(Sharding)]
_PLAIN = [one for one in DIMENSIONS.values() if one.kind in ("count", "flag", "choice", "name")]


@dataclass(frozen=True)
class Axis:
    """The values that trials have of one choice, in order, and the place of each trial's value among them."""

    values: tuple[Choice, ...]
    places: Rows

    @property
    def varies(self) -> bool:
        """Whether trials differ in it."""
        return len(self.values) > 1


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What trials are wanted: of these values in some choices, and with figures in these ranges, both ends included."""

    values: Mapping[str, frozenset[Choice]]
    ranges: Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A campaign's trials at one moment, in the order of their numbers. Ranks count from 1, 0 for trials without."""

    trial_ids: Rows
    recipe_ids: npt.NDArray[np.str_]
    axes: Mapping[str, Axis]
    figures: Mapping[str, Numbers]
    ranks: Rows
    rates: Numbers

    def __len__(self) -> int:
        """Return the number of trials."""
        return len(self.trial_ids)

    @cached_property
    def varied(self) -> dict[str, Axis]:
        """The dimensions in which trials differ, in the order of a recipe's, the user's own last."""
        return {name: axis for name, axis in self.axes.items() if axis.varies and name != OUTCOME}

    def masks(self, wanted: Wanted) -> dict[str, Mask]:
        """Return which trials meet each condition, by the name of its choice or figure."""
        found = {}
        for name, values in wanted.values.items():
            axis = self.axes[name]
            found[name] = np.array([value in values for value in axis.values], dtype=np.bool_)[axis.places]
        for name, (least, most) in wanted.ranges.items():
            with np.errstate(invalid="ignore"):
                numbers, met = self.figures[name], np.isfinite(self.figures[name])
                met &= numbers >= (-math.inf if least is None else least)
                found[name] = met & (numbers <= (math.inf if most is None else most))
        return found

    def both(self, masks: Iterable[Mask]) -> Mask:
        """Return which trials meet all of these conditions."""
        found = np.ones(len(self), dtype=np.bool_)
        for mask in masks:
            found &= mask
        return found

    def counts(self, masks: Mapping[str, Mask]) -> dict[str, list[int]]:
        """Count the trials of each value of each choice that meet the conditions on all other choices."""
        met = self.both(masks.values())
        found = {}
        for name, axis in self.axes.items():
            others = met if name not in masks else self.both(mask for own, mask in masks.items() if own != name)
            found[name] = np.bincount(axis.places[others], minlength=len(axis.values)).tolist()
        return found

    def ordered(self, met: Mask, by: str, *, descending: bool = False) -> Rows:
        """Return the rows that are met in the order of a column, then of ranks; those without a value come last."""
        rows = np.flatnonzero(met)
        last = len(self) + 1
        places = np.where(self.ranks[rows] > 0, self.ranks[rows], last + rows)
        if by == RANK:
            key = np.where(self.ranks[rows] > 0, places, math.nan)
        elif by == NUMBER:
            key = rows.astype(np.float64)
        else:
            key = self.figures[by][rows] if by in self.figures else self.axes[by].places[rows].astype(np.float64)
        key = -key if descending else key
        return rows[np.lexsort((places, np.where(np.isfinite(key), key, math.inf)))]

    def sample(self, rows: Rows, most: int) -> Rows:
        """Return up to `most` of the rows: a fifth of them the best ranked, the others an even selection of all."""
        if len(rows) <= most:
            return rows
        best = self.ordered(np.isin(np.arange(len(self)), rows), RANK)
        even = rows[np.linspace(0, len(rows) - 1, most - most // 5).astype(np.intp)]
        return np.unique(np.concatenate([best[: most // 5], even]))


@dataclass(frozen=True, kw_only=True)
class ExploredRecipe:
    """One trial with its recipe, how it ended, and its place in the ranking, None where it has none."""

    recipe_id: str
    recipe: Recipe
    outcome: str
    tried: TrialOutcome
    ranked: RankedRecipe | None


class TrialTable:
    """The columns of one campaign, read up to the newest outcome at each question; used by several threads."""

    def __init__(self, campaign: Campaign, own_knobs: Mapping[str, Choice]) -> None:
        """`own_knobs` are the neutral values of the user's own knobs."""
        self._campaign, self._own_knobs = campaign, dict(own_knobs)
        self._lock = Lock()
        self._row_of: dict[int, int] = {}
        self._recipe_ids: list[str] = []
        self._places: dict[str, list[int]] = {name: [] for name in (*DIMENSIONS, DATA_PARALLEL)}
        self._places |= {CUSTOM + name: [] for name in own_knobs}
        self._known: dict[str, dict[Choice, int]] = {name: {} for name in self._places}
        self._outcomes: list[str] = []
        self._figures: dict[str, list[float]] = {name: [] for name in FIGURES}
        self._devices: list[int] = []
        self._newest_outcome, self._newest_trial, self._version = 0, 0, ""
        self._columns: Columns | None = None

    def columns(self, store: Store) -> Columns:
        """Return the campaign's trials as they are now."""
        with self._lock, store.database.reading(), store.read(self._campaign.name) as (connection, found):
            version = f"{found.updated_at} {found.outcomes}"
            if self._columns is None or version != self._version:
                self._read(connection)
                self._columns, self._version = self._made(found), version
            return self._columns

    def _read(self, connection: Connection) -> None:
        mine = TrialRow.campaign_id == self._campaign.id
        self._read_recipes(connection, mine, TrialRow.id > self._newest_trial)
        self._read_outcomes(connection, mine, TrialRow.outcome_number > self._newest_outcome)
        waiting = select(TrialRow.id, TrialRow.state).where(
            mine, TrialRow.state.in_((TrialState.QUEUED, TrialState.RUNNING))
        )
        for row in connection.execute(waiting):  # also a measured one that is repeated
            self._note(row.id, row.state, None)

    def _read_recipes(self, connection: Connection, *new: ColumnElement[bool]) -> None:
        query = select(TrialRow.id, TrialRow.recipe_id, TrialRow.recipe_json, TrialRow.state)
        for row in connection.execute(query.where(*new).order_by(TrialRow.number)):
            try:
                self._add(json.loads(row.recipe_json))
            except (ValueError, LookupError, TypeError, AttributeError):
                cell(TrialRow.recipe_json, row.recipe_json, row.id)  # names the damaged cell
                raise
            self._row_of[row.id] = len(self._recipe_ids)
            self._recipe_ids.append(row.recipe_id)
            self._outcomes.append(row.state)
            for numbers in self._figures.values():
                numbers.append(math.nan)
            self._newest_trial = max(self._newest_trial, row.id)

    def _add(self, stored: Mapping[str, Any]) -> None:
        found: dict[str, Choice] = {
            one.name: stored.get(one.stored, stored.get(one.field, one.neutral)) for one in _PLAIN
        }
        per_replica = stored["tensor_parallel"] * stored["pipeline_parallel"] * stored.get("context_parallel", 1)
        found[DATA_PARALLEL] = stored["devices"] // per_replica
        found["layer_split"] = "balanced" if stored.get("layers_per_stage") else "even"
        copies = found[DATA_PARALLEL] * stored.get("context_parallel", 1)
        found["sharding"] = _sharding_name(copies, *(stored["sharding"][key] for key in _DEGREES))
        own = {one["name"]: one["value"] for one in stored.get("custom", ())}
        found |= {CUSTOM + name: own.get(name, neutral) for name, neutral in self._own_knobs.items()}
        for name, places in self._places.items():
            known, value = self._known[name], found[name]
            places.append(known.setdefault(value, len(known)))
        self._devices.append(stored["devices"])

    def _read_outcomes(self, connection: Connection, *new: ColumnElement[bool]) -> None:
        figures = [getattr(StandingRow, name) for name in FIGURES]
        query = select(TrialRow.id, TrialRow.state, TrialRow.outcome_number, *figures)
        query = query.outerjoin(StandingRow, StandingRow.trial_id == TrialRow.id)
        ended = connection.execute(query.where(*new)).all()
        kinds = (
            select(AttemptRow.trial_id, FailureRow.kind)
            .join(FailureRow, FailureRow.attempt_id == AttemptRow.id)
            .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
            .where(*new, TrialRow.state == TrialState.FAILED)
            .order_by(AttemptRow.number)
        )
        kind_of = {row.trial_id: row.kind for row in connection.execute(kinds)}
        for row in ended:
            self._note(row.id, kind_of.get(row.id, row.state), row)
            self._newest_outcome = max(self._newest_outcome, row.outcome_number)

    def _note(self, trial_id: int, outcome: str, standing: Any) -> None:
        place = self._row_of[trial_id]
        self._outcomes[place] = outcome
        if standing is not None:
            for name, numbers in self._figures.items():
                value = getattr(standing, name)
                unknown = value is None or (name == "peak_memory_bytes_max_rank" and value == 0)
                numbers[place] = math.nan if unknown else value

    def _made(self, campaign: Campaign) -> Columns:
        figures = {name: np.array(numbers) for name, numbers in self._figures.items()}
        recipe_ids = np.array(self._recipe_ids, dtype=np.str_)
        rates = self._rates(campaign, figures)
        ranked = np.flatnonzero(np.isfinite(rates))
        ranks = np.zeros(len(rates), dtype=np.intp)
        ranks[ranked[np.lexsort((recipe_ids[ranked], -rates[ranked]))]] = np.arange(1, len(ranked) + 1)
        axes = {name: _axis(self._known[name], places, _order(name)) for name, places in self._places.items()}
        outcomes: dict[Choice, int] = {}
        places = [outcomes.setdefault(outcome, len(outcomes)) for outcome in self._outcomes]
        axes[OUTCOME] = _axis(outcomes, places, (TrialState.MEASURED.value,))
        return Columns(
            trial_ids=np.fromiter(self._row_of, dtype=np.intp, count=len(self._row_of)),
            recipe_ids=recipe_ids,
            axes=axes,
            figures=figures,
            ranks=ranks,
            rates=rates,
        )

    def _rates(self, campaign: Campaign, figures: Mapping[str, Numbers]) -> Numbers:
        """Return what recipes are ranked by."""
        sought = campaign.problem_summary.get(OBJECTIVE, "tokens")
        if sought == "tokens_per_device":
            return figures["model_tflops_per_device"]
        if sought != "tokens_per_cost":
            return figures["tokens_per_s"]
        width: Any = campaign.problem_summary["devices_per_node"]
        rates: Numbers = figures["tokens_per_s"] / np.ceil(np.array(self._devices, dtype=np.float64) / float(width))
        return rates

    def rows(self, store: Store, columns: Columns, wanted: Sequence[int]) -> list[ExploredRecipe]:
        """Read these rows of the columns in full, in their order."""
        ids = [int(columns.trial_ids[row]) for row in wanted]
        with store.database.reading(), store.read(self._campaign.name) as (connection, found):
            query = select(TrialRow).where(TrialRow.id.in_(ids))
            tried = {one.trial.id: one for one in with_outcomes(connection, connection.execute(query).all())}
            ranking = rank(connection, found, StandingRow.trial_id.in_(ids))
        by_number = {one.trial_number: one for one in ranking}
        best = float(np.nanmax(columns.rates, initial=math.nan)) if len(ranking) else math.nan
        outcome = columns.axes[OUTCOME]
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
                outcome=str(outcome.values[outcome.places[row]]),
                tried=one,
                ranked=ranked,
            )
            shown.append(made)
        return shown


@cache
def _sharding_name(copies: int, *degrees: int) -> str:
    return Sharding(**dict(zip(_DEGREES, degrees, strict=True))).name(copies)


def _order(name: str) -> tuple[Choice, ...]:
    return DIMENSIONS[name].values if name in DIMENSIONS else ()


def _axis(known: Mapping[Choice, int], places: Sequence[int], listed: Sequence[Choice]) -> Axis:
    """Return an axis with its values in order: words as they are listed, then others; numbers by size."""

    def order(value: Choice) -> tuple[int, float, str]:
        if isinstance(value, str):
            return (listed.index(value), 0.0, "") if value in listed else (len(listed), 0.0, value)
        return 0, float(value), ""

    values = sorted(known, key=order)
    moved = np.empty(len(known), dtype=np.intp)
    for place, value in enumerate(values):
        moved[known[value]] = place
    return Axis(tuple(values), moved[np.array(places, dtype=np.intp)])
