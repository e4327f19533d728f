"""Status of a campaign, its failures, the drivers that leases name, and what is known about one
recipe.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from frontrunner.results.displayed_rows import DisplayedRows
from frontrunner.results.lease import holder_identity, is_held
from frontrunner.results.nodes import (
    AttemptNodes,
    SetAside,
    nodes_of,
    set_aside,
    set_aside_in_words,
)
from frontrunner.results.outcome import (
    Failure,
    FailureKind,
    Measurement,
    Outcome,
    RecipeStats,
    pool,
)
from frontrunner.results.predictions import FORECASTS, OUTLOOK, newest_outlooks
from frontrunner.results.process_identity import boot_id, is_on_this_host
from frontrunner.results.provenance import Provenance
from frontrunner.results.ranking import RankedRecipe, best_of, gap_percent, rank
from frontrunner.results.records import (
    COPIED,
    UNARCHIVED,
    Attempt,
    AttemptOutcome,
    Campaign,
    Event,
    Trial,
    state_in_words,
)
from frontrunner.results.rows import (
    MOST_BOUND,
    DamagedCell,
    attempts_by_trial,
    cell,
    provenance_by_attempt,
    read_attempts,
    trials_by_state,
    values,
)
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    EventRow,
    FailureRow,
    StandingRow,
    TrialRow,
    recipe_to_json,
)  # fmt: skip
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.results.store import Store
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import InvalidInput, NotFound, bad_value
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.validation import load_json
from frontrunner.text import thousands

LAST_EVENTS = 10
MOST_LEFT = 5
MIN_PREFIX = 4
MOST_CANDIDATES = 8


@dataclass(frozen=True, kw_only=True)
class Status(Displayed):
    """A campaign at one moment.

    `trials` and `failures` count trials by state and failed attempts by kind. `driver_is_live` is
    False for a campaign that was cut off. `outlook` is the newest estimate of what is left to gain
    (`frontrunner.results.predictions`); `last_events` are the newest others but proposals, oldest
    first; `nodes_aside` are the nodes that no probe gets now. `left_ranking` are the recipes that
    were measured and left the ranking as a repeat of them failed, the fastest first, at most
    `MOST_LEFT`; `left_ranking_count` counts all of them.
    """

    campaign: Campaign
    driver_is_live: bool
    trials: Mapping[TrialState, int]
    failures: Mapping[FailureKind, int]
    best: RankedRecipe | None
    outlook: Event | None
    last_events: tuple[Event, ...]
    nodes_aside: tuple[SetAside, ...] = ()
    left_ranking: tuple[FailedTrial, ...] = ()
    left_ranking_count: int = 0

    @property
    def state_in_words(self) -> str:
        """The campaign's state, or `CUT_OFF`."""
        return state_in_words(self.campaign.state, is_driven=self.driver_is_live)

    @property
    def nodes_aside_in_words(self) -> list[str]:
        """Lines about the nodes that no probe gets now."""
        return set_aside_in_words(self.nodes_aside)


@dataclass(frozen=True, kw_only=True)
class ActiveDriver:
    """Holder of a campaign's lease.

    `is_here`: its process id is one of this host. Where `is_certain`, a live one that is here is
    the process itself, not one that was given its id later.
    """

    campaign: str
    host: str
    pid: int
    since: str
    is_here: bool
    is_certain: bool
    is_live: bool
    heartbeat_age_s: float


@dataclass(frozen=True, kw_only=True)
class FailedTrial:
    """A trial whose final outcome is a failure: the last attempt's, of `attempts` in all.

    `measured` pools the measurements of earlier attempts, None where there are none. Such a recipe
    was ranked until a repeat of it failed.
    """

    trial: Trial
    failure: Failure
    attempts: int
    run_folder: str
    measured: RecipeStats | None = None

    @property
    def left_the_ranking(self) -> str | None:
        """What is to be said of a recipe that was ranked before; None of others."""
        if self.measured is None:
            return None
        return (
            f"{self.trial.recipe_id} left the ranking: it was measured at"
            f" {thousands(self.measured.tokens_per_s)} tokens/s, and then a repeat failed,"
            f" {self.failure.kind}: {self.failure.message}"
        )


