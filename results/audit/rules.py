"""What must hold in every store, each as a query whose rows are what breaks it.

The queries are plain SQL that SQLite and PostgreSQL both run.
"""

from __future__ import annotations

from frontrunner.results.audit.limits import LATER_TABLES, LIMITS
from frontrunner.results.audit.rule import Rule

RELATIONS = (
    ("trials", "campaign_id", "campaigns", "id"),
    ("attempts", "campaign_id", "campaigns", "id"),
    ("attempts", "trial_id", "trials", "id"),
    ("attempts", "provenance_id", "provenance", "id"),
    ("provenance", "campaign_id", "campaigns", "id"),
    ("holders", "campaign_id", "campaigns", "id"),
    ("measurements", "attempt_id", "attempts", "id"),
    ("failures", "attempt_id", "attempts", "id"),
    ("endings", "attempt_id", "measurements", "attempt_id"),
    ("standings", "trial_id", "trials", "id"),
    ("events", "campaign_id", "campaigns", "id"),
)
"""Table, column, and the table and column that each of its values must be found in."""


def relation_rules() -> tuple[Rule, ...]:
    """That no row refers to one that is not there."""
    return tuple(
        Rule(
            name=f"{table}.{column}",
            says=f"every {column} of {table} is in {parent}",
            sql=f"SELECT c.* FROM {table} c LEFT JOIN {parent} p ON p.{key} = c.{column}"  # noqa: S608 - the constants above
            f" WHERE c.{column} IS NOT NULL AND p.{key} IS NULL",
            later_table=table if table in LATER_TABLES else None,
        )
        for table, column, parent, key in RELATIONS
    )


OUTCOMES = (
    Rule(
        name="one outcome an attempt",
        says="a measured attempt has a measurement, a failed or lost one a failure, a running one neither",
        sql="""SELECT a.campaign_id AS campaign, a.id AS attempt, a.state, m.attempt_id AS measurement,
                      f.attempt_id AS failure
               FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id
               LEFT JOIN failures f ON f.attempt_id = a.id
               WHERE NOT (m.attempt_id IS NOT NULL) = (a.state = 'measured')
                  OR NOT (f.attempt_id IS NOT NULL) = (a.state IN ('failed', 'lost'))""",
    ),
    Rule(
        name="lost is lost",
        says="an attempt is lost where its failure is of kind lost, and failed where it is of another",
        sql="""SELECT a.campaign_id AS campaign, a.id AS attempt, a.state, f.kind
               FROM attempts a JOIN failures f ON f.attempt_id = a.id WHERE (f.kind = 'lost') <> (a.state = 'lost')""",
    ),
    Rule(
        name="one running attempt",
        says="a running trial has one running attempt, any other none",
        sql="""SELECT t.campaign_id AS campaign, t.id AS trial, t.state, COUNT(a.id) AS running
               FROM trials t LEFT JOIN attempts a ON a.trial_id = t.id AND a.state = 'running'
               GROUP BY t.campaign_id, t.id, t.state
               HAVING COUNT(a.id) <> CASE WHEN t.state = 'running' THEN 1 ELSE 0 END""",
    ),
    Rule(
        name="measured is measured",
        says="a measured trial has a measured attempt",
        sql="""SELECT t.campaign_id AS campaign, t.id AS trial FROM trials t WHERE t.state = 'measured'
               AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.state = 'measured')""",
    ),
    Rule(
        name="failed has failed",
        says="the last attempt of a failed trial failed or was lost",
        sql="""SELECT t.campaign_id AS campaign, t.id AS trial FROM trials t WHERE t.state = 'failed'
               AND NOT EXISTS (SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.state IN ('failed', 'lost')
                               AND a.number = (SELECT MAX(number) FROM attempts b WHERE b.trial_id = t.id))""",
    ),
)

STANDINGS = (
    Rule(
        name="one standing a ranked trial",
        says="a trial has a standing where it has a measured attempt and did not fail since",
        sql="""SELECT t.campaign_id AS campaign, t.id AS trial, t.state, s.trial_id AS standing
               FROM trials t LEFT JOIN standings s ON s.trial_id = t.id
               WHERE (s.trial_id IS NOT NULL) <> (t.state <> 'failed' AND EXISTS
                     (SELECT 1 FROM attempts a WHERE a.trial_id = t.id AND a.state = 'measured'))""",
    ),
    Rule(
        name="standings are their trials'",
        says="a standing has its trial's campaign and recipe, and counts its measurements",
        sql="""SELECT s.campaign_id AS campaign, s.trial_id AS trial, s.recipe_id, s.repeats
               FROM standings s JOIN trials t ON t.id = s.trial_id
               WHERE s.campaign_id <> t.campaign_id OR s.recipe_id <> t.recipe_id OR s.repeats <>
                     (SELECT COUNT(*) FROM attempts a WHERE a.trial_id = t.id AND a.state = 'measured')""",
    ),
)

