"""The tables, columns and indexes that a store's revision has, and the revision itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Inspector, inspect, text

FIRST = "0001"
NEWEST_KNOWN = "0004"
REVISIONS = "alembic_version"
REVISION_FORM = re.compile(r"[0-9]{4}", re.ASCII)

TABLES: dict[str, tuple[str, str]] = {
    "store": ("0001", "id schema_version created_at"),
    "campaigns": (
        "0001",
        "id name state state_reason strategy spec_json problem_json legal_recipes outcomes driver_seconds"
        " node_seconds_spent epoch driver_host driver_pid driven_since lease_until created_at updated_at",
    ),
    "provenance": ("0001", "id campaign_id recorded_at provenance_json"),
    "trials": ("0001", "id campaign_id number recipe_id recipe_json state outcome_number"),
    "attempts": (
        "0001",
        "id campaign_id trial_id number state run_folder provenance_id started_at finished_at",
    ),
    "measurements": (
        "0001",
        "attempt_id step_times_s_json tokens_per_step tokens_per_s model_tflops_per_device hardware_tflops_per_device"
        " mfu peak_memory_bytes_json losses_json node_seconds build_time_s first_step_time_s",
    ),
    "failures": ("0001", "attempt_id kind message log_tail log_path node_seconds"),
    "standings": (
        "0001",
        "trial_id campaign_id recipe_id repeats step_time_s_median step_time_spread tokens_per_s"
        " model_tflops_per_device hardware_tflops_per_device mfu peak_memory_bytes_max_rank",
    ),
    "events": ("0001", "id campaign_id at kind data_json"),
    "endings": ("0003", "attempt_id ended"),
    "holders": ("0004", "campaign_id epoch boot_id started_ticks"),
}
"""Table -> the revision that it came with, and its columns."""
INDEXES = {
    "provenance": ("ix_provenance_campaign_id",),
    "trials": ("trials_by_state", "trials_by_recipe"),
    "attempts": ("attempts_by_state",),
    "standings": ("standings_by_tokens", "standings_by_tflops", "standings_by_memory", "standings_by_step_time"),
    "events": ("events_by_campaign",),
}
"""Table -> the names of its indexes, since the first revision."""
UNIQUE = {
    "campaigns": (("name",),),
    "trials": (("campaign_id", "recipe_id"), ("campaign_id", "number"), ("campaign_id", "outcome_number")),
    "attempts": (("trial_id", "number"),),
}
"""Table -> the columns that no two rows have alike, since the first revision."""


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What a store has of what its revision says.

    `missing` and `odd_revision` are rows of findings. Where not `can_be_asked`, a table or column that the rules ask
    for is not there.
    """

    revision: str
    tables: frozenset[str]
    is_later: bool
    can_be_asked: bool
    odd_revision: tuple[dict[str, Any], ...]
    missing: tuple[dict[str, Any], ...]


def structure_of(connection: Connection) -> Structure:
    """What is there, by the database's own word. A store that states no revision has the first."""
    found = inspect(connection)
    tables = frozenset(found.get_table_names())
    stated = [FIRST]
    if REVISIONS in tables:
        stated = [str(row[0]) for row in connection.execute(text(f"SELECT version_num FROM {REVISIONS}"))]  # noqa: S608
    is_one = len(stated) == 1 and REVISION_FORM.fullmatch(stated[0]) is not None and stated[0] >= FIRST
    revision = stated[0] if is_one else FIRST
    lacking = _lacking(found, tables, revision)
    return Structure(
        revision=revision,
        tables=tables,
        is_later=revision > NEWEST_KNOWN,
        can_be_asked=all("index" in row or (row["table"] not in tables and _is_later_table(row)) for row in lacking),
        odd_revision=() if is_one else ({"campaign": None, "stated": ", ".join(sorted(stated)) or "none"},),
        missing=tuple(lacking),
    )


def _is_later_table(row: dict[str, Any]) -> bool:
    return TABLES[row["table"]][0] != FIRST


def _lacking(found: Inspector, tables: frozenset[str], revision: str) -> list[dict[str, Any]]:
    lacking: list[dict[str, Any]] = []
    for table, (since, columns) in TABLES.items():
        about = {"campaign": None, "table": table}
        if table not in tables:
            lacking += [about | {"missing": "all of it"}] if since <= revision else []
            continue
        there = {column["name"] for column in found.get_columns(table)}
        lacking += [about | {"missing": f"column {column}"} for column in columns.split() if column not in there]
        named = {index["name"] for index in found.get_indexes(table)}
        lacking += [about | {"index": name} for name in INDEXES.get(table, ()) if name not in named]
        alike = {tuple(sorted(unique["column_names"])) for unique in found.get_unique_constraints(table)}
        wanted = UNIQUE.get(table, ())
        lacking += [about | {"index": f"unique {', '.join(key)}"} for key in wanted if tuple(sorted(key)) not in alike]
    return lacking
