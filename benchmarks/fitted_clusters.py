"""How far a cluster file of `calibrate --from-table` may be trusted: mean errors, and coverage of
its intervals.

    python benchmarks/fitted_clusters.py FIT.csv JUDGED.csv... [--rows N]

The constants are fitted to FIT.csv, or to its first N timed rows of each training code. Rows of
each JUDGED.csv on that device are estimated with the cluster's own constants and with the file.
FIT.csv itself is judged by problem: with files fitted to its other problems, in at most five parts.
`inside` is the share of rows in the 95 % intervals, whose ends are stated by their medians.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from frontrunner.config.campaign import read_cluster_file
from frontrunner.evaluators.analytic.accuracy_bounds import log_bounds
from frontrunner.evaluators.analytic.fit import Sample
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import Rows
from frontrunner.evaluators.tables.rows import software_of
from frontrunner.evaluators.tables.schema import Row
from frontrunner.evaluators.tables.workloads import Table, read
from frontrunner.machine import fit_tables
from frontrunner.spaces.cluster import Cluster

FOLDS = 5


def judged(table: Table, fitted: Cluster | None) -> Rows:
    """Return log(measured / estimated) of each timed row, and how far its interval goes below and
    above.
    """
    found = [np.empty((0, 3))]
    for _, sample in table.parts:
        timed = sample.rows(sample.step_time_s > 0)
        if fitted is None or timed.cluster.device == fitted.device:
            found.append(_of_sample(timed, fitted))
    return np.concatenate(found)


def _of_sample(sample: Sample, fitted: Cluster | None) -> Rows:
    cluster = sample.cluster if fitted is None else replace(sample.cluster, fitted=fitted.fitted)
    machine = Machine.of(cluster, sample.precision, sample.software)
    unjudged = sample.work.context_parallel > 1
    bounds = log_bounds(cluster, sample.precision, sample.software, sample.work, unjudged)
    off = np.log(sample.step_time_s / step_time(machine, sample.work).total)
    return np.stack(np.broadcast_arrays(off, *bounds), axis=1)


def told(rows: Rows) -> str:
    """Return the figures of rows in words."""
    off, below, above = rows.T
    error = np.abs(np.expm1(-off)).mean()
    inside = ((-below <= off) & (off <= above)).mean()
    ends = " to ".join(f"{np.median(np.expm1(end)):+5.0%}" for end in (-below, above))
    return f"{error:6.1%}  {ends}  {inside:4.0%} inside"


def fit_to(path: Path, is_used: Callable[[Row], bool], folder: Path) -> Cluster:
    """Return the cluster that a fit to these rows of a table writes."""
    used = {row.number for row in read(path).rows if is_used(row)}
    with path.open(encoding="utf-8", newline="") as source:
        lines = list(csv.DictReader(source))
    part = folder / "part.csv"
    with part.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=list(lines[0]))
        writer.writeheader()
        writer.writerows(line for number, line in enumerate(lines, start=1) if number in used)
    fit_tables([part], out=folder / "fitted.toml")
    return read_cluster_file(folder / "fitted.toml")


def first_rows(count: int) -> Callable[[Row], bool]:
    """Return what takes the first timed rows of each training code."""
    seen: Counter[str | None] = Counter()

    def is_used(row: Row) -> bool:
        code = software_of(row).code
        seen[code] += row.status == "ok" and row.step_time_s > 0
        return seen[code] <= count

    return is_used


def held_back(path: Path, folder: Path) -> Iterator[Rows]:
    """Yield the judged rows of each part of a table's problems, by fits to the others."""
    table = read(path)
    problems = sorted({row.problem for row in table.rows})
    parts = {problem: place % min(FOLDS, len(problems)) for place, problem in enumerate(problems)}
    for part in set(parts.values()) if len(problems) > 1 else ():
        fitted = fit_to(path, lambda row, part=part: parts[row.problem] != part, folder)  # type: ignore[misc]
        rows = tuple(row for row in table.rows if parts[row.problem] == part)
        yield judged(Table(table.name, rows, {}), fitted)


def main() -> None:
    """Print a line for each table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fitted", type=Path)
    parser.add_argument("judged", type=Path, nargs="*")
    parser.add_argument("--rows", type=int)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = fit_to(chosen.fitted, first_rows(chosen.rows or int(1e9)), folder)
        if chosen.rows is None:
            own = list(held_back(chosen.fitted, folder))
            if own:
                print(f"{chosen.fitted.stem} by problem: {told(np.concatenate(own))}", flush=True)
        for path in chosen.judged:
            table = read(path)
            here = tuple(
                row
                for row in table.rows
                if (device := _device(table, row)) and device == cluster.device
            )
            table = Table(table.name, here, {})
            before, after = told(judged(table, None)), told(judged(table, cluster))
            print(f"{path.stem:25} preset {before}   file {after}", flush=True)


def _device(table: Table, row: Row) -> str:
    return Table(table.name, (row,), {}).parts[0][1].cluster.device


if __name__ == "__main__":
    main()
