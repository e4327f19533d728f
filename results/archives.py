"""Import of the archives that frontrunner wrote before `store copy` copied single campaigns.

An archive is one campaign as a file of JSON lines: a header, the rows of the tables, and a count.
Each line carries the SHA-256 of its content after the hash of the line before, so that a changed,
missing, doubled or added line is found.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Table, insert, update
from sqlalchemy.exc import DBAPIError

from frontrunner.results.lease import RELEASED
from frontrunner.results.records import UNARCHIVED
from frontrunner.results.rows import Columns
from frontrunner.results.schema import REVISION, Base, CampaignRow, HolderRow
from frontrunner.results.states import CampaignState
from frontrunner.results.transfer import TABLES, Copied, add_checked, first_line, staging
from frontrunner.spaces.document import canonical_json
from frontrunner.spaces.errors import InvalidInput, NotFound, StoreUnusable, shown

FORMAT = "frontrunner-archive"
VERSION = 1
HEADER, END = "header", "end"
HOLDERS = HolderRow.__tablename__
"""The one table of a campaign that archives leave out: the holders of its leases."""
NOT_HERE = "its driver ended elsewhere"
"""Why a campaign is stopped that was archived as running."""
MOST_LINE_BYTES = 16 * 2**20

Line = tuple[int, str, Columns]
"""Number, table and content of a verified line."""


class Chain:
    """Hash of everything up to the line that was last added.

    The hash of a line is that of the previous line's hash, a line break, and `[kind, content]` as
    JSON with sorted keys and no blanks.
    """

    def __init__(self) -> None:
        self.sha256 = ""

    def add(self, kind: str, content: Columns) -> str:
        """Return the hash of the next line."""
        said = f"{self.sha256}\n{canonical_json([kind, content])}"
        self.sha256 = hashlib.sha256(said.encode()).hexdigest()
        return self.sha256


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


def import_archive(path: Path, target: str, *, name: str | None) -> Copied:
    """Add the campaign of an archive, as `name` or under its own, to the store `target`.

    A campaign that was running is stopped: its driver ended elsewhere. Raises `InvalidInput` for a
    damaged file, `StoreUnusable` for a file of a later version, and otherwise as `add_checked`
    does.
    """
    chain = Chain()
    with staging(name) as staged:
        with staged.database.write() as filling:
            _fill(filling, path, read_lines(path, chain))
            was_running = CampaignRow.state == CampaignState.RUNNING
            stopped = {"state": CampaignState.STOPPED, "state_reason": NOT_HERE}
            filling.execute(update(CampaignRow).where(was_running).values(stopped))
            filling.execute(update(CampaignRow).values(RELEASED))
        origin = {"file": path.name, "sha256": chain.sha256}
        return add_checked(
            staged, target, source=str(path), name=name, kind=UNARCHIVED, origin=origin
        )


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
    for number, kind, content in lines:
        if kind == END:
            if content.get("rows") != counts.total() or counts["campaigns"] != 1:
                why = "the archive does not hold one campaign and the rows that it counts"
                raise _broken(path, number, why)
        elif kind not in TABLES or kind == HOLDERS:
            raise _broken(path, number, f"{kind!r} is not part of a campaign")
        else:
            _insert_line(connection, path, number, Base.metadata.tables[kind], content)
            counts[kind] += 1


def _insert_line(
    connection: Connection, path: Path, number: int, table: Table, content: Columns
) -> None:
    if not content.keys() <= set(table.columns.keys()):
        raise _broken(path, number, f"its columns are not those of {table.name}")
    try:
        connection.execute(insert(table), content)
    except (DBAPIError, ValueError, OverflowError) as error:
        why = first_line(error) if isinstance(error, DBAPIError) else str(error)
        raise _broken(path, number, f"it cannot be a row of {table.name}: {why[:200]}") from error