class FailureList(list[FailedTrial], DisplayedRows):
    """Failed trials as a list that a notebook shows as a table."""


def status(store: Store, campaign: Campaign | str | None) -> Status:
    """Return the status of the campaign (None: the newest)."""
    with store.read(campaign) as (connection, found):
        lease = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
        others = (EventRow.campaign_id == found.id, EventRow.kind.not_in(FORECASTS))
        newest = values(connection, Event, *others, order=EventRow.id.desc(), limit=LAST_EVENTS)
        left = _left_ranking(connection, found.id)
        return Status(
            campaign=found,
            driver_is_live=is_held(store.database, connection, lease),
            trials=trials_by_state(connection, [found.id])[found.id],
            failures=_failures_by_kind(connection, found.id),
            best=next(iter(best_of(connection, found, top=1)), None),
            outlook=next(
                (one for one in newest_outlooks(connection, found.id, 1) if one.kind == OUTLOOK),
                None,
            ),
            last_events=tuple(reversed(newest)),
            nodes_aside=set_aside(connection, found),
            left_ranking=tuple(left[:MOST_LEFT]),
            left_ranking_count=len(left),
        )


def _left_ranking(connection: Connection, campaign_id: int) -> list[FailedTrial]:
    """Return the recipes that were measured and then failed, the fastest first."""
    ids = connection.execute(
        select(TrialRow.id)
        .join(AttemptRow, AttemptRow.trial_id == TrialRow.id)
        .where(TrialRow.campaign_id == campaign_id, TrialRow.state == TrialState.FAILED)
        .where(AttemptRow.state == AttemptState.MEASURED)
        .distinct()
    ).scalars()
    failed = [
        found
        for trial_id in ids
        if (found := _failed_trial(read_attempts(connection, AttemptRow.trial_id == trial_id)))
    ]
    return sorted(failed, key=lambda one: -(one.measured.tokens_per_s if one.measured else 0.0))


def _failed_trial(attempts: Sequence[AttemptOutcome]) -> FailedTrial | None:
    """Return a trial as failed by its attempts, the oldest first; None where the last one did not
    fail.
    """
    last = attempts[-1]
    if not isinstance(last.outcome, Failure):
        return None
    measured = [one.outcome for one in attempts if isinstance(one.outcome, Measurement)]
    return FailedTrial(
        trial=last.trial,
        failure=last.outcome,
        attempts=len(attempts),
        run_folder=last.attempt.run_folder,
        measured=pool(measured) if measured else None,
    )


def _failures_by_kind(connection: Connection, campaign_id: int) -> Mapping[FailureKind, int]:
    counted = connection.execute(
        select(
            FailureRow.kind,
            func.count().label("attempts"),
            func.min(FailureRow.attempt_id).label("first"),
        )
        .join(AttemptRow, AttemptRow.id == FailureRow.attempt_id)
        .where(AttemptRow.campaign_id == campaign_id)
        .group_by(FailureRow.kind)
        .order_by(func.count().desc(), FailureRow.kind)
    )
    return {cell(FailureRow.kind, row.kind, row.first): row.attempts for row in counted}


def active_drivers(store: Store) -> list[ActiveDriver]:
    """Return the holders of all leases that were not released, by campaign, the newest first."""
    query = (
        select(CampaignRow)
        .where(CampaignRow.lease_until.is_not(None))
        .order_by(CampaignRow.id.desc())
    )
    found = []
    with store.database.read() as connection:
        now = store.database.now(connection)
        for row in connection.execute(query).all():
            identity = holder_identity(connection, row)
            written_at = datetime.fromisoformat(
                cell(CampaignRow.updated_at, row.updated_at, row.id)
            )
            driver = ActiveDriver(
                campaign=row.name,
                host=row.driver_host,
                pid=row.driver_pid,
                since=row.driven_since,
                is_here=is_on_this_host(row.driver_host, identity),
                is_certain=identity is not None and boot_id() is not None,
                is_live=is_held(store.database, connection, row),
                heartbeat_age_s=max(0.0, (now - written_at).total_seconds()),
            )
            found.append(driver)
    return found


