"""Fronts of several objectives: the recipes that no other equals or beats in all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.notebook import Displayed
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.errors import bad_value, did_you_mean
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
    "tokens": lambda row: -row.ranked.standing.tokens_per_s,
    "memory": lambda row: -row.headroom_bytes,
    "nodes": lambda row: row.nodes,
}
"""What each objective makes as small as can be: the most tokens/s, the most headroom, the fewest nodes."""


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
    """The front of these objectives, fastest first.

    A recipe is on it unless another is at least as good in every objective and better in one. Of recipes equal in all,
    the one that ranks first stands for all.
    """
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
    scored = sorted(((tuple(measure(row) for measure in measures), row) for row in rows), key=lambda pair: pair[0])
    # In this order nothing is dominated by what comes after it, so that each has to be held against the front alone.
    kept: list[tuple[tuple[float, ...], OnFront]] = []
    for score, row in scored:
        if not any(all(a <= b for a, b in zip(other, score, strict=True)) for other, _ in kept):
            kept.append((score, row))
    return Front(sorted((row for _, row in kept), key=lambda row: row.ranked.rank))
