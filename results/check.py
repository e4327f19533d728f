"""Check of a store: the database's own checks, every row read, and everything recomputed that can be.

It reads with the code that every other command reads with. Rules that relate several tables are plain SQL that SQLite
and PostgreSQL both run; each selects the rows that break it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import CheckConstraint, Connection, Table, UniqueConstraint, func, inspect, select, text

from frontrunner.results.columns import LaterVersion, document
from frontrunner.results.database import with_undecodable_text
from frontrunner.results.outcome import Measurement, RecipeStats, pool
from frontrunner.results.rows import DamagedCell, columns_of, to_measurement, to_stats
from frontrunner.results.schema import (
    FIRST_REVISION,
    LATER_TABLES,
    REVISION,
    REVISIONS,
    AttemptRow,
    Base,
    CampaignRow,
    MeasurementRow,
    StandingRow,
    TrialRow,
)
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem

SHOWN_ROWS = 5
LATER = "as of a later version"
TOLERANCE = 1e-9
RATE_TOLERANCE = 1e-6
Rows = list[dict[str, Any]]

RULES = {
    "the file": "SQLite finds no damage in the file",
    "one revision": "a store states one revision, of four digits",
    "known revision": f"the store's revision is {REVISION} or before, so that this version knows everything in it",
    "the tables": "the store has the tables, columns and indexes of its revision",
    "references": "every reference leads to a row",
    "constraints": "every row keeps its table's constraints",
    "rows are read": "every cell holds what its column is for",
    "documents are known": "every document has fields that this version knows",
    "recipes have their ids": "a trial's id is that of its recipe in its campaign's problem",
    "standings pool": "a measurement's rate is that of its steps, and a standing pools its trial's measurements",
}
"""Rules that are checked by a function each, and what they say."""
SQL_RULES = {
    "one outcome per attempt": (
        "a measured attempt has a measurement, a failed or lost one a failure of that kind, a running one neither",
        """SELECT a.campaign_id AS campaign, a.id AS attempt, a.state, m.attempt_id AS measurement, f.kind AS failure
           FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id LEFT JOIN failures f ON f.attempt_id = a.id
           WHERE (m.attempt_id IS NOT NULL) <> (a.state = 'measured')
              OR (f.attempt_id IS NOT NULL) <> (a.state IN ('failed', 'lost'))
              OR (f.kind = 'lost') <> (a.state = 'lost')""",
    ),
    "trials follow their attempts": (
        "a running trial has one running attempt and others none; a measured one has a measured attempt; the last"
        " attempt of a failed one failed",
        """SELECT t.campaign_id AS campaign, t.id AS trial, t.state,
                  SUM(CASE WHEN a.state = 'running' THEN 1 ELSE 0 END) AS running,
                  SUM(CASE WHEN a.state = 'measured' THEN 1 ELSE 0 END) AS measured, MAX(l.state) AS last
           FROM trials t LEFT JOIN attempts a ON a.trial_id = t.id LEFT JOIN attempts l ON l.trial_id = t.id
                AND l.number = (SELECT MAX(number) FROM attempts b WHERE b.trial_id = t.id)
           GROUP BY t.campaign_id, t.id, t.state
           HAVING SUM(CASE WHEN a.state = 'running' THEN 1 ELSE 0 END)
                  <> CASE WHEN t.state = 'running' THEN 1 ELSE 0 END
               OR (t.state = 'measured' AND SUM(CASE WHEN a.state = 'measured' THEN 1 ELSE 0 END) = 0)
               OR (t.state = 'failed' AND COALESCE(MAX(l.state), '') NOT IN ('failed', 'lost'))""",
    ),
    "one standing per ranked trial": (
        "a trial has a standing, of its campaign and recipe, where it has a measured attempt and did not fail since",
        """SELECT t.campaign_id AS campaign, t.id AS trial, t.state, s.trial_id AS standing, s.recipe_id
           FROM trials t LEFT JOIN standings s ON s.trial_id = t.id
           WHERE s.campaign_id <> t.campaign_id OR s.recipe_id <> t.recipe_id OR
                 (s.trial_id IS NOT NULL) <> (t.state <> 'failed' AND EXISTS
                 (SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.state = 'measured'))""",
    ),
    "attempts are their trials'": (
        "an attempt, and the provenance it names, are of its trial's campaign",
        """SELECT t.campaign_id AS campaign, a.id AS attempt, a.campaign_id AS of_campaign,
                  p.campaign_id AS provenance_of
           FROM attempts a JOIN trials t ON t.id = a.trial_id LEFT JOIN provenance p ON p.id = a.provenance_id
           WHERE a.campaign_id <> t.campaign_id OR p.campaign_id <> t.campaign_id""",
    ),
    "trials are numbered": (
        "the trials of a campaign are numbered from 1 without a gap",
        """SELECT campaign_id AS campaign, MIN(number) AS first, MAX(number) AS last, COUNT(*) AS trials
           FROM trials GROUP BY campaign_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)""",
    ),
    "attempts are numbered": (
        "the attempts of a trial are numbered from 1 without a gap",
        """SELECT campaign_id AS campaign, trial_id AS trial, MIN(number) AS first, MAX(number) AS last,
                  COUNT(*) AS attempts
           FROM attempts GROUP BY campaign_id, trial_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)""",
    ),
    "outcomes are counted": (
        "a campaign counts an outcome for each trial that ended, none without an attempt, and numbers none above",
        """SELECT c.id AS campaign, c.outcomes, COALESCE(t.ended, 0) AS ended, t.highest,
                  COALESCE(a.attempts, 0) AS attempts
           FROM campaigns c
           LEFT JOIN (SELECT campaign_id, COUNT(outcome_number) AS ended, MAX(outcome_number) AS highest
                      FROM trials GROUP BY campaign_id) t ON t.campaign_id = c.id
           LEFT JOIN (SELECT campaign_id, COUNT(*) AS attempts FROM attempts WHERE state <> 'running'
                      GROUP BY campaign_id) a ON a.campaign_id = c.id
           WHERE c.outcomes < COALESCE(t.ended, 0) OR c.outcomes < COALESCE(t.highest, 0)
              OR c.outcomes > COALESCE(a.attempts, 0)""",
    ),
    "node-seconds add up": (
        "a campaign has spent the sum of its outcomes' node-seconds",
        """SELECT c.id AS campaign, c.node_seconds_spent AS spent, COALESCE(s.total, 0) AS of_outcomes
           FROM campaigns c LEFT JOIN (
               SELECT a.campaign_id, SUM(COALESCE(m.node_seconds, 0) + COALESCE(f.node_seconds, 0)) AS total
               FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id
               LEFT JOIN failures f ON f.attempt_id = a.id GROUP BY a.campaign_id) s ON s.campaign_id = c.id
           WHERE c.strategy <> 'imported'
             AND ABS(c.node_seconds_spent - COALESCE(s.total, 0)) > 1e-6 * (1 + COALESCE(s.total, 0))""",
    ),
    "leases are whole": (
        "a lease has a host, a process, a beginning and an end, and a campaign that was driven has given one out",
        """SELECT id AS campaign, state, epoch, driver_host, driver_pid, driven_since, lease_until FROM campaigns c
           WHERE (lease_until IS NULL) <> (driver_pid IS NULL) OR (lease_until IS NULL) <> (driven_since IS NULL)
              OR (strategy <> 'imported' AND epoch < 1 AND (state <> 'created' OR lease_until IS NOT NULL))""",
    ),
    "below the peak": (
        "no device computes above its peak: MFU is 1 at the most",
        """SELECT a.campaign_id AS campaign, a.id AS attempt, m.mfu
           FROM measurements m JOIN attempts a ON a.id = m.attempt_id JOIN campaigns c ON c.id = a.campaign_id
           WHERE m.mfu > 1 AND c.strategy <> 'imported'
             AND NOT EXISTS (SELECT 1 FROM events e WHERE e.campaign_id = c.id AND e.kind = 'reused')""",
    ),
    "one folder per probe": (
        "no two attempts of a campaign have their outcomes from one run folder",
        """SELECT a.campaign_id AS campaign, a.run_folder, COUNT(*) AS attempts
           FROM attempts a JOIN campaigns c ON c.id = a.campaign_id
           WHERE a.state IN ('measured', 'failed') AND c.strategy <> 'imported'
           GROUP BY a.campaign_id, a.run_folder HAVING COUNT(*) > 1""",
    ),
}
"""Rules about several tables: what they say, and the query for the rows that break them."""
NO_FAULTS = frozenset({"known revision", "documents are known"})
"""Rules that a store of a later version breaks without being damaged."""
MAY_GROW = frozenset({"the tables", "constraints", "rows are read"})
"""Rules that are not faults in a store of a later revision, which may allow more."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that does not hold: the number of rows that break it, and the first of them.

    Where it is not a fault, `odd_as` states what explains it: a later version.
    """

    rule: str
    says: str
    is_fault: bool
    odd_as: str | None
    count: int
    rows: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of checking a store: the numbers of rules, campaigns and attempts checked, and what is wrong."""

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
    """Check the whole store within one transaction."""
    tables = frozenset(inspect(connection).get_table_names())
    stated = _stated_revisions(connection, tables)
    is_one = len(stated) == 1 and len(stated[0]) == 4 and stated[0].isdigit()
    revision = stated[0] if is_one else FIRST_REVISION
    missing = _missing(connection, tables)
    broken: dict[str, Rows] = {
        "the file": _damage(connection),
        "one revision": [] if is_one else [{"campaign": None, "stated": ", ".join(sorted(stated)) or "none"}],
        "known revision": [{"campaign": None, "stated": revision}] if revision > REVISION else [],
        "the tables": [row for row in missing if revision >= REVISION or "column" in row],
    }
    if all("index" in row for row in missing if row["table"] not in LATER_TABLES):
        with with_undecodable_text(connection):
            broken |= _of_rows(connection, tables)
            broken |= {
                rule: [dict(row) for row in connection.execute(text(sql)).mappings()]
                for rule, (_, sql) in SQL_RULES.items()
            }
    return Check(
        store=store,
        rules=len(broken),
        campaigns=_count(connection, CampaignRow, tables),
        attempts=_count(connection, AttemptRow, tables),
        findings=tuple(_finding(rule, rows, is_later=revision > REVISION) for rule, rows in broken.items() if rows),
    )


