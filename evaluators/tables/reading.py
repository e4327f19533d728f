"""From a CSV file to problems, recipes and outcomes: what is taken, and what is left out with its
reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from frontrunner.evaluators.analytic.accuracy_bounds import why_too_fast
from frontrunner.evaluators.runs.measure import rates
from frontrunner.evaluators.tables import schema
from frontrunner.evaluators.tables.rows import TableProblem, TableRow, is_elsewhere, problems_of
from frontrunner.evaluators.tables.schema import Refusals, Row
from frontrunner.results.outcome import Measurement
from frontrunner.spaces.cluster import PRECISIONS, Cluster
from frontrunner.spaces.errors import InvalidInput, bad_value, did_you_mean, shown_key
from frontrunner.spaces.recipe import Recipe

NEEDED = (
    ("gpus",),
    ("seq",),
    ("mbs",),
    ("gbs", "gas"),
    ("hidden", "n_params_b"),
    ("step_time_s", "status"),
)
"""Columns without which no row becomes a recipe with an outcome; of several any one is enough."""
DISAGREEING = 0.25
"""Share of time by which repeats disagree. Assumed: repeats on a busy network agree within some 10
%.
"""
LOWEST_MFU = 0.001
"""Below it for every row the unit is doubted. Assumed: milliseconds read as seconds give at most
0.1 %.
"""
MOST_MEMORIES = 20.0
"""A peak of more devices' memory is in another unit: those that are mistaken differ by 1,000."""


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """How a table differs from the standard form.

    `columns` maps a column of the form to the table's own name, with its unit where that differs,
    as `{"step_time_s": "iter_ms:ms"}`; `constants` are values of every row; `ignore` are columns to
    leave out.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()


class Source(NamedTuple):
    """The table's own name of a column of the schema, and its unit, empty where it was not
    given.
    """

    theirs: str
    unit: str = ""


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
    left_out: tuple[schema.LeftOut, ...]
    disagreeing: tuple[Repeats, ...]


def read(path: Path, form: TableForm, cluster: Cluster | None = None) -> Reading:
    """Read a table of measured configurations, on `cluster` where rows name no hardware or its
    own.
    """
    sources = _sources(form)
    table, left_out = schema.read_csv(path), Refusals()
    if not table.cells:
        raise InvalidInput(f"{path} has no rows under its header")
    rows = _rows(table, form, sources, "" if cluster is None else cluster.device, left_out)
    problems = problems_of(rows, left_out)
    if cluster is not None:
        problems = list(_on_cluster(cluster, problems, left_out))
    _refuse_wrong_units(problems, sources)
    believed = [kept for problem in problems if (kept := _believed(problem, left_out)).rows]
    return Reading(
        file=path.name,
        sha256=table.sha256,
        rows=len(table.cells),
        problems=tuple(believed),
        left_out=left_out.summary,
        disagreeing=tuple(repeats for problem in believed for repeats in _disagreeing(problem)),
    )


def _sources(form: TableForm) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for flag, name, value in [
        *(("--column", *item) for item in form.columns.items()),
        *(("--set", *item) for item in form.constants.items()),
    ]:
        text = f"{name}={value}"
        if name not in schema.COLUMNS:
            hint = did_you_mean(name, schema.COLUMNS)
            raise bad_value(flag, text, "a column of the table form before the =", hint=hint)
        if name in found:
            raise InvalidInput(
                f"column {name} is given twice: expected one --column or --set for it"
            )
        if flag == "--column":
            theirs, colon, unit = value.rpartition(":")  # a colon may be part of their name
            units = schema.UNITS.get(name, {})
            if colon and units and unit not in units:
                raise bad_value(
                    flag, text, f"a unit of {', '.join(units)}", hint=did_you_mean(unit, units)
                )
            found[name] = Source(theirs, unit) if colon and units else Source(value)
    return found


def _rows(
    table: schema.CsvTable,
    form: TableForm,
    sources: Mapping[str, Source],
    default_hardware: str,
    left_out: Refusals,
) -> list[Row]:
    places = _places(table.columns, form, sources)
    names = {*places, *form.constants}
    for wanted in NEEDED:
        if names.isdisjoint(wanted):
            constant = f", or --set {wanted[0]}=NUMBER" if len(wanted) == 1 else ""
            message = f"the table has no column {' or '.join(wanted)}"
            raise InvalidInput(message, hint=f"name yours: --column {wanted[0]}=THEIRS{constant}")
    if not default_hardware and "hardware" not in names:
        raise InvalidInput(
            "the table has no column hardware",
            hint="--set hardware=h100, or --cluster NAME or FILE",
        )
    rows = []
    for number, cells in enumerate(table.cells):
        given = {name: cells[place] for name, place in places.items()} | dict(form.constants)
        row = schema.row_of(number, given)
        row.hardware = row.hardware or default_hardware
        for name, source in sources.items():
            if source.unit:
                setattr(row, name, getattr(row, name) * schema.UNITS[name][source.unit])
        if reason := _why_unusable(row, given):
            left_out.add(reason, row.number)
        else:
            rows.append(row)
    return rows


def _why_unusable(row: Row, given: Mapping[str, str]) -> str | None:
    """Return why nothing can be learned from a row, or None: a step in fp8 says nothing of one in
    bf16.
    """
    for name in schema.NUMBERS:
        value = getattr(row, name)
        if math.isnan(value) and given.get(name, "").strip() not in schema.EMPTY:
            return f"{name} is not a number"
        if value < 0:
            return f"{name} is negative"
    if not row.hardware:
        return "no hardware"
    if row.precision not in ("", *PRECISIONS):
        return f"precision {row.precision} is none of {', '.join(PRECISIONS)}"
    return None


def _places(
    theirs: Sequence[str], form: TableForm, sources: Mapping[str, Source]
) -> dict[str, int]:
    for name, source in sources.items():
        if source.theirs not in theirs:
            hint = did_you_mean(source.theirs, theirs)
            raise bad_value(
                "--column",
                f"{name}={source.theirs}",
                "a column of the table after the =",
                hint=hint,
            )
    for ignored in form.ignore:
        if ignored not in theirs:
            raise bad_value(
                "--ignore", ignored, "a column of the table", hint=did_you_mean(ignored, theirs)
            )
    taken = {*(source.theirs for source in sources.values()), *form.ignore, *sources}
    own = [name for name in theirs if name not in taken]
    if unknown := [name for name in own if name not in schema.COLUMNS]:
        first, shown = shown_key(unknown[0]), ", ".join(map(shown_key, unknown[:6]))
        more = f" and {len(unknown) - 6} more" if len(unknown) > 6 else ""
        hint = f"say what each is: --column NAME={first}, or leave it out: --ignore {first}"
        raise InvalidInput(
            f"the table has columns that are not of the table form: {shown}{more}", hint=hint
        )
    if twice := next((name for name in own if name in form.constants), None):
        raise InvalidInput(
            f"--set {twice}: the table has a column {twice}", hint=f"add --ignore {twice}"
        )
    found = {name: name for name in own} | {name: source.theirs for name, source in sources.items()}
    return {
        name: theirs.index(their) for name, their in found.items() if name not in schema.NOT_READ
    }


def _on_cluster(
    cluster: Cluster, problems: Sequence[TableProblem], left_out: Refusals
) -> Iterator[TableProblem]:
    """Yield the problems on as many whole nodes of this cluster as their devices need; leave out
    other devices'.
    """
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
                outcome = replace(
                    outcome, mfu=rates(row.recipe, problem, outcome.step_time_s_median)["mfu"]
                )
            rows.append(replace(row, outcome=outcome))
        yield replace(table, problem=problem, rows=tuple(rows))


def _peak_share(measured: Measurement, recipe: Recipe, table: TableProblem) -> float:
    peak = table.problem.cluster.peak_flops(recipe.arithmetic(table.problem.precision))
    return 0.0 if peak is None else measured.hardware_tflops_per_device * 1e12 / peak


def _refuse_wrong_units(problems: Sequence[TableProblem], sources: Mapping[str, Source]) -> None:
    rows = ((row.outcome, row.recipe, of) for of in problems for row in of.rows)
    timed = [(one, recipe, of) for one, recipe, of in rows if isinstance(one, Measurement)]
    shares = [share for one, recipe, of in timed if (share := _peak_share(one, recipe, of))]
    above = sum(share > 1 for share in shares)
    if 2 * above > len(shares):
        found = (
            f"{above} of {len(shares)} timed rows are above their device's peak, by up to"
            f" {max(shares):,.3g} times"
        )
        raise _wrong_unit("step_time_s", found, sources)
    if shares and max(shares) < LOWEST_MFU and not sources.get("step_time_s", Source("")).unit:
        found = (
            f"the fastest of {len(shares)} timed rows reaches {100 * max(shares):.2g} % of its"
            " device's peak"
        )
        raise _wrong_unit("step_time_s", found, sources)
    peaks = (
        (one.peak_memory_bytes_max_rank, of.problem.cluster.memory_bytes_per_device)
        for one, _, of in timed
    )
    memories = [peak / device for peak, device in peaks if peak]
    if memories and min(memories) > MOST_MEMORIES:
        found = f"every peak is {min(memories):,.0f} times its device's memory and more"
        raise _wrong_unit("peak_mem_gb", found, sources)


def _wrong_unit(name: str, found: str, sources: Mapping[str, Source]) -> InvalidInput:
    (theirs, given), units = sources.get(name, Source(name)), schema.UNITS[name]
    hint = f"say its unit: --column {name}={theirs}:UNIT, of {', '.join(units)}"
    return InvalidInput(
        f"{theirs} in {given or next(iter(units))} cannot be meant: {found}", hint=hint
    )


def _believed(table: TableProblem, left_out: Refusals) -> TableProblem:
    kept, seen = [], set[tuple[Recipe, object]]()
    for row in table.rows:
        one = row.outcome
        stated = (
            (one.step_times_s, one.peak_memory_bytes) if isinstance(one, Measurement) else one.kind
        )
        reason = (
            "another row says the same"
            if (row.recipe, stated) in seen
            else _why_not_believed(row, table)
        )
        if reason:
            left_out.add(reason, row.number + 1)
        else:
            seen.add((row.recipe, stated))
            kept.append(row)
    return replace(table, rows=tuple(kept))


def _why_not_believed(row: TableRow, table: TableProblem) -> str | None:
    degree, heads = row.recipe.tensor_parallel, table.problem.model.attention.heads
    if degree > heads:
        return f"tensor-parallel degree {degree} for {heads} heads"
    if isinstance(row.outcome, Measurement):
        if _peak_share(row.outcome, row.recipe, table) > 1:
            return "faster than the device's peak"
        if why_too_fast(row.recipe, table.problem, row.outcome.step_time_s_median):
            return "faster than the formulas find possible"
    return None


def _disagreeing(table: TableProblem) -> Iterator[Repeats]:
    by_recipe: dict[Recipe, list[tuple[int, float]]] = {}
    for row in table.rows:
        if isinstance(row.outcome, Measurement):
            by_recipe.setdefault(row.recipe, []).append(
                (row.number + 1, row.outcome.step_time_s_median)
            )
    for recipe, repeats in by_recipe.items():
        rows, times = zip(*repeats, strict=True)
        if max(times) > (1 + DISAGREEING) * min(times):
            yield Repeats(
                problem=table.name, recipe=recipe.describe(), rows=rows, step_times_s=times
            )
