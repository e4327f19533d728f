"""What `open_store` accepts, refuses, and leaves untouched."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from frontrunner.results.address import (
    OVERRIDE,
    backup_beside,
    file_system_of,
    newest_backup,
    parse_address,
    refuse_network,
)
from frontrunner.results.pages import trial_page
from frontrunner.results.schema import Base
from frontrunner.results.store import open_store
from frontrunner.spaces.errors import InvalidInput, NotFound, StoreUnusable


def make(path: Path, *campaigns: str) -> Path:
    with open_store(str(path)) as store:
        for name in campaigns:
            store.create_campaign(name=name, spec_json="{}", legal_recipes=1, problem_summary={})
    return path


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in folder.iterdir()
        if file.is_file()
    }


@pytest.mark.parametrize(
    "name", ["plain.db", "with space.db", "50%?#&=;.db", "\u30b9\u30c8\u30a2.db"]
)
def test_a_path_names_the_file_whatever_its_letters(tmp_path: Path, name: str) -> None:
    make(tmp_path / name, "kept")
    assert [file.name for file in tmp_path.iterdir()] == [name]
    with open_store(str(tmp_path / name), create=False, read_only=True) as store:
        assert store.campaign(None).name == "kept"


def test_a_relative_url_and_a_path_are_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("store.db"), "kept")
    for url in ("sqlite:///store.db", f"sqlite:///{tmp_path}/store.db"):
        with open_store(url, create=False) as store:
            assert store.campaign(None).name == "kept"


def test_an_open_store_does_not_follow_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("store.db"), "kept")
    (tmp_path / "elsewhere").mkdir()
    with open_store("store.db", read_only=True) as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert store.campaign(None).name == "kept"


@pytest.mark.parametrize(
    "url", ["", "  ", "sqlite://", "sqlite:///:memory:", "nonsense://x/y", "sqlite:///\x00"]
)
def test_what_names_no_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"store\.url"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    ["postgresql+nosuchdriver://me:hush@db/x", "not a scheme://me:hush@db/x"],
    ids=["no such driver", "no scheme"],
)
def test_a_database_that_cannot_be_reached_is_named_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInput, match=r"://me:[^h]+@db/x") as refused:
        open_store(url)
    assert "hush" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize(
    "query", ["password=hush", "user=me&password=hush", "sslpassword=hush", "sslmode=require"]
)
def test_a_password_is_hidden_wherever_the_url_has_it(query: str) -> None:
    shown = str(parse_address(f"postgresql://me:hush@db/x?{query}"))
    assert "hush" not in shown
    assert "@db/x" in shown


def test_the_tables_can_be_made_in_postgresql() -> None:
    """Only compiled, not run: it shows that no column type or constraint is SQLite's own."""
    for table in Base.metadata.sorted_tables:
        assert "BIGINT" in str(
            CreateTable(table).compile(dialect=postgresql.dialect())
        ) or table.name not in (
            "measurements",
            "standings",
        )


def test_a_missing_store_is_named_and_not_made(tmp_path: Path) -> None:
    for wanted in ({"create": False}, {"read_only": True}):
        with pytest.raises(NotFound, match=r"absent\.db"):
            open_store(str(tmp_path / "absent.db"), **wanted)
    with pytest.raises(NotFound, match="no folder"):
        open_store(str(tmp_path / "absent" / "store.db"))
    assert list(tmp_path.iterdir()) == []


