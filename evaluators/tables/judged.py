"""What is believed of a table's rows: machines, rates, and rows that say the same or disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from frontrunner.evaluators.analytic.hardware import preset_of
from frontrunner.evaluators.analytic.plausibility import why_too_fast
from frontrunner.evaluators.probe.measure import rates
from frontrunner.evaluators.tables.slips import hardware_utilisation
from frontrunner.evaluators.tables.table_rows import TableProblem, TableRow
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

DISAGREEING = 0.25
"""Repeats of one recipe whose slowest takes longer than the fastest by more than this share disagree. Assumed: repeats
on one machine agree within 1.5 %, on a busy network within some 10 %."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Rows that were left out for one reason; `first_row` counts the file's data rows from 1, None where unknown."""

    reason: str
    rows: int
    first_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Rows of one recipe whose step times disagree, in the file's order; rows count from 1."""

    problem: str
    recipe: str
    rows: tuple[int, ...]
    step_times_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Problems with the rows that are believed, what was left out, and rows that disagree with one another."""

    problems: tuple[TableProblem, ...]
    left_out: tuple[LeftOut, ...]
    disagreeing: tuple[Repeats, ...]


def on_cluster(cluster: Cluster, problems: Iterable[TableProblem]) -> tuple[list[TableProblem], list[LeftOut]]:
    """The problems on this cluster, as many whole nodes of it as their devices need.

    Rows of a device with another preset are left out.
    """
    found: list[TableProblem] = []
    elsewhere: Counter[str] = Counter()
    for table in problems:
        theirs = table.problem.cluster.device
        if preset_of(theirs) not in (None, preset_of(cluster.device)):
            elsewhere[f"measured on {theirs}, not on {cluster.device}"] += len(table.rows)
            continue
        nodes = -(-table.rows[0].recipe.devices // cluster.devices_per_node)
        problem = replace(table.problem, cluster=replace(cluster, nodes=nodes))
        rows = tuple(replace(row, outcome=_rated(row.outcome, row.recipe, problem)) for row in table.rows)
        found.append(replace(table, problem=problem, rows=rows))
    return found, [LeftOut(reason=reason, rows=count) for reason, count in elsewhere.items()]


def _rated(outcome: Outcome, recipe: Recipe, problem: Problem) -> Outcome:
    """An outcome with its MFU by the peak of the problem's cluster."""
    if not isinstance(outcome, Measurement):
        return outcome
    return replace(outcome, mfu=rates(recipe, problem, outcome.step_time_s_median)["mfu"])


def judged(problems: Sequence[TableProblem]) -> Judged:
    """Leave out rows that cannot be true and rows that say what another said; find those that disagree."""
    kept, disagreeing = [], list[Repeats]()
    left_out: dict[str, list[int]] = {}
    for table in problems:
        rows, seen = [], set[tuple[Recipe, object]]()
        for row in table.rows:
            said = (row.recipe, _said(row.outcome))
            reason = "another row says the same" if said in seen else _why_not(row, table)
            if reason:
                left_out.setdefault(reason, []).append(row.number + 1)
            else:
                seen.add(said)
                rows.append(row)
        if rows:
            kept.append(replace(table, rows=tuple(rows)))
            disagreeing += _disagreeing(kept[-1])
    counted = [LeftOut(reason=why, rows=len(rows), first_row=min(rows)) for why, rows in left_out.items()]
    return Judged(problems=tuple(kept), left_out=tuple(counted), disagreeing=tuple(disagreeing))


def _said(outcome: Outcome) -> object:
    if isinstance(outcome, Measurement):
        return outcome.step_times_s, outcome.peak_memory_bytes
    return outcome.kind


def _why_not(row: TableRow, table: TableProblem) -> str | None:
    """Why a row is not believed, or None."""
    degree, heads = row.recipe.tensor_parallel, table.problem.model.heads
    if degree > heads:
        return f"tensor-parallel degree {degree} for {heads} heads"
    if isinstance(row.outcome, Measurement):
        share = hardware_utilisation(row.outcome, table)
        if share is not None and share > 1:
            return "faster than the device's peak"
        if why_too_fast(row.recipe, table.problem, row.outcome.step_time_s_median):
            return "faster than the formulas find possible"
    return None


def _disagreeing(table: TableProblem) -> list[Repeats]:
    by_recipe: dict[Recipe, list[tuple[int, float]]] = {}
    for row in table.rows:
        if isinstance(row.outcome, Measurement):
            by_recipe.setdefault(row.recipe, []).append((row.number + 1, row.outcome.step_time_s_median))
    found = []
    for recipe, repeats in by_recipe.items():
        times = [time for _, time in repeats]
        if max(times) > (1 + DISAGREEING) * min(times):
            rows = tuple(number for number, _ in repeats)
            found.append(Repeats(problem=table.name, recipe=recipe.describe(), rows=rows, step_times_s=tuple(times)))
    return found
