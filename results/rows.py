"""Rows of the store's tables as values: the one place where either becomes the other.

Each column is checked against the type that is declared with it. A row that no version of
frontrunner wrote raises `DamagedCell`, which names table, row and column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy import Column, ColumnElement, Connection, Select, func, inspect, select, union
from sqlalchemy.orm import InstrumentedAttribute
from typing_extensions import TypedDict

from frontrunner.results.outcome import (
    Failure,
    Measurement,
    Outcome,
    RecipeStats,
    refuse_unrankable,
)
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import Attempt, AttemptOutcome, Campaign, Event, Probed, Trial
from frontrunner.results.redaction import without_secrets
from frontrunner.results.schema import (
    AttemptRow,
    Base,
    CampaignRow,
    EndingRow,
    EventRow,
    FailureRow,
    LaterVersion,
    MeasurementRow,
    ProvenanceRow,
    StandingRow,
    TelemetryRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.spaces.document import canonical_json, finite_or_none
from frontrunner.spaces.errors import StoreUnusable, shown

T = TypeVar("T")
Columns = dict[str, Any]
PLAIN_TYPES = {int: int, str: Annotated[str, Field(min_length=0)]}
"""Types of columns that declare none; a constraint makes pydantic look into text, which may not be
UTF-8.
"""
MOST_BOUND = 10_000
"""Values of one query; SQLite and PostgreSQL take at least three times as many."""
TABLES: dict[type, type[Base]] = {
    Campaign: CampaignRow,
    Trial: TrialRow,
    Attempt: AttemptRow,
    Event: EventRow,
    Measurement: MeasurementRow,
    Failure: FailureRow,
    RecipeStats: StandingRow,
}
"""The table of each kind of value; their fields are its columns."""
SHOULD_BE = "Input should be "


class DamagedCell(StoreUnusable):
    """A cell that cannot be what was stored; `Database` adds the store and its newest backup."""

    def __init__(self, table: type[Base], row_id: object, column: str, why: str) -> None:
        self.finding = f"{table.__tablename__} row {row_id}, {column}: {why}"
        self.place = (table.__tablename__, row_id, column, why)
        super().__init__(
            f"the store is damaged: {self.finding}",
            hint="restore a backup: frontrunner store copy --store BACKUP --to NEW.db",
        )


def columns_of(table: type[Base], row: Any) -> Columns:
    """Return the checked columns of a row, with JSON and enums read; raises `DamagedCell` and
    `LaterVersion`.
    """
    found = row._mapping
    return _read(table, found[_columns(table)[0].name], _adapter(table), dict(found))


def cell(column: InstrumentedAttribute[Any], held: object, row_id: object) -> Any:
    """Return one checked cell of the row with this key; raises as `columns_of` does."""
    table = cast("type[Base]", column.class_)
    return _read(table, row_id, _adapter(table, column.key), {column.key: held})[column.key]


def interpreted(table: type[Base], row_id: object, column: str, reader: Callable[[], T]) -> T:
    """Return what `reader` makes of a cell's content; raises `DamagedCell` where it raises."""
    try:
        return reader()
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise DamagedCell(table, row_id, column, str(error) or type(error).__name__) from error


def _read(
    table: type[Base], row_id: object, adapter: TypeAdapter[Columns], found: Columns
) -> Columns:
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        column, why = _explained(error)
        raise DamagedCell(table, row_id, column, why) from error
    except LaterVersion as error:
        raise LaterVersion(f"{table.__tablename__} row {row_id}: {error.message}") from error


def _explained(error: ValidationError) -> tuple[str, str]:
    """Return the column that pydantic complains about first, and what is wrong with it."""
    first = error.errors(include_url=False)[0]
    column, *inside = map(str, first["loc"])
    raised = first.get("ctx", {}).get("error")
    if isinstance(raised, ValidationError):  # of a document within
        within = raised.errors(include_url=False)[0]
        inside, first = list(map(str, within["loc"])), within
        raised = within.get("ctx", {}).get("error")
    of = f"{'.'.join(inside)}: " if inside else ""
    if isinstance(raised, Exception):
        return column, f"{of}{getattr(raised, 'message', raised)}"
    if not first["msg"].startswith(SHOULD_BE):
        return column, f"{of}{first['msg']}"
    return (
        column,
        f"{of}it holds {shown(first['input'])}, expected {first['msg'].removeprefix(SHOULD_BE)}",
    )


@cache
def _columns(table: type[Base]) -> list[Column[Any]]:
    return list(table.metadata.tables[table.__tablename__].columns)


