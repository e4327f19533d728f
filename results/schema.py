"""The store's tables, schema version 1, revision 0004.

Timestamps are ISO 8601 text in UTC with offset, JSON columns are text without NaN, and states are guarded by
CHECK constraints made from the enums in `frontrunner.results.states`.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from frontrunner.results.outcome import FailureKind, ProbeEnding
from frontrunner.results.states import AttemptState, CampaignState, TrialState

SCHEMA_VERSION = 1
"""Raised by a change that earlier versions of frontrunner could not live with."""
REVISION = "0004"
"""Raised by every change; each has a module in `migrations/versions`."""
FIRST_REVISION = "0001"
OLDEST_READABLE_SCHEMA = 1
"""The oldest schema version of which this version can read every table that it knows."""


def one_of(column: str, words: type[StrEnum]) -> CheckConstraint:
    """A CHECK that `column` holds one of the enum's values."""
    listed = ", ".join(f"'{word.value}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


class Base(DeclarativeBase):
    """The tables of one store."""


REVISIONS = Table("alembic_version", MetaData(), Column("version_num", String(32), primary_key=True))
"""Alembic's own table, with the revision of the others; apart from them, since it is not ours to change."""


class StoreRow(Base):
    """The store itself: one row."""

    __tablename__ = "store"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    schema_version: Mapped[int]
    created_at: Mapped[str]


class CampaignRow(Base):
    """One search, with the lease of the driver that may write to it.

    `epoch` counts the leases given out: a driver writes only while it is still the one its lease was given
    under. `outcomes` counts the final outcomes, and numbers them.
    """

    __tablename__ = "campaigns"
    __table_args__ = (
        one_of("state", CampaignState),
        CheckConstraint("state <> 'running' OR lease_until IS NOT NULL", name="running_is_leased"),
        CheckConstraint("(driver_host IS NULL) = (lease_until IS NULL)", name="lease_has_driver"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str]
    state_reason: Mapped[str] = mapped_column(default="")
    strategy: Mapped[str]
    spec_json: Mapped[str]
    problem_json: Mapped[str]
    legal_recipes: Mapped[int]
    outcomes: Mapped[int] = mapped_column(default=0)
    driver_seconds: Mapped[float] = mapped_column(default=0.0)
    node_seconds_spent: Mapped[float] = mapped_column(default=0.0)
    epoch: Mapped[int] = mapped_column(default=0)
    driver_host: Mapped[str | None]
    driver_pid: Mapped[int | None]
    driven_since: Mapped[str | None]
    lease_until: Mapped[str | None]
    created_at: Mapped[str]
    updated_at: Mapped[str]


class HolderRow(Base):
    """The process to which a campaign's lease of one epoch was given, as `frontrunner.results.holders.Birth` names it.

    Leases of earlier versions, and of machines that do not tell it, have no such row.
    """

    __tablename__ = "holders"

    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    boot_id: Mapped[str]
    started_ticks: Mapped[int] = mapped_column(BigInteger)


class ProvenanceRow(Base):
    """What one run of a driver ran with; attempts refer to the run that started them."""

    __tablename__ = "provenance"

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"), index=True)
    recorded_at: Mapped[str]
    provenance_json: Mapped[str]


class TrialRow(Base):
    """One recipe of a campaign. `outcome_number` orders the final outcomes as they were recorded, from 1."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("campaign_id", "recipe_id"),
        UniqueConstraint("campaign_id", "number"),
        UniqueConstraint("campaign_id", "outcome_number"),
        Index("trials_by_state", "campaign_id", "state"),
        Index("trials_by_recipe", "recipe_id"),
        one_of("state", TrialState),
        CheckConstraint("(state IN ('measured', 'failed')) = (outcome_number IS NOT NULL)", name="final_is_numbered"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    number: Mapped[int]
    recipe_id: Mapped[str]
    recipe_json: Mapped[str]
    state: Mapped[str]
    outcome_number: Mapped[int | None]


class AttemptRow(Base):
    """One try at a probe."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("trial_id", "number"),
        Index("attempts_by_state", "campaign_id", "state"),
        one_of("state", AttemptState),
        CheckConstraint("(state = 'running') = (finished_at IS NULL)", name="final_has_time"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"))
    number: Mapped[int]
    state: Mapped[str]
    run_folder: Mapped[str]
    provenance_id: Mapped[int | None] = mapped_column(ForeignKey("provenance.id"))
    started_at: Mapped[str]
    finished_at: Mapped[str | None]


class MeasurementRow(Base):
    """What one attempt measured; the columns are the fields of `Measurement`, NULL where one was not finite."""

    __tablename__ = "measurements"

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    step_times_s_json: Mapped[str]
    tokens_per_step: Mapped[int] = mapped_column(BigInteger)
    tokens_per_s: Mapped[float]
    model_tflops_per_device: Mapped[float]
    hardware_tflops_per_device: Mapped[float]
    mfu: Mapped[float | None]
    peak_memory_bytes_json: Mapped[str]
    losses_json: Mapped[str]
    node_seconds: Mapped[float]
    build_time_s: Mapped[float | None]
    first_step_time_s: Mapped[float | None]


class EndingRow(Base):
    """Why one attempt measured no further step; attempts of the first stores of schema 1 have no such row."""

    __tablename__ = "endings"
    __table_args__ = (one_of("ended", ProbeEnding),)

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    ended: Mapped[str]


class FailureRow(Base):
    """Why one attempt has no measurement."""

    __tablename__ = "failures"
    __table_args__ = (one_of("kind", FailureKind),)

    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    kind: Mapped[str]
    message: Mapped[str]
    log_tail: Mapped[str]
    log_path: Mapped[str | None]
    node_seconds: Mapped[float]


class StandingRow(Base):
    """A recipe's measurements in one campaign, pooled: what the rankings read.

    It repeats what the measurements say, so that ordering 100,000 of them is a walk along an index. It is
    rewritten in the transaction that adds a measurement, and removed when the trial ends as failed.
    """

    __tablename__ = "standings"
    __table_args__ = (
        Index(  # in the order in which the Pareto front is walked
            "standings_by_tokens",
            "campaign_id",
            text("tokens_per_s DESC"),
            "peak_memory_bytes_max_rank",
            "recipe_id",
            "trial_id",
        ),
        Index("standings_by_tflops", "campaign_id", "model_tflops_per_device", "recipe_id"),
        Index("standings_by_memory", "campaign_id", "peak_memory_bytes_max_rank", "recipe_id"),
        Index("standings_by_step_time", "campaign_id", "step_time_s_median", "recipe_id"),
    )

    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    recipe_id: Mapped[str]
    repeats: Mapped[int]
    step_time_s_median: Mapped[float]
    step_time_spread: Mapped[float]
    tokens_per_s: Mapped[float]
    model_tflops_per_device: Mapped[float]
    hardware_tflops_per_device: Mapped[float]
    mfu: Mapped[float | None]
    peak_memory_bytes_max_rank: Mapped[int] = mapped_column(BigInteger)


class EventRow(Base):
    """Something worth telling that happened in a campaign; ids rise in the order of recording."""

    __tablename__ = "events"
    __table_args__ = (Index("events_by_campaign", "campaign_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    campaign_id: Mapped[int] = mapped_column(ForeignKey("campaigns.id"))
    at: Mapped[str]
    kind: Mapped[str]
    data_json: Mapped[str]
