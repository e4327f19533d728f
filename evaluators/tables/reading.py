"""From a CSV file to problems, recipes and outcomes: what is taken, and what is left out with its reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from frontrunner.evaluators.tables.cells import usable
from frontrunner.evaluators.tables.columns import Columns, in_form
from frontrunner.evaluators.tables.csv_file import csv_bytes, csv_table
from frontrunner.evaluators.tables.judged import LeftOut, Repeats, judged, on_cluster
from frontrunner.evaluators.tables.slips import refuse_slips
from frontrunner.evaluators.tables.table_rows import TableProblem, problems_of
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput

NEEDED = (("gpus",), ("seq",), ("mbs",), ("gbs", "gas"), ("hidden", "n_params_b"), ("step_time_s", "status"))
"""Columns without which no row becomes a recipe with an outcome; of several any one is enough."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file holds. `sha256` is of its bytes, `rows` counts its data rows."""

    file: str
    sha256: str
    rows: int
    problems: tuple[TableProblem, ...]
    left_out: tuple[LeftOut, ...]
    disagreeing: tuple[Repeats, ...]


def read(path: Path, columns: Columns, cluster: Cluster | None = None) -> Reading:
    """Read a table of measured configurations.

    On `cluster`, where one is given, are the rows that name no hardware or its own. Raises `NotFound` where there is no
    such file, and `InvalidInput` for one that is no table, for columns that are unknown or missing, and for units that
    cannot be meant.
    """
    content = csv_bytes(path)
    table = _table(path, content)
    form = in_form(table, columns)
    _refuse_missing(form, needs_hardware=cluster is None)
    cells, left_out = usable(form, columns, default_hardware=None if cluster is None else cluster.device)
    found = problems_of(cells, path.stem)
    left_out += [LeftOut(reason=reason, rows=count) for reason, count in found.left_out.items()]
    problems = list(found.problems)
    if cluster is not None:
        problems, elsewhere = on_cluster(cluster, problems)
        left_out += elsewhere
    refuse_slips(problems, columns)
    believed = judged(problems)
    left_out += believed.left_out
    return Reading(
        file=path.name,
        sha256=hashlib.sha256(content).hexdigest(),
        rows=len(table),
        problems=believed.problems,
        left_out=tuple(sorted(left_out, key=lambda left: (-left.rows, left.reason))),
        disagreeing=believed.disagreeing,
    )


def _table(path: Path, content: bytes) -> pd.DataFrame:
    table = csv_table(path, content, as_text=True)
    if table.empty:
        raise InvalidInput(f"{path} has no rows under its header")
    return table.rename(columns=lambda name: str(name).strip())


def _refuse_missing(form: pd.DataFrame, *, needs_hardware: bool) -> None:
    for names in NEEDED:
        if not any(name in form for name in names):
            wanted = " or ".join(names)
            raise InvalidInput(
                f"the table has no column {wanted}",
                hint=f"name yours: --column {names[0]}=THEIRS" + (f", or --set {names[0]}=NUMBER" * (len(names) == 1)),
            )
    if needs_hardware and "hardware" not in form:
        raise InvalidInput("the table has no column hardware", hint="--set hardware=h100, or --cluster NAME or FILE")
