"""Scaling: the best recipe of a space on other numbers of nodes, by strong and by weak scaling."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic.accuracy_bounds import (
    Trust,
    trust_in,
)
from frontrunner.evaluators.analytic.estimates import Estimate, plan, why_none
from frontrunner.spaces.cluster import MOST_DEVICES
from frontrunner.spaces.display import Displayed
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.space import DEGREES, Space

MOST_COUNTS = 32

BOUNDING = (*DEGREES, "micro_batch_seqs")


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One number of nodes: the fastest recipe that fits, or the reason why there is none."""

    nodes: int
    devices: int
    global_batch: GlobalBatch | None
    legal: int = 0
    fitting: int = 0
    best: Estimate | None = None
    reason: str | None = None
    efficiency: float | None = None
    price_per_node_hour: float | None = None
    is_best: bool = False

    @property
    def price_per_billion_tokens(self) -> float | None:
        """node_hours_per_billion_tokens * price_per_node_hour."""
        hours, price = self.node_hours_per_billion_tokens, self.price_per_node_hour
        return None if hours is None or price is None else hours * price

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """tokens_per_s / devices."""
        return None if self._tokens_per_s is None else self._tokens_per_s / self.devices

    @property
    def node_hours_per_billion_tokens(self) -> float | None:
        """Nodes * 1e9 / tokens_per_s / 3600."""
        return None if self._tokens_per_s is None else self.nodes * 1e9 / self._tokens_per_s / 3600

    @property
    def _tokens_per_s(self) -> float | None:
        return None if self.best is None else self.best.tokens_per_s


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The largest value that a dimension's list holds, and the node counts on which the best recipe
    takes it.
    """

    dimension: str
    largest: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scaling(Displayed):
    """Strong scaling keeps the global batch, weak scaling that per node; `bounds` might be taken
    further.

    The best rows have the highest `rate`, one of `pareto.RATES`.
    """

    strong: tuple[ScalingRow, ...]
    weak: tuple[ScalingRow, ...]
    bounds: tuple[Bound, ...]
    devices_ignored: bool
    trust: Trust
    rate: str = "tokens"

    @property
    def has_recipe(self) -> bool:
        """Whether any count has one."""
        return any(row.best is not None for row in (*self.strong, *self.weak))


def check_counts(nodes: Sequence[int], devices_per_node: int) -> tuple[int, ...]:
    """Return the counts in rising order; raises `InvalidInput` for one that cannot be used or is
    repeated.
    """
    given = list(nodes)
    if not given or len(given) > MOST_COUNTS:
        raise bad_value("nodes", given, f"1 to {MOST_COUNTS} counts of nodes")
    for count in given:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise bad_value("nodes", count, "whole numbers of at least 1, as in 16,32,64")
        if count * devices_per_node > MOST_DEVICES:
            raise bad_value(
                "nodes",
                count,
                f"at most {MOST_DEVICES:,} devices in all, with {devices_per_node} a node",
            )
    twice = next((count for count in given if given.count(count) > 1), None)
    if twice is not None:
        raise bad_value("nodes", given, f"each count once, and {twice} is there more than once")
    return tuple(sorted(given))


def scaling(space: Space, problem: Problem, nodes: Sequence[int], rate: str = "tokens") -> Scaling:
    """Return strong and weak scaling over these node counts, in rising order; raises
    `InvalidInput`.

    `rate`, one of `pareto.RATES`, is what the best number of nodes has the most of.
    """
    counts = check_counts(nodes, problem.cluster.devices_per_node)
    judge = functools.cache(functools.partial(_row, space.with_choices(devices=()), problem))
    strong = _judged([judge(count, problem.global_batch) for count in counts], problem, rate)
    weak = _judged([judge(count, weak_batch(problem, count)) for count in counts], problem, rate)
    best = {row.best.recipe: row.best for row in (*strong, *weak) if row.best is not None}
    errors = [one.expected_error for one in best.values()]
    return Scaling(
        strong=strong,
        weak=weak,
        bounds=_bounds(space, (*strong, *weak)),
        devices_ignored=bool(space.devices),
        rate=rate,
        trust=trust_in(
            list(best), replace(problem, cluster=replace(problem.cluster, nodes=counts[-1])), errors
        ),
    )


def weak_batch(problem: Problem, nodes: int) -> GlobalBatch | None:
    """The problem's global batch times nodes over its cluster's nodes; None where that is not
    whole.
    """
    batch, own = problem.global_batch, problem.cluster.nodes
    if batch.minimum * nodes % own or batch.maximum * nodes % own:
        return None
    return GlobalBatch(minimum=batch.minimum * nodes // own, maximum=batch.maximum * nodes // own)


def _row(space: Space, problem: Problem, nodes: int, batch: GlobalBatch | None) -> ScalingRow:
    cluster = replace(problem.cluster, nodes=nodes)
    price = cluster.price_per_node_hour
    row = ScalingRow(
        nodes=nodes, devices=cluster.devices, global_batch=batch, price_per_node_hour=price
    )
    if batch is None:
        share = f"{problem.global_batch} sequences x {nodes} / {problem.cluster.nodes} nodes"
        return replace(row, reason=f"{share} is not a whole number of sequences")
    survey = space.survey(replace(problem, cluster=cluster, global_batch=batch))
    found = plan(survey.recipes, survey.problem)
    best = next(iter(found.fastest(1)), None)
    return replace(
        row,
        legal=found.legal,
        fitting=found.table.fitting,
        best=best,
        reason=why_none(survey, found),
    )


def _judged(rows: Sequence[ScalingRow], problem: Problem, rate: str) -> tuple[ScalingRow, ...]:
    """Return the rows with their efficiencies, and the best one marked."""
    worth = {
        place: row.best.tokens_per_s / problem.divisor(rate, row.best.recipe)
        for place, row in enumerate(rows)
        if row.best is not None and row.best.tokens_per_s is not None
    }
    best = max(worth, key=lambda place: worth[place], default=None)
    first = next((rows[place].tokens_per_s_per_device for place in worth), None)
    return tuple(
        replace(row, efficiency=per / first, is_best=place == best)
        if first and (per := row.tokens_per_s_per_device)
        else row
        for place, row in enumerate(rows)
    )


def _bounds(space: Space, rows: Sequence[ScalingRow]) -> tuple[Bound, ...]:
    found: list[Bound] = []
    for dimension in BOUNDING:
        largest = max(getattr(space, dimension))
        nodes = {
            row.nodes for row in rows if row.best and getattr(row.best.recipe, dimension) == largest
        }
        if largest > 1 and nodes:
            found.append(Bound(dimension=dimension, largest=largest, nodes=tuple(sorted(nodes))))
    return tuple(found)
