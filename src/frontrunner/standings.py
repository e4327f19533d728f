"""What a campaign's ranking implies: the front of several objectives, and the gain over the baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.notebook import Displayed
from frontrunner.results.ranking import RankedRecipe, best
from frontrunner.results.store import Store
from frontrunner.search.campaign_setup import stored_spec
from frontrunner.spaces.errors import bad_value, did_you_mean
from frontrunner.spaces.pareto import pareto_front
from frontrunner.spaces.problem import Problem
from frontrunner.text import thousands


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
    """Return at least two different ones of `OBJECTIVES`; raise `InvalidInput` for others."""
    unknown = next((name for name in names if name not in OBJECTIVES), None)
    if unknown is not None or len(names) < 2 or len(set(names)) < len(names):
        expected = f"two or more of {', '.join(OBJECTIVES)}" + (", each once" if unknown is None else "")
        hint = None if unknown is None else did_you_mean(unknown, OBJECTIVES)
        raise bad_value("--objectives", ",".join(names), expected, hint=hint)
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
    points = [tuple(OBJECTIVES[name](row) for name in objectives) for row in rows]
    return Front(rows[index] for index in pareto_front(points))


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The row of the baseline that a campaign's file names, and the best row, in the ranking by tokens/s."""

    own: RankedRecipe
    best: RankedRecipe

    @property
    def factor(self) -> float:
        """The best tokens/s over the baseline's."""
        return self.best.standing.tokens_per_s / self.own.standing.tokens_per_s

    def in_words(self) -> str:
        """Return the baseline's rank and speed, and what the best makes of it, in one line."""
        speed = thousands(self.own.standing.tokens_per_s)
        return (
            f"baseline {self.own.recipe_id}: rank {self.own.rank}, {speed} tokens/s; "
            f"the best is {self.factor:.3g} times as fast"
        )


def baseline_of(store: Store, campaign: str | None) -> Baseline | None:
    """Return the campaign's baseline and its best; None where it names none, or the baseline was not measured."""
    record = store.campaign(campaign)
    named = stored_spec(record).search.baseline
    ranked = best(store, record, top=None) if named is not None else []
    own = next((row for row in ranked if row.recipe == named), None)
    return None if own is None else Baseline(own=own, best=ranked[0])
