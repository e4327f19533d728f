"""How far step times are off, by family of devices, kind of model and training code.

    python benchmarks/compared_steps.py TABLE.csv... [--fitted TABLE.csv...] [--write FILE]

`plan`, `advise` and the pages state these errors; src/frontrunner/evaluators/analytic/compared.toml
has them. Tables after --fitted are those that constants which ship were fitted to: each of them is
judged with constants fitted to the others of them. The others are judged with what ships. --write
replaces the file; without, the figures are printed.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from table_accuracy import Times, by_table, predicted

from frontrunner.evaluators.analytic.compared import ComparedSteps, family
from frontrunner.evaluators.tables.rows import software_of
from frontrunner.evaluators.tables.workloads import Table, read

HEADER = """# Mean errors of step times on published steps, by devices, model and training code.
# Written by benchmarks/compared_steps.py: docs/measurements.md has the command.
"""


def compared(tables: Mapping[str, Table], times: Mapping[str, Times]) -> list[ComparedSteps]:
    """Return the mean error of each family of devices, kind of model and training code."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    names: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for name, table in tables.items():
        for places, part in table.parts:
            for place in places.tolist():
                row = table.rows[place]
                if row.status != "ok" or not np.isfinite(row.step_time_s):
                    continue
                kind = "experts" if row.experts else "dense"
                key = (family(part.cluster.device), kind, software_of(row).code or "unknown")
                errors[key].append(abs(times[name][place] / row.step_time_s - 1))
                names[key].add(name)
    return [
        ComparedSteps(
            devices=devices,
            model=kind,
            code=code,
            tables=len(names[devices, kind, code]),
            rows=len(off),
            error=round(float(np.mean(off)), 3),
        )
        for (devices, kind, code), off in sorted(errors.items())
    ]


def as_toml(figures: Sequence[ComparedSteps]) -> str:
    """Return the figures as the file that ships has them."""
    entries = [
        "[[steps]]\n"
        + "".join(
            f'{key} = "{value}"\n' if isinstance(value, str) else f"{key} = {value}\n"
            for key, value in vars(one).items()
        )
        for one in figures
    ]
    return "\n".join([HEADER, *entries])


def main() -> None:
    """Measure the errors on the tables named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--fitted", nargs="+", type=Path, default=[])
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    fitted = {path.stem: read(path) for path in options.fitted}
    others = {path.stem: read(path) for path in options.tables}
    others = {name: table for name, table in others.items() if name not in fitted}
    times = by_table(fitted) if fitted else {}
    times |= {name: predicted(table, {}) for name, table in others.items()}
    figures = compared(fitted | others, times)
    for one in figures:
        print(
            f"{one.devices:10} {one.model:8} {one.code:20} {one.rows:5} rows, {one.tables} tables,"
            f" {one.error:.1%} off"
        )
    if options.write:
        options.write.write_text(as_toml(figures))


if __name__ == "__main__":
    main()