def _finding(rule: str, rows: Rows, *, is_later: bool) -> Finding:
    is_fault = rule not in NO_FAULTS and not (is_later and rule in MAY_GROW)
    return Finding(
        rule=rule,
        says=RULES[rule] if rule in RULES else SQL_RULES[rule][0],
        is_fault=is_fault,
        odd_as=None if is_fault else LATER,
        count=len(rows),
        rows=tuple(rows[:SHOWN_ROWS]),
    )


def _stated_revisions(connection: Connection, tables: frozenset[str]) -> list[str]:
    if REVISIONS.name not in tables:
        return [FIRST_REVISION]
    return [str(found) for found in connection.execute(select(REVISIONS.c.version_num)).scalars()]


def _count(connection: Connection, table: type[Base], tables: frozenset[str]) -> int:
    if table.__tablename__ not in tables:
        return 0
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


def _damage(connection: Connection) -> Rows:
    if connection.dialect.name != "sqlite":
        return []
    lines = [str(row[0]) for row in connection.exec_driver_sql("PRAGMA integrity_check(100)")]
    return [{"campaign": None, "said": line} for line in lines if line != "ok"]


def _missing(connection: Connection, tables: frozenset[str]) -> Rows:
    """Return the tables, columns, indexes and unique constraints of this version that the store lacks."""
    found = inspect(connection)
    missing: Rows = []
    for table in Base.metadata.sorted_tables:
        about = {"campaign": None, "table": table.name}
        if table.name not in tables:
            missing.append(about | {"missing": "all of it"})
            continue
        columns = {column["name"] for column in found.get_columns(table.name)}
        missing += [about | {"column": column.name} for column in table.columns if column.name not in columns]
        indexes = {index["name"] for index in found.get_indexes(table.name)}
        missing += [about | {"index": index.name} for index in table.indexes if index.name not in indexes]
        unique = {frozenset(one["column_names"]) for one in found.get_unique_constraints(table.name)}
        for constraint in table.constraints:
            names = [column.name for column in constraint.columns] if isinstance(constraint, UniqueConstraint) else []
            if names and frozenset(names) not in unique:
                missing.append(about | {"unique": ", ".join(names)})
    return missing


