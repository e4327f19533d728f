"""Check of a store: the database's own checks, every row read, and everything recomputed that can
be.

It reads with the code that every other command reads with. Rules that relate several tables are
plain SQL that SQLite and PostgreSQL both run; each selects the rows that break it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Connection,
    UniqueConstraint,
    func,
    inspect,
    null,
    select,
    text,
)

from frontrunner.results.outcome import Measurement, RecipeStats, pool
from frontrunner.results.records import Trial
from frontrunner.results.rows import DamagedCell, cell, has_table, unreadable_rows, value_of
from frontrunner.results.schema import (
    FIRST_REVISION,
    LATER_TABLES,
    REVISION,
    REVISIONS,
    AttemptRow,
    Base,
    CampaignRow,
    LaterVersion,
    MeasurementRow,
    StandingRow,
    TelemetryRow,
    TrialRow,
    document,
)
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.document import recipe_id
from frontrunner.spaces.problem import Problem

SHOWN_ROWS = 5
TOLERANCE = 1e-9
RATE_TOLERANCE = 1e-6
Rows = list[dict[str, Any]]

RULES = {
    "the file": "SQLite finds no damage in the file",
    "one revision": "a store states one revision, of four digits",
    "known revision": (
        f"the store's revision is {REVISION} or before, so that this version knows everything in it"
    ),
    "the tables": "the store has the tables, columns and indexes of its revision",
    "references": "every reference leads to a row",
    "constraints": "every row keeps its table's constraints",
    "rows are read": "every cell holds what its column is for",
    "documents are known": "every document has fields that this version knows",
    "recipes have their ids": "a trial's id is that of its recipe in its campaign's problem",
    "standings pool": (
        "a measurement's rate is that of its steps, and a standing pools its trial's measurements"
    ),
}
"""Rules that are checked by a function each."""
SQL_RULES = {
    "one outcome per attempt": (
        (
            "a measured attempt has a measurement, a failed or lost one a failure of that kind, a"
            " running one neither"
        ),
        """SELECT a.campaign_id AS campaign, a.id AS attempt, a.state, m.attempt_id AS measurement, f.kind AS failure
           FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id LEFT JOIN failures f ON f.attempt_id = a.id
           WHERE (m.attempt_id IS NOT NULL) <> (a.state = 'measured')
              OR (f.attempt_id IS NOT NULL) <> (a.state IN ('failed', 'lost'))
              OR (f.kind = 'lost') <> (a.state = 'lost')""",  # noqa: E501
    ),
    "trials follow their attempts": (
        (
            "a running trial has one running attempt and others none; a measured one has a measured"
            " attempt; the last attempt of a failed one failed"
        ),
        """SELECT t.campaign_id AS campaign, t.id AS trial, t.state,
                  SUM(CASE WHEN a.state = 'running' THEN 1 ELSE 0 END) AS running,
                  SUM(CASE WHEN a.state = 'measured' THEN 1 ELSE 0 END) AS measured, MAX(l.state) AS last
           FROM trials t LEFT JOIN attempts a ON a.trial_id = t.id LEFT JOIN attempts l ON l.trial_id = t.id
                AND l.number = (SELECT MAX(number) FROM attempts b WHERE b.trial_id = t.id)
           GROUP BY t.campaign_id, t.id, t.state
           HAVING SUM(CASE WHEN a.state = 'running' THEN 1 ELSE 0 END)
                  <> CASE WHEN t.state = 'running' THEN 1 ELSE 0 END
               OR (t.state = 'measured' AND SUM(CASE WHEN a.state = 'measured' THEN 1 ELSE 0 END) = 0)
               OR (t.state = 'failed' AND COALESCE(MAX(l.state), '') NOT IN ('failed', 'lost'))""",  # noqa: E501
    ),
    "one standing per ranked trial": (
        (
            "a trial has a standing, of its campaign and recipe, where it has a measured attempt"
            " and did not fail since"
        ),
        """SELECT t.campaign_id AS campaign, t.id AS trial, t.state, s.trial_id AS standing, s.recipe_id
           FROM trials t LEFT JOIN standings s ON s.trial_id = t.id
           WHERE s.campaign_id <> t.campaign_id OR s.recipe_id <> t.recipe_id OR
                 (s.trial_id IS NOT NULL) <> (t.state <> 'failed' AND EXISTS
                 (SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.state = 'measured'))""",  # noqa: E501
    ),
    "attempts are their trials'": (
        "an attempt, and the provenance it names, are of its trial's campaign",
        """SELECT t.campaign_id AS campaign, a.id AS attempt, a.campaign_id AS of_campaign,
                  p.campaign_id AS provenance_of
           FROM attempts a JOIN trials t ON t.id = a.trial_id LEFT JOIN provenance p ON p.id = a.provenance_id
           WHERE a.campaign_id <> t.campaign_id OR p.campaign_id <> t.campaign_id""",  # noqa: E501
    ),
    "trials are numbered": (
        "the trials of a campaign, and the attempts of a trial, are numbered from 1 without a gap",
        """SELECT campaign_id AS campaign, NULL AS trial, MIN(number) AS first, MAX(number) AS last, COUNT(*) AS rows
           FROM trials GROUP BY campaign_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)
           UNION ALL SELECT campaign_id, trial_id, MIN(number), MAX(number), COUNT(*)
           FROM attempts GROUP BY campaign_id, trial_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)""",  # noqa: E501
    ),
    "outcomes are counted": (
        (
            "a campaign counts an outcome for each trial that ended, none without an attempt, and"
            " numbers none above"
        ),
        """SELECT c.id AS campaign, c.outcomes, COALESCE(t.ended, 0) AS ended, t.highest,
                  COALESCE(a.attempts, 0) AS attempts
           FROM campaigns c
           LEFT JOIN (SELECT campaign_id, COUNT(outcome_number) AS ended, MAX(outcome_number) AS highest
                      FROM trials GROUP BY campaign_id) t ON t.campaign_id = c.id
           LEFT JOIN (SELECT campaign_id, COUNT(*) AS attempts FROM attempts WHERE state <> 'running'
                      GROUP BY campaign_id) a ON a.campaign_id = c.id
           WHERE c.outcomes < COALESCE(t.ended, 0) OR c.outcomes < COALESCE(t.highest, 0)
              OR c.outcomes > COALESCE(a.attempts, 0)""",  # noqa: E501
    ),
    "node-seconds add up": (
        "a campaign has spent the sum of its outcomes' node-seconds",
        """SELECT c.id AS campaign, c.node_seconds_spent AS spent, COALESCE(s.total, 0) AS of_outcomes
           FROM campaigns c LEFT JOIN (
               SELECT a.campaign_id, SUM(COALESCE(m.node_seconds, 0) + COALESCE(f.node_seconds, 0)) AS total
               FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id
               LEFT JOIN failures f ON f.attempt_id = a.id GROUP BY a.campaign_id) s ON s.campaign_id = c.id
           WHERE c.strategy <> 'imported'
             AND ABS(c.node_seconds_spent - COALESCE(s.total, 0)) > 1e-6 * (1 + COALESCE(s.total, 0))""",  # noqa: E501
    ),
}
"""Rules about several tables, each with the query for the rows that break it."""
# What a store of a later version breaks without being damaged: always, and in a later revision,
# which may allow more.
NO_FAULTS = frozenset({"known revision", "documents are known"})
MAY_GROW = frozenset({"the tables", "constraints", "rows are read"})


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
class Check(Displayed):
    """Result of checking a store: what was checked, and what is wrong."""

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
    stated = [FIRST_REVISION]
    if REVISIONS.name in tables:
        stated = [
            str(found) for found in connection.execute(select(REVISIONS.c.version_num)).scalars()
        ]
    is_one = len(stated) == 1 and len(stated[0]) == 4 and stated[0].isdigit()
    revision = stated[0] if is_one else FIRST_REVISION
    missing = list(_missing(connection, tables))
    is_sqlite = connection.dialect.name == "sqlite"
    said = (
        connection.exec_driver_sql("PRAGMA integrity_check(100)").scalars().all()
        if is_sqlite
        else []
    )
    broken: dict[str, Rows] = {
        "the file": [{"campaign": None, "said": str(line)} for line in said if line != "ok"],
        "one revision": (
            [] if is_one else [{"campaign": None, "stated": ", ".join(sorted(stated)) or "none"}]
        ),
        "known revision": [{"campaign": None, "stated": revision}] if revision > REVISION else [],
        "the tables": [row for row in missing if revision >= REVISION or "column" in row],
    }
    if all("index" in row for row in missing if row["table"] not in LATER_TABLES):
        broken |= _of_rows(connection)
        for rule, (_, sql) in SQL_RULES.items():
            broken[rule] = [dict(row) for row in connection.execute(text(sql)).mappings()]
    campaigns, attempts = (
        (
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            if table.__tablename__ in tables
            else 0
        )
        for table in (CampaignRow, AttemptRow)
    )
    odd = NO_FAULTS | (MAY_GROW if revision > REVISION else frozenset())
    findings = tuple(
        Finding(
            rule=rule,
            says=RULES[rule] if rule in RULES else SQL_RULES[rule][0],
            is_fault=rule not in odd,
            odd_as="as of a later version" if rule in odd else None,
            count=len(rows),
            rows=tuple(rows[:SHOWN_ROWS]),
        )
        for rule, rows in broken.items()
        if rows
    )
    return Check(
        store=store, rules=len(broken), campaigns=campaigns, attempts=attempts, findings=findings
    )


def _missing(connection: Connection, tables: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield the tables, columns, indexes and unique constraints of this version that the store
    lacks.
    """
    found = inspect(connection)
    for table in Base.metadata.sorted_tables:
        about = {"campaign": None, "table": table.name}
        if table.name not in tables:
            yield about | {"missing": "all of it"}
            continue
        present = {("column", column["name"]) for column in found.get_columns(table.name)}
        present |= {("index", str(index["name"])) for index in found.get_indexes(table.name)}
        present |= {
            ("unique", ", ".join(one["column_names"]))
            for one in found.get_unique_constraints(table.name)
        }
        uniques = (one for one in table.constraints if isinstance(one, UniqueConstraint))
        expected = [("column", column.name) for column in table.columns]
        expected += [("index", str(index.name)) for index in table.indexes]
        expected += [
            ("unique", ", ".join(column.name for column in one.columns)) for one in uniques
        ]
        for kind, name in expected:
            if (kind, name) not in present:
                yield about | {kind: name}


