"""Check of a store: silent over what the code wrote, and by name over each thing that may not
be.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from frontrunner.results.check import Check, check
from frontrunner.results.outcome import FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import as_table, canonical_json, recipe_id
from frontrunner.spaces.sharding import Sharding
from support.small_space import small_problem
from support.store_contract import (
    RECIPE,
    StoreContract,
    begin,
    create,
    failure,
    lease_elsewhere,
    measurement,
)

TAMPERING: dict[str, tuple[str, str]] = {
    "an outcome was deleted": (
        "DELETE FROM measurements WHERE attempt_id = 1",
        "one outcome per attempt",
    ),
    "an outcome was doubled": (
        "INSERT INTO failures VALUES (1, 'crashed', '', '', NULL, 0)",
        "one outcome per attempt",
    ),
    "a loss counts as a failure": (
        "UPDATE attempts SET state = 'failed' WHERE state = 'lost'",
        "one outcome per attempt",
    ),
    "two attempts run": (
        (
            "INSERT INTO attempts SELECT 99, campaign_id, trial_id, 2, state, '', NULL, started_at,"
            " NULL FROM attempts WHERE state = 'running'"
        ),
        "trials follow their attempts",
    ),
    "a running attempt was forgotten": (
        "UPDATE trials SET state = 'queued' WHERE state = 'running'",
        "trials follow their attempts",
    ),
    "measured without a measurement": (
        "UPDATE trials SET state = 'measured', outcome_number = 9 WHERE recipe_id = 'eeee'",
        "trials follow their attempts",
    ),
    "failed after a measurement": (
        "UPDATE trials SET state = 'failed' WHERE recipe_id = 'aaaa'",
        "trials follow their attempts",
    ),
    "a standing is missing": ("DELETE FROM standings", "one standing per ranked trial"),
    "a standing of another recipe": (
        "UPDATE standings SET recipe_id = 'zzzz'",
        "one standing per ranked trial",
    ),
    "a standing is too fast": (
        "UPDATE standings SET tokens_per_s = 2 * tokens_per_s",
        "standings pool",
    ),
    "a standing counts more repeats": ("UPDATE standings SET repeats = 7", "standings pool"),
    "a standing without noise": ("UPDATE standings SET step_time_spread = 0", "standings pool"),
    "a standing without its MFU": ("UPDATE standings SET mfu = NULL", "standings pool"),
    "a rate of other steps": (
        "UPDATE measurements SET tokens_per_s = 1e6; UPDATE standings SET tokens_per_s = 1e6",
        "standings pool",
    ),
    "an attempt of another campaign": (
        "UPDATE attempts SET campaign_id = 2 WHERE id = 1",
        "attempts are their trials'",
    ),
    "a trial is missing": ("UPDATE trials SET number = 40 WHERE number = 1", "trials are numbered"),
    "an attempt is missing": (
        "UPDATE attempts SET number = 3 WHERE state = 'lost'",
        "trials are numbered",
    ),
    "outcomes were not counted": (
        "UPDATE campaigns SET outcomes = 1 WHERE id = 1",
        "outcomes are counted",
    ),
    "outcomes of nothing": ("UPDATE campaigns SET outcomes = 99", "outcomes are counted"),
    "time is missing": (
        "UPDATE campaigns SET node_seconds_spent = 1 WHERE id = 1",
        "node-seconds add up",
    ),
    "a lease without a host": ("UPDATE campaigns SET driver_host = NULL", "constraints"),
    "an outcome without a number": (
        "UPDATE trials SET outcome_number = NULL WHERE recipe_id = 'bbbb'",
        "constraints",
    ),
    "a row about another store": ("UPDATE store SET id = 2", "constraints"),
    "an orphan": ("DELETE FROM trials WHERE recipe_id = 'bbbb'", "references"),
    "a holder of no campaign": ("INSERT INTO holders VALUES (99, 1, 'boot', 1)", "references"),
    "a state of no kind": ("UPDATE campaigns SET state = 'finishee'", "rows are read"),
    "a rate below zero": ("UPDATE measurements SET tokens_per_s = -1", "rows are read"),
    "a name that leads elsewhere": (
        "UPDATE campaigns SET name = '../../etc' WHERE id = 1",
        "rows are read",
    ),
    "a time without a zone": ("UPDATE events SET at = '2026-03-01 12:00:00'", "rows are read"),
    "half a text": ("UPDATE trials SET recipe_json = substr(recipe_json, 1, 20)", "rows are read"),
    "bytes in a recipe": (
        "UPDATE trials SET recipe_json = CAST(x'7bff7d' AS TEXT)",
        "rows are read",
    ),
    "bytes in a log": ("UPDATE failures SET log_tail = CAST(x'c3' AS TEXT)", "rows are read"),
    "a recipe with another version's field": (
        """UPDATE trials SET recipe_json = replace(recipe_json, '{"acc', '{"later":1,"acc')""",
        "documents are known",
    ),
    "recipes under each other's ids": (
        (
            "UPDATE trials SET recipe_json = (SELECT recipe_json FROM trials o WHERE o.campaign_id"
            " = 2 AND o.number = 2) WHERE campaign_id = 2 AND number = 1"
        ),
        "recipes have their ids",
    ),
    "another model": (
        """UPDATE campaigns SET spec_json = replace(spec_json, '"layers":4', '"layers":8')""",
        "recipes have their ids",
    ),
    "a problem without a cluster": (
        """UPDATE campaigns SET spec_json = replace(spec_json, '"cluster":', '"clusters":')""",
        "recipes have their ids",
    ),
    "a table was dropped": ("DROP TABLE measurements", "the tables"),
    "a column was dropped": ("ALTER TABLE standings DROP COLUMN mfu", "the tables"),
    "an index was dropped": ("DROP INDEX trials_by_state", "the tables"),
    "a key was dropped": (
        (
            "CREATE TABLE t AS SELECT * FROM attempts; DROP TABLE attempts; ALTER TABLE t RENAME TO"
            " attempts"
        ),
        "the tables",
    ),
    "no revision": ("DELETE FROM alembic_version", "one revision"),
    "two revisions": ("INSERT INTO alembic_version VALUES ('0001')", "one revision"),
    "a later revision": ("UPDATE alembic_version SET version_num = '0999'", "known revision"),
}
"""What is done to a store past our code, and the rule that has to name it."""
ODD = {"documents are known", "known revision"}
"""Rules that a store of a later version breaks."""


def fill(store: Store) -> None:
    """Two campaigns with a trial in every state; the second states its problem, and its driver has
    let go.
    """
    writer = store.drive(lease_elsewhere(store, create(store, "first")))
    writer.set_state(CampaignState.RUNNING, reason="")
    for name, outcome in (("aaaa", measurement(0.5)), ("bbbb", failure())):
        writer.finish_attempt(
            writer.start_attempt(begin(writer, name), run_folder=name), outcome, retry=False
        )
    lost = writer.start_attempt(begin(writer, "cccc"), run_folder="c.1")
    writer.finish_attempt(lost, failure(FailureKind.LOST), retry=True)
    writer.finish_attempt(
        writer.start_attempt(begin(writer, "cccc"), run_folder="c.2"), measurement(), retry=False
    )
    again = writer.repeat(begin(writer, "aaaa"))
    writer.finish_attempt(
        writer.start_attempt(again, run_folder="a.2"), measurement(0.3), retry=False
    )
    writer.start_attempt(begin(writer, "dddd"), run_folder="d")
    begin(writer, "eeee")
    writer.event("tick")
    writer.event("tock")
    problem = small_problem()
    spec_json = canonical_json({"search": {"strategy": "random"}, "problem": as_table(problem)})
    made = store.create_campaign(
        name="second", spec_json=spec_json, legal_recipes=2, problem_summary={}
    )
    second = store.drive(lease_elsewhere(store, made))
    second.set_state(CampaignState.RUNNING, reason="")
    for recipe in (
        RECIPE,
        replace(RECIPE, rank_order="dp-tp-pp", sharding=Sharding(optimizer=2, gradients=2)),
    ):
        attempt = second.start_attempt(
            second.propose(recipe_id(problem, recipe), recipe), run_folder=str(recipe)
        )
        second.finish_attempt(attempt, measurement(), retry=False)
    second.release(CampaignState.FINISHED, reason="done")


def checked(store: Store) -> Check:
    with store.database.read() as connection:
        return check(connection, store=store.url)


class TestEveryStore(StoreContract):
    def test_check_finds_nothing_in_what_the_code_wrote(self, store: Store) -> None:
        assert checked(store).findings == ()
        fill(store)
        found = checked(store)
        assert (found.findings, found.is_sound) == ((), True)
        assert (found.campaigns, found.attempts) == (2, 8)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "store.db"
    with open_store(str(path)) as store:
        fill(store)
    return path


@pytest.mark.parametrize("case", TAMPERING)
def test_check_names_what_may_not_be(case: str, filled: Path, tmp_path: Path) -> None:
    statement, rule = TAMPERING[case]
    found = tampered(filled, tmp_path, statement)
    named = {finding.rule: finding for finding in found.findings}
    assert rule in named, named
    assert named[rule].count >= len(named[rule].rows) >= 1
    assert found.is_sound == (rule in ODD)


def tampered(filled: Path, folder: Path, statement: str) -> Check:
    path = folder / "store.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(statement)
    with open_store(str(path), read_only=True) as store:
        return checked(store)


def test_check_of_a_later_store_calls_what_it_added_odd(filled: Path, tmp_path: Path) -> None:
    found = tampered(
        filled,
        tmp_path,
        "UPDATE alembic_version SET version_num = '0999'; CREATE TABLE later (x); DROP INDEX"
        " trials_by_state; UPDATE campaigns SET state = 'archived' WHERE id = 2; UPDATE campaigns"
        " SET outcomes = 99 WHERE id = 1",
    )
    later = "as of a later version"
    assert {finding.rule: finding.odd_as for finding in found.findings} == {
        "known revision": later,
        "the tables": later,
        "rows are read": later,
        "outcomes are counted": None,
    }