def _of_rows(connection: Connection, tables: frozenset[str]) -> dict[str, Rows]:
    damaged: Rows = []
    later: Rows = []
    mappers = [mapper.class_ for mapper in Base.registry.mappers if mapper.class_.__tablename__ in tables]
    attempts = connection.execute(select(AttemptRow.id, AttemptRow.campaign_id))
    owners = {row.id: row.campaign_id for row in attempts}
    for table in mappers:
        for row in connection.execute(select(table)):
            try:
                columns_of(table, row)
            except DamagedCell as error:
                name, row_id, column, why = error.place
                about = {"campaign": _campaign_of(name, row, owners), "table": name, "row": row_id}
                damaged.append(about | {"column": column, "why": why})
            except LaterVersion as error:
                later.append({"campaign": _campaign_of(table.__tablename__, row, owners), "why": error.message})
    return {
        "references": _dangling(connection),
        "constraints": [row for table in mappers for row in _unconstrained(connection, table.__table__, owners)],
        "rows are read": damaged,
        "documents are known": later,
        "recipes have their ids": list(_misattributed(connection)),
        "standings pool": list(_contradictions(connection)),
    }


def _campaign_of(table: str, row: Any, owners: Mapping[int, int]) -> Any:
    if table == CampaignRow.__tablename__:
        return row.id
    return owners.get(row.attempt_id) if hasattr(row, "attempt_id") else getattr(row, "campaign_id", None)