def sqlite_file(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_a_link_to_itself_is_no_place_for_a_store(tmp_path: Path) -> None:
    path = tmp_path / "loop.db"
    path.symlink_to(path)
    with pytest.raises(StoreUnusable, match=r"loop\.db"):
        open_store(str(path))


def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("[model]\nlayers = 12\n")
    (tmp_path / "short.db").write_bytes(b"SQLite")
    sqlite_file(tmp_path / "other.db", "CREATE TABLE notes (text)")
    before = files(tmp_path)
    for name in before:
        for read_only in (False, True):
            with pytest.raises(StoreUnusable, match=name):
                open_store(str(tmp_path / name), read_only=read_only)
    with pytest.raises(StoreUnusable, match="is not a file"):
        open_store(str(tmp_path))
    assert files(tmp_path) == before


def test_an_empty_file_becomes_a_store_only_where_one_may_be_made(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with pytest.raises(StoreUnusable, match="holds no frontrunner store"):
        open_store(str(path), create=False)
    make(path, "kept")


@pytest.mark.parametrize("beside", ["-wal", ".backup-20260301T120000Z"])
@pytest.mark.parametrize(
    ("head", "said"), [(None, "it is empty"), (b"\0" * 4096, "does not begin as")]
)
def test_a_file_that_was_a_store_is_not_replaced(
    tmp_path: Path, beside: str, head: bytes | None, said: str
) -> None:
    path = make(tmp_path / "store.db", "kept")
    (tmp_path / f"store.db{beside}").write_bytes(b"x" * 8192)
    if head is None:
        os.truncate(path, 0)
    else:
        path.write_bytes(head + path.read_bytes()[len(head) :])
    before = files(tmp_path)
    for wanted in ({"create": True}, {"create": False}, {"read_only": True}):
        with pytest.raises(StoreUnusable, match=rf"is damaged: .*{said}") as refused:
            open_store(str(path), **wanted)
        assert ("frontrunner store copy" in str(refused.value.hint)) == beside.startswith(".backup")
    assert files(tmp_path) == before


def test_a_store_without_one_of_its_tables_is_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "store.db", "kept")
    sqlite_file(path, "DROP TABLE measurements")
    (tmp_path / "store.db.backup-20260301T120000Z").touch()
    with (
        open_store(str(path), read_only=True) as store,
        pytest.raises(StoreUnusable, match="is damaged: no such table: measurements") as refused,
    ):
        trial_page(store, "kept")
    assert "store copy" in str(refused.value.hint)


def test_a_file_that_lies_beside_a_backup_is_none(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    newest = path.with_name("store.db.backup-20260301T120000Z")
    others = [
        "20250301T120000Z",
        "20260301T120000Z-wal",
        "20260301T120000Z.backup-20260401T000000Z",
        "old",
        "2026",
    ]
    for file in (newest, *(path.with_name(f"store.db.backup-{name}") for name in others)):
        file.touch()
    assert newest_backup(path) == newest
    assert backup_beside(path, datetime(2026, 3, 1, 12, tzinfo=UTC)) == newest


@pytest.mark.parametrize("version", [0, 2])
def test_another_schema_version_is_refused_with_both_numbers(tmp_path: Path, version: int) -> None:
    path = make(tmp_path / "store.db")
    sqlite_file(path, f"UPDATE store SET schema_version = {version}")
    for read_only in (False, True):
        with pytest.raises(
            StoreUnusable, match=f"schema {version}, this version needs 1"
        ) as refused:
            open_store(str(path), read_only=read_only)
        assert refused.value.hint == "upgrade frontrunner"


def test_a_store_without_its_one_row_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "store.db", "kept")
    sqlite_file(path, "DELETE FROM store")
    for read_only in (False, True):
        with pytest.raises(StoreUnusable, match="holds no frontrunner store"):
            open_store(str(path), read_only=read_only)


class Mount(NamedTuple):
    mountpoint: str
    fstype: str


@pytest.mark.parametrize(
    ("kind", "is_refused"), [("nfs4", True), ("lustre", True), ("xfs", False), ("overlay", False)]
)
def test_a_network_file_system_is_refused_with_reason_and_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_refused: bool
) -> None:
    here, path = str(tmp_path), tmp_path / "store.db"
    mounted = [
        Mount("/", "ext4"),
        Mount(here, "tmpfs"),
        Mount(here, kind),
        Mount(f"{here}/inner disk", "xfs"),
    ]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: mounted)
    assert file_system_of(path) == kind
    refuse_network(tmp_path / "inner disk" / "store.db")
    refuse_network(tmp_path.parent / "store.db")
    if is_refused:
        with pytest.raises(
            StoreUnusable, match=rf"network file system \({kind}\): SQLite"
        ) as refused:
            refuse_network(path)
        assert f"{OVERRIDE}=1" in str(refused.value.hint)
        monkeypatch.setenv(OVERRIDE, "1")
    refuse_network(path)


