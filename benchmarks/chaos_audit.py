"""What must hold of a campaign in the end, in plain SQL over its store and by the files that its
probes left.

The store is held against two witnesses: what the drivers had said was stored, and the outcome
files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from frontrunner.evaluators.analytic.simulated import simulate
from frontrunner.results.check import check
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.results.store import Store
from frontrunner.search.spec import CampaignSpec

Fingerprint = tuple[Any, ...]
"""Recipe, kind of failure or None, tokens/s or None, node-seconds."""

ATTEMPTS = """
SELECT t.recipe_id, t.number AS trial, a.state, a.run_folder, m.tokens_per_s, f.kind,
       m.step_times_s_json AS step_times, COALESCE(m.node_seconds, f.node_seconds) AS node_seconds
FROM attempts a JOIN trials t ON t.id = a.trial_id
LEFT JOIN measurements m ON m.attempt_id = a.id LEFT JOIN failures f ON f.attempt_id = a.id
WHERE a.campaign_id = :campaign ORDER BY a.id
"""
CAMPAIGN = (
    "SELECT id, state, outcomes, node_seconds_spent, driver_seconds FROM campaigns WHERE name ="
    " :name"
)
DATA_OF_EVENTS = "SELECT data_json FROM events WHERE campaign_id = :campaign AND kind = :kind"
ROUNDING_S = 1e-6
"""Sums of seconds are those of floating-point numbers."""

Fault = tuple[str, str]
"""What kind of thing is wrong, as the tally names it, and which one."""


def fingerprint(recipe_id: str, outcome: Outcome) -> Fingerprint:
    """What tells one outcome from every other; floating-point numbers come back from a store as
    they were.
    """
    if isinstance(outcome, Measurement):
        return recipe_id, None, outcome.tokens_per_s, outcome.node_seconds
    return recipe_id, str(outcome.kind), None, outcome.node_seconds


def faults(
    store: Store, spec: CampaignSpec, acknowledged: Path, *, was_taken_over: bool
) -> Iterator[Fault]:
    """Everything that is wrong with a campaign that has ended."""
    with store.database.read() as connection:
        campaign = connection.execute(text(CAMPAIGN), {"name": spec.name}).mappings().one()
        attempts = connection.execute(text(ATTEMPTS), {"campaign": campaign["id"]}).mappings().all()
        repeats = _trials(connection, campaign["id"], "repeat")
        reused = _trials(connection, campaign["id"], "reused")
        overtimes_s = [
            float(data["seconds"]) for data in _events(connection, campaign["id"], "overtime")
        ]
        found = check(connection, store=store.url)
    for finding in found.findings:
        if finding.is_fault:
            yield "broken_rules", f"{finding.rule}: {finding.rows}"
    yield from _lost(attempts, acknowledged)
    # A trial that took over an earlier campaign's outcome may be probed again to confirm it.
    probed = [a for a in attempts if Path(a["run_folder"]).parent == spec.run_folder]
    yield from _doubled(attempts, probed, repeats)
    yield from _misattributed(store, spec, campaign["id"])
    yield from _against_files(probed, spec, was_taken_over=was_taken_over)
    yield from _over_budget(campaign, attempts, spec, reused=len(reused))
    yield from _over_hard_minutes(campaign, spec, [] if was_taken_over else overtimes_s)


def outcomes_of(store: Store, name: str) -> tuple[int, int]:
    """The final outcomes of a campaign, and how many of them are of earlier campaigns."""
    with store.database.read() as connection:
        campaign = connection.execute(text(CAMPAIGN), {"name": name}).mappings().one()
        return campaign["outcomes"], len(_trials(connection, campaign["id"], "reused"))


def _trials(connection: Connection, campaign_id: int, kind: str) -> Counter[int]:
    """How many events of a kind each trial has, by its number."""
    return Counter(int(data["trial"]) for data in _events(connection, campaign_id, kind))


def _events(connection: Connection, campaign_id: int, kind: str) -> list[dict[str, Any]]:
    """The data of a campaign's events of a kind."""
    rows = connection.execute(
        text(DATA_OF_EVENTS), {"campaign": campaign_id, "kind": kind}
    ).scalars()
    return [json.loads(row) for row in rows]


def _lost(attempts: Any, acknowledged: Path) -> Iterator[Fault]:
    """What a driver said was stored is there, as often as it said so."""
    said = Counter(tuple(json.loads(line)) for line in acknowledged.read_text().splitlines())
    held = Counter(
        (a["recipe_id"], a["kind"], a["tokens_per_s"], a["node_seconds"]) for a in attempts
    )
    for missing, count in (said - held).items():
        yield "lost", f"{count} x {missing}"