def version_of(store: Store, campaign: str) -> tuple[str, bool]:
    """Return text that changes with every write of a campaign's drivers, and whether one holds the
    campaign.
    """
    found, is_driven = campaign_and_driver(store, campaign)
    return f"{found.updated_at} {found.epoch} {found.outcomes}", is_driven


def campaign_and_driver(store: Store, campaign: str) -> tuple[Campaign, bool]:
    """Return a campaign, and whether a driver holds it."""
    with store.read(campaign) as (connection, found):
        row = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
        return found, is_held(store.database, connection, row)


def failures(
    store: Store, campaign: Campaign | str | None, *, limit: int | None = None, offset: int = 0
) -> list[FailedTrial]:
    """Return the campaign's failed trials in the order of recording: up to `limit`, after `offset`
    others.
    """
    with store.read(campaign) as (connection, found):
        failed = (
            select(TrialRow.id)
            .where(TrialRow.campaign_id == found.id, TrialRow.state == TrialState.FAILED)
            .order_by(TrialRow.outcome_number)
            .limit(limit)
            .offset(offset)
        )
        ids = connection.execute(failed).scalars().all()
        tries = attempts_by_trial(
            connection, AttemptRow.trial_id.in_(ids if len(ids) <= MOST_BOUND else failed)
        )
        listed = [tries[trial_id] for trial_id in ids if trial_id in tries]
    trials = map(_failed_trial, listed)
    return [one for one in trials if one is not None]


def last_failure(store: Store, campaign: str | None, trial_number: int) -> Failure | None:
    """Return the newest failure among a trial's attempts; None where there is no failure or no such
    trial.
    """
    with store.read(campaign) as (connection, found):
        trial = select(TrialRow.id).where(
            TrialRow.campaign_id == found.id, TrialRow.number == trial_number
        )
        tries = read_attempts(connection, AttemptRow.trial_id.in_(trial))
    return next((one.outcome for one in reversed(tries) if isinstance(one.outcome, Failure)), None)


def open_run_folder(store: Store, campaign: str | None, trial_number: int) -> Path | None:
    """Return the run folder of a trial's attempt that has no outcome yet; None where there is none.

    The attempts of a copied campaign name what another store's driver wrote: only those of a live
    driver count.
    """
    query = select(AttemptRow.run_folder).join(TrialRow, TrialRow.id == AttemptRow.trial_id)
    with store.read(campaign) as (connection, found):
        mine = [TrialRow.campaign_id == found.id, TrialRow.number == trial_number]
        if was_copied(connection, found.id):
            lease = connection.execute(select(CampaignRow).where(CampaignRow.id == found.id)).one()
            if not is_held(store.database, connection, lease):
                return None
            mine.append(AttemptRow.started_at >= lease.driven_since)
        row = connection.execute(
            query.where(*mine, AttemptRow.state == AttemptState.RUNNING)
        ).first()
    return None if row is None else Path(row.run_folder)


@dataclass(frozen=True, kw_only=True)
class ExplainedAttempt:
    """One attempt, its outcome (None while it runs), what its driver ran with, and the nodes that
    it had if known.
    """

    attempt: Attempt
    outcome: Outcome | None
    provenance: Provenance | None
    nodes: AttemptNodes | None = None


@dataclass(frozen=True, kw_only=True)
class Neighbor:
    """The recipe ranked next above or below.

    `gap_percent` is how much slower the slower of the two is; `within_spread` that this is no more
    than the larger of their spreads, so that another measurement could turn the order round.
    """

    recipe_id: str
    recipe: Recipe
    tokens_per_s: float
    gap_percent: float
    within_spread: bool


