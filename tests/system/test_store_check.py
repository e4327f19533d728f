"""The checker of stores: silent over what the code wrote, and by name over each thing that may not be."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

import pytest

from frontrunner.results.audit import identity, structure
from frontrunner.results.audit.rules import RULES
from frontrunner.results.check import Check, check
from frontrunner.results.outcome import FailureKind
from frontrunner.results.schema import REVISION, Base
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import canonical_json, recipe_id
from frontrunner.spaces.model import Model
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.sharding import Sharding
from support.small_space import small_problem
from support.store_contract import RECIPE, StoreContract, begin, create, failure, lease_elsewhere, measurement

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
    "a rate below zero": ("UPDATE measurements SET tokens_per_s = -1", "figures of measurements: tokens_per_s"),
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
    "a time of nowhere": ("UPDATE events SET at = '2026-03-01 12:00:00'", "times are times"),
    "NaN in a text": ("UPDATE measurements SET losses_json = '[NaN]'", "text is JSON"),
    "times cut short": ("UPDATE measurements SET step_times_s_json = '[1,'", "text is JSON"),
    "no times": ("UPDATE measurements SET step_times_s_json = '[]'", "text is JSON"),
    "times under names": ("UPDATE measurements SET step_times_s_json = '{}'", "standings pool"),
    "no memory": ("UPDATE measurements SET peak_memory_bytes_json = '[]'", "text is JSON"),
    "memory in words": ("UPDATE measurements SET peak_memory_bytes_json = '[\"much\", 1]'", "standings pool"),
    "half a text": ("UPDATE trials SET recipe_json = substr(recipe_json, 1, 20)", "text is JSON"),
    "a state of nowhere": ("UPDATE campaigns SET state = 'finishee'", "words of campaigns"),
    "a trial in limbo": ("UPDATE trials SET state = 'limbo' WHERE recipe_id = 'eeee'", "words of trials"),
    "an attempt in limbo": ("UPDATE attempts SET state = 'limbo' WHERE id = 1", "words of attempts"),
    "a failure of no kind": ("UPDATE failures SET kind = 'bored'", "words of failures"),
    "an ending of no kind": ("INSERT INTO endings VALUES (1, 'bored')", "words of endings"),
    "an outcome without a number": (
        "UPDATE trials SET outcome_number = NULL WHERE recipe_id = 'bbbb'",
        "final is numbered",
    ),
    "ended at no time": ("UPDATE attempts SET finished_at = NULL WHERE id = 1", "final has a time"),
    "a lease of nobody": ("UPDATE campaigns SET driver_host = NULL", "leases are whole"),
    "another store's row": ("UPDATE store SET id = 2", "one row about itself"),
    "recipes under each other's ids": (
        "UPDATE trials SET recipe_json = (SELECT recipe_json FROM trials o WHERE o.campaign_id = 2 AND o.number = 2)"
        " WHERE campaign_id = 2 AND number = 1",
        "recipes have their ids",
    ),
    "a recipe of nothing": ("UPDATE trials SET recipe_json = '{}' WHERE campaign_id = 2", "recipes have their ids"),
    "an id in both tables": (
        "UPDATE trials SET recipe_id = 'ffffffffffff' WHERE campaign_id = 2 AND number = 1;"
        " UPDATE standings SET recipe_id = 'ffffffffffff' WHERE trial_id = 6",
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
    "steps below zero": ("UPDATE measurements SET step_times_s_json = '[-1.0]'", "standings pool"),
    "memory below zero": (
        "UPDATE measurements SET peak_memory_bytes_json = '[-5, 2000000000]' WHERE attempt_id = 1",
        "standings pool",
    ),
    "a rate of other steps": (
        "UPDATE measurements SET tokens_per_s = 1e6; UPDATE standings SET tokens_per_s = 1e6",
        "standings pool",
    ),
    "a rate without end": (
        "UPDATE measurements SET tokens_per_s = 9e999; UPDATE standings SET tokens_per_s = 9e999",
        "figures of measurements: tokens_per_s",
    ),
    "a standing beyond its hardware": ("UPDATE standings SET hardware_tflops_per_device = 1", "standings pool"),
    "a standing without noise": ("UPDATE standings SET step_time_spread = 0", "standings pool"),
    "a standing with another MFU": ("UPDATE standings SET mfu = 0.5", "standings pool"),
    "a standing that hides its MFU": ("UPDATE standings SET mfu = NULL", "standings pool"),
    "above the peak": ("UPDATE measurements SET mfu = 5; UPDATE standings SET mfu = 5", "below the peak"),
    "outcomes of nothing": ("UPDATE campaigns SET outcomes = 99", "outcomes are counted"),
    "a driver of the future": (
        "UPDATE campaigns SET driver_seconds = -100",
        "figures of campaigns: driver_seconds, node_seconds_spent",
    ),
    "seconds in letters": (
        "UPDATE campaigns SET driver_seconds = 'abc'",
        "figures of campaigns: driver_seconds, node_seconds_spent",
    ),
    "a space of nothing": ("UPDATE campaigns SET legal_recipes = 0", "figures of campaigns: legal_recipes"),
    "a name that leads elsewhere": ("UPDATE campaigns SET name = '../../etc' WHERE id = 1", "names are names"),
    "a probe for two": ("UPDATE attempts SET run_folder = 'r'", "a folder a probe"),
    "a time of letters": ("UPDATE events SET at = 'aaaa-bb-ccTdd:ee:ff.gggggg+00:00'", "times are times"),
    "a month too many": ("UPDATE attempts SET finished_at = replace(finished_at, '-', '-9')", "times are times"),
    "a time before the campaign": (
        "UPDATE attempts SET started_at = '2000-01-01T00:00:00.000000+00:00'",
        "nothing before the campaign",
    ),
    "a table was dropped": ("DROP TABLE endings", "the tables"),
    "a table of every version was dropped": ("DROP TABLE measurements", "the tables"),
    "a column was dropped": ("ALTER TABLE standings DROP COLUMN mfu", "the tables"),
    "an index was dropped": ("DROP INDEX trials_by_state", "the tables"),
    "twice the same trial may be": (
        "CREATE TABLE t AS SELECT * FROM attempts; DROP TABLE attempts; ALTER TABLE t RENAME TO attempts",
        "the tables",
    ),
    "no revision": ("DELETE FROM alembic_version", "one revision"),
    "a revision of letters": ("UPDATE alembic_version SET version_num = 'zzz'", "one revision"),
    "two revisions": ("INSERT INTO alembic_version VALUES ('0001')", "one revision"),
    "a later revision": ("UPDATE alembic_version SET version_num = '0999'", "known revision"),
    "bytes in a recipe": ("UPDATE trials SET recipe_json = CAST(x'7bff7d' AS TEXT)", "text is text"),
    "bytes in a reason": ("UPDATE campaigns SET state_reason = CAST(x'ff' AS TEXT)", "text is text"),
    "bytes in a log": ("UPDATE failures SET log_tail = CAST(x'c3' AS TEXT)", "text is text"),
    "bytes that are no JSON either": (
        "UPDATE measurements SET losses_json = CAST(x'5bff5d' AS TEXT)",
        "text is JSON",
    ),
}
"""What is done to a store past our code, and the rule that has to name it."""


ODD = {"events in order", "nothing before the campaign", "known revision"}
"""The rules that something honest breaks as well."""


def fill(store: Store) -> None:
    """Two campaigns with a trial in every state; the second states its problem, and its driver has let go."""
    writer = store.drive(lease_elsewhere(store, create(store, "first")))
    writer.set_state(CampaignState.RUNNING, reason="")
    for name, outcome in (("aaaa", measurement(0.5)), ("bbbb", failure())):
        writer.finish_attempt(writer.start_attempt(begin(writer, name), run_folder=name), outcome, retry=False)
    lost = writer.start_attempt(begin(writer, "cccc"), run_folder="c.1")
    writer.finish_attempt(lost, failure(FailureKind.LOST), retry=True)
    writer.finish_attempt(writer.start_attempt(begin(writer, "cccc"), run_folder="c.2"), measurement(), retry=False)
    again = writer.repeat(begin(writer, "aaaa"))
    writer.finish_attempt(writer.start_attempt(again, run_folder="a.2"), measurement(0.3), retry=False)
    writer.start_attempt(begin(writer, "dddd"), run_folder="d")
    begin(writer, "eeee")
    writer.event("tick")
    writer.event("tock")
    problem = small_problem()
    spec_json = canonical_json({"search": {"strategy": "random"}, "problem": asdict(problem)})
    made = store.create_campaign(name="second", spec_json=spec_json, legal_recipes=2, problem_summary={})
    second = store.drive(lease_elsewhere(store, made))
    second.set_state(CampaignState.RUNNING, reason="")
    for recipe in (RECIPE, replace(RECIPE, rank_order="dp-tp-pp", sharding=Sharding(optimizer=2, gradients=2))):
        attempt = second.start_attempt(second.propose(recipe_id(problem, recipe), recipe), run_folder=str(recipe))
        second.finish_attempt(attempt, measurement(), retry=False)
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
        assert (found.campaigns, found.attempts) == (2, 8)

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
        connection.executescript(statement)
    with open_store(str(path), read_only=True) as store:
        found = checked(store)
    named = {finding.rule: finding for finding in found.findings}
    assert rule in named
    assert named[rule].count >= len(named[rule].rows) >= 1
    assert found.is_sound == (rule in ODD)


def test_the_checker_shares_nothing_with_the_store_s_code() -> None:
    """Its modules import neither the tables' model nor any code that reads or writes them."""
    folder = Path(__file__).parents[2] / "results" / "audit"
    for module in folder.glob("*.py"):
        ours = [line for line in module.read_text().splitlines() if line.startswith("from frontrunner")]
        assert all(line.startswith("from frontrunner.results.audit.") for line in ours), module.name