def _doubled(attempts: Any, probed: Any, repeats: Mapping[int, int]) -> Iterator[Fault]:
    """A recipe has one trial, a trial one measurement and one more for each repeat, a run folder
    one attempt.
    """
    trials = {(a["recipe_id"], a["trial"]) for a in attempts}
    for recipe, count in Counter(recipe for recipe, _ in trials).items():
        if count > 1:
            yield "doubled", f"recipe {recipe} has {count} trials"
    measured = Counter(a["trial"] for a in attempts if a["state"] == "measured")
    for trial, count in measured.items():
        if count > 1 + repeats.get(trial, 0):
            yield (
                "doubled",
                f"trial {trial} has {count} measurements and {repeats.get(trial, 0)} repeats",
            )
    folders = Counter(a["run_folder"] for a in probed)
    for folder, count in folders.items():
        if count > 1:
            yield "doubled", f"{count} attempts in {folder}"


def _misattributed(store: Store, spec: CampaignSpec, campaign_id: int) -> Iterator[Fault]:
    """A simulated outcome is the very one of its recipe, a measured one has the stages and tokens
    of its recipe.
    """
    for recipe, outcome in store.final_outcomes(campaign_id):
        if spec.evaluator == "simulated":
            belongs = outcome == simulate(recipe, spec.probe_setup())
        elif isinstance(outcome, Measurement):
            tokens = recipe.global_batch_seqs * spec.problem.sequence_length
            stages = len(outcome.peak_memory_bytes)
            belongs = outcome.tokens_per_step == tokens and stages == recipe.pipeline_parallel
        else:
            belongs = True
        if not belongs:
            yield "misattributed", f"{recipe.describe()}: {outcome}"


def _against_files(attempts: Any, spec: CampaignSpec, *, was_taken_over: bool) -> Iterator[Fault]:
    """A measurement is that of its own run folder's file, and no file holds one that the store does
    not know.

    A driver that lost its campaign may still write the file of a probe that its successor has
    counted as lost.
    """
    by_folder = {attempt["run_folder"]: attempt for attempt in attempts}
    for attempt in attempts:
        if attempt["state"] == "measured" and _step_times(attempt["run_folder"]) != json.loads(
            attempt["step_times"]
        ):
            yield (
                "misattributed",
                f"trial {attempt['trial']} has not the step times of {attempt['run_folder']}",
            )
    for path in spec.run_folder.glob("*/outcome.json"):
        known = by_folder.get(str(path.parent))
        if known is None:
            yield "unheard_outcome_files", f"{path}: no attempt"
        elif (
            known["state"] != "measured"
            and not was_taken_over
            and _step_times(known["run_folder"]) is not None
        ):
            yield "unheard_outcome_files", f"{path}: its attempt is {known['state']}"
    for path in spec.run_folder.glob("**/.*"):
        yield "files_left", str(path)


def _step_times(folder: str) -> list[float] | None:
    """Those of a folder's outcome file; None where there is none, or a failure in it."""
    path = Path(folder) / "outcome.json"
    if not path.exists():
        return None
    step_times: list[float] | None = json.loads(path.read_text())["outcome"].get("step_times_s")
    return step_times


def _over_budget(
    campaign: Any, attempts: Any, spec: CampaignSpec, *, reused: int
) -> Iterator[Fault]:
    """No limit of probes or node-hours is passed, but one that is not hard by as many probes as run
    at a time.
    """
    budget = spec.budget
    if budget.probes is not None and campaign["outcomes"] - reused > budget.probes:
        yield "over_budget", f"{campaign['outcomes'] - reused} probes of {budget.probes}"
    if budget.node_hours is not None:
        longest = sorted((attempt["node_seconds"] or 0.0 for attempt in attempts), reverse=True)
        spare = 0.0 if budget.hard else sum(longest[: spec.search.parallel_probes])
        if campaign["node_seconds_spent"] > budget.node_hours * 3600 + spare:
            yield (
                "over_budget",
                f"{campaign['node_seconds_spent']} of {budget.node_hours * 3600} node-seconds",
            )


def _over_hard_minutes(
    campaign: Any, spec: CampaignSpec, overtimes_s: list[float]
) -> Iterator[Fault]:
    """However many drivers were started, a hard limit of minutes is not passed, and none but a
    driver that was made to stand still had to be spared seconds beyond it.
    """
    budget = spec.budget
    if budget.minutes is None or not budget.hard:
        return
    if campaign["driver_seconds"] > budget.minutes * 60 + ROUNDING_S:
        yield (
            "over_budget",
            f"{campaign['driver_seconds']} of {budget.minutes * 60} seconds of driving",
        )
    for overtime_s in overtimes_s:
        yield "over_budget", f"a driver that nobody held up drove {overtime_s} s beyond its budget"
