"""The checker of stores: silent over what the code wrote, and by name over each thing that may not be."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from frontrunner.results.audit.check import Check, check
from frontrunner.results.audit.rules import RULES
from frontrunner.results.outcome import FailureKind
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from support.store_contract import StoreContract, begin, create, failure, lease_elsewhere, measurement

TAMPERING: dict[str, tuple[str, str]] = {
    "an outcome was deleted": ("DELETE FROM measurements WHERE attempt_id = 1", "one outcome an attempt"),
    "an outcome was doubled": ("INSERT INTO failures VALUES (1, 'crashed', '', '', NULL, 0)", "one outcome an attempt"),
    "a running attempt has one": (
        "INSERT INTO failures SELECT id, 'crashed', '', '', NULL, 0 FROM attempts WHERE state = 'running'",
        "one outcome an attempt",
    ),
    "a loss counts as a failure": ("UPDATE attempts SET state = 'failed' WHERE state = 'lost'", "lost is lost"),
    "two attempts run": (
        "INSERT INTO attempts SELECT 99, campaign_id, trial_id, 2, state, '', NULL, started_at, NULL"
        " FROM attempts WHERE state = 'running'",
        "one running attempt",
    ),
    "an attempt was forgotten": ("UPDATE trials SET state = 'queued' WHERE state = 'running'", "one running attempt"),
    "measured by nobody": (
        "UPDATE trials SET state = 'measured', outcome_number = 9 WHERE recipe_id = 'eeee'",
        "measured is measured",
    ),
    "failed after all": ("UPDATE trials SET state = 'failed' WHERE recipe_id = 'aaaa'", "failed has failed"),
    "a rate below zero": ("UPDATE measurements SET tokens_per_s = -1", "figures are possible"),
    "a standing is missing": ("DELETE FROM standings", "one standing a ranked trial"),
    "a standing is another's": ("UPDATE standings SET recipe_id = 'zzzz'", "standings are their trials'"),
    "a standing flatters": ("UPDATE standings SET tokens_per_s = 2 * tokens_per_s", "standings pool"),
    "memory was made up": ("UPDATE standings SET peak_memory_bytes_max_rank = 1", "standings pool"),
    "an attempt went astray": ("UPDATE attempts SET campaign_id = 2 WHERE id = 1", "attempts are their trials'"),
    "a trial is missing": ("UPDATE trials SET number = 40 WHERE number = 1", "trials are counted"),
    "an attempt is missing": ("UPDATE attempts SET number = 3 WHERE state = 'lost'", "attempts are counted"),
    "outcomes were not counted": ("UPDATE campaigns SET outcomes = 1 WHERE id = 1", "outcomes are counted"),
    "time was given away": ("UPDATE campaigns SET node_seconds_spent = 1 WHERE id = 1", "node-seconds add up"),
    "a lease without an end": ("UPDATE campaigns SET lease_until = NULL", "leases are whole"),
    "driven without a lease": ("UPDATE campaigns SET epoch = 0", "driven under a lease"),
    "a holder of no lease": (
        "INSERT INTO holders SELECT id, epoch + 1, 'boot', 1 FROM campaigns WHERE id = 1",
        "holders held",
    ),
    "a holder of no campaign": ("INSERT INTO holders VALUES (99, 1, 'boot', 1)", "holders.campaign_id"),
    "an event out of order": (
        "UPDATE events SET at = '2020-01-01T00:00:00.000000+00:00' WHERE id = 2",
        "events in order",
    ),
    "an orphan": ("DELETE FROM trials WHERE recipe_id = 'bbbb'", "attempts.trial_id"),
    "a time of nowhere": ("UPDATE events SET at = '2026-03-01 12:00:00'", "events.at"),
    "NaN in a text": ("UPDATE measurements SET losses_json = '[NaN]'", "text is JSON"),
    "times cut short": ("UPDATE measurements SET step_times_s_json = '[1,'", "text is JSON"),
    "no times": ("UPDATE measurements SET step_times_s_json = '[]'", "text is JSON"),
    "times under names": ("UPDATE measurements SET step_times_s_json = '{}'", "standings pool"),
    "no memory": ("UPDATE measurements SET peak_memory_bytes_json = '[]'", "text is JSON"),
    "memory in words": ("UPDATE measurements SET peak_memory_bytes_json = '[\"much\", 1]'", "standings pool"),
    "half a text": ("UPDATE trials SET recipe_json = substr(recipe_json, 1, 20)", "text is JSON"),
}
"""What is done to a store past our code, and the rule that has to name it."""


def fill(store: Store) -> None:
    """Two campaigns with a trial in every state; the second one's driver has let go."""
    writer = store.drive(lease_elsewhere(store, create(store, "first")))
    writer.set_state(CampaignState.RUNNING, reason="")
    for recipe_id, outcome in (("aaaa", measurement(0.5)), ("bbbb", failure())):
        writer.finish_attempt(writer.start_attempt(begin(writer, recipe_id), run_folder="r"), outcome, retry=False)
    lost = writer.start_attempt(begin(writer, "cccc"), run_folder="r")
    writer.finish_attempt(lost, failure(FailureKind.LOST), retry=True)
    writer.finish_attempt(writer.start_attempt(begin(writer, "cccc"), run_folder="r"), measurement(), retry=False)
    again = writer.repeat(begin(writer, "aaaa"))
    writer.finish_attempt(writer.start_attempt(again, run_folder="r"), measurement(0.3), retry=False)
    writer.start_attempt(begin(writer, "dddd"), run_folder="r")
    begin(writer, "eeee")
    writer.event("tick")
    writer.event("tock")
    second = store.drive(lease_elsewhere(store, create(store, "second")))
    second.set_state(CampaignState.RUNNING, reason="")
    second.finish_attempt(second.start_attempt(begin(second, "aaaa"), run_folder="r"), measurement(), retry=False)
    second.release(CampaignState.FINISHED, reason="done")