def _of_rows(connection: Connection) -> dict[str, Rows]:
    broken: dict[str, Rows] = {
        "rows are read": [],
        "documents are known": [],
        "references": [],
        "constraints": [],
    }
    for row, error in unreadable_rows(connection):
        about = {"campaign": getattr(row, "campaign_id", None)}
        if isinstance(error, LaterVersion):
            broken["documents are known"].append(about | {"why": error.message})
        else:
            place = dict(zip(("table", "row", "column", "why"), error.place, strict=True))
            broken["rows are read"].append(about | place)
    if connection.dialect.name == "sqlite":  # a PostgreSQL server lets no dangling reference in
        for name, row_id, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            broken["references"].append(
                {"campaign": None, "table": name, "row": row_id, "refers_to": parent}
            )
    for table in Base.metadata.sorted_tables:
        for constraint in table.constraints if inspect(connection).has_table(table.name) else ():
            # SQLite does not check these in a file that it may only read. An enum's are checked by
            # reading the rows.
            if isinstance(constraint, CheckConstraint) and not str(constraint.name).endswith(
                "_known"
            ):
                rule = str(constraint.sqltext)
                for row in connection.execute(select(table).where(text(f"NOT ({rule})"))):
                    about = {"campaign": getattr(row, "campaign_id", None), "table": table.name}
                    broken["constraints"].append(about | {"row": row[0], "constraint": rule})
    broken["recipes have their ids"] = list(_misattributed(connection))
    broken["standings pool"] = list(_contradictions(connection))
    return broken


