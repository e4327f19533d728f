"""Scaling: the best recipe of a space on other numbers of nodes, by strong and by weak scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic.accuracy_bounds import Trust, trust_in
from frontrunner.evaluators.analytic.estimates import Estimate, Plan, plan, why_nothing_legal
from frontrunner.spaces.cluster import MOST_DEVICES
from frontrunner.spaces.errors import bad_value
from frontrunner.spaces.problem import GlobalBatch, Problem
from frontrunner.spaces.recipe import Recipe
from frontrunner.spaces.space import DEGREES, Space, Survey

MOST_COUNTS = 32
"""Node counts of one table; each is a space to survey."""

BOUNDING = (*DEGREES, "micro_batch_seqs")
"""The dimensions whose largest value may bound what a larger machine can do."""


@dataclass(frozen=True, kw_only=True)
class ScalingRow:
    """One number of nodes: the fastest recipe that fits, or the reason why there is none.

    `efficiency` is tokens/s per device over that of the smallest count with a recipe. `global_batch` is None where the
    batch of this count is not a whole number of sequences.
    """

    nodes: int
    devices: int
    global_batch: GlobalBatch | None
    legal: int
    fitting: int
    best: Estimate | None
    reason: str | None
    efficiency: float | None

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """tokens_per_s / devices."""
        return None if self.best is None else self.best.tokens_per_s / self.devices

    @property
    def node_hours_per_billion_tokens(self) -> float | None:
        """Nodes * 1e9 / tokens_per_s / 3600."""
        return None if self.best is None else self.nodes * 1e9 / self.best.tokens_per_s / 3600


Done = dict[tuple[int, GlobalBatch], ScalingRow]
"""Rows that are known, by number of nodes and global batch."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The largest value that a dimension's list holds, and the node counts on which the best recipe takes it."""

    dimension: str
    largest: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Strong scaling keeps the problem's global batch; weak scaling keeps the batch per node of its cluster.

    `bounds` are degrees and micro-batches that a longer list in the space might take further. `devices_ignored` is
    whether the space names devices, which each count replaces by its own.
    """

    strong: tuple[ScalingRow, ...]
    weak: tuple[ScalingRow, ...]
    bounds: tuple[Bound, ...]
    devices_ignored: bool
    trust: Trust

    @property
    def has_recipe(self) -> bool:
        """Whether any count has one."""
        return any(row.best is not None for row in (*self.strong, *self.weak))


def check_counts(nodes: Sequence[int], devices_per_node: int) -> tuple[int, ...]:
    """Return the counts in rising order; raises `InvalidInput` for one that cannot be used or is repeated."""
    given = list(nodes)
    if not given or len(given) > MOST_COUNTS:
        raise bad_value("nodes", given, f"1 to {MOST_COUNTS} counts of nodes")
    for count in given:
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise bad_value("nodes", count, "whole numbers of at least 1, as in 16,32,64")
        if count * devices_per_node > MOST_DEVICES:
            raise bad_value("nodes", count, f"at most {MOST_DEVICES:,} devices in all, with {devices_per_node} a node")
    twice = next((count for count in given if given.count(count) > 1), None)
    if twice is not None:
        raise bad_value("nodes", given, f"each count once, and {twice} is there more than once")
    return tuple(sorted(given))


def scaling(space: Space, problem: Problem, nodes: Sequence[int]) -> Scaling:
    """Return strong and weak scaling over these node counts, in rising order.

    Raises `InvalidInput` for counts that cannot be used and for a space that cannot be surveyed.
    """
    counts = check_counts(nodes, problem.cluster.devices_per_node)
    open_space = space.with_choices(devices=())
    done: Done = {}
    tables = []
    for grows in (False, True):
        rows = [_row(open_space, problem, count, done, grows=grows) for count in counts]
        tables.append(_with_efficiency(rows))
    return Scaling(
        strong=tables[0],
        weak=tables[1],
        bounds=_bounds(space, (*tables[0], *tables[1])),
        devices_ignored=bool(space.devices),
        trust=trust_in(_best(tables), replace(problem, cluster=replace(problem.cluster, nodes=counts[-1]))),
    )


def _best(tables: Sequence[Sequence[ScalingRow]]) -> list[Recipe]:
    return list(dict.fromkeys(row.best.recipe for rows in tables for row in rows if row.best is not None))


def weak_batch(problem: Problem, nodes: int) -> GlobalBatch | None:
    """The problem's global batch times nodes over its cluster's nodes; None where that is not whole."""
    batch, own = problem.global_batch, problem.cluster.nodes
    if batch.minimum * nodes % own or batch.maximum * nodes % own:
        return None
    return GlobalBatch(minimum=batch.minimum * nodes // own, maximum=batch.maximum * nodes // own)


def _row(space: Space, problem: Problem, nodes: int, done: Done, *, grows: bool) -> ScalingRow:
    """Return one count; `done` holds those of both tables, which agree on the problem's own number of nodes."""
    batch = weak_batch(problem, nodes) if grows else problem.global_batch
    if batch is None:
        share = f"{problem.global_batch} sequences x {nodes} / {problem.cluster.nodes} nodes"
        devices = nodes * problem.cluster.devices_per_node
        return _without_recipe(nodes, devices, f"{share} is not a whole number of sequences")
    if (nodes, batch) not in done:
        here = replace(problem, cluster=replace(problem.cluster, nodes=nodes), global_batch=batch)
        done[nodes, batch] = _judged(space, here)
    return done[nodes, batch]


