"""Backups of a store, copies of campaigns into another one, and archives: one campaign as one
portable file.

An archive is a file of JSON lines: a header, the rows of the tables, and a count. Each line carries
the SHA-256 of its content after the hash of the line before, so that a changed, missing, doubled or
added line is found. An archive is read into a store of its own first, which is checked as any store
is; its campaign is then copied to the target.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, insert, inspect, select
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

from frontrunner.results.address import backup_beside, parse_address
from frontrunner.results.check import check
from frontrunner.results.lease import RELEASED, refuse_driven
from frontrunner.results.process_identity import acting_user
from frontrunner.results.records import UNARCHIVED, USER, timestamp
from frontrunner.results.rows import Columns, storable
from frontrunner.results.schema import (
    REVISION,
    AttemptRow,
    Base,
    CampaignRow,
    DeletionRow,
    EventRow,
    HolderRow,
    StoreRow,
)
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    NotFound,
    StoreUnusable,
    require_campaign_name,
    shown,
    writing,
)

FORMAT = "frontrunner-archive"
VERSION = 1
HEADER, END = "header", "end"
BATCH = 500
HOLDERS = HolderRow.__tablename__
OF_THE_STORE = (StoreRow.__table__, DeletionRow.__table__)
TABLES = [table.name for table in Base.metadata.sorted_tables if table not in OF_THE_STORE]
"""A campaign's tables, each after those that it refers to. An archive has no holders of leases."""
NOT_HERE = "its driver ended elsewhere"
"""Why a campaign is stopped that was archived as running."""
WRONG_TYPE = "42804"
"""PostgreSQL's code for a value of another type than its column's, as a file of SQLite may hold."""
OF_THE_COPY = (
    "SQLITE_FULL",
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_CANTOPEN",
    "SQLITE_READONLY",
)
"""Prefixes of SQLite's errors about the file written to."""

