"""Rows of the store's tables as values: the one place where either becomes the other.

Each column is checked against the type that is declared with it. A row that no version of frontrunner wrote raises
`DamagedCell`, which names table, row and column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, TypeVar, cast

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, func, inspect, or_, select
from sqlalchemy.orm import InstrumentedAttribute
from typing_extensions import TypedDict

from frontrunner.results.columns import LaterVersion
from frontrunner.results.outcome import (
    Failure,
    Measurement,
    Outcome,
    ProbeEnding,
    RecipeStats,
    refuse_unrankable,
)
from frontrunner.results.records import Attempt, Campaign, Event, Trial
from frontrunner.results.redaction import without_secrets
from frontrunner.results.schema import (
    AttemptRow,
    Base,
    CampaignRow,
    EndingRow,
    EventRow,
    FailureRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
)
from frontrunner.results.states import AttemptState, TrialState
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import NotFound, StoreUnusable, did_you_mean, shown

T = TypeVar("T")
Columns = dict[str, Any]
PLAIN_TYPES = {int: int, str: Annotated[str, Field(min_length=0)]}
"""Types of columns that declare none; a constraint makes pydantic look into text, which may not be UTF-8."""
SHOULD_BE = "Input should be "
"""How pydantic begins what it expected."""


class DamagedCell(StoreUnusable):
    """A cell that cannot be what was stored. `Database` adds the store and its newest backup."""

    def __init__(self, table: type[Base], row_id: object, column: str, why: str) -> None:
        self.finding = f"{table.__tablename__} row {row_id}, {column}: {why}"
        self.place = (table.__tablename__, row_id, column, why)
        super().__init__(
            f"the store is damaged: {self.finding}", hint="restore a backup: frontrunner store copy BACKUP NEW.db"
        )


def columns_of(table: type[Base], row: Any) -> Columns:
    """Return the checked columns of a row that has all of the table's, with JSON and enums read.

    Raises `DamagedCell`, and `LaterVersion` for a document of a later version.
    """
    found = row._mapping
    return _read(table, found[_key(table)], _row_adapter(table), dict(found))


def cell(column: InstrumentedAttribute[Any], held: object, row_id: object) -> Any:
    """Return one checked cell of the row with this key; raises as `columns_of` does."""
    table = cast("type[Base]", column.class_)
    return _read(table, row_id, _cell_adapter(table, column.key), {column.key: held})[column.key]


def interpreted(table: type[Base], row_id: object, column: str, reader: Callable[[], T]) -> T:
    """Return what `reader` makes of a cell's content; raises `DamagedCell` where it raises."""
    try:
        return reader()
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise DamagedCell(table, row_id, column, str(error) or type(error).__name__) from error


def _read(table: type[Base], row_id: object, adapter: TypeAdapter[Columns], found: Columns) -> Columns:
    try:
        return adapter.validate_python(found)
    except ValidationError as error:
        column, why = _explained(error)
        raise DamagedCell(table, row_id, column, why) from error
    except LaterVersion as error:
        raise LaterVersion(f"{table.__tablename__} row {row_id}: {error.message}") from error


def _explained(error: ValidationError) -> tuple[str, str]:
    """Return the column that pydantic complains about first, and what it holds and should hold."""
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
    return column, f"{of}it holds {shown(first['input'])}, expected {first['msg'].removeprefix(SHOULD_BE)}"


@cache
def _key(table: type[Base]) -> str:
    return str(next(column.name for column in _columns(table) if column.primary_key))


def _columns(table: type[Base]) -> Any:
    return table.metadata.tables[table.__tablename__].columns


def _names(table: type[Base]) -> list[str]:
    return [column.name for column in _columns(table)]


@cache
def _row_adapter(table: type[Base]) -> TypeAdapter[Columns]:
    return _adapter({column.name: column for column in _columns(table)})


@cache
def _cell_adapter(table: type[Base], column: str) -> TypeAdapter[Columns]:
    return _adapter({column: _columns(table)[column]})


