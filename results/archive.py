"""Archives: one campaign as one portable file of JSON lines.

The first line is the header, each after it holds one row of a table, and the last counts the rows. Each carries the
SHA-256 of its content after the hash of the line before, so that a changed, missing, doubled or added line is found. An
archive is read into a store of its own first, which is checked as any store is, and its campaign is then added to the
target in one transaction.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection, Select, Table, insert, inspect, select
from sqlalchemy.exc import DBAPIError

from frontrunner.results.check import check
from frontrunner.results.lease import RELEASED, refuse_driven
from frontrunner.results.records import timestamp
from frontrunner.results.rows import Columns, find_campaign
from frontrunner.results.schema import REVISION, AttemptRow, Base, CampaignRow, EventRow
from frontrunner.results.states import CampaignState
from frontrunner.results.store import Store, open_store
from frontrunner.results.transfer import BATCH, batches, first_line
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
HEADER = "header"
END = "end"
MAX_LINE_BYTES = 16 * 2**20
"""No row is as long: the longest holds a log's tail."""
TABLES = (
    *("campaigns", "provenance", "trials", "attempts", "measurements"),
    *("endings", "failures", "standings", "events"),
)
"""Order of an archive: each row after those that it refers to."""
REFERENCES = {
    "campaign_id": "campaigns",
    "trial_id": "trials",
    "attempt_id": "attempts",
    "provenance_id": "provenance",
}
"""Columns that hold another table's key, and that table."""
UNARCHIVED = "unarchived"
"""Event of a campaign that came from an archive; its data name the file and its hash."""
ATTEMPTS_BEFORE = "attempts"
"""Its datum that counts the attempts which came with the archive: the campaign's first ones."""
NOT_HERE = "its driver ended elsewhere"
"""Why a campaign is stopped that was archived as running: its driver works with another store."""

CheckSpec = Callable[[str], object]
"""Reads a campaign's specification; raises `InvalidInput` where this version cannot."""


@dataclass(frozen=True, kw_only=True)
class Archived:
    """Result of archiving; `sha256` is the hash of the archive's last line, and so of all of it."""

    campaign: str
    file: str
    rows: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Unarchived:
    """Result of adding an archive to a store, under the name that the campaign has there."""

    campaign: str
    file: str
    store: str
    rows: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Line:
    """One verified line: its number, the table it is of, and its content."""

    number: int
    kind: str
    content: dict[str, Any]


class Chain:
    """Hash of everything up to the line that was last added."""

    def __init__(self) -> None:
        self.sha256 = ""

    def add(self, kind: str, content: dict[str, Any]) -> str:
        """Return the hash of the next line."""
        said = f"{self.sha256}\n{canonical_json([kind, content])}"
        self.sha256 = hashlib.sha256(said.encode()).hexdigest()
        return self.sha256


def archive(store: Store, campaign: str | None, path: Path) -> Archived:
    """Write the campaign (None: the newest) to a new file, whole or not at all.

    Raises `AlreadyDriven` while a driver holds the campaign, `InvalidInput` where the file exists or cannot be written,
    and `NotFound` where its folder, or the campaign, is missing.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists already", hint="name another file")
    if not path.absolute().parent.is_dir():
        raise NotFound(f"there is no folder {path.absolute().parent} to write {path.name} to")
    with writing(path):
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
        unfinished = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                done = _write(store, campaign, path, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return done


def _write(store: Store, campaign: str | None, path: Path, file: IO[str]) -> Archived:
    chain, rows, now = Chain(), 0, store.now()

    def write(kind: str, content: dict[str, Any]) -> None:
        file.write(canonical_json({"kind": kind, "content": content, "sha256": chain.add(kind, content)}) + "\n")

    with store.database.read() as connection:
        found = find_campaign(connection, campaign, store=store.url)
        refuse_driven(connection, store.database, now, found.name)
        about = {"format": FORMAT, "version": VERSION, "revision": REVISION, "campaign": found.name}
        write(HEADER, {**about, "written_at": timestamp(now)})
        present = set(inspect(connection).get_table_names())
        for name in TABLES:
            query = _of_campaign(Base.metadata.tables[name], found.id)
            for row in connection.execute(query).mappings() if name in present else ():
                write(name, dict(row))
                rows += 1
        write(END, {"rows": rows})
    return Archived(campaign=found.name, file=str(path), rows=rows, sha256=chain.sha256)


def _of_campaign(table: Table, campaign_id: int) -> Select[Any]:
    """Select the campaign's rows of one table, in the order of their keys."""
    query = select(table).order_by(*table.primary_key.columns)
    if table.name == "campaigns":
        return query.where(table.c.id == campaign_id)
    if "campaign_id" in table.columns:
        return query.where(table.c.campaign_id == campaign_id)
    attempts = select(AttemptRow.id).where(AttemptRow.campaign_id == campaign_id)
    return query.where(table.c.attempt_id.in_(attempts))


