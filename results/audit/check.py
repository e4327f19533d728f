"""Going through a store by the rules, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, text

from frontrunner.results.audit.rules import RULES, Rule
from frontrunner.results.audit.values import broken_json, broken_standings

SHOWN_ROWS = 5
READABLE = Rule(name="text is JSON", says="every column of JSON can be read, and holds no NaN", sql="")
POOLED = Rule(name="standings pool", says="a standing is what its measurements say together", sql="")
UNDAMAGED = Rule(name="the file", says="SQLite finds no damage in the file", sql="")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that does not hold: how many rows break it, and the first of them.

    Where it is no fault, a clock that was set back explains it.
    """

    rule: str
    says: str
    is_fault: bool
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
    tables = set(inspect(connection).get_table_names())
    rules = [rule for rule in RULES if rule.later_table in (None, *tables)]
    broken = {rule: [dict(row) for row in connection.execute(text(rule.sql)).mappings()] for rule in rules}
    broken |= {READABLE: list(broken_json(connection)), POOLED: list(broken_standings(connection))}
    broken |= {UNDAMAGED: _damage(connection)}
    if campaign_id is not None:
        broken = {
            rule: [row for row in rows if campaign_of(row) in (None, campaign_id)] for rule, rows in broken.items()
        }
    return Check(
        store=store,
        rules=len(broken),
        campaigns=connection.execute(text("SELECT COUNT(*) FROM campaigns")).scalar_one(),
        attempts=connection.execute(text("SELECT COUNT(*) FROM attempts")).scalar_one(),
        findings=tuple(_finding(rule, rows) for rule, rows in broken.items() if rows),
    )


def campaign_of(row: Mapping[str, Any]) -> Any:
    """The id of the campaign that a row of a finding belongs to; None for what belongs to none."""
    return row.get("campaign", row.get("campaign_id"))


def _damage(connection: Connection) -> list[dict[str, Any]]:
    """What SQLite itself says of the file; it answers `ok` where nothing is wrong."""
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(100)")]
    return [{"campaign": None, "said": line} for line in said if line != "ok"]


def _finding(rule: Rule, rows: list[dict[str, Any]]) -> Finding:
    return Finding(
        rule=rule.name, says=rule.says, is_fault=rule.is_fault, count=len(rows), rows=tuple(rows[:SHOWN_ROWS])
    )