def _adapter(columns: Mapping[str, Any]) -> TypeAdapter[Columns]:
    """Return the strict reader of rows with these columns; others in the row are left out."""
    types = {}
    for name, column in columns.items():
        kind = column.info.get("holds", PLAIN_TYPES.get(column.type.python_type))
        types[name] = kind | None if column.nullable else kind
    row: Any = cast(Any, TypedDict)("Row", types)
    row.__pydantic_config__ = ConfigDict(strict=True, arbitrary_types_allowed=True)
    return TypeAdapter(row)


@cache
def _sources(kind: Any, table: type[Base]) -> tuple[tuple[str, str], ...]:
    """Return (field, column) for the fields of a dataclass that are columns of the table."""
    fields_of_columns = {name.removesuffix("_json"): name for name in _names(table)}
    fields_of_columns |= {name: name for name in _names(table)}
    return tuple((f.name, fields_of_columns[f.name]) for f in fields(kind) if f.name in fields_of_columns)


def _value(kind: type[T], table: type[Base], row: Any, **others: Any) -> T:
    found = columns_of(table, row)
    return kind(**{name: found[column] for name, column in _sources(cast(Any, kind), table)}, **others)


def to_campaign(row: Any) -> Campaign:
    """Read a row of `campaigns`."""
    found = columns_of(CampaignRow, row)
    driver = None if row.driver_host is None else f"{row.driver_host}:{row.driver_pid}"
    columns = {name: found[column] for name, column in _sources(Campaign, CampaignRow)}
    return Campaign(**columns, problem_summary=found["problem_json"], driver=driver)


def to_trial(row: Any) -> Trial:
    """Read a row of `trials`."""
    return _value(Trial, TrialRow, row)


def to_attempt(row: Any) -> Attempt:
    """Read a row of `attempts`."""
    return _value(Attempt, AttemptRow, row)


def to_event(row: Any) -> Event:
    """Read a row of `events`."""
    return _value(Event, EventRow, row)


def to_measurement(row: Any) -> Measurement:
    """Read a row of `measurements`; NULL losses and times become NaN."""
    return _value(Measurement, MeasurementRow, row)


def to_failure(row: Any) -> Failure:
    """Read a row of `failures`."""
    return _value(Failure, FailureRow, row)


def to_stats(row: Any) -> RecipeStats:
    """Read a row of `standings`."""
    return _value(RecipeStats, StandingRow, row)


def measurement_to_columns(measurement: Measurement) -> Columns:
    """Return the columns of `MeasurementRow`. Losses and side figures that are not finite become NULL.

    Raises ValueError where a number that recipes are ranked by is missing or not finite: such numbers are
    an implausible measurement, which is stored as a failure.
    """
    refuse_unrankable(measurement)
    return {
        "step_times_s_json": canonical_json(list(measurement.step_times_s)),
        "tokens_per_step": measurement.tokens_per_step,
        "tokens_per_s": measurement.tokens_per_s,
        "model_tflops_per_device": measurement.model_tflops_per_device,
        "hardware_tflops_per_device": measurement.hardware_tflops_per_device,
        "mfu": finite_or_none(measurement.mfu),
        "peak_memory_bytes_json": canonical_json(list(measurement.peak_memory_bytes)),
        "losses_json": canonical_json([finite_or_none(value) for value in measurement.losses]),
        "node_seconds": measurement.node_seconds,
        "build_time_s": finite_or_none(measurement.build_time_s),
        "first_step_time_s": finite_or_none(measurement.first_step_time_s),
    }


def failure_to_columns(failure: Failure) -> Columns:
    """Return the columns of `FailureRow`; raises ValueError where the node-seconds are not finite."""
    refuse_unrankable(failure)
    return {
        "kind": failure.kind.value,
        "message": storable(without_secrets(failure.message)),
        "log_tail": storable(without_secrets(failure.log_tail)),
        "log_path": failure.log_path,
        "node_seconds": failure.node_seconds,
    }


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None where it is missing, NaN or infinite."""
    return value if value is not None and math.isfinite(value) else None


def storable(text: str) -> str:
    """Return the text without what PostgreSQL or UTF-8 cannot hold: NUL characters and unpaired surrogates."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def has_table(connection: Connection, table: type[Base]) -> bool:
    """Return whether the store has a table; remembered per connection, since tables are never removed."""
    remembered = f"frontrunner_has_{table.__tablename__}"
    if not connection.info.get(remembered):
        connection.info[remembered] = inspect(connection).has_table(table.__tablename__)
    return bool(connection.info[remembered])


