"""Tables of the store, schema version 1, revision 0009, and what their columns hold.

Timestamps are ISO 8601 text in UTC with offset, JSON columns are text without NaN, and states are
guarded by CHECK constraints made from enums. `frontrunner.results.rows` reads the rows, and checks
them by these types.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache, lru_cache, partial
from typing import Annotated, Any, TypeVar, cast

import sqlalchemy as sa
from pydantic import AfterValidator, Field, Json, PlainValidator, TypeAdapter
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedColumn, mapped_column

from frontrunner.results.outcome import LARGEST, FailureKind, ProbeEnding, Telemetry
from frontrunner.results.provenance import Provenance
from frontrunner.results.records import timestamp
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import CAMPAIGN_NAME, StoreUnusable, shown
from frontrunner.spaces.model.model import Model
from frontrunner.spaces.recipe import Recipe, current_fields, plain_recipe, stored_recipe

SCHEMA_VERSION = 1
"""Incremented by a change that earlier versions of frontrunner cannot work with."""
REVISION = "0009"
"""Incremented by every change, which `frontrunner.results.database` then makes."""
FIRST_REVISION = "0001"
LATER_TABLES = frozenset({"deletions", "endings", "holders", "labels", "nodes", "telemetry"})
"""Tables added after the first revision, which a store opened read-only may lack."""


T = TypeVar("T")
RECIPES_KEPT = 8192


class LaterVersion(StoreUnusable):
    """A document that a later version of frontrunner wrote, with fields that this one does not
    know.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="upgrade frontrunner")
        self.finding = message


def recipe_to_json(recipe: Recipe) -> str:
    """Return every field of the recipe, as canonical JSON."""
    return canonical_json(stored_recipe(recipe))


@lru_cache(maxsize=RECIPES_KEPT)
def recipe_from_json(text: str) -> Recipe:
    """Read what `recipe_to_json` wrote; raises ValueError and `LaterVersion`."""
    return document(Recipe, text, names=current_fields)


def document(
    kind: type[T], text: str, *, names: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> T:
    """Read a dataclass from its JSON text, strictly; fields with a default may be missing.

    `names` replaces keys of earlier versions. Raises ValueError, and `LaterVersion` for fields that
    are not ours.
    """
    table = names(_TABLE.validate_json(text, strict=True))
    found: T = _adapter(cast(Any, kind)).validate_json(json.dumps(table), strict=True)
    _refuse_unknown(table, found)
    return found


def _refuse_unknown(table: Mapping[str, Any], found: object) -> None:
    known = found.keys() if isinstance(found, Model) else vars(found)
    written = plain_recipe(found).keys() if isinstance(found, Recipe) else known.keys()
    for name, value in table.items():
        if name not in known and written <= table.keys():
            raise LaterVersion(f"this version does not know {shown(name)}")
        if name not in known:
            raise ValueError(f"{shown(name)} is not known")
        if is_dataclass(known[name]):
            _refuse_unknown(value, known[name])


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def holds(kind: Any, *arguments: Any) -> MappedColumn[Any]:
    """Return a column whose values are of a pydantic type."""
    return mapped_column(*arguments, info={"holds": kind})


def one_of(words: type[StrEnum]) -> MappedColumn[Any]:
    """Return a column that holds one of an enum's values."""
    return holds(Annotated[words, Field(strict=False)])


def _time(value: str) -> str:
    if timestamp(datetime.fromisoformat(value)) != value:
        raise ValueError("expected a time in UTC, with offset and microseconds")
    return value


def _checked_table(value: str) -> str:
    _TABLE.validate_json(value, strict=True)
    return value


_TABLE = TypeAdapter(dict[str, Any])
_NAN_IF_NULL = AfterValidator(lambda value: math.nan if value is None else value)
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_AboveZero = Annotated[_Finite, Field(gt=0)]
_NotNegative = Annotated[_Finite, Field(ge=0)]
_Size = Annotated[int, Field(ge=0, le=LARGEST)]

CampaignName = Annotated[str, holds(Annotated[str, Field(pattern=f"^{CAMPAIGN_NAME.pattern}$")])]
Time = Annotated[str, holds(Annotated[str, AfterValidator(_time)])]
Count = Annotated[int, holds(_Size)]
BigCount = Annotated[int, holds(_Size, sa.BigInteger)]
Peak = Annotated[
    int, holds(Annotated[_Size, AfterValidator(lambda size: size or None)], sa.BigInteger)
]
"""Bytes; 0 is stored where they are unknown, and read as None."""
Ordinal = Annotated[int, holds(Annotated[int, Field(ge=1, le=LARGEST)])]
Figure = Annotated[float, holds(_NotNegative)]
Rate = Annotated[float, holds(_AboveZero)]
SideFigure = Annotated[float, holds(Annotated[_NotNegative | None, _NAN_IF_NULL])]
"""Stored as NULL where it is not finite."""
TableText = Annotated[str, holds(Annotated[str, AfterValidator(_checked_table)])]
"""A JSON object that is kept as text."""
TableOf = Annotated[str, holds(Json[dict[str, Any]])]
StepTimes = Annotated[str, holds(Json[Annotated[tuple[_AboveZero, ...], Field(min_length=1)]])]
Sizes = Annotated[str, holds(Json[Annotated[tuple[_Size, ...], Field(min_length=1)]])]
NodeNames = Annotated[str, holds(Json[Annotated[tuple[str, ...], Field(min_length=1)]])]
Tags = Annotated[str, holds(Json[tuple[str, ...]])]
Troubles = Annotated[str, holds(Json[dict[str, str]])]
Losses = Annotated[str, holds(Json[tuple[Annotated[_Finite | None, _NAN_IF_NULL], ...]])]
RecipeText = Annotated[str, holds(Annotated[Recipe, PlainValidator(recipe_from_json)])]
ProvenanceText = Annotated[
    str, holds(Annotated[Provenance, PlainValidator(partial(document, Provenance))])
]
TelemetryText = Annotated[
    str, holds(Annotated[Telemetry, PlainValidator(partial(document, Telemetry))])
]


def checked(column: str, words: type[StrEnum]) -> sa.CheckConstraint:
    """Return a CHECK that `column` holds one of the enum's values."""
    listed = ", ".join(f"'{word.value}'" for word in words)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Base(DeclarativeBase):
    """The tables of one store."""


REVISIONS = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)
"""The table with the revision of the others, named as by Alembic, which earlier versions used."""


