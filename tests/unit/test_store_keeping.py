"""Backups, copies, imported archives and pruning: what is kept is all of it, and what is refused
leaves nothing behind.
"""

from __future__ import annotations

import getpass
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from frontrunner import (
    backup_store,
    best,
    campaigns,
    check_store,
    copy_store,
    dataframe,
    delete,
    failures,
    import_archive,
    label,
    prunable,
    prune_store,
    rename,
    show,
)  # fmt: skip
from frontrunner.results import transfer
from frontrunner.results.address import parse_address
from frontrunner.results.archives import END, Chain
from frontrunner.results.records import COPIED, Campaign, Labels, Trial
from frontrunner.results.schema import Base, recipe_to_json
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.writer import CampaignWriter
from frontrunner.search.spec import CampaignSpec
from frontrunner.spaces.document import canonical_json, recipe_id
from frontrunner.spaces.errors import (
    AlreadyDriven,
    FrontrunnerError,
    InvalidInput,
    NameTaken,
    NotFound,
    StoreUnusable,
)
from frontrunner.spaces.validation import dump_json
from frontrunner.store import LocalStore
from frontrunner.text import as_plain
from support.campaigns import spec_of, tiny
from support.limits import fill, small_disk
from support.postgresql import Server
from support.store_contract import (
    KINDS,
    RAN_WITH,
    RECIPE,
    begin,
    everything,
    failure,
    lease_elsewhere,
    measurement,
)


def made(url: str, *, name: str = "kept", state: CampaignState = CampaignState.FINISHED) -> str:
    """A store with a campaign of a recipe measured twice, one that failed, and one that was
    lost.
    """
    spec = spec_of(tiny(name=name, evaluator="simulated"), run_root=Path("/nowhere"))
    with open_store(url) as store:
        campaign = store.create_campaign(
            name=name, spec_json=dump_json(spec), legal_recipes=9, problem_summary={}
        )
        writer = store.drive(lease_elsewhere(store, campaign))
        writer.set_state(CampaignState.RUNNING, reason="")
        writer.record_provenance(RAN_WITH)
        for place, outcome in enumerate((measurement(0.5), failure())):
            trial = tried(writer, spec, place)
            folder = f"r/{trial.number}.1"
            writer.finish_attempt(
                writer.start_attempt(trial, run_folder=folder), outcome, retry=False
            )
        again = writer.repeat(tried(writer, spec, 0))
        writer.finish_attempt(
            writer.start_attempt(again, run_folder="r/1.2"), measurement(0.3), retry=False
        )
        writer.event("tick", number=1)
        if state is not CampaignState.RUNNING:
            writer.release(state, reason="done")
    return url


def tried(writer: CampaignWriter, spec: CampaignSpec, place: int) -> Trial:
    """The trial of one recipe, under its own id."""
    recipe = replace(RECIPE, accumulation=place + 1)
    return writer.propose(recipe_id(spec.problem, recipe), recipe)