def test_this_machine_states_its_file_systems(tmp_path: Path) -> None:
    assert file_system_of(tmp_path)
    assert file_system_of(Path("/proc/self/mountinfo")) == "proc"


class TestReadOnly:
    def test_reading_touches_no_file(self, tmp_path: Path) -> None:
        path = make(tmp_path / "store.db", "kept")
        before = files(tmp_path)
        with open_store(str(path), read_only=True) as store:
            assert store.campaign(None).name == "kept"
            assert files(tmp_path) == before
        assert files(tmp_path) == before

    def test_a_folder_that_cannot_be_written_can_be_read(self, tmp_path: Path) -> None:
        path = tmp_path / "sealed" / "store.db"
        path.parent.mkdir()
        make(path, "kept")
        path.chmod(stat.S_IRUSR)
        path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            with open_store(str(path), read_only=True) as store:
                assert store.campaign(None).name == "kept"
            if os.geteuid() != 0:  # root may write whatever the permissions say
                with pytest.raises(StoreUnusable, match="cannot be opened"):
                    open_store(str(path))
        finally:
            path.parent.chmod(stat.S_IRWXU)

    def test_nothing_is_written_through_it(self, tmp_path: Path) -> None:
        path = make(tmp_path / "store.db", "kept")
        with open_store(str(path), read_only=True) as store:
            with pytest.raises(StoreUnusable, match="read-only"):
                store.create_campaign(
                    name="more", spec_json="{}", legal_recipes=1, problem_summary={}
                )
            with pytest.raises(StoreUnusable, match="read-only"):
                store.acquire_lease(1, host="h", pid=1)

    def test_what_a_live_writer_adds_is_seen(self, tmp_path: Path) -> None:
        path = make(tmp_path / "store.db", "first")
        with open_store(str(path), read_only=True) as viewer:
            assert viewer.campaign(None).name == "first"
            with open_store(str(path)) as store:
                store.create_campaign(
                    name="second", spec_json="{}", legal_recipes=1, problem_summary={}
                )
                assert viewer.campaign(None).name == "second"
            assert viewer.campaign(None).name == "second"

    def test_a_store_rewritten_during_an_unlogged_read_is_not_believed(
        self, tmp_path: Path
    ) -> None:
        path = make(tmp_path / "store.db", "first")
        with (
            open_store(str(path), read_only=True) as viewer,
            pytest.raises(StoreUnusable, match="written to while it was read"),
            viewer.database.read(),
        ):
            make(path, "second")  # opens, writes, and folds the log into the file
        with open_store(str(path), read_only=True) as viewer:
            assert viewer.campaign(None).name == "second"


def test_a_store_that_is_opened_twice_in_one_process_is_still_seen_to_be_in_use(
    tmp_path: Path,
) -> None:
    """By POSIX a process that closes any descriptor of a file loses all of its locks on it, also
    those of SQLite.

    Another process would then take itself for the last one, and delete the log that this one still
    reads and writes.
    """
    path = tmp_path / "store.db"
    adding = (
        "import sys\nfrom frontrunner.results.store import open_store\nwith open_store(sys.argv[1])"
        " as store:\n    store.create_campaign(name='other', spec_json='{}', legal_recipes=1,"
        " problem_summary={})\n"
    )
    with open_store(str(path)) as first:
        assert first.campaigns() == []
        with open_store(str(path), read_only=True, create=False) as second:
            assert second.campaigns() == []
        subprocess.run([sys.executable, "-P", "-c", adding, str(path)], check=True)
        assert Path(f"{path}-wal").exists(), (
            "the other process took the store for unused, and its log for its own"
        )
        assert [campaign.name for campaign in first.campaigns()] == ["other"]
        first.create_campaign(name="own", spec_json="{}", legal_recipes=1, problem_summary={})
    with open_store(str(path), read_only=True, create=False) as after:
        assert [campaign.name for campaign in after.campaigns()] == ["own", "other"]


def test_reader_by_a_link_sees_what_the_log_holds(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "store.db"
    link.symlink_to(make(tmp_path / "elsewhere" / "real.db", "kept"))
    with open_store(str(link)) as writer, open_store(str(link), read_only=True) as reader:
        writer.note("kept", "seen")
        assert [event.kind for event in reader.events(1)] == ["seen"]