def test_the_checker_knows_what_this_version_writes() -> None:
    """What it has written a second time: the tables, their indexes, the newest revision, and the recipes' defaults."""
    assert structure.NEWEST_KNOWN == REVISION
    for name, table in Base.metadata.tables.items():
        assert set(structure.TABLES[name][1].split()) == set(table.columns.keys())
        assert set(structure.INDEXES.get(name, ())) == {index.name for index in table.indexes}
    assert set(structure.TABLES) == set(Base.metadata.tables)
    for model, defaults, known in (
        (Model, identity.MODEL, identity.MODEL_KNOWN),
        (Recipe, identity.RECIPE, identity.RECIPE_KNOWN),
        (Sharding, identity.SHARDING, set(identity.SHARDING)),
    ):
        assert {field.name for field in fields(model)} == known
        said = {field.name: field.default for field in fields(model) if field.default is not MISSING}
        assert json.loads(json.dumps(said, default=asdict)) == defaults


def test_a_recipe_of_a_later_version_has_its_id(filled: Path, tmp_path: Path) -> None:
    """A field that is unknown here may be at its default, and then is no part of the id."""
    path = tmp_path / "store.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("""UPDATE trials SET recipe_json = replace(recipe_json, '{"acc', '{"later":1,"acc')""")
        connection.execute(
            'UPDATE campaigns SET spec_json = replace(spec_json, \'"layers"\', \'"experts":1,"layers"\')'
        )
    with open_store(str(path), read_only=True) as store:
        assert checked(store).findings == ()


def test_what_a_later_version_adds_is_odd_and_no_fault(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.executescript(
            "UPDATE alembic_version SET version_num = '0999'; CREATE TABLE later (x); DROP INDEX trials_by_state;"
            " UPDATE campaigns SET state = 'archived' WHERE id = 2; UPDATE campaigns SET driver_seconds = -1"
        )
    with open_store(str(path), read_only=True) as store:
        found = {finding.rule: finding.odd_as for finding in checked(store).findings}
    later = "as of a later version"
    figures = "figures of campaigns: driver_seconds, node_seconds_spent"
    assert found == {"known revision": later, "the tables": later, "words of campaigns": later, figures: None}


def test_the_connection_reads_text_as_before(store_path: Path) -> None:
    with open_store(str(store_path)) as store:
        assert not checked(store).is_sound
        assert store.campaign("second").state_reason == "done"


@pytest.fixture
def store_path(filled: Path, tmp_path: Path) -> Path:
    """A store with a recipe of bytes in it."""
    path = tmp_path / "store.db"
    path.write_bytes(filled.read_bytes())
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE trials SET recipe_json = CAST(x'7bff7d' AS TEXT) WHERE id = 1")
    return path


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