@cache
def _adapter(table: type[Base], name: str | None = None) -> TypeAdapter[Columns]:
    """Return the strict reader of a table's rows, or of one column."""
    types = {}
    for column in _columns(table):
        if name in (None, column.name):
            kind = column.info.get("holds", PLAIN_TYPES.get(column.type.python_type))
            types[column.name] = kind | None if column.nullable else kind
    row: Any = cast(Any, TypedDict)("Row", types)
    row.__pydantic_config__ = ConfigDict(strict=True, arbitrary_types_allowed=True)
    return TypeAdapter(row)


@cache
def _sources(kind: Any) -> tuple[tuple[str, str], ...]:
    names = [column.name for column in _columns(TABLES[kind])]
    of_field = {name.removesuffix("_json"): name for name in names} | {name: name for name in names}
    of_field["problem_summary"] = "problem_json"
    return tuple(
        (field.name, of_field[field.name]) for field in fields(kind) if field.name in of_field
    )


def value_of(kind: type[T], row: Any) -> T:
    """Read a row of the table that holds values of this kind (`TABLES`); NULL losses and times
    become NaN.
    """
    found = columns_of(TABLES[kind], row)
    values = {name: found[column] for name, column in _sources(cast(Any, kind))}
    if kind is Campaign:
        values["driver"] = (
            None if row.driver_host is None else f"{row.driver_host}:{row.driver_pid}"
        )
    return kind(**values)


def values(
    connection: Connection,
    kind: type[T],
    *wanted: ColumnElement[bool],
    order: Any = None,
    limit: int | None = None,
) -> list[T]:
    """Read the rows that meet the conditions from the table of this kind, by default in the order
    of their keys.
    """
    table = TABLES[kind]
    query = (
        select(table)
        .where(*wanted)
        .order_by(table.__table__.c[0] if order is None else order)
        .limit(limit)
    )
    return [value_of(kind, row) for row in connection.execute(query)]


def outcome_to_columns(outcome: Outcome) -> Columns:
    """Return the columns of `MeasurementRow` or `FailureRow`; side figures that are not finite
    become NULL.

    Raises ValueError where a number that recipes are ranked or charged by is missing or not finite.
    """
    refuse_unrankable(outcome)
    return {
        column: _stored(getattr(outcome, name))
        for name, column in _sources(cast(Any, type(outcome)))
    }


def _stored(value: object) -> object:
    if isinstance(value, tuple):
        return canonical_json([_stored(item) for item in value])
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, str):
        return storable(without_secrets(value))
    return finite_or_none(value) if isinstance(value, float) else value


def storable(text: str) -> str:
    """Return the text without what PostgreSQL or UTF-8 cannot hold: NUL characters and unpaired
    surrogates.
    """
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def has_table(connection: Connection, table: type[Base]) -> bool:
    """Return whether the store has a table; remembered per connection, since tables are never
    removed.
    """
    remembered = f"frontrunner_has_{table.__tablename__}"
    if not connection.info.get(remembered):
        connection.info[remembered] = inspect(connection).has_table(table.__tablename__)
    return bool(connection.info[remembered])


def outcomes_by_attempt(connection: Connection, attempts: Select[int]) -> dict[int, Outcome]:
    """Return the outcomes of attempts by their ids."""
    found: dict[int, Outcome] = {}
    beside: dict[int, dict[str, Any]] = defaultdict(dict)
    for table, column in (
        (EndingRow, EndingRow.ended),
        (TelemetryRow, TelemetryRow.telemetry_json),
    ):
        if has_table(connection, table):
            for row in connection.execute(select(table).where(table.attempt_id.in_(attempts))):
                beside[row.attempt_id][column.key.removesuffix("_json")] = columns_of(table, row)[
                    column.key
                ]
    for measured in connection.execute(
        select(MeasurementRow).where(MeasurementRow.attempt_id.in_(attempts))
    ):
        found[measured.attempt_id] = replace(
            value_of(Measurement, measured), **beside[measured.attempt_id]
        )
    for failed in connection.execute(select(FailureRow).where(FailureRow.attempt_id.in_(attempts))):
        found[failed.attempt_id] = value_of(Failure, failed)
    return found


def recorded_by_trial(
    connection: Connection, trial_ids: Sequence[int]
) -> dict[int, list[Measurement]]:
    """Return the measurements of trials, by their ids, of which something is recorded beside their
    steps: by ranks, or why the probe ended.
    """
    found: dict[int, list[Measurement]] = defaultdict(list)
    tables = [one for one in (TelemetryRow, EndingRow) if has_table(connection, one)]
    if tables:
        for start in range(0, len(trial_ids), MOST_BOUND):
            mine = AttemptRow.trial_id.in_(trial_ids[start : start + MOST_BOUND])
            recorded = (
                select(AttemptRow.trial_id)
                .join(table, table.attempt_id == AttemptRow.id)
                .where(mine)
                for table in tables
            )
            theirs = AttemptRow.trial_id.in_(union(*recorded))
            outcomes = outcomes_by_attempt(connection, select(AttemptRow.id).where(theirs))
            for row in connection.execute(select(AttemptRow.id, AttemptRow.trial_id).where(theirs)):
                if isinstance(outcome := outcomes.get(row.id), Measurement):
                    found[row.trial_id].append(outcome)
    return found