class StoreRow(Base):
    """The store itself: one row."""

    __tablename__ = "store"
    __table_args__ = (sa.CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    schema_version: Mapped[int]
    created_at: Mapped[Time]


class CampaignRow(Base):
    """One search, with the lease of the driver that may write to it.

    `epoch` counts the leases given out: a driver writes only under the current one. `outcomes`
    counts the final outcomes, and numbers them.
    """

    __tablename__ = "campaigns"
    __table_args__ = (
        checked("state", CampaignState),
        sa.CheckConstraint(
            "state <> 'running' OR lease_until IS NOT NULL", name="running_is_leased"
        ),
        sa.CheckConstraint(
            "(driver_host IS NULL) = (lease_until IS NULL)", name="lease_has_driver"
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[CampaignName] = mapped_column(unique=True)
    state: Mapped[str] = one_of(CampaignState)
    state_reason: Mapped[str] = mapped_column(default="")
    strategy: Mapped[str]
    spec_json: Mapped[TableText]
    problem_json: Mapped[TableOf]
    legal_recipes: Mapped[Count]
    outcomes: Mapped[Count] = mapped_column(default=0)
    driver_seconds: Mapped[Figure] = mapped_column(default=0.0)
    node_seconds_spent: Mapped[Figure] = mapped_column(default=0.0)
    epoch: Mapped[Count] = mapped_column(default=0)
    driver_host: Mapped[str | None]
    driver_pid: Mapped[Ordinal | None]
    driven_since: Mapped[Time | None]
    lease_until: Mapped[Time | None]
    created_at: Mapped[Time]
    updated_at: Mapped[Time]


class LabelsRow(Base):
    """What people say of a campaign, and since when lists leave it out; most campaigns have no such
    row.
    """

    __tablename__ = "labels"

    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"), primary_key=True)
    tags_json: Mapped[Tags]
    note: Mapped[str]
    hidden_at: Mapped[Time | None]


class HolderRow(Base):
    """The process to which a campaign's lease of one epoch was given; leases of earlier versions
    have no such row.
    """

    __tablename__ = "holders"

    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"), primary_key=True)
    epoch: Mapped[Ordinal] = mapped_column(primary_key=True)
    boot_id: Mapped[str]
    started_ticks: Mapped[BigCount]


class ProvenanceRow(Base):
    """Environment of one run of a driver; attempts refer to the run that started them."""

    __tablename__ = "provenance"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"), index=True)
    recorded_at: Mapped[Time]
    provenance_json: Mapped[ProvenanceText]


class TrialRow(Base):
    """One recipe of a campaign. `outcome_number` orders the final outcomes as they were recorded,
    from 1.
    """

    __tablename__ = "trials"
    __table_args__ = (
        sa.UniqueConstraint("campaign_id", "recipe_id"),
        sa.UniqueConstraint("campaign_id", "number"),
        sa.UniqueConstraint("campaign_id", "outcome_number"),
        sa.Index("trials_by_state", "campaign_id", "state"),
        sa.Index("trials_by_recipe", "recipe_id"),
        checked("state", TrialState),
        sa.CheckConstraint(
            "(state IN ('measured', 'failed')) = (outcome_number IS NOT NULL)",
            name="final_is_numbered",
        ),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"))
    number: Mapped[Ordinal]
    recipe_id: Mapped[str]
    recipe_json: Mapped[RecipeText]
    state: Mapped[str] = one_of(TrialState)
    outcome_number: Mapped[Ordinal | None]


class AttemptRow(Base):
    """One try at a probe."""

    __tablename__ = "attempts"
    __table_args__ = (
        sa.UniqueConstraint("trial_id", "number"),
        sa.Index("attempts_by_state", "campaign_id", "state"),
        checked("state", AttemptState),
        sa.CheckConstraint("(state = 'running') = (finished_at IS NULL)", name="final_has_time"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"))
    trial_id: Mapped[int] = mapped_column(sa.ForeignKey("trials.id"))
    number: Mapped[Ordinal]
    state: Mapped[str] = one_of(AttemptState)
    run_folder: Mapped[str]
    provenance_id: Mapped[int | None] = mapped_column(sa.ForeignKey("provenance.id"))
    started_at: Mapped[Time]
    finished_at: Mapped[Time | None]


class MeasurementRow(Base):
    """Measurement of one attempt; the columns are the fields of `Measurement`, NULL where one was
    not finite.
    """

    __tablename__ = "measurements"

    attempt_id: Mapped[int] = mapped_column(sa.ForeignKey("attempts.id"), primary_key=True)
    step_times_s_json: Mapped[StepTimes]
    tokens_per_step: Mapped[BigCount]
    tokens_per_s: Mapped[Rate]
    model_tflops_per_device: Mapped[Figure]
    hardware_tflops_per_device: Mapped[Figure]
    mfu: Mapped[Figure | None]
    peak_memory_bytes_json: Mapped[Sizes]
    losses_json: Mapped[Losses]
    node_seconds: Mapped[Figure]
    build_time_s: Mapped[SideFigure | None]
    first_step_time_s: Mapped[SideFigure | None]


class EndingRow(Base):
    """Why one attempt measured no further step; attempts of the first stores have no such row."""

    __tablename__ = "endings"
    __table_args__ = (checked("ended", ProbeEnding),)

    attempt_id: Mapped[int] = mapped_column(sa.ForeignKey("attempts.id"), primary_key=True)
    ended: Mapped[str] = one_of(ProbeEnding)


class TelemetryRow(Base):
    """What the ranks of one attempt recorded beside their steps; attempts of earlier versions have
    no such row.
    """

    __tablename__ = "telemetry"

    attempt_id: Mapped[int] = mapped_column(sa.ForeignKey("attempts.id"), primary_key=True)
    telemetry_json: Mapped[TelemetryText]


class NodesRow(Base):
    """The nodes of one attempt, and what speaks against some; attempts on one machine alone have no
    such row.
    """

    __tablename__ = "nodes"

    attempt_id: Mapped[int] = mapped_column(sa.ForeignKey("attempts.id"), primary_key=True)
    names_json: Mapped[NodeNames]
    troubles_json: Mapped[Troubles]


class FailureRow(Base):
    """Why one attempt has no measurement."""

    __tablename__ = "failures"
    __table_args__ = (checked("kind", FailureKind),)

    attempt_id: Mapped[int] = mapped_column(sa.ForeignKey("attempts.id"), primary_key=True)
    kind: Mapped[str] = one_of(FailureKind)
    message: Mapped[str]
    log_tail: Mapped[str]
    log_path: Mapped[str | None]
    node_seconds: Mapped[Figure]


class StandingRow(Base):
    """A recipe's measurements in one campaign, pooled: what the rankings read.

    It repeats what the measurements say, so that ordering 100,000 of them is a walk along an index.
    It is rewritten in the transaction that adds a measurement, and removed when the trial ends as
    failed.
    """

    __tablename__ = "standings"
    __table_args__ = (
        sa.Index(  # in the order in which the Pareto front is walked
            "standings_by_tokens",
            "campaign_id",
            sa.text("tokens_per_s DESC"),
            "peak_memory_bytes_max_rank",
            "recipe_id",
            "trial_id",
        ),
        sa.Index("standings_by_tflops", "campaign_id", "model_tflops_per_device", "recipe_id"),
        sa.Index("standings_by_memory", "campaign_id", "peak_memory_bytes_max_rank", "recipe_id"),
        sa.Index("standings_by_step_time", "campaign_id", "step_time_s_median", "recipe_id"),
    )

    trial_id: Mapped[int] = mapped_column(sa.ForeignKey("trials.id"), primary_key=True)
    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"))
    recipe_id: Mapped[str]
    repeats: Mapped[Ordinal]
    step_time_s_median: Mapped[Rate]
    step_time_spread: Mapped[Figure]
    tokens_per_s: Mapped[Rate]
    model_tflops_per_device: Mapped[Figure]
    hardware_tflops_per_device: Mapped[Figure]
    mfu: Mapped[Figure | None]
    peak_memory_bytes_max_rank: Mapped[Peak]


class EventRow(Base):
    """Something that happened in a campaign; ids rise in the order of recording."""

    __tablename__ = "events"
    __table_args__ = (sa.Index("events_by_campaign", "campaign_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(sa.ForeignKey("campaigns.id"))
    at: Mapped[Time]
    kind: Mapped[str]
    data_json: Mapped[TableOf]


class DeletionRow(Base):
    """A campaign that was deleted, with its rows in all other tables, and who asked for that."""

    __tablename__ = "deletions"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign: Mapped[CampaignName]
    at: Mapped[Time]
    user: Mapped[str]
