"""Stores of every earlier form of the schema: read as they are, upgraded, and equal to a new one
after that.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text

from frontrunner.api import upgrade_store
from frontrunner.results.check import check
from frontrunner.results.database import Database, revision_of
from frontrunner.results.outcome import Failure, FailureKind, Measurement
from frontrunner.results.process_identity import this_host
from frontrunner.results.ranking import best
from frontrunner.results.schema import FIRST_REVISION, REVISION, SCHEMA_VERSION, Base
from frontrunner.results.status import active_drivers
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.errors import StoreUnusable
from support.store_contract import KINDS, begin, measurement

DUMPS = Path(__file__).parent.parent / "stores"
"""What `sqlite3 store.db .dump` says of a store that each form of the schema wrote, by the code of
that time.
"""
INDEX_WITH_ORDER = "standings_by_tokens"
"""Alembic cannot compare it in SQLite; its text is compared instead."""
INDEXES = {
    "sqlite": "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL",
    "postgresql": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
}
FORMS = {
    "first": FIRST_REVISION,
    "front-index": FIRST_REVISION,
    "endings": FIRST_REVISION,
    "revisions": "0003",
}
"""The forms, and the revision that each of their stores is at: those before revisions were kept
state none.
"""
WITH_ENDINGS = ("endings", "revisions")


def store_of(form: str, folder: Path) -> Path:
    path = folder / f"{form}.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((DUMPS / f"{form}.sql").read_text())
    return path


def what_it_holds(store: Store, form: str) -> None:
    """The store's content, as it was written; those with endings have one more recipe."""
    told = [outcome for _, outcome in store.final_outcomes(1)]
    kinds = [type(outcome) for outcome in told]
    assert kinds == [Measurement, Failure, Measurement] + (
        [Measurement] if form in WITH_ENDINGS else []
    )
    assert isinstance(told[1], Failure)
    assert (told[1].kind, told[1].log_tail) == (FailureKind.OUT_OF_MEMORY, "it's gone")
    assert [row.recipe_id for row in best(store, None)][:2] == ["000000000003", "000000000001"]
    assert len(store.open_attempts(1)) == 1
    assert store.campaign(None).node_seconds_spent == 7.5 + (3.0 if form in WITH_ENDINGS else 0.0)


@pytest.mark.parametrize("form", FORMS)
def test_an_earlier_store_is_read_as_it_is(form: str, tmp_path: Path) -> None:
    path = store_of(form, tmp_path)
    before = path.read_bytes()
    with open_store(str(path), read_only=True) as store:
        what_it_holds(store, form)
        with store.database.read() as connection:
            assert check(connection, store=form).findings == ()
    assert path.read_bytes() == before


@pytest.mark.parametrize("form", FORMS)
def test_the_driver_of_an_earlier_store_is_judged_by_its_process_id(
    form: str, tmp_path: Path
) -> None:
    path = store_of(form, tmp_path)
    held = (
        "UPDATE campaigns SET driver_host = ?, driver_pid = ?, lease_until ="
        " '9999-01-01T00:00:00.000000+00:00'"
    )
    for pid, is_live in ((os.getpid(), True), (2**22 + 1, False)):
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(held, (this_host(), pid))
        with open_store(str(path), read_only=True) as store:
            (seen,) = active_drivers(store)
            assert (seen.pid, seen.is_live, seen.is_certain) == (pid, is_live, False)


@pytest.mark.parametrize("form", FORMS)
def test_an_earlier_store_is_upgraded_after_a_backup(form: str, tmp_path: Path) -> None:
    path = store_of(form, tmp_path)
    done = upgrade_store(str(path))
    assert (done.before, done.now) == (FORMS[form], REVISION)
    assert done.backup is not None
    assert done.backup.name.startswith(f"{path.name}.backup-2")
    with open_store(str(done.backup), read_only=True) as kept, kept.database.read() as connection:
        assert revision_of(connection) == FORMS[form]
    with open_store(str(path)) as store:
        what_it_holds(store, form)
        assert differences(store.database) == []
    again = upgrade_store(str(path))
    assert (again.backup, again.now) == (None, REVISION)


@pytest.mark.parametrize("form", FORMS)
def test_a_driver_goes_on_with_an_earlier_store(form: str, tmp_path: Path) -> None:
    """Its changes are such as earlier versions do not mind, so opening it makes them."""
    with open_store(str(store_of(form, tmp_path))) as store:
        what_it_holds(store, form)
        writer = store.drive(
            store.acquire_lease(1, host=this_host(), pid=os.getpid(), take_over=True)
        )
        assert active_drivers(store)[0].is_certain
        writer.finish_attempt(
            writer.start_attempt(begin(writer), run_folder="x"), measurement(0.1), retry=False
        )
        assert best(store, None)[0].recipe_id == "aaaa00000000"
        with store.database.read() as connection:
            assert (revision_of(connection), check(connection, store=form).findings) == (
                REVISION,
                (),
            )


def test_a_store_of_a_later_revision_is_used_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "UPDATE alembic_version SET version_num = '0999'; CREATE TABLE later (x)"
        )
    with open_store(str(path)) as store, store.database.read() as connection:
        assert revision_of(connection) == "0999"
    assert upgrade_store(str(path)).backup is None


def test_a_store_of_a_later_schema_is_not_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    open_store(str(path)).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"UPDATE store SET schema_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match="has schema 2, this version needs 1") as refused:
        upgrade_store(str(path))
    assert (refused.value.hint, refused.value.exit_code) == ("upgrade frontrunner", 4)
    assert path.read_bytes() == before


@pytest.fixture(params=KINDS)
def migrated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A store of an early revision that was upgraded: in SQLite the first, in PostgreSQL the one
    without holders.
    """
    if request.param == "sqlite":
        url = str(store_of("first", tmp_path))
    else:
        url = request.getfixturevalue("postgresql_server").new_store()
        with open_store(url) as store, store.database.write() as connection:
            connection.exec_driver_sql("DROP TABLE holders")
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0003'")
    with open_store(url) as store:
        yield store.database


def differences(database: Database) -> list[object]:
    """What Alembic finds to differ between a database and the model; types only where SQLite's do
    not all mean one.
    """
    options = {
        "compare_type": database.is_server,
        "include_object": lambda *about: about[1] != INDEX_WITH_ORDER,
    }
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts=options)
        return list(compare_metadata(context, Base.metadata))


def indexes_and_checks(database: Database) -> dict[str, object]:
    """What Alembic does not compare: CHECK constraints, by table, and the text of every index."""
    kind = "postgresql" if database.is_server else "sqlite"
    with database.read() as connection:
        found = inspect(connection)
        checks: dict[str, object] = {
            table: {
                (str(check["name"]), check["sqltext"])
                for check in found.get_check_constraints(table)
            }
            for table in Base.metadata.tables
        }
        return checks | {
            str(name): sql for name, sql in connection.execute(text(INDEXES[kind])) if name
        }


def test_model_and_migrations_agree(migrated: Database) -> None:
    assert differences(migrated) == []
    by_migrations = indexes_and_checks(migrated)
    with migrated.write(whole_store=True) as connection:
        Base.metadata.drop_all(connection)
        Base.metadata.create_all(connection)
    assert by_migrations == indexes_and_checks(migrated)
    assert INDEX_WITH_ORDER in by_migrations
