"""Fronts of several objectives: the recipes that no other equals or beats in all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.notebook import Displayed
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.pareto import pareto_front
from frontrunner.spaces.problem import Problem


@dataclass(frozen=True, kw_only=True)
class OnFront:
    """A recipe of the front, with its place in the ranking by tokens/s.

    `nodes` are those that its devices occupy; `headroom_bytes` is what its fullest rank leaves of a device's memory.
    """

    ranked: RankedRecipe
    nodes: int
    headroom_bytes: int


class Front(tuple[OnFront, ...], Displayed):
    """A front as a tuple that a notebook shows as a table."""


OBJECTIVES: dict[str, Callable[[OnFront], float]] = {
    "tokens": lambda row: row.ranked.standing.tokens_per_s,
    "memory": lambda row: row.headroom_bytes,
    "nodes": lambda row: -row.nodes,
}
"""Value of each objective, larger is better: the most tokens/s, the most headroom, the fewest nodes."""


def checked_objectives(names: Sequence[str]) -> tuple[str, ...]:
    """At least two different ones of `OBJECTIVES`; raises `InvalidInput` for others."""
    given = ",".join(names)
    for name in names:
        if name not in OBJECTIVES:
            hint = did_you_mean(name, OBJECTIVES)
            raise bad_value("--objectives", given, f"two or more of {', '.join(OBJECTIVES)}", hint=hint)
    if len(names) < 2 or len(set(names)) < len(names):
        raise bad_value("--objectives", given, f"two or more of {', '.join(OBJECTIVES)}, each once")
    return tuple(names)


def front(ranking: Sequence[RankedRecipe], problem: Problem, objectives: Sequence[str]) -> Front:
    """Return the front of these objectives of ranked recipes, fastest first; of equal ones the first that ranks."""
    limit = problem.cluster.memory_bytes_per_device
    rows = [
        OnFront(
            ranked=row,
            nodes=nodes_used(row.recipe, problem),
            headroom_bytes=limit - row.standing.peak_memory_bytes_max_rank,
        )
        for row in ranking
    ]
    measures = [OBJECTIVES[name] for name in objectives]
    return Front(rows[index] for index in pareto_front([tuple(measure(row) for measure in measures) for row in rows]))
