"""A campaign's arrays, read from the store once and then up to the newest outcome."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Connection, func, or_, select

from frontrunner.results.arrays import (
    COPIES,
    DATA_PARALLEL,
    ENDINGS,
    FIGURES,
    KINDS,
    Attempts,
    Axis,
    Numbers,
    Rows,
    StoredRecipes,
    Trials,
    ordered_axis,
)
from frontrunner.results.outcome import FailureKind
from frontrunner.results.ranking import Filters, nodes_of, passes, rank
from frontrunner.results.records import Campaign
from frontrunner.results.rows import cell, finished_attempts, has_table
from frontrunner.results.schema import (
    AttemptRow,
    EndingRow,
    FailureRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.recipe import DIMENSIONS, Choice

READ_AT_ONCE, MOST_KEPT = 5_000, 4


class Snapshot:
    """The arrays of one campaign, which grow with it; used by several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._recipes = StoredRecipes()
        self._trial_ids: Rows = np.empty(0, dtype=np.intp)
        self._recipe_ids: npt.NDArray[np.str_] = np.empty(0, dtype=np.str_)
        self._figures: dict[str, Numbers] = {name: np.empty(0) for name in FIGURES}
        self._known_outcomes: dict[str, int] = {}
        self._outcomes: npt.NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._newest_outcome, self._newest_trial, self._attempts_from = 0, 0, 0
        self._ended: dict[str, npt.NDArray[Any]] = {}
        self._version = ""
        self._made: Attempts | None = None

    def attempts(self, store: Store, campaign: Campaign) -> Attempts:
        """Return the campaign's attempts, and with them its trials, as they are now."""
        with self._lock, store.database.reading(), store.read(campaign) as (connection, found):
            version = f"{found.updated_at} {found.outcomes}"
            if self._made is None or version != self._version:
                try:
                    self._read(connection, found)
                except Exception as error:
                    self._forget()  # part of it may have been added
                    if not isinstance(error, ValueError | LookupError | TypeError | AttributeError):
                        raise
                    finished_attempts(
                        connection, AttemptRow.campaign_id == found.id
                    )  # names the damaged cell
                    rank(connection, found)
                    raise
                self._made, self._version = self._made_of(found), version
            return self._made

    def _read(self, connection: Connection, campaign: Campaign) -> None:
        mine = TrialRow.campaign_id == campaign.id
        self._read_recipes(connection, mine, TrialRow.id > self._newest_trial)
        # An open trial can have a measurement that is to be repeated, and then has a standing.
        is_open = TrialRow.state.in_((TrialState.QUEUED, TrialState.RUNNING))
        self._read_outcomes(
            connection, mine, or_(TrialRow.outcome_number > self._newest_outcome, is_open)
        )
        self._read_attempts(connection, campaign)

    def _read_recipes(self, connection: Connection, *new: ColumnElement[bool]) -> None:
        query = select(TrialRow.id, TrialRow.recipe_id, TrialRow.recipe_json, TrialRow.state).where(
            *new
        )
        result = connection.execute(query.order_by(TrialRow.number))
        while rows := result.fetchmany(READ_AT_ONCE):
            ids, names, texts, states = zip(*rows, strict=True)
            try:
                self._recipes.extend([json.loads(text) for text in texts])
            except (ValueError, LookupError, TypeError, AttributeError):
                for trial_id, text in zip(ids, texts, strict=True):
                    cell(TrialRow.recipe_json, text, trial_id)  # names the damaged one
                raise
            first = len(self._trial_ids)
            self._trial_ids = np.concatenate([self._trial_ids, np.array(ids, dtype=np.intp)])
            self._recipe_ids = np.concatenate([self._recipe_ids, np.array(names, dtype=np.str_)])
            empty = np.full(len(ids), math.nan)
            self._figures = {
                name: np.concatenate([held, empty]) for name, held in self._figures.items()
            }
            self._outcomes = np.concatenate([self._outcomes, np.zeros(len(ids), dtype=np.int32)])
            self._note(np.arange(first, len(self._trial_ids)), states)
            self._newest_trial = max(self._newest_trial, *ids)

    def _note(self, rows: Rows, outcomes: Iterable[str]) -> None:
        known = self._known_outcomes
        codes = [known.setdefault(str(outcome), len(known)) for outcome in outcomes]
        self._outcomes = self._outcomes.copy()  # the one before may be in use
        self._outcomes[rows] = codes

    def _rows_of(self, trial_ids: Sequence[int]) -> Rows:
        order = np.argsort(self._trial_ids, kind="stable")
        wanted = np.array(trial_ids, dtype=np.intp)
        places = np.searchsorted(self._trial_ids, wanted, sorter=order)
        found: Rows = (
            order[np.minimum(places, len(order) - 1)] if len(order) else np.empty(0, dtype=np.intp)
        )
        if len(found) != len(wanted) or not np.array_equal(self._trial_ids[found], wanted):
            raise LookupError("an attempt of another campaign's trial")
        return found

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
        kind_of = {row.trial_id: FailureKind(row.kind).value for row in connection.execute(kinds)}
        if not ended:
            return
        ids, states, numbers, *standings = zip(*ended, strict=True)
        rows = self._rows_of(ids)
        self._note(
            rows,
            (kind_of.get(trial_id, state) for trial_id, state in zip(ids, states, strict=True)),
        )
        for (name, held), values in zip(self._figures.items(), standings, strict=True):
            found = np.array(values, dtype=np.float64)  # None becomes not a number
            changed = held.copy()
            changed[rows] = (
                np.where(found == 0, math.nan, found)
                if name == "peak_memory_bytes_max_rank"
                else found
            )
            self._figures[name] = changed
        self._newest_outcome = max(self._newest_outcome, *(number or 0 for number in numbers))

    def _read_attempts(self, connection: Connection, campaign: Campaign) -> None:
        """Read what ended since: not by id alone, since a probe that was started earlier may end
        later.
        """
        mine = AttemptRow.campaign_id == campaign.id
        is_over = AttemptRow.state.in_(
            [state for state in AttemptState if state is not AttemptState.RUNNING]
        )
        node_seconds = func.coalesce(MeasurementRow.node_seconds, FailureRow.node_seconds)
        query = (
            select(
                *(AttemptRow.id, AttemptRow.trial_id, AttemptRow.finished_at, FailureRow.kind),
                *(MeasurementRow.tokens_per_s, node_seconds),
            )
            .outerjoin(MeasurementRow, MeasurementRow.attempt_id == AttemptRow.id)
            .outerjoin(FailureRow, FailureRow.attempt_id == AttemptRow.id)
            .where(mine, is_over, AttemptRow.id >= self._attempts_from)
        )
        has_endings = has_table(connection, EndingRow)
        if has_endings:
            query = query.add_columns(EndingRow.ended).outerjoin(
                EndingRow, EndingRow.attempt_id == AttemptRow.id
            )
        seen = self._ended["id"] if self._ended else np.empty(0, dtype=np.int64)
        known = set(seen[seen >= self._attempts_from].tolist())
        if rows := [row for row in connection.execute(query) if row.id not in known]:
            ids, trial_ids, times, kinds, rates, spent, *endings = zip(*rows, strict=True)
            place_of = {None: -1} | {kind.value: place for place, kind in enumerate(KINDS)}
            ending_of = {None: -1} | {ending.value: place for place, ending in enumerate(ENDINGS)}
            endings = endings or [(None,) * len(ids)]
            if any(seconds is None for seconds in spent):
                raise ValueError("a finished attempt without an outcome")
            new: dict[str, npt.NDArray[Any]] = {
                "id": np.array(ids, dtype=np.int64),
                "finished_at": np.array(times, dtype=np.bytes_),
                "row": self._rows_of(trial_ids),
                "kind": np.array([place_of[kind] for kind in kinds], dtype=np.int8),
                "ended": np.array([ending_of[ended] for ended in endings[0]], dtype=np.int8),
                "tokens_per_s": np.array(rates, dtype=np.float64),
                "node_seconds": np.array(spent, dtype=np.float64),
            }
            held = self._ended or {name: one[:0] for name, one in new.items()}
            joined = {name: np.concatenate([held[name], one]) for name, one in new.items()}
            order = np.lexsort((joined["id"], joined["finished_at"]))
            self._ended = {name: one[order] for name, one in joined.items()}
        is_running = select(func.min(AttemptRow.id)).where(
            mine, AttemptRow.state == AttemptState.RUNNING
        )
        oldest: int | None = connection.execute(is_running).scalar_one()
        after = int(self._ended["id"].max()) + 1 if self._ended else 0
        self._attempts_from = after if oldest is None else min(oldest, after)

    def _outcome_axis(self) -> Axis:
        present, places = np.unique(self._outcomes, return_inverse=True)
        words = list(self._known_outcomes)
        known: dict[Choice, int] = {
            words[code]: place for place, code in enumerate(present.tolist())
        }
        return ordered_axis(known, places.astype(np.int32), (TrialState.MEASURED.value,))

    def _made_of(self, campaign: Campaign) -> Attempts:
        figures, recipes = dict(self._figures), self._recipes.copy()
        rates = _rates(campaign, figures, recipes)
        ranked = np.flatnonzero(np.isfinite(rates))
        ranks = np.zeros(len(rates), dtype=np.intp)
        ranks[ranked[np.lexsort((self._recipe_ids[ranked], -rates[ranked]))]] = np.arange(
            1, len(ranked) + 1
        )
        trials = Trials(
            campaign=campaign,
            trial_ids=self._trial_ids,
            recipe_ids=self._recipe_ids,
            recipes=recipes,
            figures=figures,
            outcomes=self._outcome_axis(),
            ranks=ranks,
            rates=rates,
        )
        ended = self._ended

        def of(name: str, kind: Any) -> npt.NDArray[Any]:
            return ended[name] if ended else np.empty(0, dtype=kind)

        return Attempts(
            trials=trials,
            rows=of("row", np.intp),
            kinds=of("kind", np.int8),
            endings=of("ended", np.int8),
            tokens_per_s=of("tokens_per_s", np.float64),
            node_seconds=of("node_seconds", np.float64),
        )


