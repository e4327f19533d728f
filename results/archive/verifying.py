"""Verifying an archive before anything is written: its lines, their order, columns, types and references."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from frontrunner.results.archive.contents import check_recipe, check_texts
from frontrunner.results.archive.lines import END, FORMAT, HEADER, VERSION, Line, broken, read_lines
from frontrunner.results.archive.writing import TABLES
from frontrunner.results.cells import DamagedCell
from frontrunner.results.codec import storable
from frontrunner.results.schema import REVISION, Base
from frontrunner.spaces.errors import FrontrunnerError, StoreUnusable, shown
from frontrunner.spaces.problem import Problem

REFERENCES = {
    "campaign_id": "campaigns",
    "trial_id": "trials",
    "attempt_id": "attempts",
    "provenance_id": "provenance",
}
"""The columns that hold another table's key, and that table."""

CheckSpec = Callable[[str], Problem]
"""The problem of a campaign, by the text of its specification; raises `InvalidInput` for one that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class ArchiveRows:
    """A verified archive: the rows, the campaign's first, and the hash of all of it."""

    path: Path
    rows: tuple[Line, ...]
    sha256: str

    @property
    def campaign(self) -> str:
        """The campaign's own name."""
        return str(self.rows[0].content["name"])


def read_archive(path: Path, *, check_spec: CheckSpec) -> ArchiveRows:
    """Verify an archive, line by line.

    Raises `NotFound` where there is none, `InvalidInput`, naming the line, for a file that is damaged, cut short or no
    archive, and `StoreUnusable` for one of a later version.
    """
    lines = _verified(path, check_spec)
    return ArchiveRows(path=path, rows=tuple(lines[:-1]), sha256=lines[-1].sha256)


def _verified(path: Path, check_spec: CheckSpec) -> list[Line]:
    """The rows, the campaign's first, and the end."""
    lines = read_lines(path)
    _check_header(path, next(lines, None))
    rows: list[Line] = []
    problem: Problem | None = None
    known: dict[str, set[int]] = {table: set() for table in TABLES}
    for line in lines:
        rows.append(line)
        if line.kind == END:
            break
        _check_row(path, line, known)
        with _named(path, line):
            check_texts(line.kind, line.content)
            if line.kind == "campaigns":
                problem = check_spec(line.content["spec_json"])
            elif line.kind == "trials" and problem is not None:  # its reference to a campaign was followed above
                check_recipe(line.content, problem)
    for line in lines:
        raise broken(path, line.number, "it comes after the end of the archive")
    if rows[-1].content.get("rows") != len(rows) - 1 or len(known["campaigns"]) != 1 or rows[0].kind != "campaigns":
        raise broken(path, rows[-1].number, "the archive does not hold one campaign and the rows that it counts")
    return rows


def _check_header(path: Path, line: Line | None) -> None:
    said = {} if line is None else line.content
    if line is None or line.kind != HEADER or said.get("format") != FORMAT:
        raise broken(path, 1, "this is no frontrunner archive")
    if said.get("version") != VERSION or str(said.get("revision", "")) > REVISION:
        versions = f"version {shown(said.get('version'))}, revision {shown(said.get('revision'))}"
        raise StoreUnusable(f"{path} was written by a later frontrunner: {versions}", hint="upgrade frontrunner")


def _check_row(path: Path, line: Line, known: dict[str, set[int]]) -> None:
    """Refuse a row with other columns or types than its table's, or that refers to a row that did not come before."""
    if line.kind not in known:
        raise broken(path, line.number, f"{line.kind!r} is no part of a campaign")
    table = Base.metadata.tables[line.kind]
    if set(line.content) != set(table.columns.keys()):
        raise broken(path, line.number, f"its columns are not those of {line.kind}")
    for column in table.columns:
        value = line.content[column.name]
        if not _fits(value, column.type.python_type, nullable=bool(column.nullable)):
            raise broken(path, line.number, f"{column.name} = {str(value)[:40]!r} is not what the column holds")
        parent = REFERENCES.get(column.name)
        if parent is not None and value is not None and value not in known[parent]:
            raise broken(path, line.number, f"{column.name} = {value} refers to a row that is not there")
    if "id" in line.content:
        if line.content["id"] in known[line.kind]:
            raise broken(path, line.number, f"id {line.content['id']} was given before")
        known[line.kind].add(line.content["id"])


def _fits(value: object, expected: type, *, nullable: bool) -> bool:
    if value is None:
        return nullable
    if expected is str:
        return isinstance(value, str) and storable(value) == value
    if isinstance(value, bool):
        return False
    if expected is int:
        return isinstance(value, int) and abs(value) < 2**63
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


@contextmanager
def _named(path: Path, line: Line) -> Iterator[None]:
    """Turn what the reading of a row's texts raises into the error that names its line."""
    try:
        yield
    except (FrontrunnerError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        said = error.finding if isinstance(error, DamagedCell) else str(error)
        raise broken(path, line.number, f"this version cannot read it: {said[:200]}") from error
