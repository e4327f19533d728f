"""What the tables' own constraints say, and the least and the most of every figure, as queries.

SQLite does not look at CHECK constraints in a file that it may only read, and a figure's column takes any text.
"""

from __future__ import annotations

from frontrunner.results.audit.rule import Rule

OF_ATTEMPT = "(SELECT campaign_id FROM attempts a WHERE a.id = attempt_id)"
WORDS = (
    ("campaigns", "id", "state", ("created", "running", "paused", "finished", "failed", "stopped")),
    ("trials", "campaign_id", "state", ("queued", "running", "measured", "failed")),
    ("attempts", "campaign_id", "state", ("running", "measured", "failed", "lost")),
    ("endings", OF_ATTEMPT, "ended", ("known", "slower", "noisy", "limit", "fixed")),
    (
        "failures",
        OF_ATTEMPT,
        "kind",
        (
            *("out-of-memory", "not-finite", "hung", "too-slow", "crashed", "lost", "implausible"),
            "illegal-for-engine",
        ),
    ),
)
"""Table, what its campaign's id is, the column, and the words that it may hold."""

LARGEST_WHOLE = 2**63 - 1
LARGEST_REAL = 1.7976931348623157e308
"""Infinities are above it, and so is any text to SQLite, and NaN to PostgreSQL."""
SMALLEST = 5e-324
FIGURES: tuple[tuple[str, str, str, tuple[str, ...], float, float], ...] = (
    ("campaigns", "id", "id", ("legal_recipes",), 1, LARGEST_WHOLE),
    ("campaigns", "id", "id", ("outcomes", "epoch"), 0, LARGEST_WHOLE),
    ("campaigns", "id", "id", ("driver_pid",), 1, LARGEST_WHOLE),
    ("campaigns", "id", "id", ("driver_seconds", "node_seconds_spent"), 0, LARGEST_REAL),
    ("trials", "campaign_id", "id", ("number", "outcome_number"), 1, LARGEST_WHOLE),
    ("attempts", "campaign_id", "id", ("number",), 1, LARGEST_WHOLE),
    ("measurements", OF_ATTEMPT, "attempt_id", ("tokens_per_step",), 1, LARGEST_WHOLE),
    ("measurements", OF_ATTEMPT, "attempt_id", ("tokens_per_s",), SMALLEST, LARGEST_REAL),
    (
        "measurements",
        OF_ATTEMPT,
        "attempt_id",
        (
            *("model_tflops_per_device", "hardware_tflops_per_device", "mfu", "node_seconds"),
            *("build_time_s", "first_step_time_s"),
        ),
        0,
        LARGEST_REAL,
    ),
    ("failures", OF_ATTEMPT, "attempt_id", ("node_seconds",), 0, LARGEST_REAL),
    ("standings", "campaign_id", "trial_id", ("repeats",), 1, LARGEST_WHOLE),
    ("standings", "campaign_id", "trial_id", ("step_time_s_median", "tokens_per_s"), SMALLEST, LARGEST_REAL),
    (
        "standings",
        "campaign_id",
        "trial_id",
        ("step_time_spread", "model_tflops_per_device", "hardware_tflops_per_device", "mfu"),
        0,
        LARGEST_REAL,
    ),
    ("standings", "campaign_id", "trial_id", ("peak_memory_bytes_max_rank",), 0, LARGEST_WHOLE),
    ("holders", "campaign_id", "epoch", ("epoch",), 1, LARGEST_WHOLE),
    ("holders", "campaign_id", "epoch", ("started_ticks",), 0, LARGEST_WHOLE),
)
"""Table, what its campaign's id is and what its row's, the columns, and their least and most."""
LATER_TABLES = ("endings", "holders")
"""Tables that stores of earlier versions do not have."""


def word_rules() -> tuple[Rule, ...]:
    """That states, kinds and endings are words that are known."""
    return tuple(
        Rule(
            name=f"words of {table}",
            says=f"every {column} of {table} is one of {', '.join(words)}",
            sql=f"SELECT {campaign} AS campaign, {'attempt_id' if campaign == OF_ATTEMPT else 'id'} AS row_id, {column}"  # noqa: S608 - constants
            f" FROM {table} WHERE {column} NOT IN ({', '.join(repr(word) for word in words)})",
            later_table=table if table in LATER_TABLES else None,
            may_grow=True,
        )
        for table, campaign, column, words in WORDS
    )


def figure_rules() -> tuple[Rule, ...]:
    """That every figure is a finite number, and not below its least."""
    return tuple(
        Rule(
            name=f"figures of {table}: {', '.join(columns)}",
            says=f"{', '.join(columns)} of {table} {'are' if len(columns) > 1 else 'is'} a number {_from(least)}",
            sql=f"SELECT {campaign} AS campaign, {row} AS row_id, {', '.join(columns)} FROM {table} WHERE "  # noqa: S608
            + " OR ".join(f"NOT ({column} BETWEEN {least!r} AND {most!r})" for column in columns),
            later_table=table if table in LATER_TABLES else None,
        )
        for table, campaign, row, columns, least, most in FIGURES
    )


def _from(least: float) -> str:
    return "above 0" if least == SMALLEST else f"of {least:g} or more"


CONSTRAINTS = (
    Rule(
        name="one row about itself",
        says="a store has one row about itself, its id 1",
        sql="""SELECT held.* FROM (SELECT COUNT(*) AS held, MIN(id) AS first FROM store) held
               WHERE held <> 1 OR first <> 1""",
    ),
    Rule(
        name="final is numbered",
        says="a measured or failed trial has the number of its outcome, any other none",
        sql="""SELECT campaign_id AS campaign, id AS trial, state, outcome_number FROM trials
               WHERE (state IN ('measured', 'failed')) <> (outcome_number IS NOT NULL)""",
    ),
    Rule(
        name="final has a time",
        says="an attempt that ended says when, a running one does not",
        sql="""SELECT campaign_id AS campaign, id AS attempt, state, finished_at FROM attempts
               WHERE (state = 'running') <> (finished_at IS NULL)""",
    ),
    Rule(
        name="below the peak",
        says="no device computes above its peak: MFU is 1 at the most",
        sql="""SELECT a.campaign_id AS campaign, a.id AS attempt, m.mfu
               FROM measurements m JOIN attempts a ON a.id = m.attempt_id
               JOIN campaigns c ON c.id = a.campaign_id
               WHERE m.mfu > 1 AND c.strategy <> 'imported' AND NOT EXISTS
                     (SELECT 1 FROM events e WHERE e.campaign_id = c.id AND e.kind = 'reused')""",
    ),
    Rule(
        name="a folder a probe",
        says="no two attempts of a campaign have their outcomes from one run folder",
        sql="""SELECT a.campaign_id AS campaign, a.run_folder, COUNT(*) AS attempts
               FROM attempts a JOIN campaigns c ON c.id = a.campaign_id
               WHERE a.state IN ('measured', 'failed') AND c.strategy <> 'imported'
               GROUP BY a.campaign_id, a.run_folder HAVING COUNT(*) > 1""",
    ),
)
"""What CHECK constraints say beside the words, and what no constraint can."""
LIMITS = (*word_rules(), *figure_rules(), *CONSTRAINTS)