def find_campaign(connection: Connection, name: str | None, *, store: str) -> Campaign:
    """Return the named campaign, or for None the one created last; `NotFound` names the nearest."""
    query = select(CampaignRow).order_by(CampaignRow.id.desc()).limit(1)
    row = connection.execute(query if name is None else query.where(CampaignRow.name == name)).first()
    if row is not None:
        return to_campaign(row)
    rows = connection.execute(select(CampaignRow.id, CampaignRow.name)).all()
    names = [cell(CampaignRow.name, row.name, row.id) for row in rows]
    if not names:
        raise NotFound(f"there is no campaign in {store}", hint="start one: frontrunner launch CAMPAIGN.toml")
    raise NotFound(f"there is no campaign {name!r} in {store}", hint=did_you_mean(str(name), names))


def outcomes_by_attempt(connection: Connection, attempts: Select[int]) -> dict[int, Outcome]:
    """Return the outcomes of the attempts whose ids a query selects; running and lost attempts may have none."""
    found: dict[int, Outcome] = {}
    endings: dict[int, ProbeEnding] = {}
    if has_table(connection, EndingRow):
        for row in connection.execute(select(EndingRow).where(EndingRow.attempt_id.in_(attempts))):
            endings[row.attempt_id] = columns_of(EndingRow, row)["ended"]
    for measured in connection.execute(select(MeasurementRow).where(MeasurementRow.attempt_id.in_(attempts))):
        found[measured.attempt_id] = replace(to_measurement(measured), ended=endings.get(measured.attempt_id))
    for failed in connection.execute(select(FailureRow).where(FailureRow.attempt_id.in_(attempts))):
        found[failed.attempt_id] = to_failure(failed)
    return found


def outcome_of(outcomes: Mapping[int, Outcome], attempt: Any) -> Outcome:
    """Return the outcome of an ended attempt, given its row; raises `DamagedCell` where none is stored."""
    if attempt.id not in outcomes:
        raise DamagedCell(AttemptRow, attempt.id, "state", "it has ended, and no outcome of it is stored")
    return outcomes[attempt.id]


def trial_of(trials: Mapping[int, Trial], attempt: Any) -> Trial:
    """Return the trial of an attempt, given its row; raises `DamagedCell` where its campaign has none."""
    if attempt.trial_id not in trials:
        why = f"its campaign has no trial with the id {attempt.trial_id}"
        raise DamagedCell(AttemptRow, attempt.id, "trial_id", why)
    return trials[attempt.trial_id]


def final_attempts(campaign_id: int) -> Select[int]:
    """Select the ids of a campaign's measured attempts, and of the last failed one of each failed trial."""
    mine = AttemptRow.campaign_id == campaign_id
    failed = (
        select(func.max(AttemptRow.id))
        .join(TrialRow, TrialRow.id == AttemptRow.trial_id)
        .where(mine, AttemptRow.state == AttemptState.FAILED, TrialRow.state == TrialState.FAILED)
        .group_by(AttemptRow.trial_id)
    )
    measured = AttemptRow.state == AttemptState.MEASURED
    return select(AttemptRow.id).where(mine, or_(measured, AttemptRow.id.in_(failed)))


def trials_by_state(connection: Connection, campaign_ids: Sequence[int]) -> dict[int, dict[TrialState, int]]:
    """Count the trials of each campaign by state, zeros included."""
    counted = connection.execute(
        select(TrialRow.campaign_id, TrialRow.state, func.count().label("trials"), func.min(TrialRow.id).label("first"))
        .where(TrialRow.campaign_id.in_(campaign_ids))
        .group_by(TrialRow.campaign_id, TrialRow.state)
    )
    found = {campaign_id: dict.fromkeys(TrialState, 0) for campaign_id in campaign_ids}
    for row in counted:
        found[row.campaign_id][cell(TrialRow.state, row.state, row.first)] = row.trials
    return found


def refuse_damaged_rows(connection: Connection) -> None:
    """Read every row; raises `DamagedCell` for the first that is damaged."""
    for mapper in Base.registry.mappers:
        table = mapper.class_
        for row in connection.execute(select(table)) if has_table(connection, table) else ():
            columns_of(table, row)