def _dangling(connection: Connection) -> Rows:
    """Return the rows that refer to missing ones; a PostgreSQL server lets none in."""
    if connection.dialect.name != "sqlite":
        return []
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check")
    return [{"campaign": None, "table": name, "row": row, "refers_to": parent} for name, row, parent, _ in rows]


def _unconstrained(connection: Connection, table: Table, owners: Mapping[int, int]) -> Iterator[dict[str, Any]]:
    """Yield the rows that break CHECK constraints, which SQLite does not check in a file that it may only read.

    Those that list an enum's values are left out: reading the rows checks them.
    """
    for constraint in table.constraints:
        name = str(constraint.name)
        if isinstance(constraint, CheckConstraint) and not name.endswith("_known"):
            for row in connection.execute(select(table).where(text(f"NOT ({constraint.sqltext})"))):
                about = {"campaign": _campaign_of(table.name, row, owners), "table": table.name}
                yield about | {"row": row[0], "constraint": str(constraint.sqltext)}


def _misattributed(connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the trials whose recipe, in their campaign's problem, has another id than theirs.

    Campaigns whose specification states no problem, or one of a later version, are passed over.
    """
    problems: dict[int, Problem] = {}
    for campaign, spec in connection.execute(select(CampaignRow.id, CampaignRow.spec_json)):
        try:
            stated = json.loads(spec).get("problem")
            if stated is not None:
                problems[campaign] = document(Problem, json.dumps(stated))
        except LaterVersion:
            continue
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            yield {"campaign": campaign, "why": f"its problem cannot be read: {error}"}
    for row in connection.execute(select(TrialRow).where(TrialRow.campaign_id.in_(problems))):
        try:
            found = recipe_id(problems[row.campaign_id], columns_of(TrialRow, row)["recipe_json"])
        except (DamagedCell, LaterVersion):
            continue  # which is another rule's
        if found != row.recipe_id:
            about = {"campaign": row.campaign_id, "trial": row.id}
            yield about | {"recipe_id": row.recipe_id, "its_recipe_has": found}


def _contradictions(connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the measurements whose rate is not that of their steps, and the standings that do not pool theirs."""
    standings = {row.trial_id: row for row in connection.execute(select(StandingRow))}
    query = (
        select(MeasurementRow, AttemptRow.trial_id, AttemptRow.campaign_id)
        .join(AttemptRow, AttemptRow.id == MeasurementRow.attempt_id)
        .order_by(AttemptRow.trial_id, AttemptRow.id)
    )
    for trial, rows in groupby(connection.execute(query), key=lambda row: row.trial_id):
        of_trial = list(rows)
        about = {"campaign": of_trial[0].campaign_id, "trial": trial}
        try:
            measured = [to_measurement(row) for row in of_trial]
            stored = to_stats(standings[trial]) if trial in standings else None
        except DamagedCell:
            continue  # which is another rule's
        for row, measurement in zip(of_trial, measured, strict=True):
            if not _is_rate_of_steps(measurement):
                expected = measurement.tokens_per_step / measurement.step_time_s_median
                held = {"column": "tokens_per_s", "held": measurement.tokens_per_s, "should_be": expected}
                yield about | {"attempt": row.attempt_id} | held
        if stored is not None:
            yield from (about | difference for difference in _differences(stored, pool(measured)))


def _is_rate_of_steps(measurement: Measurement) -> bool:
    """Return whether the rate is that of the median step; of an even number of steps either middle one will do."""
    steps, tokens = measurement.step_times_s, measurement.tokens_per_step
    least = tokens / statistics.median_high(steps) * (1 - RATE_TOLERANCE)
    return least <= measurement.tokens_per_s <= tokens / statistics.median_low(steps) * (1 + RATE_TOLERANCE)


def _differences(stored: RecipeStats, pooled: RecipeStats) -> Iterator[dict[str, Any]]:
    expected = asdict(pooled)
    for column, held in asdict(stored).items():
        wanted = expected[column]
        if held is None or wanted is None:
            is_same = held is wanted
        else:  # a spread is a difference of near numbers, and so as exact as those
            is_same = math.isclose(held, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE * (column == "step_time_spread"))
        if not is_same:
            yield {"column": column, "held": held, "should_be": wanted}
