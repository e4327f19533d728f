"""Going through a store by the rules, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from frontrunner.results.audit.encoding import readable, undecodable
from frontrunner.results.audit.identity import misattributed
from frontrunner.results.audit.pooling import contradictions
from frontrunner.results.audit.rule import LATER_VERSION, Rule
from frontrunner.results.audit.rules import RULES
from frontrunner.results.audit.structure import NEWEST_KNOWN, Structure, structure_of
from frontrunner.results.audit.values import broken_json, broken_names, broken_times

SHOWN_ROWS = 5
Rows = list[dict[str, Any]]

UNDAMAGED = Rule(name="the file", says="SQLite finds no damage in the file")
REVISION = Rule(name="one revision", says="a store states one revision, of four digits")
KNOWN_REVISION = Rule(
    name="known revision",
    says=f"the store's revision is {NEWEST_KNOWN} or before, so that everything in it is known to these rules",
    is_fault=False,
    odd_as=LATER_VERSION,
)
WHOLE = Rule(name="the tables", says="the store has the tables, columns and indexes of its revision", may_grow=True)
DECODABLE = Rule(name="text is text", says="every text is UTF-8")
READABLE = Rule(name="text is JSON", says="every column of JSON can be read, and holds no NaN")
TIMES = Rule(name="times are times", says="every time is UTC, with microseconds")
NAMES = Rule(name="names are names", says="a campaign's name is 1 to 64 of a-z, 0-9, '.', '_' and '-'")
POOLED = Rule(
    name="standings pool",
    says="a measurement's rate is that of its steps, and a standing is what its measurements say together",
)
ATTRIBUTED = Rule(name="recipes have their ids", says="a trial's id is that of its recipe in its campaign's problem")
BY_FUNCTION: dict[Rule, Callable[[Connection], Iterable[dict[str, Any]]]] = {
    READABLE: broken_json,
    TIMES: broken_times,
    NAMES: broken_names,
    POOLED: contradictions,
    ATTRIBUTED: misattributed,
}
"""The rules that no query can ask, and what goes through the store for each."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that does not hold: how many rows break it, and the first of them.

    Where it is no fault, `odd_as` says what explains it: a clock that was set back, or a later version.
    """

    rule: str
    says: str
    is_fault: bool
    odd_as: str | None
    count: int
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """What came of checking a store: how many rules, campaigns and attempts were gone through, and what is wrong."""

    store: str
    rules: int
    campaigns: int
    attempts: int
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is broken."""
        return not any(finding.is_fault for finding in self.findings)


def check(connection: Connection, *, store: str, campaign_id: int | None = None) -> Check:
    """Go through every rule within one transaction; reads the whole store.

    With `campaign_id`, findings of other campaigns are left out; damage of the file and rows of no campaign stay, since
    they may be that campaign's.
    """
    structure = structure_of(connection)
    broken = _of_structure(connection, structure)
    if structure.can_be_asked:
        with readable(connection, is_damaged=bool(broken[DECODABLE])):
            broken |= _of_rows(connection, structure)
    if campaign_id is not None:
        broken = {
            rule: [row for row in rows if campaign_of(row) in (None, campaign_id)] for rule, rows in broken.items()
        }
    return Check(
        store=store,
        rules=len(broken),
        campaigns=_counted(connection, "campaigns", structure),
        attempts=_counted(connection, "attempts", structure),
        findings=tuple(_finding(rule, rows, structure) for rule, rows in broken.items() if rows),
    )


def _of_structure(connection: Connection, structure: Structure) -> dict[Rule, Rows]:
    """What can be asked of any store, whatever it lacks."""
    later: Rows = [{"campaign": None, "stated": structure.revision}] if structure.is_later else []
    return {
        UNDAMAGED: _damage(connection),
        REVISION: list(structure.odd_revision),
        KNOWN_REVISION: later,
        WHOLE: list(structure.missing),
        DECODABLE: undecodable(connection, structure.tables),
    }


def _of_rows(connection: Connection, structure: Structure) -> dict[Rule, Rows]:
    rules = [rule for rule in RULES if rule.later_table in (None, *structure.tables)]
    found = {rule: [dict(row) for row in connection.execute(text(rule.sql)).mappings()] for rule in rules}
    return found | {rule: list(ask(connection)) for rule, ask in BY_FUNCTION.items()}


def _counted(connection: Connection, table: str, structure: Structure) -> int:
    """How many rows a table has; none where it is not there."""
    if table not in structure.tables:
        return 0
    return int(connection.execute(text(f"SELECT COUNT(*) FROM {table}")).scalar_one())  # noqa: S608 - a constant


def campaign_of(row: Mapping[str, Any]) -> Any:
    """The id of the campaign that a row of a finding belongs to; None for what belongs to none."""
    return row.get("campaign", row.get("campaign_id"))


def _damage(connection: Connection) -> list[dict[str, Any]]:
    """What SQLite itself says of the file; it answers `ok` where nothing is wrong."""
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(100)")]
    return [{"campaign": None, "said": line} for line in said if line != "ok"]


def _finding(rule: Rule, rows: Rows, structure: Structure) -> Finding:
    is_later = rule.may_grow and structure.is_later
    is_fault = rule.is_fault and not is_later
    return Finding(
        rule=rule.name,
        says=rule.says,
        is_fault=is_fault,
        odd_as=None if is_fault else LATER_VERSION if is_later else rule.odd_as,
        count=len(rows),
        rows=tuple(rows[:SHOWN_ROWS]),
    )