@pytest.fixture(params=KINDS)
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Names new stores of one kind of database."""
    numbers = iter(range(100))
    if request.param == "sqlite":
        return lambda: str(tmp_path / f"s{next(numbers)}.db")
    server: Server = request.getfixturevalue("postgresql_server")
    return server.new_store


def content(url: str, name: str = "kept") -> tuple[Any, ...]:
    with open_store(url, read_only=True) as store:
        return everything(store, store.campaign(name))


def tables(store: Store) -> dict[str, list[Any]]:
    with store.database.read() as connection:
        return {
            table.name: [
                tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
            ]
            for table in Base.metadata.sorted_tables
            if table.name != "store"
        }


class TestBackup:
    def test_it_holds_what_the_store_held_while_a_driver_goes_on(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"), state=CampaignState.RUNNING)
        with open_store(url) as store:
            writer = store.drive(lease_elsewhere(store, store.campaign("kept"), take_over=True))
            stop = threading.Event()

            def write() -> None:
                while not stop.is_set():
                    with writer.together():
                        writer.event("first of two")
                        writer.event("second of two")

            driver = threading.Thread(target=write)
            driver.start()
            try:
                backups = [
                    backup_store(tmp_path / f"b{number}.db", store=url) for number in range(5)
                ]
            finally:
                stop.set()
                driver.join()
            told = store.events(1, limit=100_000)
        for path in backups:
            assert check_store(str(path)).is_sound
            with open_store(str(path), read_only=True) as kept:
                events = kept.events(1, limit=100_000)
            assert events == told[: len(events)]
            assert len(events) % 2 == 1, (
                "the first event and whole pairs, never half of a transaction"
            )

    def test_by_default_it_lies_beside_the_store_named_by_the_time(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"))
        path = backup_store(store=url)
        assert path.parent == tmp_path
        assert path.name.startswith("store.db.backup-2")
        assert content(str(path)) == content(url)

    def test_nothing_is_overwritten_and_nothing_half_written_is_left(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"))
        (tmp_path / "taken").write_text("mine")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(InvalidInput, match="exists already"):
            backup_store(tmp_path / "taken", store=url)
        with pytest.raises(NotFound, match="no folder"):
            backup_store(tmp_path / "none" / "b.db", store=url)
        assert sorted(tmp_path.iterdir()) == before
        assert (tmp_path / "taken").read_text() == "mine"

    def test_a_damaged_store_is_refused_naming_the_newest_backup_that_restores_it(
        self, tmp_path: Path
    ) -> None:
        url = made(str(tmp_path / "store.db"))
        expected = content(url)
        backup_store(tmp_path / "store.db.backup-20200101T000000Z", store=url)
        newest = backup_store(store=url)
        with (tmp_path / "store.db").open("r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * 8192)
        damaged = (tmp_path / "store.db").read_bytes()
        with pytest.raises(StoreUnusable, match="is damaged") as refused:
            open_store(url)
        assert f"frontrunner store copy --store {newest} --to NEW.db" in str(refused.value.hint)
        copy_store(tmp_path / "NEW.db", store=str(newest))
        assert content(str(tmp_path / "NEW.db")) == expected
        assert (tmp_path / "store.db").read_bytes() == damaged

    def test_a_full_disk_under_the_backup_is_not_the_store_s(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"))
        with small_disk(tmp_path / "small", mib=1) as disk:
            fill(disk, leave_bytes=16_384)
            with pytest.raises(
                InvalidInput, match=r"small/b\.db cannot be written: .*full"
            ) as refused:
                backup_store(disk / "b.db", store=url)
            assert "name another place" in str(refused.value.hint)
            assert [path.name for path in disk.iterdir()] == ["ballast"]

    def test_a_server_s_backup_is_a_store_that_a_copy_restores(
        self, postgresql_server: Server, tmp_path: Path
    ) -> None:
        url = made(postgresql_server.new_store(), state=CampaignState.RUNNING)
        path = backup_store(tmp_path / "kept.db", store=url)
        assert content(str(path)) == content(url)
        assert check_store(str(path)).is_sound


class TestCopy:
    def test_both_ways_between_databases_nothing_changes(
        self, postgresql_server: Server, tmp_path: Path
    ) -> None:
        first = made(str(tmp_path / "first.db"))
        made(first, name="second")
        there, back = postgresql_server.new_store(), str(tmp_path / "back.db")
        done = copy_store(there, store=first)
        assert (done.campaigns, done.rows["attempts"]) == (2, 6)
        copy_store(back, store=there)
        with open_store(first) as one, open_store(there) as two, open_store(back) as three:
            assert tables(one) == tables(two) == tables(three)
        assert check_store(there).findings == check_store(back).findings == ()

    def test_the_copy_takes_new_rows(self, fresh: Callable[[], str]) -> None:
        source, target = made(fresh()), fresh()
        copy_store(target, store=source)
        made(target, name="later")
        assert check_store(target).findings == ()
        assert content(target) == content(source)

    def test_a_driven_campaign_and_a_store_with_campaigns_are_refused(self, tmp_path: Path) -> None:
        driven = made(str(tmp_path / "driven.db"), state=CampaignState.RUNNING)
        with pytest.raises(AlreadyDriven, match="kept is driven by"):
            copy_store(tmp_path / "new.db", store=driven)
        assert not (tmp_path / "new.db").exists()
        full = made(str(tmp_path / "full.db"))
        before = content(full)
        with pytest.raises(InvalidInput, match="holds campaigns already"):
            copy_store(full, store=made(str(tmp_path / "source.db"), name="other"))
        assert content(full) == before

    def test_a_copy_that_fails_names_the_source_and_leaves_nothing(
        self, fresh: Callable[[], str], tmp_path: Path
    ) -> None:
        source, target, beside = made(str(tmp_path / "broken.db")), fresh(), set(tmp_path.iterdir())
        expected = content(source)
        with closing(sqlite3.connect(source)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("UPDATE failures SET kind = 'bored'")
        with pytest.raises(
            StoreUnusable, match=r"broken\.db holds rows of failures that no store can hold"
        ) as refused:
            copy_store(target, store=source)
        assert f"frontrunner store check --store {source}" in str(refused.value.hint)
        assert set(tmp_path.iterdir()) == beside
        with closing(sqlite3.connect(source)) as connection, connection:
            connection.execute("UPDATE failures SET kind = 'crashed'")
        copy_store(target, store=source)
        assert without_ids(content(target)) == without_ids(expected)

    def test_a_target_on_a_full_disk_is_not_left_there(self, tmp_path: Path) -> None:
        source = made(str(tmp_path / "source.db"))
        with small_disk(tmp_path / "small", mib=1) as disk:
            fill(disk, leave_bytes=16_384)
            with pytest.raises(StoreUnusable, match=r"small/new\.db cannot be written"):
                copy_store(disk / "new.db", store=source)
            assert [path.name for path in disk.iterdir()] == ["ballast"]

    def test_a_damaged_source_is_blamed_and_not_the_target(self, tmp_path: Path) -> None:
        source, target = made(str(tmp_path / "source.db")), tmp_path / "target.db"
        with closing(sqlite3.connect(source)) as connection:
            (page,) = connection.execute(
                "SELECT rootpage FROM sqlite_master WHERE name = 'events'"
            ).fetchone()
            (size,) = connection.execute("PRAGMA page_size").fetchone()
        with (tmp_path / "source.db").open("r+b") as file:
            file.seek((page - 1) * size)
            file.write(b"\xa5" * size)
        with pytest.raises(StoreUnusable, match=r"source\.db is damaged"):
            copy_store(target, store=source)
        assert not target.exists()


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="a file whose reading fails is Linux' own"
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="/proc/self/mem cannot be read: Input/output error"):
        import_archive("/proc/self/mem", store=str(tmp_path / "store.db"))
    assert list(tmp_path.iterdir()) == []


def without_ids(found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Told outcomes and events without the ids, which belong to a store."""
    campaign, trials, _, told, events = found
    assert isinstance(campaign, Campaign)
    about = (
        campaign.state,
        campaign.node_seconds_spent,
        campaign.outcomes,
        campaign.created_at,
        campaign.epoch,
    )
    return (
        about,
        [(t.number, t.recipe_id, t.state) for t in trials],
        told,
        [(e.at, e.kind, e.data) for e in events],
    )


