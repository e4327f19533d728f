"""The store: opening it, creating campaigns, and reading.

One process writes to a campaign at a time: the driver that holds its lease, through the
`CampaignWriter` of `Store.drive`. Everything else here reads, from any number of processes.
"""

from __future__ import annotations

import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import datetime
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from frontrunner.results.address import damaged
from frontrunner.results.database import Database, open_database, repeatable
from frontrunner.results.lease import is_held, refuse_driven, until
from frontrunner.results.outcome import Measurement, Outcome, undisturbed
from frontrunner.results.process_identity import acting_user, process_id
from frontrunner.results.records import (
    USER,
    Attempt,
    Campaign,
    CampaignSummary,
    Clock,
    Event,
    Labels,
    Lease,
    Probed,
    Trial,
    timestamp,
)
from frontrunner.results.rows import (
    DamagedCell,
    cell,
    columns_of,
    finished_attempts,
    has_table,
    interpreted,
    storable,
    trials_by_state,
    value_of,
    values,
)
from frontrunner.results.schema import (
    AttemptRow,
    CampaignRow,
    DeletionRow,
    EventRow,
    HolderRow,
    LabelsRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.results.writer import CampaignWriter
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import (
    AlreadyDriven,
    NameTaken,
    NotFound,
    StoreUnusable,
    did_you_mean,
    require_campaign_name,
)
from frontrunner.spaces.recipe import Recipe

COUNTED = {"probes", "best_tokens_per_s", "best_mfu", "labels", "is_driven"}
SUMMARIZED = {field.name for field in fields(CampaignSummary)} - COUNTED
BUSY_TIMEOUT_S = 90.0
MOST_IDLE = 50
"""Campaigns without an outcome that are passed over, at most, to find the newest."""

LABELED = "labeled"
"""Event of changed labels; its data has those that changed, as text."""


def open_store(
    url: str,
    *,
    create: bool = True,
    read_only: bool = False,
    clock: Clock | None = None,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
) -> Store:
    """Open the store at a path or URL, creating it where `create` is set and nothing is there.

    `busy_timeout_s` is how long to wait for another program's write lock. A read-only store changes
    no file, except that reading while a driver writes uses the files that SQLite keeps for it.
    Other stores of an earlier revision are upgraded. Raises `StoreUnusable` for what is not a
    store, is damaged, or has another schema version; it is left as it is.
    """
    return Store(
        open_database(
            url, create=create, read_only=read_only, clock=clock, busy_timeout_s=busy_timeout_s
        )
    )


def _labels(row: Mapping[str, Any]) -> Labels:
    return Labels(tags=row["tags_json"], note=row["note"], hidden=row["hidden_at"] is not None)


class Store:
    """An open store. Reads may be made from several threads."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.kept: OrderedDict[tuple[int, str], Any] = OrderedDict()
        """Arrays of campaigns (`results.snapshot`) by id and time of creation; the one asked for
        last is the last.
        """
        self.kept_lock = Lock()

    @property
    def url(self) -> str:
        """The file's path, or the URL with its password hidden."""
        return str(self.database.address)

    @repeatable
    def now(self) -> datetime:
        """Return the time by the store's clock."""
        return self.database.now()

    def close(self) -> None:
        """Close every connection; the store cannot be used afterwards."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
        if isinstance(
            error, DamagedCell
        ):  # of what was read and understood only later, as a specification
            raise self.damaged(error) from error

    def damaged(self, cell: DamagedCell) -> StoreUnusable:
        """Return the error for a damaged cell of this store, with its newest backup."""
        return damaged(self.database.address, cell.finding)

    def create_campaign(
        self,
        *,
        name: str,
        spec_json: str,
        legal_recipes: int,
        problem_summary: Mapping[str, object],
        created_at: str | None = None,
    ) -> Campaign:
        """Add a campaign in state `created`, by default now; raises `NameTaken`, and `InvalidInput`
        for what is not a name.
        """
        require_campaign_name("campaign.name", name)
        with self.database.write(whole_store=True) as connection:
            now = timestamp(self.database.now(connection))
            self.refuse_taken(connection, name)
            made = insert(CampaignRow).values(
                name=name,
                state=CampaignState.CREATED,
                strategy=str(json.loads(spec_json).get("search", {}).get("strategy", "")),
                spec_json=spec_json,
                problem_json=canonical_json(dict(problem_summary)),
                legal_recipes=legal_recipes,
                created_at=created_at or now,
                updated_at=now,
            )
            return value_of(Campaign, connection.execute(made.returning(CampaignRow)).one())

    def rename(self, campaign: str, name: str) -> None:
        """Give a campaign another name; its run folders keep theirs. Raises as `alone` and
        `create_campaign` do.
        """
        require_campaign_name("name", name)
        with self.alone(campaign) as (connection, found):
            self.refuse_taken(connection, name)
            self._change(
                connection, found, "renamed", {"earlier": campaign, "name": name}, name=name
            )

    def respecify(
        self, campaign: str, spec_json: str, kind: str, data: Mapping[str, object]
    ) -> None:
        """Give a campaign another specification, also while it is driven, and record that as an
        event.
        """
        with self.alone(campaign, driven=True) as (connection, found):
            self._change(connection, found, kind, data, spec_json=spec_json)

    def note(self, campaign: str, kind: str, **data: object) -> None:
        """Record what a user asks of a campaign, also of one that is driven, as an event."""
        with self.alone(campaign, driven=True) as (connection, found):
            self._change(connection, found, kind, data)

    def labels(self, campaign: str | None) -> Labels:
        """Return what people say of a campaign (None: the newest)."""
        with self.read(campaign) as (connection, found):
            return self._labels(connection, LabelsRow.campaign_id == found.id).get(
                found.id, Labels()
            )

    def label(self, campaign: str, **changes: Any) -> Labels:
        """Replace fields of a campaign's labels, also while it is driven, and return them all."""
        with self.alone(campaign, driven=True) as (connection, found):
            mine = LabelsRow.campaign_id == found.id
            before = self._labels(connection, mine).get(found.id, Labels())
            after = replace(before, **changes)
            hidden_at = connection.execute(select(LabelsRow.hidden_at).where(mine)).scalar()
            if after.hidden != before.hidden:
                hidden_at = timestamp(self.database.now(connection)) if after.hidden else None
            tags = canonical_json([storable(tag) for tag in after.tags])
            connection.execute(delete(LabelsRow).where(mine))
            values = {"tags_json": tags, "note": storable(after.note), "hidden_at": hidden_at}
            connection.execute(insert(LabelsRow).values(campaign_id=found.id, **values))
            text = {
                "tags": ", ".join(after.tags),
                "note": after.note,
                "hidden": "yes" if after.hidden else "no",
            }
            changed = {
                key: storable(text[key])
                for key in changes
                if getattr(after, key) != getattr(before, key)
            }
            if changed:
                self._change(connection, found, LABELED, changed)
            return after

    @staticmethod
    def _labels(connection: Connection, wanted: ColumnElement[bool]) -> dict[int, Labels]:
        if not has_table(connection, LabelsRow):  # of an earlier version, opened read-only
            return {}
        rows = [
            columns_of(LabelsRow, row)
            for row in connection.execute(select(LabelsRow).where(wanted))
        ]
        return {
            row["campaign_id"]: interpreted(
                LabelsRow, row["campaign_id"], "tags_json", partial(_labels, row)
            )
            for row in rows
        }

    def _change(
        self,
        connection: Connection,
        found: Campaign,
        kind: str,
        data: Mapping[str, object],
        **columns: str,
    ) -> None:
        now, text = (
            timestamp(self.database.now(connection)),
            canonical_json({**data, USER: acting_user()}),
        )
        mine = update(CampaignRow).where(CampaignRow.id == found.id)
        connection.execute(mine.values(updated_at=now, **columns))
        connection.execute(
            insert(EventRow).values(campaign_id=found.id, at=now, kind=kind, data_json=text)
        )

    def refuse_taken(self, connection: Connection, name: str, hint: str | None = None) -> None:
        """Raise `NameTaken` where a campaign has this name."""
        if connection.execute(select(CampaignRow.id).where(CampaignRow.name == name)).first():
            hint = hint or f"choose another name, or go on with it: frontrunner resume {name}"
            raise NameTaken(f"campaign {name!r} exists already in {self.url}", hint=hint)

    @contextmanager
    def alone(self, name: str, *, driven: bool = False) -> Iterator[tuple[Connection, Campaign]]:
        """Open a transaction that changes a campaign as a whole; raises `AlreadyDriven` if it may
        not be `driven`.
        """
        with self.database.write(whole_store=True) as connection:
            connection.execute(
                select(CampaignRow.id).where(CampaignRow.name == name).with_for_update()
            )
            found = self._named(connection, name)
            if not driven:
                refuse_driven(self.database, connection, name)
            yield connection, found

    @contextmanager
    def read(self, campaign: Campaign | str | None) -> Iterator[tuple[Connection, Campaign]]:
        """Open a transaction that reads a campaign as it is now (None: the newest); raises
        `NotFound`.

        A campaign that was left without an outcome, as one that never got nodes, is the newest only
        of such ones.
        """
        with self.database.read() as connection:
            yield (
                connection,
                self._named(
                    connection, campaign.name if isinstance(campaign, Campaign) else campaign
                ),
            )

    def _named(self, connection: Connection, name: str | None) -> Campaign:
        query = select(CampaignRow).order_by(CampaignRow.id.desc()).limit(MOST_IDLE)
        found = connection.execute(
            query if name is None else query.where(CampaignRow.name == name)
        ).all()
        if not found:
            rows = connection.execute(select(CampaignRow.id, CampaignRow.name)).all()
            names = [cell(CampaignRow.name, row.name, row.id) for row in rows]
            near = did_you_mean(str(name), names) or "start one: frontrunner launch CAMPAIGN.toml"
            hint = _deleted(connection, name) or near
            wanted = f" {name!r}" if names else ""
            raise NotFound(f"there is no campaign{wanted} in {self.url}", hint=hint)
        newest = (value_of(Campaign, row) for row in found)
        return next((one for one in newest if not one.is_idle), None) or value_of(
            Campaign, found[0]
        )

    @repeatable
    def campaign(self, name: str | None) -> Campaign:
        """Return the named campaign, or for None the newest (see `read`); `NotFound` where there is
        none.
        """
        with self.read(name) as (_, found):
            return found

    @repeatable
    def campaigns(self) -> list[CampaignSummary]:
        """Return every campaign, the newest first."""
        with self.database.read() as connection:
            ids = (
                connection.execute(select(CampaignRow.id).order_by(CampaignRow.id.desc()))
                .scalars()
                .all()
            )
            return self.summaries(connection, ids)

    def summaries(self, connection: Connection, ids: Sequence[int]) -> list[CampaignSummary]:
        """Return a summary of each campaign in the given order, by a few queries for all of
        them.
        """
        mine = CampaignRow.id.in_(ids)
        trials = trials_by_state(connection, ids)
        # A search of the index for each campaign reads one entry; grouping would read them all.
        ordered = select(StandingRow.trial_id).where(StandingRow.campaign_id == CampaignRow.id)
        first = (
            ordered.order_by(StandingRow.tokens_per_s.desc())
            .limit(1)
            .correlate(CampaignRow)
            .scalar_subquery()
        )
        query = select(CampaignRow.id, StandingRow.tokens_per_s, StandingRow.mfu)
        query = query.join(StandingRow, StandingRow.trial_id == first).where(mine)
        best = {row.id: row for row in connection.execute(query)}
        labels = self._labels(connection, LabelsRow.campaign_id.in_(ids))
        found = {}
        for row in connection.execute(select(CampaignRow).where(mine)).all():
            campaign = value_of(Campaign, row)
            found[row.id] = CampaignSummary(
                **{name: getattr(campaign, name) for name in SUMMARIZED},
                probes=trials[row.id],
                best_tokens_per_s=best[row.id].tokens_per_s if row.id in best else None,
                best_mfu=best[row.id].mfu if row.id in best else None,
                labels=labels.get(row.id, Labels()),
                is_driven=is_held(self.database, connection, row),
            )
        return [found[campaign_id] for campaign_id in ids]

    @repeatable
    def records(self, ids: Sequence[int]) -> dict[int, Campaign]:
        """Return campaigns by their ids."""
        with self.database.read() as connection:
            return {one.id: one for one in values(connection, Campaign, CampaignRow.id.in_(ids))}

    @repeatable
    def trials(self, campaign_id: int) -> list[Trial]:
        """Return the campaign's trials in the order in which they were proposed."""
        with self.database.read() as connection:
            return values(
                connection, Trial, TrialRow.campaign_id == campaign_id, order=TrialRow.number
            )

    @repeatable
    def final_outcomes(self, campaign_id: int) -> list[tuple[Recipe, Outcome]]:
        """Return the measurements that count, and the failures that ended a trial, in the order in
        which they ended.

        A recipe is there as often as it has measurements that count (`undisturbed`). Lost attempts
        are left out.
        """
        by_trial = defaultdict[int, list[Probed]](list)
        with self.database.read() as connection:
            found = finished_attempts(connection, AttemptRow.campaign_id == campaign_id)
        for one in found:
            by_trial[one.trial.id].append(one)
        count = {one.attempt.id for attempts in by_trial.values() for one in _counting(attempts)}
        return [(one.trial.recipe, one.outcome) for one in found if one.attempt.id in count]

    @repeatable
    def trial_measurements(
        self, campaign_id: int, *, number: int | None = None, recipe_id: str | None = None
    ) -> tuple[Trial, Sequence[Measurement]]:
        """Return the trial of this number or this recipe, and its measurements that count, oldest
        first.
        """
        is_it = TrialRow.recipe_id == recipe_id if number is None else TrialRow.number == number
        with self.database.read() as connection:
            [trial] = values(connection, Trial, TrialRow.campaign_id == campaign_id, is_it)
            found = finished_attempts(connection, AttemptRow.trial_id == trial.id)
        measured = [one.outcome for one in found if isinstance(one.outcome, Measurement)]
        return trial, undisturbed(measured)

    @repeatable
    def open_attempts(self, campaign_id: int) -> list[Attempt]:
        """Return the attempts recorded as running, oldest first: after a crash, those to
        harvest.
        """
        is_running = AttemptRow.state == AttemptState.RUNNING
        with self.database.read() as connection:
            return values(connection, Attempt, AttemptRow.campaign_id == campaign_id, is_running)

    @repeatable
    def events(
        self, campaign_id: int, after: int = 0, limit: int = 1000, *, kind: str | None = None
    ) -> list[Event]:
        """Return up to `limit` events, of one kind or of all, with ids above `after`, oldest
        first.
        """
        mine = [EventRow.campaign_id == campaign_id, EventRow.id > after]
        with self.database.read() as connection:
            return values(
                connection,
                Event,
                *mine,
                *([] if kind is None else [EventRow.kind == kind]),
                limit=limit,
            )

    def acquire_lease(
        self,
        campaign_id: int,
        *,
        host: str,
        pid: int,
        duration_s: float = 30.0,
        take_over: bool = False,
    ) -> Lease:
        """Become the campaign's one driver; a previous holder is fenced: its next write is refused.

        Raises `AlreadyDriven` where another driver holds the lease (`lease.is_held`), unless
        `take_over` is set.
        """
        with self.database.write() as connection:
            query = select(CampaignRow).where(CampaignRow.id == campaign_id)
            row = connection.execute(
                query.with_for_update()
            ).one()  # SQLite, whose write lock is held, ignores this
            if is_held(self.database, connection, row) and not take_over:
                raise AlreadyDriven(
                    f"campaign {row.name} is driven by {row.driver_host}:{row.driver_pid} since"
                    f" {row.driven_since}",
                    hint=(
                        f"wait for it, or take its place: frontrunner resume {row.name} --take-over"
                    ),
                )
            epoch, now = row.epoch + 1, self.database.now(connection)
            lease = Lease(
                campaign_id=row.id,
                campaign_name=row.name,
                epoch=epoch,
                host=host,
                pid=pid,
                duration_s=duration_s,
            )
            columns = {
                "driver_host": host,
                "driver_pid": pid,
                "lease_until": until(lease, now),
                "epoch": epoch,
            }
            times = dict.fromkeys(("driven_since", "updated_at"), timestamp(now))
            connection.execute(
                update(CampaignRow).where(CampaignRow.id == row.id).values(**columns, **times)
            )
            identity = process_id(host, pid)
            if identity is not None:
                connection.execute(
                    insert(HolderRow).values(campaign_id=row.id, epoch=epoch, **asdict(identity))
                )
        return lease

    def drive(self, lease: Lease) -> CampaignWriter:
        """Return the write side of the lease's campaign. Used by one thread."""
        return CampaignWriter(self.database, lease)


def _deleted(connection: Connection, name: str | None) -> str:
    """Return who deleted the campaign that last had this name, and when."""
    if name is None or not has_table(connection, DeletionRow):
        return ""
    newest = (
        select(DeletionRow)
        .where(DeletionRow.campaign == name)
        .order_by(DeletionRow.id.desc())
        .limit(1)
    )
    row = connection.execute(newest).first()
    return "" if row is None else f"{row.user} deleted it on {row.at[:10]} at {row.at[11:16]} UTC"


def _counting(attempts: Sequence[Probed]) -> Iterator[Probed]:
    """Yield the attempts at a trial whose outcomes count: see `Store.final_outcomes`."""
    yield from undisturbed([one for one in attempts if isinstance(one.outcome, Measurement)])
    if attempts[0].trial.state is TrialState.FAILED:
        yield from [one for one in attempts if one.attempt.state is AttemptState.FAILED][-1:]
