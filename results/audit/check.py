"""Going through a store by the rules, and what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, text

from frontrunner.results.audit.rules import RULES, Rule
from frontrunner.results.audit.values import broken_json, broken_standings

SHOWN_ROWS = 5


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


def check(connection: Connection, *, store: str) -> Check:
    """Go through every rule within one transaction; reads the whole store."""
    tables = set(inspect(connection).get_table_names())
    rules = [rule for rule in RULES if not ("endings" in rule.name and "endings" not in tables)]
    findings = [_finding(rule, map(dict, connection.execute(text(rule.sql)).mappings())) for rule in rules]
    findings += [
        _finding(Rule(name="JSON", says="text that is JSON can be read", sql=""), broken_json(connection)),
        _finding(Rule(name="pooled", says="a standing pools its measurements", sql=""), broken_standings(connection)),
        *_file_findings(connection),
    ]
    return Check(
        store=store,
        rules=len(findings),
        campaigns=connection.execute(text("SELECT COUNT(*) FROM campaigns")).scalar_one(),
        attempts=connection.execute(text("SELECT COUNT(*) FROM attempts")).scalar_one(),
        findings=tuple(finding for finding in findings if finding.count),
    )


def _file_findings(connection: Connection) -> list[Finding]:
    """What SQLite itself says of the file; it answers `ok` where nothing is wrong."""
    if connection.dialect.name != "sqlite":
        return []
    said = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(100)")]
    rows = [{"campaign": None, "said": line} for line in said if line != "ok"]
    return [_finding(Rule(name="file", says="SQLite finds no damage in the file", sql=""), rows)]


def _finding(rule: Rule, rows: Iterable[Mapping[str, Any]]) -> Finding:
    found = [dict(row) for row in rows]
    return Finding(
        rule=rule.name,
        says=rule.says,
        is_fault=rule.is_fault,
        count=len(found),
        rows=tuple(found[:SHOWN_ROWS]),
    )