NUMBERS = {"id", "campaign_id", "trial_id", "provenance_id", "is_copied"}
"""What differs between a campaign and its copy: the numbers of rows, and that it is a copy."""


def answers(url: str, name: str) -> list[object]:
    """What commands say of a campaign, but for `NUMBERS`."""
    ranking = best(name, store=url)
    shown = [show(row.recipe_id, campaign=name, store=url).appearances[0] for row in ranking]
    said = as_plain([ranking, shown, failures(name, store=url), label(name, store=url)])
    return [without_numbers(said), dataframe(name, store=url).to_csv()]


def without_numbers(said: Any) -> Any:
    if isinstance(said, dict):
        return {key: without_numbers(said[key]) for key in said.keys() - NUMBERS}
    return [without_numbers(part) for part in said] if isinstance(said, list) else said


class TestCopyOfACampaign:
    def test_it_is_equal_in_every_answer_there_and_back(
        self, fresh: Callable[[], str], tmp_path: Path
    ) -> None:
        here, there, back = made(fresh()), str(tmp_path / "kept.db"), made(fresh(), name="theirs")
        copy_store(here, campaign="theirs", store=back)
        label("kept", tags=("paper",), note="first", store=here)
        done = copy_store(there, campaign="kept", store=here)
        assert parse_address(here).url == parse_address(done.source).url
        assert (done.campaigns, done.rows["attempts"], done.rows["labels"]) == (1, 3, 1)
        copy_store(back, campaign="kept", store=there)
        *before, told_here = without_ids(content(here))
        for url, origins in ((there, [done.source]), (back, [done.source, there])):
            *after, told = without_ids(content(url))
            assert after == before
            assert told[: len(told_here)] == told_here
            more = [(kind, data) for _, kind, data in told[len(told_here) :]]
            about = {"campaign": "kept", "attempts": 3, "user": getpass.getuser()}
            assert more == [(COPIED, {**about, "store": origin}) for origin in origins]
            assert answers(url, "kept") == answers(here, "kept")
            assert label("kept", store=url) == Labels(tags=("paper",), note="first")
            assert check_store(url).findings == ()
        compared = [LocalStore(url).compare(["kept", "theirs"]) for url in (here, back)]
        first, second = (without_numbers(as_plain(comparison)) for comparison in compared)
        assert first == second

    def test_a_taken_name_needs_another(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"))
        with pytest.raises(NameTaken, match="kept' exists already") as refused:
            copy_store(url, campaign="kept", store=url)
        assert "give another with --name" in str(refused.value.hint)
        copy_store(url, campaign="kept", name="twin", store=url)
        *twin, _ = without_ids(content(url, "twin"))
        *kept, _ = without_ids(content(url))
        assert twin == kept
        with pytest.raises(InvalidInput, match='--name = "A b"'):
            copy_store(url, campaign="kept", name="A b", store=url)

    def test_a_driven_campaign_is_refused_and_others_of_its_store_are_not(
        self, tmp_path: Path
    ) -> None:
        url = made(str(tmp_path / "store.db"), state=CampaignState.RUNNING)
        made(url, name="done")
        with pytest.raises(AlreadyDriven, match="kept is driven by"):
            copy_store(tmp_path / "new.db", campaign="kept", store=url)
        with pytest.raises(NotFound, match="no campaign 'dune'"):
            copy_store(tmp_path / "new.db", campaign="dune", store=url)
        assert not (tmp_path / "new.db").exists()
        copy_store(tmp_path / "new.db", campaign="done", store=url)
        assert [campaign.name for campaign in campaigns(store=str(tmp_path / "new.db"))] == ["done"]

    def test_an_interrupted_copy_leaves_nothing(
        self, fresh: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = made(str(tmp_path / "store.db")), made(fresh(), name="theirs")
        with open_store(target) as store:
            before = tables(store)
        rows_of = transfer._rows_of

        def interrupted(store: Store, *of: Any) -> Iterator[Any]:
            for table, batch in rows_of(store, *of):
                if table.name == "attempts" and store.url != source:
                    raise KeyboardInterrupt
                yield table, batch

        monkeypatch.setattr(transfer, "_rows_of", interrupted)
        for to in (target, str(tmp_path / "new.db")):
            with pytest.raises(KeyboardInterrupt):
                copy_store(to, campaign="kept", store=source)
        with open_store(target) as store:
            assert tables(store) == before
        assert not (tmp_path / "new.db").exists()
        monkeypatch.undo()
        copy_store(target, campaign="kept", store=source)
        assert without_ids(content(target))[:-1] == without_ids(content(source))[:-1]

    def test_a_campaign_that_contradicts_itself_is_refused(self, tmp_path: Path) -> None:
        source, target = made(str(tmp_path / "a.db")), made(str(tmp_path / "b.db"), name="theirs")
        with closing(sqlite3.connect(source)) as connection, connection:
            connection.execute("UPDATE standings SET tokens_per_s = 1e9")
        with pytest.raises(InvalidInput, match=r"a\.db does not hold .*a standing pools its"):
            copy_store(target, campaign="kept", store=source)
        assert [campaign.name for campaign in campaigns(store=target)] == ["theirs"]


ARCHIVES = Path(__file__).parent.parent / "stores"
"""Archives that the last version with `frontrunner archive` wrote: of a campaign like `made`'s, and
of a store of the first revision whose driver was killed.
"""


class TestImportOfAnArchive:
    def test_it_is_the_campaign_that_was_archived(self, fresh: Callable[[], str]) -> None:
        file, target = ARCHIVES / "archive.jsonl", made(fresh(), name="theirs")
        done = import_archive(file, store=target)
        assert (done.campaigns, done.rows["attempts"]) == (1, 3)
        *_, told = without_ids(content(target))
        sha256 = json.loads(file.read_bytes().splitlines()[-1])["sha256"]
        assert told[-1][1:] == (
            "unarchived",
            {
                "file": "archive.jsonl",
                "sha256": sha256,
                "attempts": 3,
                "user": getpass.getuser(),
            },
        )
        alike = made(fresh())
        assert without_ids(content(target))[1:3] == without_ids(content(alike))[1:3]
        assert check_store(target).findings == ()

    def test_a_taken_name_needs_another(self, tmp_path: Path) -> None:
        url = made(str(tmp_path / "store.db"))
        with pytest.raises(NameTaken, match="exists already"):
            import_archive(ARCHIVES / "archive.jsonl", store=url)
        import_archive(ARCHIVES / "archive.jsonl", name="twin", store=url)
        assert [campaign.name for campaign in campaigns(store=url)] == ["twin", "kept"]

    def test_one_of_the_first_revision_is_read_and_its_driver_holds_nothing(
        self, tmp_path: Path
    ) -> None:
        target = str(tmp_path / "target.db")
        import_archive(ARCHIVES / "archive-running.jsonl", store=target)
        with open_store(target) as store:
            found = store.campaign("kept")
            assert (found.state, found.driver) == (CampaignState.STOPPED, None)
            assert found.state_reason == "its driver ended elsewhere"
            store.acquire_lease(found.id, host="another", pid=1)
        assert check_store(target).findings == ()


def changed_at(
    number: int, change: Callable[[bytes], bytes]
) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[: number - 1], change(lines[number - 1]), *lines[number:]]


def rehashed(change: Callable[[dict[str, Any]], None]) -> Callable[[list[bytes]], list[bytes]]:
    """Lines whose content was changed by someone who knows how the hashes are made."""

    def rewrite(lines: list[bytes]) -> list[bytes]:
        chain, out = Chain(), []
        for raw in lines:
            said = json.loads(raw)
            change(said)
            said["sha256"] = chain.add(said["kind"], said["content"])
            out.append(canonical_json(said).encode() + b"\n")
        return out

    return rewrite


def of_kind(kind: str, **changes: object) -> Callable[[list[bytes]], list[bytes]]:
    return rehashed(lambda said: said["content"].update(changes) if said["kind"] == kind else None)


DAMAGE: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a digit": (changed_at(5, lambda line: line.replace(b"1", b"2", 1)), r"line 5: .*hash"),
    "a line left out": (lambda lines: lines[:3] + lines[4:], r"line 4: .*hash"),
    "a line twice": (lambda lines: [*lines[:3], lines[2], *lines[3:]], r"line 4: .*hash"),
    "the end is missing": (lambda lines: lines[:-1], r"line \d+: the file ends before its end"),
    "half a line": (lambda lines: [*lines[:-1], lines[-1][:20]], r"line \d+: it is cut short"),
    "something after the end": (
        lambda lines: [*lines, lines[1]],
        r"line \d+: it comes after the end",
    ),
    "nothing": (lambda _: [], "line 1: the file ends before its end"),
    "another kind of file": (
        lambda _: [b"[model]\n"],
        "line 1: this is not a line of a frontrunner archive",
    ),
    "JSON of others": (lambda _: [b'{"kind": 1}\n'], "line 1: this is not a line"),
    "a long line": (
        lambda _: [b"x" * (17 * 2**20) + b"\n"],
        "line 1: it is cut short, or longer than 16 MiB",
    ),
    "deep JSON": (lambda _: [b"[" * 200_000 + b"\n"], "line 1: this is not a line"),
    "no header": (lambda lines: lines[1:], r"line 1: .*hash"),
    "an infinite number": (
        lambda _: [b'{"kind": "header", "content": {"a": 1e999}, "sha256": ""}\n'],
        "line 1: this is not a line",
    ),
    "an additional column": (
        of_kind("trials", more=1),
        r"line \d+: its columns are not those of trials",
    ),
    "text for a number": (
        of_kind("campaigns", epoch="1x"),
        'table "campaigns", row 1, column "epoch", why .*integer',
    ),
    "nothing for a text": (
        of_kind("trials", recipe_id=None),
        r"line 5: it cannot be a row of trials: NOT NULL",
    ),
    "a reference to nobody": (
        of_kind("attempts", trial_id=77),
        r"line 7: .*a row of attempts: FOREIGN KEY",
    ),
    "a state of no kind": (
        of_kind("trials", state="asleep"),
        r"line 5: .*a row of trials: CHECK .*state_known",
    ),
    "another recipe under its id": (
        of_kind("trials", recipe_json=recipe_to_json(replace(RECIPE, micro_batch_seqs=8))),
        r"a trial's id is that of its recipe .*its_recipe_has \"[0-9a-f]{12}",
    ),
    "a document that cannot be read": (
        of_kind("provenance", provenance_json="{}"),
        "why .versions: Field required",
    ),
    "a time of another zone": (
        of_kind("campaigns", updated_at="2026-03-01T13:00:00.000000+01:00"),
        "expected a time in UTC",
    ),
    "a name with a path": (of_kind("campaigns", name="../x"), 'column "name", why'),
    "an outcome too many": (
        of_kind("campaigns", node_seconds_spent=1.0),
        "the sum of its outcomes' node-seconds",
    ),
    "a standing that is too fast": (
        of_kind("standings", tokens_per_s=1e9),
        "a standing pools its trial's measurements",
    ),
    "another count": (
        of_kind(END, rows=3),
        "does not hold one campaign and the rows that it counts",
    ),
    "a later version": (of_kind("header", revision="0999"), "was written by a later frontrunner"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_foreign_archive_is_refused_by_its_line_and_nothing_is_written(
    case: str, filled: Path, tmp_path: Path
) -> None:
    change, message = DAMAGE[case]
    lines = (ARCHIVES / "archive.jsonl").read_bytes().splitlines(keepends=True)
    file, target = tmp_path / "bad.jsonl", tmp_path / "target.db"
    file.write_bytes(b"".join(change(lines)))
    shutil.copy(filled, target)
    before = target.read_bytes()
    with pytest.raises(FrontrunnerError, match=message) as refused:
        import_archive(file, store=str(target))
    assert refused.value.exit_code in (2, 4)
    assert len(str(refused.value)) < 500
    with open_store(str(target), read_only=True) as store:
        assert [summary.name for summary in store.campaigns()] == ["theirs"]
    assert target.read_bytes() == before


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with another campaign."""
    return Path(made(str(tmp_path_factory.mktemp("filled") / "full.db"), name="theirs"))


class TestPrune:
    @pytest.fixture
    def folders(self, tmp_path: Path) -> Path:
        """A finished and a stopped campaign, whose attempts have run folders, and folders that are
        nobody's.
        """
        runs = tmp_path / "runs"
        with open_store(str(tmp_path / "store.db")) as store:
            for name, state in (
                ("done", CampaignState.FINISHED),
                ("halted", CampaignState.STOPPED),
            ):
                spec = json.dumps({"name": name})
                campaign = store.create_campaign(
                    name=name, spec_json=spec, legal_recipes=1, problem_summary={}
                )
                writer = store.drive(lease_elsewhere(store, campaign))
                writer.set_state(CampaignState.RUNNING, reason="")
                for number in (1, 2):
                    folder = runs / name / f"0000{number}.1"
                    folder.mkdir(parents=True)
                    (folder / "rank-0.log").write_bytes(b"x" * 1000)
                    (folder / "job.json").write_text(json.dumps({"run_folder": str(folder)}))
                    attempt = writer.start_attempt(
                        begin(writer, f"{number:04x}"), run_folder=str(folder)
                    )
                    if number == 1:
                        writer.finish_attempt(attempt, measurement(), retry=False)
                writer.release(state, reason="")
            (runs / "done" / "00009.1").mkdir()
            (runs / "done" / "notes").mkdir()
        return runs

    def test_it_shows_first_and_then_removes_only_what_the_store_holds(
        self, folders: Path, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "store.db")
        (part,) = prunable(store=url)
        size = 1000 + (folders / "done" / "00001.1" / "job.json").stat().st_size
        assert (part.campaign, part.folders, part.bytes) == (
            "done",
            (folders / "done" / "00001.1",),
            size,
        )
        assert part.folders[0].exists()
        before = content(url, "done")
        prune_store(store=url)
        assert sorted(path.name for path in folders.rglob("0*.*")) == [
            "00001.1",
            "00002.1",
            "00002.1",
            "00009.1",
        ]
        assert content(url, "done") == before
        assert prunable(store=url) == ()

    def test_a_campaign_that_is_not_finished_keeps_its_folders(
        self, folders: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidInput, match="halted is stopped"):
            prune_store("halted", store=str(tmp_path / "store.db"))
        assert (folders / "halted" / "00001.1").exists()

    def test_a_folder_of_another_name_is_not_touched_whatever_the_store_says(
        self, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "store.db")
        precious = tmp_path / "precious"
        (precious / "00001.1").mkdir(parents=True)
        made(url)
        with closing(sqlite3.connect(url)) as connection, connection:
            for folder in (
                str(precious),
                str(precious / "00001.1"),
                f"{tmp_path}/kept/../precious/00001.1",
                "/",
            ):
                connection.execute("UPDATE attempts SET run_folder = ? WHERE id = 1", (folder,))
                connection.commit()
                assert prunable(store=url) == ()

    @pytest.mark.parametrize(
        "content", [None, "{}", "[", "[" * 200_000, '{"run_folder": "/elsewhere/done/00001.1"}']
    )
    def test_a_folder_that_no_driver_says_it_made_is_not_touched(
        self, folders: Path, tmp_path: Path, content: str | None
    ) -> None:
        job = folders / "done" / "00001.1" / "job.json"
        job.unlink()
        if content is not None:
            job.write_text(content)
        assert prune_store(store=str(tmp_path / "store.db")) == ()
        assert job.parent.exists()

    def test_a_run_folder_that_is_no_text_is_damage(self, folders: Path, tmp_path: Path) -> None:
        url = str(tmp_path / "store.db")
        with closing(sqlite3.connect(url)) as connection, connection:
            connection.execute("UPDATE attempts SET run_folder = x'ff00' WHERE id = 1")
        with pytest.raises(StoreUnusable, match=r"damaged: attempts row 1, run_folder: it holds b"):
            prune_store(store=url)
        assert (folders / "done" / "00001.1").exists()

    def test_a_campaign_is_deleted_with_its_rows_and_folders_also_under_another_name(
        self, folders: Path, tmp_path: Path
    ) -> None:
        url = str(tmp_path / "store.db")
        before = content(url, "done")
        rename("halted", "kept", store=url)
        found = delete("kept", store=url, preview=True)
        assert (found.folders, found.is_preview) == ((folders / "halted" / "00001.1",), True)
        assert found.rows == 1 + 2 + 2 + 1 + 1 + 1, (
            "campaign, trials, attempts, a measurement, its standing, an event"
        )
        assert delete("kept", store=url) == replace(found, is_preview=False)
        assert [campaign.name for campaign in campaigns(store=url)] == ["done"]
        assert content(url, "done") == before
        assert check_store(url).is_sound
        assert not found.folders[0].exists()
        assert (folders / "halted" / "00002.1").exists(), "whose outcome the store did not hold"

    def test_what_a_copied_campaign_names_is_not_touched(self, tmp_path: Path) -> None:
        here, there, runs = str(tmp_path / "here.db"), str(tmp_path / "there.db"), tmp_path / "kept"
        made(here)
        for number in (1, 2, 3):
            with closing(sqlite3.connect(here)) as connection, connection:
                folder = a_run_folder(runs / f"0000{number}.1")
                connection.execute(
                    "UPDATE attempts SET run_folder = ? WHERE id = ?", (str(folder), number)
                )
        copy_store(there, campaign="kept", store=here)
        assert prunable(store=there) == ()
        assert [len(part.folders) for part in prunable(store=here)] == [3]


def a_run_folder(path: Path) -> Path:
    """A folder as a driver makes it."""
    path.mkdir(parents=True)
    (path / "outcome.json").write_text(json.dumps({"run_folder": str(path)}))
    return path
