"""The tables of the first stores, which had no revision of their own.

What was INTEGER in those, for memory and tokens, is BIGINT here: in SQLite, which alone held them, both have 64 bits.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ATTEMPT_STATES = "state IN ('running', 'measured', 'failed', 'lost')"
CAMPAIGN_STATES = "state IN ('created', 'running', 'paused', 'finished', 'failed', 'stopped')"
TRIAL_STATES = "state IN ('queued', 'running', 'measured', 'failed')"
FAILURE_KINDS = (
    "kind IN ('out-of-memory', 'not-finite', 'hung', 'too-slow', 'crashed', 'lost', 'implausible',"
    " 'illegal-for-engine')"
)


def text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """A column of text."""
    return sa.Column(name, sa.String(), nullable=nullable)


def number(name: str, *, nullable: bool = False) -> sa.Column[int]:
    """A column of whole numbers of 32 bits or more."""
    return sa.Column(name, sa.Integer(), nullable=nullable)


def real(name: str, *, nullable: bool = False) -> sa.Column[float]:
    """A column of floating-point numbers."""
    return sa.Column(name, sa.Float(), nullable=nullable)


def key() -> sa.Column[int]:
    """The table's own number of a row."""
    return sa.Column("id", sa.Integer(), primary_key=True)


def reference(name: str, target: str, *, primary_key: bool = False, nullable: bool = False) -> sa.Column[int]:
    """A column that holds the key of another table."""
    return sa.Column(name, sa.Integer(), sa.ForeignKey(target), primary_key=primary_key, nullable=nullable)


def upgrade() -> None:
    """Make the tables in an empty database."""
    _campaigns()
    _trials()
    _outcomes()
    _standings()
    op.create_table(
        "events", key(), reference("campaign_id", "campaigns.id"), text("at"), text("kind"), text("data_json")
    )
    op.create_index("events_by_campaign", "events", ["campaign_id", "id"])


def _campaigns() -> None:
    one_row = sa.CheckConstraint("id = 1", name="one_row")
    op.create_table("store", key(), number("schema_version"), text("created_at"), one_row)
    op.create_table(
        "campaigns",
        key(),
        *(text("name"), text("state"), text("state_reason"), text("strategy"), text("spec_json"), text("problem_json")),
        *(number("legal_recipes"), number("outcomes"), real("driver_seconds"), real("node_seconds_spent")),
        *(number("epoch"), text("driver_host", nullable=True), number("driver_pid", nullable=True)),
        *(text("driven_since", nullable=True), text("lease_until", nullable=True)),
        *(text("created_at"), text("updated_at")),
        sa.UniqueConstraint("name"),
        sa.CheckConstraint(CAMPAIGN_STATES, name="state_known"),
        sa.CheckConstraint("state <> 'running' OR lease_until IS NOT NULL", name="running_is_leased"),
        sa.CheckConstraint("(driver_host IS NULL) = (lease_until IS NULL)", name="lease_has_driver"),
    )
    recorded = (text("recorded_at"), text("provenance_json"))
    op.create_table("provenance", key(), reference("campaign_id", "campaigns.id"), *recorded)
    op.create_index("ix_provenance_campaign_id", "provenance", ["campaign_id"])


def _trials() -> None:
    op.create_table(
        "trials",
        key(),
        reference("campaign_id", "campaigns.id"),
        *(number("number"), text("recipe_id"), text("recipe_json"), text("state")),
        number("outcome_number", nullable=True),
        sa.UniqueConstraint("campaign_id", "recipe_id"),
        sa.UniqueConstraint("campaign_id", "number"),
        sa.UniqueConstraint("campaign_id", "outcome_number"),
        sa.CheckConstraint(TRIAL_STATES, name="state_known"),
        sa.CheckConstraint(
            "(state IN ('measured', 'failed')) = (outcome_number IS NOT NULL)", name="final_is_numbered"
        ),
    )
    op.create_index("trials_by_state", "trials", ["campaign_id", "state"])
    op.create_index("trials_by_recipe", "trials", ["recipe_id"])
    op.create_table(
        "attempts",
        key(),
        *(reference("campaign_id", "campaigns.id"), reference("trial_id", "trials.id")),
        *(number("number"), text("state"), text("run_folder")),
        reference("provenance_id", "provenance.id", nullable=True),
        *(text("started_at"), text("finished_at", nullable=True)),
        sa.UniqueConstraint("trial_id", "number"),
        sa.CheckConstraint(ATTEMPT_STATES, name="state_known"),
        sa.CheckConstraint("(state = 'running') = (finished_at IS NULL)", name="final_has_time"),
    )
    op.create_index("attempts_by_state", "attempts", ["campaign_id", "state"])


def _outcomes() -> None:
    op.create_table(
        "measurements",
        reference("attempt_id", "attempts.id", primary_key=True),
        text("step_times_s_json"),
        sa.Column("tokens_per_step", sa.BigInteger(), nullable=False),
        *(real("tokens_per_s"), real("model_tflops_per_device"), real("hardware_tflops_per_device")),
        *(real("mfu", nullable=True), text("peak_memory_bytes_json"), text("losses_json"), real("node_seconds")),
        *(real("build_time_s", nullable=True), real("first_step_time_s", nullable=True)),
    )
    op.create_table(
        "failures",
        reference("attempt_id", "attempts.id", primary_key=True),
        *(text("kind"), text("message"), text("log_tail"), text("log_path", nullable=True), real("node_seconds")),
        sa.CheckConstraint(FAILURE_KINDS, name="kind_known"),
    )


def _standings() -> None:
    op.create_table(
        "standings",
        *(reference("trial_id", "trials.id", primary_key=True), reference("campaign_id", "campaigns.id")),
        *(text("recipe_id"), number("repeats"), real("step_time_s_median"), real("step_time_spread")),
        *(real("tokens_per_s"), real("model_tflops_per_device"), real("hardware_tflops_per_device")),
        real("mfu", nullable=True),
        sa.Column("peak_memory_bytes_max_rank", sa.BigInteger(), nullable=False),
    )
    for name, column in {
        "standings_by_tokens": "tokens_per_s",
        "standings_by_tflops": "model_tflops_per_device",
        "standings_by_memory": "peak_memory_bytes_max_rank",
        "standings_by_step_time": "step_time_s_median",
    }.items():
        op.create_index(name, "standings", ["campaign_id", column, "recipe_id"])