def _misattributed(connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the trials whose recipe, in their campaign's problem, has another id than theirs.

    Campaigns whose specification states no problem, one of a later version, or one on several node
    types are left out.
    """
    problems: dict[int, Problem] = {}
    for campaign, spec in connection.execute(select(CampaignRow.id, CampaignRow.spec_json)):
        try:
            stated = json.loads(spec).get("problem")
            if stated is not None and not stated.get("cluster", {}).pop("group", ()):
                problems[campaign] = document(Problem, json.dumps(stated))
        except LaterVersion:
            continue
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            yield {"campaign": campaign, "why": f"its problem cannot be read: {error}"}
    for row in connection.execute(select(TrialRow).where(TrialRow.campaign_id.in_(problems))):
        try:
            found = recipe_id(problems[row.campaign_id], value_of(Trial, row).recipe)
        except (DamagedCell, LaterVersion):
            continue  # which is another rule's
        if found != row.recipe_id:
            about = {"campaign": row.campaign_id, "trial": row.id}
            yield about | {"recipe_id": row.recipe_id, "its_recipe_has": found}


def _with_telemetry(row: Any) -> Measurement:
    text = row.telemetry_json
    recorded = None if text is None else cell(TelemetryRow.telemetry_json, text, row.attempt_id)
    return replace(value_of(Measurement, row), telemetry=recorded)


def _contradictions(connection: Connection) -> Iterator[dict[str, Any]]:
    """Yield the measurements whose rate is not that of their steps, and the standings that do not
    pool theirs.
    """
    standings = {row.trial_id: row for row in connection.execute(select(StandingRow))}
    recorded = TelemetryRow.telemetry_json if has_table(connection, TelemetryRow) else null()
    query = (
        select(
            MeasurementRow,
            AttemptRow.trial_id,
            AttemptRow.campaign_id,
            recorded.label("telemetry_json"),
        )
        .join(AttemptRow, AttemptRow.id == MeasurementRow.attempt_id)
        .order_by(AttemptRow.trial_id, AttemptRow.id)
    )
    if has_table(connection, TelemetryRow):
        query = query.outerjoin(TelemetryRow, TelemetryRow.attempt_id == AttemptRow.id)
    for trial, rows in groupby(connection.execute(query), key=lambda row: row.trial_id):
        of_trial = list(rows)
        about = {"campaign": of_trial[0].campaign_id, "trial": trial}
        try:
            measured = [_with_telemetry(row) for row in of_trial]
            stored = value_of(RecipeStats, standings[trial]) if trial in standings else None
        except DamagedCell:
            continue  # which is another rule's
        for row, one in zip(of_trial, measured, strict=True):
            # Of an even number of steps either middle one will do.
            least = (
                one.tokens_per_step
                / statistics.median_high(one.step_times_s)
                * (1 - RATE_TOLERANCE)
            )
            most = (
                one.tokens_per_step / statistics.median_low(one.step_times_s) * (1 + RATE_TOLERANCE)
            )
            if not least <= one.tokens_per_s <= most:
                values = {
                    "held": one.tokens_per_s,
                    "should_be": one.tokens_per_step / one.step_time_s_median,
                }
                yield about | {"attempt": row.attempt_id, "column": "tokens_per_s"} | values
        wanted = asdict(pool(measured))
        for column, held in asdict(stored).items() if stored is not None else ():
            expected = wanted[column]
            # A spread is a difference of near numbers, and so as exact as those.
            exact_to = TOLERANCE if column == "step_time_spread" else 0.0
            is_close = None not in (held, expected) and math.isclose(
                held, expected, rel_tol=TOLERANCE, abs_tol=exact_to
            )
            if not is_close and held is not expected:
                yield about | {"column": column, "held": held, "should_be": expected}