def checked(store: Store, campaign_id: int | None = None) -> Check:
    with store.database.read() as connection:
        return check(connection, store=store.url, campaign_id=campaign_id)


class TestEveryStore(StoreContract):
    def test_what_the_code_wrote_holds(self, store: Store) -> None:
        assert checked(store).findings == ()
        fill(store)
        found = checked(store)
        assert (found.findings, found.is_sound) == ((), True)
        assert (found.campaigns, found.attempts) == (2, 7)

    def test_a_finding_of_one_campaign_is_not_another_s(self, store: Store) -> None:
        fill(store)
        with store.database.write() as connection:
            connection.exec_driver_sql("UPDATE campaigns SET node_seconds_spent = 1 WHERE id = 1")
        assert [finding.rule for finding in checked(store, 1).findings] == ["node-seconds add up"]
        assert checked(store, 2).findings == ()

    def test_rows_of_no_campaign_are_found_with_each(self, tmp_path: Path) -> None:
        with open_store(str(tmp_path / "store.db")) as store:
            fill(store)
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
            connection.execute("DELETE FROM attempts WHERE campaign_id = 1")
        with open_store(str(tmp_path / "store.db"), read_only=True) as store:
            assert "measurements.attempt_id" in [finding.rule for finding in checked(store, 2).findings]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "store.db"
    with open_store(str(path)) as store:
        fill(store)
    return path


@pytest.mark.parametrize("case", TAMPERING)
def test_what_may_not_be_is_named(case: str, filled: Path, tmp_path: Path) -> None:
    statement, rule = TAMPERING[case]
    path = tmp_path / "store.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)
    with open_store(str(path), read_only=True) as store:
        found = checked(store)
    named = {finding.rule: finding for finding in found.findings}
    assert rule in named
    assert named[rule].count >= len(named[rule].rows) >= 1
    assert found.is_sound == (rule == "events in order")


def test_the_checker_shares_nothing_with_the_store_s_code() -> None:
    """Its modules import neither the tables' model nor any code that reads or writes them."""
    folder = Path(__file__).parents[2] / "results" / "audit"
    for module in folder.glob("*.py"):
        ours = [line for line in module.read_text().splitlines() if line.startswith("from frontrunner")]
        assert all(line.startswith("from frontrunner.results.audit.") for line in ours), module.name


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