Line = tuple[int, str, Columns]
"""Number, table and content of a verified line."""
CheckSpec = Callable[[str], object]
"""Reads a campaign's specification; raises where this version cannot."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Result of a copy."""

    source: str
    target: str
    campaigns: int
    rows: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Archived:
    """Result of archiving; `sha256` is the hash of the archive's last line, and so of all of it."""

    campaign: str
    file: str
    rows: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Unarchived(Archived):
    """Result of adding an archive to a store."""

    store: str


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield the path of a new file in the same folder that becomes `path` at the end; nothing is
    left on an error.
    """
    folder = path.absolute().parent
    with writing(path), tempfile.TemporaryDirectory(dir=folder, prefix=f".{path.name}.") as beside:
        unfinished = Path(beside) / path.name
        yield unfinished
        _flush(unfinished)
        unfinished.replace(path)
        _flush(folder)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def backup(store: Store, target: Path | None) -> Path:
    """Write what the store holds now, as a store in an SQLite file: `target`, or a new one named
    after the store.

    Drivers may go on meanwhile.
    """
    path = store.database.address.path or Path(
        f"{store.database.address.url.database or 'store'}.db"
    )
    target = (target or backup_beside(path, store.now())).absolute()
    if target.exists():
        raise InvalidInput(f"{target} exists already", hint="name another file")
    with written_whole(target) as unfinished, store.database.read() as reading:
        if store.database.is_server:
            with tempfile.TemporaryDirectory() as folder:
                _copy_all(store, reading, f"{folder}/store.db")
                shutil.copyfile(f"{folder}/store.db", unfinished)
        else:
            _copy_pages(store.url, reading, unfinished)
            shutil.copymode(path, unfinished)
    return target


def _copy_pages(store: str, connection: Connection, target: Path) -> None:
    """Copy one state of the file, its log included; a driver that writes meanwhile does not
    wait.
    """
    source: Any = connection.connection.driver_connection
    try:
        with closing(sqlite3.connect(target)) as made:
            source.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log
            finding = made.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        if error.sqlite_errorname.startswith(OF_THE_COPY):
            raise OSError(
                str(error)
            ) from error  # or the store would be blamed, which was only read
        raise
    if finding != "ok":
        raise StoreUnusable(
            f"the backup of {store} is damaged: {finding}", hint="frontrunner store check"
        )


def copy(source: Store, target: str) -> Copied:
    """Copy every campaign of a store into one that holds none yet, in one transaction.

    Raises `AlreadyDriven` while a driver holds a campaign, since a driver of the copy would end its
    probes. A copy that fails leaves no file.
    """
    path = parse_address(target).path
    is_new = path is not None and not path.exists()
    with source.database.read() as reading:
        refuse_driven(source.database, reading)
        try:
            return _copy_all(source, reading, target)
        except BaseException:
            if is_new and path is not None:
                path.unlink(missing_ok=True)
            raise


def _copy_all(source: Store, reading: Connection, target: str) -> Copied:
    rows: Counter[str] = Counter()
    with open_store(target) as filled, filled.database.write(whole_store=True) as filling:
        if filling.execute(select(CampaignRow.id).limit(1)).first() is not None:
            raise InvalidInput(
                f"{filled.url} holds campaigns already", hint="name a new store to copy to"
            )
        for campaign_id in reading.execute(
            select(CampaignRow.id).order_by(CampaignRow.id)
        ).scalars():
            rows += _copy_campaign(source, reading, campaign_id, filling)[1]
    counts = {table: rows[table] for table in TABLES}
    return Copied(source=source.url, target=filled.url, campaigns=rows["campaigns"], rows=counts)


def _copy_campaign(
    source: Store, reading: Connection, campaign_id: int, filling: Connection, **changes: object
) -> tuple[int, Counter[str]]:
    """Copy a campaign's rows under ids that are free in the target; return its id there, and count
    them by table.

    `changes` are columns of the campaign's own row.
    """
    new_ids: dict[str, dict[Any, int]] = {table: {} for table in TABLES}
    counts: Counter[str] = Counter()
    for table, batch in _rows_of(source, reading, campaign_id):
        refers = {key.parent.name: new_ids[key.column.table.name] for key in table.foreign_keys}
        own = changes if table.name == "campaigns" else {}
        values = [
            {key: refers[key].get(value) if key in refers else value for key, value in row.items()}
            | own
            for row in batch
        ]
        old = [row.pop("id", None) for row in values]
        try:
            if "id" in table.columns:
                made = insert(table).returning(table.c.id, sort_by_parameter_order=True)
                new_ids[table.name].update(
                    zip(old, filling.execute(made, values).scalars(), strict=True)
                )
            else:
                filling.execute(insert(table), values)
        except DBAPIError as error:
            of_the_rows = isinstance(error, IntegrityError | DataError)
            if not of_the_rows and getattr(error.orig, "sqlstate", None) != WRONG_TYPE:
                raise
            raise StoreUnusable(
                f"{source.url} holds rows of {table.name} that no store can hold:"
                f" {_first_line(error)}",
                hint=f"nothing was copied; see which: frontrunner store check --store {source.url}",
            ) from error
        counts[table.name] += len(values)
    return new_ids["campaigns"][campaign_id], counts


def _rows_of(
    store: Store, connection: Connection, campaign_id: int
) -> Iterator[tuple[Table, list[Columns]]]:
    """Yield a campaign's rows in batches, in the order of their keys, with text as PostgreSQL can
    hold it.
    """
    present = set(inspect(connection).get_table_names())
    for table in (Base.metadata.tables[name] for name in TABLES if name in present):
        with store.database.translated():  # which names this store, not one that is copied to
            query = (
                select(table)
                .where(of_campaign(table, campaign_id))
                .order_by(*table.primary_key.columns)
            )
            for part in connection.execute(query).mappings().partitions(BATCH):
                yield (
                    table,
                    [
                        {key: storable(v) if isinstance(v, str) else v for key, v in row.items()}
                        for row in part
                    ],
                )


def of_campaign(table: Table, campaign_id: int) -> ColumnElement[bool]:
    """Return the condition for the rows of a campaign."""
    if table.name == "campaigns":
        return table.c.id == campaign_id
    if "campaign_id" in table.columns:
        return table.c.campaign_id == campaign_id
    return table.c.attempt_id.in_(
        select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id)
    )


def _first_line(error: DBAPIError) -> str:
    return next(iter(str(error.orig).splitlines()), "")


class Chain:
    """Hash of everything up to the line that was last added."""

    def __init__(self) -> None:
        self.sha256 = ""

    def add(self, kind: str, content: Columns) -> str:
        """Return the hash of the next line."""
        said = f"{self.sha256}\n{canonical_json([kind, content])}"
        self.sha256 = hashlib.sha256(said.encode()).hexdigest()
        return self.sha256


def archive(store: Store, campaign: str | None, path: Path) -> Archived:
    """Write the campaign (None: the newest) to a new file, whole or not at all."""
    if path.exists():
        raise InvalidInput(f"{path} exists already", hint="name another file")
    chain, rows = Chain(), 0
    with (
        written_whole(path) as unfinished,
        unfinished.open("w", encoding="utf-8") as file,
        store.read(campaign) as (connection, found),
    ):

        def write(kind: str, content: Columns) -> None:
            file.write(
                canonical_json(
                    {"kind": kind, "content": content, "sha256": chain.add(kind, content)}
                )
                + "\n"
            )

        refuse_driven(store.database, connection, found.name)
        about = {"format": FORMAT, "version": VERSION, "revision": REVISION, "campaign": found.name}
        write(HEADER, {**about, "written_at": timestamp(store.database.now(connection))})
        for table, batch in _rows_of(store, connection, found.id):
            for row in batch if table.name != HOLDERS else ():
                write(table.name, row)
                rows += 1
        write(END, {"rows": rows})
    return Archived(campaign=found.name, file=str(path), rows=rows, sha256=chain.sha256)


MOST_LINE_BYTES = 16 * 2**20


def read_lines(path: Path, chain: Chain) -> Iterator[Line]:
    """Yield the lines of an archive, the header first and the end last, each verified before it is
    handed out.
    """
    if not path.is_file():
        raise NotFound(f"there is no archive at {path}")
    number, kind = 0, ""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(
                iter(partial(file.readline, MOST_LINE_BYTES), b""), start=1
            ):
                if kind == END:
                    raise _broken(path, number, "it comes after the end of the archive")
                kind, content = _verified(path, number, raw, chain)
                if (kind == HEADER) != (number == 1):
                    raise _broken(
                        path,
                        number,
                        "it is out of place" if number > 1 else "this is not an archive",
                    )
                yield number, kind, content
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}", hint="nothing was written"
        ) from None
    if kind != END:
        raise _broken(path, number + 1, "the file ends before its end: it was cut short")


def _verified(path: Path, number: int, raw: bytes, chain: Chain) -> tuple[str, Columns]:
    if not raw.endswith(b"\n"):
        raise _broken(path, number, "it is cut short, or longer than 16 MiB")
    try:
        match json.loads(raw):
            case {
                "kind": str(kind),
                "content": dict(content),
                "sha256": sha256,
                **rest,
            } if not rest:
                is_next = chain.add(kind, content) == sha256
            case _:
                raise ValueError("expected an object with kind, content and sha256")
    except (ValueError, RecursionError) as error:
        raise _broken(
            path, number, f"this is not a line of a frontrunner archive: {str(error)[:80]}"
        ) from error
    if not is_next:
        raise _broken(path, number, "it, or a line before it, was changed: its hash is another")
    return kind, content


def _broken(path: Path, number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path}, line {number}: {why}", hint="nothing was written; get the archive again"
    )


def unarchive(path: Path, target: str, *, name: str | None, check_spec: CheckSpec) -> Unarchived:
    """Read an archive into a temporary store, check that, and add its campaign to the store
    `target`, or nothing.
    """
    chain = Chain()
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/archive.db") as archived:
        with archived.database.write() as connection:
            _fill(connection, path, read_lines(path, chain))
        with archived.database.reading(), archived.database.read() as reading:
            for finding in check(reading, store=str(path)).findings:
                row = ", ".join(
                    f"{key} {shown(value)}"
                    for key, value in finding.rows[0].items()
                    if key != "campaign"
                )
                why = f"{finding.count} rows break that {finding.says}: {row}"
                message = f"{path} does not hold a campaign that a driver wrote: {why}"
                raise InvalidInput(message, hint="nothing was written")
            found = archived.campaign(None)
            try:
                check_spec(found.spec_json)
            except FrontrunnerError as error:
                raise _broken(
                    path, 2, f"this version cannot read its specification: {error}"
                ) from error
            wanted = name or found.name
            require_campaign_name("--name", wanted)
            changes: Columns = {"name": wanted, **RELEASED}
            changes["spec_json"] = canonical_json({**json.loads(found.spec_json), "name": wanted})
            if found.state is CampaignState.RUNNING:
                changes |= {"state": CampaignState.STOPPED, "state_reason": NOT_HERE}
            with open_store(target) as store, store.database.write(whole_store=True) as connection:
                store.refuse_taken(connection, wanted, "give another with --name")
                campaign_id, counts = _copy_campaign(
                    archived, reading, found.id, connection, **changes
                )
                data = {
                    "file": path.name,
                    "sha256": chain.sha256,
                    "attempts": counts["attempts"],
                    USER: acting_user(),
                }
                event = {
                    "campaign_id": campaign_id,
                    "kind": UNARCHIVED,
                    "data_json": canonical_json(data),
                }
                connection.execute(
                    insert(EventRow).values(at=timestamp(store.database.now(connection)), **event)
                )
    rows, sha256 = counts.total(), chain.sha256
    return Unarchived(campaign=wanted, file=str(path), store=store.url, rows=rows, sha256=sha256)


def _fill(connection: Connection, path: Path, lines: Iterator[Line]) -> None:
    _, _, header = next(lines)
    if header.get("format") != FORMAT:
        raise _broken(path, 1, "this is not a frontrunner archive")
    if header.get("version") != VERSION or str(header.get("revision", "")) > REVISION:
        versions = (
            f"version {shown(header.get('version'))}, revision {shown(header.get('revision'))}"
        )
        raise StoreUnusable(
            f"{path} was written by a later frontrunner: {versions}", hint="upgrade frontrunner"
        )
    counts: Counter[str] = Counter()
    for kind, group in groupby(lines, key=itemgetter(1)):
        for part in _parts(group):
            first, content = part[0]
            if kind == END:
                if content.get("rows") != counts.total() or counts["campaigns"] != 1:
                    raise _broken(
                        path,
                        first,
                        "the archive does not hold one campaign and the rows that it counts",
                    )
            elif kind not in TABLES or kind == HOLDERS:
                raise _broken(path, first, f"{kind!r} is not part of a campaign")
            else:
                _insert_lines(connection, path, Base.metadata.tables[kind], part)
                counts[kind] += len(part)


def _parts(lines: Iterator[Line]) -> Iterator[list[tuple[int, Columns]]]:
    """Yield the lines of one kind in parts, each of which fits into memory."""
    part: list[tuple[int, Columns]] = []
    size = 0
    for number, _, content in lines:
        part.append((number, content))
        size += sum(len(value) for value in content.values() if isinstance(value, str))
        if len(part) == BATCH or size > MOST_LINE_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _insert_lines(
    connection: Connection, path: Path, table: Table, lines: list[tuple[int, Columns]]
) -> None:
    missing = dict.fromkeys(table.columns.keys())  # as in an archive of an earlier revision
    for number, content in lines:
        if not content.keys() <= missing.keys():
            raise _broken(path, number, f"its columns are not those of {table.name}")
    try:
        connection.execute(insert(table), [missing | content for _, content in lines])
    except (DBAPIError, ValueError, OverflowError) as error:
        why = _first_line(error) if isinstance(error, DBAPIError) else str(error)
        last = f"to {lines[-1][0]} " if len(lines) > 1 else ""
        raise _broken(
            path, lines[0][0], f"{last}cannot be rows of {table.name}: {why[:200]}"
        ) from error
