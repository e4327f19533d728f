"""What the measured recipes look like: speed against memory, knob by knob, and which corners of the space fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from frontrunner.evaluators.insight.collected import Collected, Missing
from frontrunner.evaluators.insight.history import NOTHING_ENDED
from frontrunner.evaluators.insight.knobs import Knob, knobs
from frontrunner.evaluators.probe.measure import nodes_used
from frontrunner.results.ranking import RankedRecipe
from frontrunner.spaces.recipe import Recipe

NOTHING_MEASURED = Missing(reason="No recipe of this campaign has been measured.")
Corner = tuple[int, int, int]
"""Tensor-parallel degree, pipeline-parallel degree, micro-batch in sequences."""


@dataclass(frozen=True, kw_only=True)
class SpeedMemory:
    """Every measured recipe, fastest first, and those of them that no other beats in both speed and memory.

    `limit_bytes` is a device's memory, `nodes` the number that each recipe's devices occupy, by recipe id.
    """

    recipes: tuple[RankedRecipe, ...]
    front_ids: frozenset[str]
    limit_bytes: int
    nodes: Mapping[str, int]

    @property
    def front(self) -> tuple[RankedRecipe, ...]:
        """The front, fastest first."""
        return tuple(row for row in self.recipes if row.recipe_id in self.front_ids)


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The measured recipes over the knobs in which they differ, fastest first."""

    knobs: tuple[Knob, ...]
    recipes: tuple[RankedRecipe, ...]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The legal recipes of one corner: `legal` in all, `measured` and `failures` (by kind) of those that were tried.

    `best_tokens_per_s` is the fastest measured one's, None without any.
    """

    legal: int
    measured: int
    failures: Mapping[str, int]
    best_tokens_per_s: float | None

    @property
    def state(self) -> str:
        """`measured`, `mixed` (some failed), `failed` (all that were tried), or `untried`."""
        if self.failures:
            return "mixed" if self.measured else "failed"
        return "measured" if self.measured else "untried"

    @property
    def commonest_failure(self) -> str | None:
        """The kind that occurred most often, ties in the order of the alphabet; None without a failure."""
        return min(self.failures, key=lambda kind: (-self.failures[kind], kind)) if self.failures else None


@dataclass(frozen=True, kw_only=True)
class Feasibility:
    """The corners that have a legal recipe or were tried; a corner that is not in `cells` has none."""

    tensor_parallel: tuple[int, ...]
    pipeline_parallel: tuple[int, ...]
    micro_batch_seqs: tuple[int, ...]
    cells: Mapping[Corner, Cell]


def speed_memory(collected: Collected) -> SpeedMemory | Missing:
    """Speed against the peak memory of the rank that needs most."""
    if not collected.ranking:
        return NOTHING_MEASURED
    return SpeedMemory(
        recipes=tuple(collected.ranking),
        front_ids=frozenset(row.recipe_id for row in collected.front),
        limit_bytes=collected.problem.cluster.memory_bytes_per_device,
        nodes={row.recipe_id: nodes_used(row.recipe, collected.problem) for row in collected.ranking},
    )


def parallel(collected: Collected) -> Parallel | Missing:
    """The measured recipes as lines over their knobs."""
    if len(collected.ranking) < 2:
        return Missing(
            reason=f"Lines can be compared from two measured recipes on; there are {len(collected.ranking)}."
        )
    return Parallel(
        knobs=knobs(collected.survey, [row.recipe for row in collected.ranking]), recipes=tuple(collected.ranking)
    )


def feasibility(collected: Collected) -> Feasibility | Missing:
    """What ran and what failed by tensor and pipeline parallelism and micro-batch, whatever the other knobs."""
    failed = collected.final_failures
    if not failed and not collected.ranking:
        return NOTHING_ENDED
    legal = Counter(corner(recipe) for recipe in collected.survey.recipes)
    speeds: dict[Corner, list[float]] = {}
    for row in collected.ranking:
        speeds.setdefault(corner(row.recipe), []).append(row.standing.tokens_per_s)
    kinds: dict[Corner, Counter[str]] = {}
    for recipe, failure in failed.items():
        kinds.setdefault(corner(recipe), Counter())[failure.kind.value] += 1
    cells = {
        place: Cell(
            legal=legal[place],
            measured=len(speeds.get(place, [])),
            failures=dict(kinds.get(place, {})),
            best_tokens_per_s=max(speeds.get(place, []), default=None),
        )
        for place in sorted(legal.keys() | speeds.keys() | kinds.keys())
    }
    degrees = [tuple(sorted(set(values))) for values in zip(*cells, strict=True)]
    return Feasibility(
        tensor_parallel=degrees[0], pipeline_parallel=degrees[1], micro_batch_seqs=degrees[2], cells=cells
    )


def corner(recipe: Recipe) -> Corner:
    """The recipe's place on the feasibility map."""
    return recipe.tensor_parallel, recipe.pipeline_parallel, recipe.micro_batch_seqs
