"""The schema's constraints, tried against the database itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from enum import StrEnum
from pathlib import Path

import pytest

from frontrunner.results.outcome import FailureKind, Measurement
from frontrunner.results.records import timestamp
from frontrunner.results.schema import Base
from frontrunner.results.states import AttemptState, CampaignState, TrialState
from frontrunner.results.store import open_store
from frontrunner.spaces.recipe import Recipe

GUARDED: dict[str, tuple[str, type[StrEnum]]] = {
    "campaigns": ("state", CampaignState),
    "trials": ("state", TrialState),
    "attempts": ("state", AttemptState),
    "failures": ("kind", FailureKind),
}


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A store with one campaign, a measured trial with NaN losses, and a running one, seen through
    plain SQL.
    """
    path = tmp_path / "store.db"
    with open_store(str(path)) as store:
        campaign = store.create_campaign(
            name="c", spec_json="{}", legal_recipes=1, problem_summary={}
        )
        writer = store.drive(store.acquire_lease(campaign.id, host="another-host.example", pid=1))
        first = writer.start_attempt(
            writer.propose("aaaa", Recipe(devices=1, micro_batch_seqs=1, accumulation=1)),
            run_folder="1",
        )
        nan = float("nan")
        outcome = Measurement(
            step_times_s=(1.0,),
            tokens_per_step=1,
            tokens_per_s=1.0,
            model_tflops_per_device=1.0,
            hardware_tflops_per_device=1.0,
            mfu=nan,
            peak_memory_bytes=(1,),
            losses=(nan, 1.0, float("-inf")),
            node_seconds=1.0,
            build_time_s=nan,
            first_step_time_s=nan,
        )
        writer.finish_attempt(first, outcome, retry=False)
        writer.start_attempt(
            writer.propose("bbbb", Recipe(devices=1, micro_batch_seqs=2, accumulation=1)),
            run_folder="2",
        )
    opened = sqlite3.connect(path, isolation_level=None)
    opened.execute("PRAGMA foreign_keys = ON")
    yield opened
    opened.close()


def test_the_checks_know_the_same_words_as_the_enums(connection: sqlite3.Connection) -> None:
    for table, (column, words) in GUARDED.items():
        (sql,) = connection.execute(
            "SELECT sql FROM sqlite_master WHERE name = ?", (table,)
        ).fetchone()
        listed = sql.split(f"CHECK ({column} IN (", 1)[1].split(")", 1)[0]
        assert {word.strip().strip("'") for word in listed.split(",")} == {
            word.value for word in words
        }, table


def test_every_state_column_is_guarded() -> None:
    with_state = {
        table.name
        for table in Base.metadata.tables.values()
        if "state" in table.columns or "kind" in table.columns
    }
    assert with_state - {"events"} == set(GUARDED)


@pytest.mark.parametrize(
    "forbidden",
    [
        "UPDATE campaigns SET state = 'asleep'",
        "UPDATE campaigns SET state = 'running', lease_until = NULL, driver_host = NULL",
        "UPDATE campaigns SET driver_host = NULL",
        "UPDATE trials SET state = 'measured' WHERE recipe_id = 'bbbb'",
        "UPDATE trials SET outcome_number = NULL WHERE recipe_id = 'aaaa'",
        "UPDATE trials SET recipe_id = 'aaaa'",
        "UPDATE trials SET number = 1",
        "UPDATE attempts SET finished_at = NULL WHERE state = 'measured'",
        "UPDATE attempts SET state = 'lost' WHERE state = 'running'",
        "UPDATE measurements SET tokens_per_s = NULL",
        "INSERT INTO failures VALUES (1, 'sulking', '', '', NULL, 0)",
        "INSERT INTO store VALUES (2, 1, '')",
        "DELETE FROM campaigns",
        "DELETE FROM trials",
    ],
)
def test_what_must_not_be_cannot_be_stored(connection: sqlite3.Connection, forbidden: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(forbidden)


def test_no_nan_reaches_the_file(connection: sqlite3.Connection) -> None:
    row = connection.execute(
        "SELECT losses_json, mfu, build_time_s, first_step_time_s FROM measurements"
    ).fetchone()
    assert row == ("[null,1.0,null]", None, None, None)


def test_the_file_is_set_up_to_survive(connection: sqlite3.Connection) -> None:
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_a_connection_flushes_every_commit(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "s.db")) as store, store.database.write() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one() == 1


def test_timestamps_are_utc_of_one_width_and_refuse_unknown_zones() -> None:
    east = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(east) == "2026-01-02T01:04:05.000000+00:00"
    with pytest.raises(ValueError, match="time zone"):
        timestamp(datetime(2026, 1, 2))