COUNTS = (
    Rule(
        name="attempts are their trials'",
        says="an attempt, and the provenance it names, are of its trial's campaign",
        sql="""SELECT t.campaign_id AS campaign, a.id AS attempt, a.campaign_id AS of_campaign,
                      p.campaign_id AS provenance_of
               FROM attempts a JOIN trials t ON t.id = a.trial_id LEFT JOIN provenance p ON p.id = a.provenance_id
               WHERE a.campaign_id <> t.campaign_id OR p.campaign_id <> t.campaign_id""",
    ),
    Rule(
        name="trials are counted",
        says="the trials of a campaign are numbered from 1 without a gap",
        sql="""SELECT campaign_id AS campaign, MIN(number) AS first, MAX(number) AS last, COUNT(*) AS trials
               FROM trials GROUP BY campaign_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)""",
    ),
    Rule(
        name="attempts are counted",
        says="the attempts of a trial are numbered from 1 without a gap",
        sql="""SELECT campaign_id AS campaign, trial_id AS trial, MIN(number) AS first, MAX(number) AS last,
                      COUNT(*) AS attempts
               FROM attempts GROUP BY campaign_id, trial_id HAVING MIN(number) <> 1 OR MAX(number) <> COUNT(*)""",
    ),
    Rule(
        name="outcomes are counted",
        says="a campaign counts an outcome for each trial that ended, none without an attempt, and numbers none above",
        sql="""SELECT c.id AS campaign, c.outcomes, COALESCE(t.ended, 0) AS ended, t.highest,
                      COALESCE(a.attempts, 0) AS attempts
               FROM campaigns c
               LEFT JOIN (SELECT campaign_id, COUNT(outcome_number) AS ended, MAX(outcome_number) AS highest
                          FROM trials GROUP BY campaign_id) t ON t.campaign_id = c.id
               LEFT JOIN (SELECT campaign_id, COUNT(*) AS attempts FROM attempts WHERE state <> 'running'
                          GROUP BY campaign_id) a ON a.campaign_id = c.id
               WHERE c.outcomes < COALESCE(t.ended, 0) OR c.outcomes < COALESCE(t.highest, 0)
                  OR c.outcomes > COALESCE(a.attempts, 0)""",
    ),
    Rule(
        name="node-seconds add up",
        says="a campaign has spent the sum of its outcomes' node-seconds",
        sql="""SELECT c.id AS campaign, c.node_seconds_spent AS spent, COALESCE(s.total, 0) AS of_outcomes
               FROM campaigns c LEFT JOIN (
                   SELECT a.campaign_id, SUM(COALESCE(m.node_seconds, 0) + COALESCE(f.node_seconds, 0)) AS total
                   FROM attempts a LEFT JOIN measurements m ON m.attempt_id = a.id
                   LEFT JOIN failures f ON f.attempt_id = a.id GROUP BY a.campaign_id) s ON s.campaign_id = c.id
               WHERE c.strategy <> 'imported'
                 AND ABS(c.node_seconds_spent - COALESCE(s.total, 0)) > 1e-6 * (1 + COALESCE(s.total, 0))""",
    ),
)

DRIVERS = (
    Rule(
        name="leases are whole",
        says="a lease has a host, a process, a beginning and a later end; a running campaign has one",
        sql="""SELECT id AS campaign, state, driver_host, driver_pid, driven_since, lease_until FROM campaigns
               WHERE (lease_until IS NULL) <> (driver_host IS NULL) OR (lease_until IS NULL) <> (driver_pid IS NULL)
                  OR (lease_until IS NULL) <> (driven_since IS NULL) OR (state = 'running' AND lease_until IS NULL)""",
    ),
    Rule(
        name="driven under a lease",
        says="a campaign that was driven has given out a lease, and one that was only created has no trials",
        sql="""SELECT c.id AS campaign, c.state, c.epoch FROM campaigns c WHERE c.strategy <> 'imported' AND
               ((c.epoch < 1 AND (c.state <> 'created' OR c.lease_until IS NOT NULL))
                OR (c.state = 'created' AND EXISTS (SELECT 1 FROM trials t WHERE t.campaign_id = c.id)))""",
    ),
    Rule(
        name="holders held",
        says="a holder's lease was given out, and the holder began after its machine did",
        sql="""SELECT h.campaign_id AS campaign, h.epoch, h.started_ticks, c.epoch AS given
               FROM holders h JOIN campaigns c ON c.id = h.campaign_id
               WHERE h.epoch < 1 OR h.epoch > c.epoch OR h.started_ticks < 0""",
        later_table="holders",
    ),
    Rule(
        name="events in order",
        says="the times of a campaign's events rise with their ids",
        sql="""SELECT campaign_id AS campaign, id AS event, at, before FROM (
                   SELECT campaign_id, id, at, LAG(at) OVER (PARTITION BY campaign_id ORDER BY id) AS before
                   FROM events) e WHERE before > at""",
        is_fault=False,
    ),
    Rule(
        name="ends after beginnings",
        says="no attempt ends before it began, and no lease before it was given",
        sql="""SELECT campaign_id AS campaign, id, started_at AS began, finished_at AS ended FROM attempts
               WHERE finished_at < started_at
               UNION ALL SELECT id, id, driven_since, lease_until FROM campaigns WHERE lease_until < driven_since""",
        is_fault=False,
    ),
    Rule(
        name="nothing before the campaign",
        says="no attempt began, and no event was told, before the campaign was created",
        sql="""SELECT c.id AS campaign, a.id AS row_id, a.started_at AS at, c.created_at
               FROM attempts a JOIN campaigns c ON c.id = a.campaign_id WHERE a.started_at < c.created_at
               UNION ALL SELECT c.id, e.id, e.at, c.created_at
               FROM events e JOIN campaigns c ON c.id = e.campaign_id WHERE e.at < c.created_at""",
        is_fault=False,
    ),
)

RULES = (*OUTCOMES, *STANDINGS, *COUNTS, *DRIVERS, *LIMITS, *relation_rules())