def read_lines(path: Path, chain: Chain) -> Iterator[Line]:
    """Yield the lines of an archive, the header first and the end last, each verified before it is handed out.

    Raises `NotFound` where there is no file, and `InvalidInput` where it cannot be read, and, naming the line, for the
    first that is not as written.
    """
    if not path.is_file():
        raise NotFound(f"there is no archive at {path}")
    number, kind = 0, ""
    try:
        with path.open("rb") as file:
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if kind == END:
                    raise _broken(path, number, "it comes after the end of the archive")
                line = _verified(path, number, raw, chain)
                kind = line.kind
                if (kind == HEADER) != (number == 1):
                    raise _broken(path, number, "it is out of place" if number > 1 else "this is not an archive")
                yield line
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint="nothing was written") from None
    if kind != END:
        raise _broken(path, number + 1, "the file ends before its end: it was cut short")


def _broken(path: Path, number: int, why: str) -> InvalidInput:
    return InvalidInput(f"{path}, line {number}: {why}", hint="nothing was written; get the archive again")


def _verified(path: Path, number: int, raw: bytes, chain: Chain) -> Line:
    if len(raw) > MAX_LINE_BYTES:
        raise _broken(path, number, f"it is longer than {MAX_LINE_BYTES:,} bytes")
    if not raw.endswith(b"\n"):
        raise _broken(path, number, "it is cut short")
    try:
        match json.loads(raw):
            case {"kind": str(kind), "content": dict(content), "sha256": sha256, **rest} if not rest:
                is_next = chain.add(kind, content) == sha256
            case _:
                raise ValueError("expected an object with kind, content and sha256")
    except (ValueError, RecursionError) as error:
        raise _broken(path, number, f"this is not a line of a frontrunner archive: {str(error)[:80]}") from error
    if not is_next:
        raise _broken(path, number, "it, or a line before it, was changed: its hash is another")
    return Line(number=number, kind=kind, content=content)


@dataclass(frozen=True, kw_only=True)
class OpenArchive:
    """A verified archive: `store` holds its campaign alone."""

    path: Path
    store: Store
    campaign: str
    rows: int
    attempts: int
    sha256: str


@contextmanager
def open_archive(path: Path, *, check_spec: CheckSpec) -> Iterator[OpenArchive]:
    """Read an archive into a temporary store, and check that.

    Raises `NotFound` where there is no file, `InvalidInput` for one that is damaged, cut short, not an archive, or not
    of a campaign that a driver could have written, and `StoreUnusable` for one of a later version.
    """
    chain = Chain()
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/archive.db") as store:
        with store.database.write() as connection:
            counts = _fill(connection, path, read_lines(path, chain))
        with store.database.read() as connection:
            _refuse_unsound(connection, path)
        found = store.campaign(None)
        try:
            check_spec(found.spec_json)
        except FrontrunnerError as error:
            raise _broken(path, 2, f"this version cannot read its specification: {error}") from error
        yield OpenArchive(
            path=path,
            store=store,
            campaign=found.name,
            rows=sum(counts.values()),
            attempts=counts.get("attempts", 0),
            sha256=chain.sha256,
        )