def _judged(space: Space, problem: Problem) -> ScalingRow:
    survey = space.survey(problem)
    found = plan(survey.recipes, problem)
    best = next(iter(found.fastest(1)), None)
    return ScalingRow(
        nodes=problem.cluster.nodes,
        devices=problem.cluster.devices,
        global_batch=problem.global_batch,
        legal=found.legal,
        fitting=found.table.fitting,
        best=best,
        reason=_reason(survey, found) if best is None else None,
        efficiency=None,
    )


def _without_recipe(nodes: int, devices: int, reason: str) -> ScalingRow:
    return ScalingRow(
        nodes=nodes, devices=devices, global_batch=None, legal=0, fitting=0, best=None, reason=reason, efficiency=None
    )


def _reason(survey: Survey, found: Plan) -> str:
    """Return why no recipe is legal, known to the formulas, or small enough."""
    if not found.legal:
        count, example = why_nothing_legal(survey)
        most = "" if count == survey.points else f", mostly ({count:,} of {survey.points:,} points)"
        return f"nothing is legal{most}: {example}"
    if not len(found.table):
        return f"nothing is estimated: the formulas do not know {', '.join(found.not_modelled)}"
    smallest = found.table.peak_memory_bytes.min() / 2**30
    return f"nothing fits: the smallest recipe needs {smallest:.2f} GiB of {found.memory_limit_bytes / 2**30:.2f}"


def _with_efficiency(rows: Sequence[ScalingRow]) -> tuple[ScalingRow, ...]:
    """Return the rows relative to the first that has a recipe."""
    rates = [rate for row in rows if (rate := row.tokens_per_s_per_device) is not None]
    return tuple(
        row if (rate := row.tokens_per_s_per_device) is None else replace(row, efficiency=rate / rates[0])
        for row in rows
    )


def _bounds(space: Space, rows: Sequence[ScalingRow]) -> tuple[Bound, ...]:
    """Return the dimensions whose largest value is the best on some count."""
    found: list[Bound] = []
    for dimension in BOUNDING:
        largest = max(getattr(space, dimension))
        best = [row for row in rows if row.best is not None and getattr(row.best.recipe, dimension) == largest]
        if largest > 1 and best:
            found.append(Bound(dimension=dimension, largest=largest, nodes=tuple(sorted({row.nodes for row in best}))))
    return tuple(found)