def read_attempts(
    connection: Connection, *wanted: ColumnElement[bool], newest: int | None = None
) -> list[AttemptOutcome]:
    """Return the attempts that meet the conditions (of these the `newest`), with trials and
    outcomes, oldest first.
    """
    ids = select(AttemptRow.id).where(*wanted)
    if newest is not None:
        ids = ids.order_by(AttemptRow.id.desc()).limit(newest)
    with_ids = (
        connection.execute(ids.limit(MOST_BOUND + 1) if newest is None else ids).scalars().all()
    )
    if len(with_ids) <= MOST_BOUND:  # else each of the queries below finds them again
        ids = select(AttemptRow.id).where(AttemptRow.id.in_(with_ids))
    mine = AttemptRow.id.in_(ids)
    of_trials = TrialRow.id.in_(select(AttemptRow.trial_id).where(mine))
    trials = {trial.id: trial for trial in values(connection, Trial, of_trials)}
    outcomes = outcomes_by_attempt(connection, ids)
    found = []
    for row in connection.execute(select(AttemptRow).where(mine).order_by(AttemptRow.id)):
        if row.trial_id not in trials:
            why = f"its campaign has no trial with the id {row.trial_id}"
            raise DamagedCell(AttemptRow, row.id, "trial_id", why)
        one = AttemptOutcome(
            trial=trials[row.trial_id], attempt=value_of(Attempt, row), outcome=outcomes.get(row.id)
        )
        found.append(one)
    return found


def attempts_by_trial(
    connection: Connection, *wanted: ColumnElement[bool]
) -> dict[int, list[AttemptOutcome]]:
    """Return the attempts that meet the conditions by their trials' ids, oldest first."""
    found: dict[int, list[AttemptOutcome]] = {}
    for one in read_attempts(connection, *wanted):
        found.setdefault(one.trial.id, []).append(one)
    return found


def finished_attempts(connection: Connection, *wanted: ColumnElement[bool]) -> list[Probed]:
    """Return the attempts that meet the conditions and have ended, in the order in which they
    did.
    """
    found = []
    for one in read_attempts(connection, *wanted, AttemptRow.state != AttemptState.RUNNING):
        if one.outcome is None:
            raise DamagedCell(
                AttemptRow, one.attempt.id, "state", "it has ended, and no outcome of it is stored"
            )
        found.append(Probed(trial=one.trial, attempt=one.attempt, outcome=one.outcome))
    return sorted(found, key=lambda one: (one.attempt.finished_at or "", one.attempt.id))


def provenance_by_attempt(
    connection: Connection, *wanted: ColumnElement[bool]
) -> dict[int, Provenance]:
    """Return what the attempts that meet the conditions ran with, where it was recorded."""
    query = select(AttemptRow.id, AttemptRow.provenance_id, ProvenanceRow.provenance_json)
    joined = query.join(ProvenanceRow, ProvenanceRow.id == AttemptRow.provenance_id).where(*wanted)
    return {
        row.id: cell(ProvenanceRow.provenance_json, row.provenance_json, row.provenance_id)
        for row in connection.execute(joined)
    }


def trials_by_state(
    connection: Connection, campaign_ids: Sequence[int]
) -> dict[int, dict[TrialState, int]]:
    """Count the trials of each campaign by state, zeros included."""
    counted = connection.execute(
        select(
            TrialRow.campaign_id,
            TrialRow.state,
            func.count().label("trials"),
            func.min(TrialRow.id).label("first"),
        )
        .where(TrialRow.campaign_id.in_(campaign_ids))
        .group_by(TrialRow.campaign_id, TrialRow.state)
    )
    found = {campaign_id: dict.fromkeys(TrialState, 0) for campaign_id in campaign_ids}
    for row in counted:
        found[row.campaign_id][cell(TrialRow.state, row.state, row.first)] = row.trials
    return found


def unreadable_rows(connection: Connection) -> Iterator[tuple[Any, DamagedCell | LaterVersion]]:
    """Read every row; yield each that is damaged, or that a later version wrote, with the error."""
    for mapper in Base.registry.mappers:
        for row in (
            connection.execute(select(mapper.class_))
            if has_table(connection, mapper.class_)
            else ()
        ):
            try:
                columns_of(mapper.class_, row)
            except (DamagedCell, LaterVersion) as error:
                yield row, error
