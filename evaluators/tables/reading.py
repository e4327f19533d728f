"""From a CSV file to problems, recipes and outcomes: what is taken, and what is left out with its reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from frontrunner.evaluators.analytic.plausibility import why_too_fast
from frontrunner.evaluators.probe.measure import rates
from frontrunner.evaluators.tables.hardware import is_elsewhere
from frontrunner.evaluators.tables.mapping import Mapped, mapped_rows
from frontrunner.evaluators.tables.rows import TableProblem, TableRow, problems_of
from frontrunner.evaluators.tables.schema import LeftOut, Refusals, read_csv
from frontrunner.evaluators.tables.unit_checks import peak_share, refuse_wrong_units
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.recipe import Recipe

DISAGREEING = 0.25
"""Repeats of one recipe whose slowest takes longer than the fastest by more than this share disagree. Assumed: repeats
on one machine agree within 1.5 %, on a busy network within some 10 %."""


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Rows of one recipe whose step times disagree, in the file's order; rows count from 1."""

    problem: str
    recipe: str
    rows: tuple[int, ...]
    step_times_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The content of a file. `sha256` is of its bytes, `rows` counts its data rows."""

    file: str
    sha256: str
    rows: int
    problems: tuple[TableProblem, ...]
    left_out: tuple[LeftOut, ...]
    disagreeing: tuple[Repeats, ...]


def read(path: Path, mapped: Mapped, cluster: Cluster | None = None) -> Reading:
    """Read a table of measured configurations.

    On `cluster`, where one is given, are the rows that name no hardware or its own. Raises `NotFound` where there is no
    such file, and `InvalidInput` for one that is not a table, for columns that are unknown or missing, and for units
    that cannot be right.
    """
    table, left_out = read_csv(path), Refusals()
    if not table.cells:
        raise InvalidInput(f"{path} has no rows under its header")
    hardware = None if cluster is None else cluster.device
    problems = problems_of(mapped_rows(table, mapped, default_hardware=hardware, left_out=left_out), left_out)
    if cluster is not None:
        problems = list(_on_cluster(cluster, problems, left_out))
    refuse_wrong_units(problems, mapped)
    believed = [kept for problem in problems if (kept := _believed(problem, left_out)).rows]
    return Reading(
        file=path.name,
        sha256=table.sha256,
        rows=len(table.cells),
        problems=tuple(believed),
        left_out=left_out.summary,
        disagreeing=tuple(repeats for problem in believed for repeats in _disagreeing(problem)),
    )


def _on_cluster(cluster: Cluster, problems: Sequence[TableProblem], left_out: Refusals) -> Iterator[TableProblem]:
    """Yield the problems on as many whole nodes of this cluster as their devices need; leave out other devices'."""
    for table in problems:
        theirs = table.problem.cluster.device
        if is_elsewhere(theirs, cluster):
            for row in table.rows:
                left_out.add(f"measured on {theirs}, not on {cluster.device}", row.number + 1)
            continue
        nodes = -(-table.rows[0].recipe.devices // cluster.devices_per_node)
        problem = replace(table.problem, cluster=replace(cluster, nodes=nodes))
        rows = []
        for row in table.rows:
            outcome = row.outcome
            if isinstance(outcome, Measurement):
                outcome = replace(outcome, mfu=rates(row.recipe, problem, outcome.step_time_s_median)["mfu"])
            rows.append(replace(row, outcome=outcome))
        yield replace(table, problem=problem, rows=tuple(rows))


def _believed(table: TableProblem, left_out: Refusals) -> TableProblem:
    """Return the problem without rows that cannot be true and rows that repeat another exactly."""
    kept, seen = [], set[tuple[Recipe, object]]()
    for row in table.rows:
        one = row.outcome
        stated = (one.step_times_s, one.peak_memory_bytes) if isinstance(one, Measurement) else one.kind
        reason = "another row says the same" if (row.recipe, stated) in seen else _why_not(row, table)
        if reason:
            left_out.add(reason, row.number + 1)
        else:
            seen.add((row.recipe, stated))
            kept.append(row)
    return replace(table, rows=tuple(kept))


def _why_not(row: TableRow, table: TableProblem) -> str | None:
    """Return why a row is not believed, or None."""
    degree, heads = row.recipe.tensor_parallel, table.problem.model.heads
    if degree > heads:
        return f"tensor-parallel degree {degree} for {heads} heads"
    if isinstance(row.outcome, Measurement):
        share = peak_share(row.outcome, table)
        if share is not None and share > 1:
            return "faster than the device's peak"
        if why_too_fast(row.recipe, table.problem, row.outcome.step_time_s_median):
            return "faster than the formulas find possible"
    return None


def _disagreeing(table: TableProblem) -> Iterator[Repeats]:
    by_recipe: dict[Recipe, list[tuple[int, float]]] = {}
    for row in table.rows:
        if isinstance(row.outcome, Measurement):
            by_recipe.setdefault(row.recipe, []).append((row.number + 1, row.outcome.step_time_s_median))
    for recipe, repeats in by_recipe.items():
        rows, times = zip(*repeats, strict=True)
        if max(times) > (1 + DISAGREEING) * min(times):
            yield Repeats(problem=table.name, recipe=recipe.describe(), rows=rows, step_times_s=times)