@dataclass(frozen=True, kw_only=True)
class Appearance:
    """The recipe in one campaign. It ranks by tokens/s as `rank` of `ranked_recipes`, None where it
    does not.

    `mfu_megatron` is `standing.mfu` as Megatron-LM counts FLOPs: half of attention's, for the
    causal mask. A campaign `is_copied` that came from another store or an archive: its folders,
    data and nodes may be another machine's.
    """

    campaign: Campaign
    trial: Trial
    attempts: tuple[ExplainedAttempt, ...]
    standing: RecipeStats | None
    rank: int | None
    ranked_recipes: int
    above: Neighbor | None
    below: Neighbor | None
    mfu_megatron: float | None = None
    is_copied: bool = False


@dataclass(frozen=True, kw_only=True)
class Explanation(Displayed):
    """A recipe and its appearances: the campaign that was named, then those that measured it, the
    newest first.

    Copied campaigns come behind those that were measured here.
    """

    recipe_id: str
    recipe: Recipe
    appearances: tuple[Appearance, ...]


def explain(store: Store, recipe_id: str, campaign: str | None = None) -> Explanation:
    """Return what the store holds about the recipe with this id, or with a unique prefix of it.

    Raises `InvalidInput` for a short prefix, and `NotFound`, naming candidates, where no recipe or
    more than one begins so, and where `campaign` did not try it.
    """
    wanted = None if campaign is None else store.campaign(campaign).id
    prefix = id_prefix(recipe_id)
    with store.database.read() as connection:
        full_id = _complete_id(connection, prefix)
        trials = values(
            connection, Trial, TrialRow.recipe_id == full_id, order=TrialRow.campaign_id.desc()
        )
        found = [_appearance(connection, trial) for trial in trials]
    found.sort(key=lambda row: (row.campaign.id != wanted, row.standing is None, row.is_copied))
    if wanted not in (None, found[0].campaign.id):
        tried = ", ".join(row.campaign.name for row in found)
        raise NotFound(
            f"campaign {campaign} did not try recipe {full_id}", hint=f"it was tried in: {tried}"
        )
    return Explanation(recipe_id=full_id, recipe=found[0].trial.recipe, appearances=tuple(found))


def id_prefix(text: str) -> str:
    """Return the beginning of a recipe's id as ids are written; raise `InvalidInput` for a short
    one.
    """
    prefix = text.strip().lower()
    if len(prefix) < MIN_PREFIX:
        raise bad_value("recipe id", text, f"at least the first {MIN_PREFIX} characters of one")
    return prefix


def measured_with(store: Store, recipe: Recipe) -> list[Campaign]:
    """Return the campaigns that have a measurement of these choices, whatever their problem."""
    alike = select(TrialRow.campaign_id).where(TrialRow.recipe_json == recipe_to_json(recipe))
    with store.database.read() as connection:
        return values(connection, Campaign, CampaignRow.id.in_(alike.join(StandingRow)))


def was_copied(connection: Connection, campaign_id: int) -> bool:
    """Return whether a campaign came from another store or an archive, so that its folders and
    commands may be those of another machine and another user.
    """
    event = select(EventRow.id).where(
        EventRow.campaign_id == campaign_id, EventRow.kind.in_((COPIED, UNARCHIVED))
    )
    return connection.execute(event).first() is not None


def is_copied(store: Store, campaign: Campaign) -> bool:
    """See `was_copied`."""
    with store.database.read() as connection:
        return was_copied(connection, campaign.id)


def _complete_id(connection: Connection, prefix: str) -> str:
    alike = select(TrialRow.recipe_id).where(_begins(prefix)).distinct()
    found = (
        connection.execute(alike.order_by(TrialRow.recipe_id).limit(MOST_CANDIDATES))
        .scalars()
        .all()
    )
    if len(found) == 1 or prefix in found:
        return prefix if prefix in found else found[0]
    if found:
        raise NotFound(
            f"more than one recipe id begins with {prefix!r}", hint=f"one of: {', '.join(found)}"
        )
    # Only ids that begin alike are compared: comparing 100,000 takes seconds.
    alike = select(TrialRow.recipe_id).where(_begins(prefix[:2])).distinct()
    close = difflib.get_close_matches(prefix, connection.execute(alike.limit(1000)).scalars(), n=3)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else "list the measured ones: frontrunner best"
    )
    raise NotFound(f"no recipe id begins with {prefix!r}", hint=hint)