def _fill(connection: Connection, path: Path, lines: Iterator[Line]) -> dict[str, int]:
    """Insert the rows of an archive into an empty store, and return how many each table got."""
    header = next(lines).content
    if header.get("format") != FORMAT:
        raise _broken(path, 1, "this is not a frontrunner archive")
    if header.get("version") != VERSION or str(header.get("revision", "")) > REVISION:
        versions = f"version {shown(header.get('version'))}, revision {shown(header.get('revision'))}"
        raise StoreUnusable(f"{path} was written by a later frontrunner: {versions}", hint="upgrade frontrunner")
    counts: dict[str, int] = {}
    for kind, group in groupby(lines, key=lambda line: line.kind):
        of_kind = list(group)
        if kind == END:
            if of_kind[0].content.get("rows") != sum(counts.values()) or counts.get("campaigns") != 1:
                why = "the archive does not hold one campaign and the rows that it counts"
                raise _broken(path, of_kind[0].number, why)
            continue
        if kind not in TABLES:
            raise _broken(path, of_kind[0].number, f"{kind!r} is not part of a campaign")
        table = Base.metadata.tables[kind]
        for begin in range(0, len(of_kind), BATCH):
            _insert_lines(connection, path, table, of_kind[begin : begin + BATCH])
        counts[kind] = counts.get(kind, 0) + len(of_kind)
    return counts


def _insert_lines(connection: Connection, path: Path, table: Table, lines: list[Line]) -> None:
    for line in lines:
        if set(line.content) != set(table.columns.keys()):
            raise _broken(path, line.number, f"its columns are not those of {table.name}")
    try:
        connection.execute(insert(table), [line.content for line in lines])
    except (DBAPIError, ValueError, OverflowError) as error:
        why = first_line(error) if isinstance(error, DBAPIError) else str(error)
        last = f"to {lines[-1].number} " if len(lines) > 1 else ""
        raise _broken(path, lines[0].number, f"{last}cannot be rows of {table.name}: {why[:200]}") from error


def _refuse_unsound(connection: Connection, path: Path) -> None:
    for finding in check(connection, store=str(path)).findings:
        row = ", ".join(f"{key} {shown(value)}" for key, value in finding.rows[0].items() if key != "campaign")
        why = f"{finding.count} rows break that {finding.says}: {row}"
        raise InvalidInput(f"{path} does not hold a campaign that a driver wrote: {why}", hint="nothing was written")


def unarchive(store: Store, archive: OpenArchive, *, name: str | None = None) -> Unarchived:
    """Add the campaign of an archive to the store, as `name` or under its own.

    Raises `InvalidInput` where the name is taken. Nothing is written then.
    """
    wanted = archive.campaign if name is None else name
    require_campaign_name("--name", wanted)
    now = timestamp(store.now())
    with archive.store.database.read() as reading, store.database.write(whole_store=True) as connection:
        if connection.execute(select(CampaignRow.id).where(CampaignRow.name == wanted)).first():
            raise InvalidInput(f"campaign {wanted!r} exists already in {store.url}", hint="give another with --name")
        new_ids: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        for name_of_table in TABLES:
            table = Base.metadata.tables[name_of_table]
            for rows in batches(reading, table):
                if name_of_table == "campaigns":
                    _not_driven(rows[0], wanted)
                _insert_remapped(connection, table, rows, new_ids)
        (campaign_id,) = new_ids["campaigns"].values()
        data = {"file": archive.path.name, "sha256": archive.sha256, ATTEMPTS_BEFORE: archive.attempts}
        event = {"campaign_id": campaign_id, "at": now, "kind": UNARCHIVED, "data_json": canonical_json(data)}
        connection.execute(insert(EventRow).values(**event))
    return Unarchived(
        campaign=wanted, file=str(archive.path), store=store.url, rows=archive.rows, sha256=archive.sha256
    )


def _not_driven(campaign: Columns, name: str) -> None:
    """Give a campaign's row its name here, and the state of one that nobody drives."""
    campaign |= {"name": name, **RELEASED}
    if campaign["state"] == CampaignState.RUNNING:
        campaign |= {"state": CampaignState.STOPPED, "state_reason": NOT_HERE}
    campaign["spec_json"] = canonical_json({**json.loads(campaign["spec_json"]), "name": name})


def _insert_remapped(
    connection: Connection, table: Table, rows: list[Columns], new_ids: dict[str, dict[int, int]]
) -> None:
    """Insert rows under ids that are free here, with their references changed accordingly."""
    values = [
        {key: new_ids[REFERENCES[key]].get(value) if key in REFERENCES else value for key, value in row.items()}
        for row in rows
    ]
    if "id" not in table.columns:
        connection.execute(insert(table), values)
        return
    old: list[Any] = [row.pop("id") for row in values]
    made = insert(table).returning(table.c.id, sort_by_parameter_order=True)
    new_ids[table.name].update(zip(old, connection.execute(made, values).scalars(), strict=True))
