"""How the best recipe was found: tokens/s over probes and over node-hours, and where the node-hours went."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.results.outcome import Failure, FailureKind, Measurement, Outcome
from frontrunner.results.trial_history import Probed
from frontrunner.spaces.recipe import Recipe

SECONDS_PER_HOUR = 3600.0
NOTHING_ENDED = Missing(reason="No probe of this campaign has ended yet.")
MEASURED = "measured"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One attempt that ended, as the `probe`-th.

    `node_hours` are those of all attempts up to and with this one; `tokens_per_s` is None for a failure, and
    `best_tokens_per_s` the best recipe's so far, its repeats pooled, None before the first measurement.
    """

    probe: int
    node_hours: float
    outcome: str
    tokens_per_s: float | None
    best_tokens_per_s: float | None
    recipe_id: str
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class History:
    """The attempts in the order in which they ended."""

    steps: tuple[Step, ...]

    @property
    def best_found_at(self) -> int | None:
        """The probe from which the best recipe stayed the best; None without a measurement."""
        final = self.steps[-1].best_tokens_per_s
        found = None
        for step in reversed(self.steps):
            if final is None or step.best_tokens_per_s != final:
                break
            found = step.probe
        return found


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What attempts with one kind of outcome cost; `share` is of all node-hours, 0 where none were spent."""

    outcome: str
    attempts: int
    node_hours: float
    share: float


def history(collected: Collected) -> History | Missing:
    """The campaign's history."""
    measured: dict[str, list[float]] = {}
    standing: dict[str, float] = {}
    leader: str | None = None
    steps, node_seconds = [], 0.0
    for number, ended in enumerate(collected.attempts, start=1):
        recipe_id, outcome = ended.trial.recipe_id, ended.outcome
        node_seconds += outcome.node_seconds
        if isinstance(outcome, Measurement):
            measured.setdefault(recipe_id, []).append(outcome.tokens_per_s)
            standing[recipe_id] = statistics.median(measured[recipe_id])
        elif outcome.policy.counts_against_recipe:
            standing.pop(recipe_id, None)
        leader = _leader(standing, leader, recipe_id)
        steps.append(_step(number, ended, node_seconds, None if leader is None else standing[leader]))
    return History(steps=tuple(steps)) if steps else NOTHING_ENDED


def _leader(standing: Mapping[str, float], leader: str | None, changed: str) -> str | None:
    """The recipe that leads now that one has changed; `leader` led before. All are compared only where it must be."""
    if leader is None or leader == changed:
        return max(standing, key=standing.__getitem__, default=None)
    return changed if changed in standing and standing[changed] > standing[leader] else leader


def _step(number: int, ended: Probed, node_seconds: float, best: float | None) -> Step:
    outcome = ended.outcome
    return Step(
        probe=number,
        node_hours=node_seconds / SECONDS_PER_HOUR,
        outcome=outcome_name(outcome),
        tokens_per_s=outcome.tokens_per_s if isinstance(outcome, Measurement) else None,
        best_tokens_per_s=best,
        recipe_id=ended.trial.recipe_id,
        recipe=ended.trial.recipe,
    )


def outcome_name(outcome: Outcome) -> str:
    """`measured`, or the failure's kind."""
    return outcome.kind.value if isinstance(outcome, Failure) else MEASURED


def spending(collected: Collected) -> tuple[Spent, ...] | Missing:
    """Node-hours by outcome: measurements first, then failures, the costliest first."""
    if not collected.attempts:
        return NOTHING_ENDED
    total = math.fsum(ended.outcome.node_seconds for ended in collected.attempts)
    found = []
    for name in (MEASURED, *(kind.value for kind in FailureKind)):
        costs = _costs(collected.attempts, name)
        if costs:
            cost = math.fsum(costs)
            share = cost / total if total else 0.0
            found.append(Spent(outcome=name, attempts=len(costs), node_hours=cost / SECONDS_PER_HOUR, share=share))
    return tuple(sorted(found, key=lambda spent: (spent.outcome != MEASURED, -spent.node_hours)))


def _costs(attempts: Sequence[Probed], name: str) -> list[float]:
    return [ended.outcome.node_seconds for ended in attempts if outcome_name(ended.outcome) == name]