def _begins(prefix: str) -> ColumnElement[bool]:
    """Return the condition that a recipe id has this prefix; SQLite uses the index for the bounds,
    but not for LIKE.
    """
    recipe_id = (
        TrialRow.recipe_id
    )  # "z" comes after every hexadecimal digit in the order of any database
    return and_(
        recipe_id >= prefix, recipe_id < prefix + "z", recipe_id.startswith(prefix, autoescape=True)
    )


def _appearance(connection: Connection, trial: Trial) -> Appearance:
    campaigns = values(connection, Campaign, CampaignRow.id == trial.campaign_id)
    if not campaigns:
        raise DamagedCell(
            TrialRow, trial.id, "campaign_id", f"there is no campaign {trial.campaign_id}"
        )
    mine = AttemptRow.trial_id == trial.id
    ran_with, on_nodes = provenance_by_attempt(connection, mine), nodes_of(connection, mine)
    ranked = (
        select(func.count())
        .select_from(StandingRow)
        .where(StandingRow.campaign_id == trial.campaign_id)
    )
    row = connection.execute(select(StandingRow).where(StandingRow.trial_id == trial.id)).first()
    place, near = None, []
    if row is not None:
        speed, name = StandingRow.tokens_per_s, StandingRow.recipe_id
        # In this form the index by speed is walked.
        faster = and_(
            speed >= row.tokens_per_s, or_(speed > row.tokens_per_s, name < row.recipe_id)
        )
        place = connection.execute(ranked.where(faster)).scalar_one() + 1
        near = rank(connection, campaigns[0], top=2 if place == 1 else 3, offset=max(0, place - 2))
    at = next((index for index, one in enumerate(near) if one.trial_number == trial.number), 0)
    standing = near[at].standing if near else None
    return Appearance(
        campaign=campaigns[0],
        trial=trial,
        attempts=tuple(
            ExplainedAttempt(
                attempt=one.attempt,
                outcome=one.outcome,
                provenance=ran_with.get(one.attempt.id),
                nodes=on_nodes.get(one.attempt.id),
            )
            for one in read_attempts(connection, mine)
        ),
        standing=standing,
        rank=place,
        ranked_recipes=connection.execute(ranked).scalar_one(),
        above=_neighbor(near[at - 1], near[at - 1], near[at]) if at else None,
        below=_neighbor(near[at + 1], near[at], near[at + 1]) if near[at + 1 :] else None,
        is_copied=was_copied(connection, trial.campaign_id),
        mfu_megatron=None if standing is None else _mfu_megatron(campaigns[0], standing.mfu),
    )


def _mfu_megatron(campaign: Campaign, mfu: float | None) -> float | None:
    """Return the MFU with half of attention; None where it is unknown, or the campaign's problem
    cannot be read.
    """
    if mfu is None:
        return None
    try:
        problem = load_json(
            Problem, json.dumps(json.loads(campaign.spec_json)["problem"]), what="problem"
        )
    except (InvalidInput, ValueError, LookupError, TypeError):
        return None
    count, length = problem.model.model_flops_per_token, problem.sequence_length
    return mfu * count(length, causal=True) / count(length)


def _neighbor(other: RankedRecipe, faster: RankedRecipe, slower: RankedRecipe) -> Neighbor:
    gap = gap_percent(slower.standing.tokens_per_s, faster.standing.tokens_per_s)
    return Neighbor(
        recipe_id=other.recipe_id,
        recipe=other.recipe,
        tokens_per_s=other.standing.tokens_per_s,
        gap_percent=gap,
        within_spread=gap
        <= 100.0 * max(faster.standing.step_time_spread, slower.standing.step_time_spread),
    )
