"""Pareto fronts of a campaign's ranked recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.results.displayed_rows import DisplayedRows
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.pareto import pareto_front
from frontrunner.spaces.problem import Problem


@dataclass(frozen=True, kw_only=True)
class OnFront:
    """A recipe of the front, with its place in the ranking by tokens/s.

    `nodes` are those that its devices occupy; `headroom_bytes` is what its fullest rank leaves of a
    device's memory, None where its peak is unknown.
    """

    ranked: RankedRecipe
    nodes: int
    headroom_bytes: int | None


class Front(tuple[OnFront, ...], DisplayedRows):
    """A front as a tuple that a notebook shows as a table."""


OBJECTIVE_VALUES: dict[str, Callable[[OnFront], float]] = {
    "tokens": lambda row: row.ranked.standing.tokens_per_s,
    "memory": lambda row: row.headroom_bytes or 0,
    "nodes": lambda row: -row.nodes,
}


def checked_objectives(names: Sequence[str]) -> tuple[str, ...]:
    """Return at least two different ones of `OBJECTIVE_VALUES`; raise `InvalidInput` for others."""
    unknown = next((name for name in names if name not in OBJECTIVE_VALUES), None)
    if unknown is not None or len(names) < 2 or len(set(names)) < len(names):
        expected = f"two or more of {', '.join(OBJECTIVE_VALUES)}" + (
            ", each once" if unknown is None else ""
        )
        hint = None if unknown is None else did_you_mean(unknown, OBJECTIVE_VALUES)
        raise bad_value("--objectives", ",".join(names), expected, hint=hint)
    return tuple(names)


def front(ranking: Sequence[RankedRecipe], problem: Problem, objectives: Sequence[str]) -> Front:
    """Return the front of these objectives of ranked recipes, fastest first; of equal ones the
    first that ranks.

    With `memory`, recipes whose peak is unknown are left out.
    """
    rows = [
        OnFront(
            ranked=row,
            nodes=nodes_used(row.recipe, problem),
            headroom_bytes=None if peak is None else problem.cluster.memory_bytes_per_device - peak,
        )
        for row in ranking
        if (peak := row.standing.peak_memory_bytes_max_rank) is not None
        or "memory" not in objectives
    ]
    points = [tuple(OBJECTIVE_VALUES[name](row) for name in objectives) for row in rows]
    return Front(rows[index] for index in pareto_front(points))