def _rates(campaign: Campaign, figures: Mapping[str, Numbers], recipes: StoredRecipes) -> Numbers:
    """Return what recipes are ranked by."""
    sought = campaign.objective
    if sought == "tokens_per_device":
        return figures["model_tflops_per_device"]
    if sought != "tokens_per_cost":
        return figures["tokens_per_s"]
    found, places = recipes.each(("devices",), lambda one: nodes_of(campaign, one["devices"]))
    rates: Numbers = figures["tokens_per_s"] / np.array(found, dtype=np.float64)[places]
    return rates


def attempts_of(store: Store, campaign: Campaign | str | None) -> Attempts:
    """Return every finished attempt of a campaign (None: the newest) with its trials, as they are
    now.

    The arrays of the `MOST_KEPT` campaigns that were asked for last are kept with the open store.
    """
    found = campaign if isinstance(campaign, Campaign) else store.campaign(campaign)
    key = (found.id, found.created_at)
    with store.kept_lock:
        snapshot: Snapshot = store.kept.pop(key, None) or Snapshot()
        store.kept[key] = snapshot
        while len(store.kept) > MOST_KEPT:
            store.kept.popitem(last=False)
    return snapshot.attempts(store, found)


def passing(store: Store, campaign: Campaign, filters: Filters) -> frozenset[int]:
    """Return the ids of the trials whose recipes pass all filters, each asked once per combination
    of what it reads.
    """
    trials = attempts_of(store, campaign).trials
    met = np.ones(len(trials), dtype=np.bool_)
    for name, value in filters.items():
        one = DIMENSIONS.get(name)
        keys: tuple[str, ...] = (name,) if one is None else (one.stored, one.field)
        keys = {"sharding": (*COPIES, "sharding"), DATA_PARALLEL: COPIES}.get(name, keys)
        try:
            passed = trials.recipes.each_recipe(keys, partial(passes, filters={name: value}))
        except ValueError:
            # A recipe cannot be read that could when the arrays were made, or never could.
            with store.kept_lock:
                store.kept.pop((campaign.id, campaign.created_at), None)
            with store.read(campaign) as (connection, found):
                texts = select(TrialRow.id, TrialRow.recipe_json)
                mine = texts.where(TrialRow.campaign_id == found.id)
                for trial_id, text in connection.execute(mine):
                    cell(TrialRow.recipe_json, text, trial_id)  # names the damaged one
            raise
        met &= passed > 0
    return frozenset(trials.trial_ids[met].tolist())
