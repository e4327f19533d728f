"""Measured step times with what the formulas need to estimate them: rows of tables, or a campaign's outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from frontrunner.evaluators.analytic.estimate import not_modelled
from frontrunner.evaluators.analytic.software import FRONTRUNNER, Software
from frontrunner.evaluators.analytic.tables import CLUSTERS, Table, cluster_of, parts
from frontrunner.evaluators.analytic.workload import Rows, Workload
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.presets import cluster_preset
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Measured steps of one cluster, precision and training code: `step_time_s` and `problems` have a row a recipe."""

    cluster: Cluster
    precision: str
    software: Software
    work: Workload
    step_time_s: Rows
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """All that is fitted to, and how many rows were refused, by reason."""

    samples: tuple[Sample, ...]
    refused: Mapping[str, int]

    @property
    def rows(self) -> int:
        """The rows of all samples together."""
        return sum(len(sample.problems) for sample in self.samples)

    @property
    def problems(self) -> tuple[str, ...]:
        """The problem of each row, in the order of the samples."""
        return tuple(problem for sample in self.samples for problem in sample.problems)


def of_tables(tables: Sequence[Table], cluster: Cluster | None) -> Samples:
    """The timed rows of tables; on `cluster`, or else on the preset of their hardware.

    Rows that name the hardware of another preset than the cluster's are refused.
    """
    refused: Counter[str] = Counter()
    found: list[Sample] = []
    for table in tables:
        refused.update(table.refused)
        for part in parts(table):
            elsewhere = cluster is not None and _is_elsewhere(part.hardware, cluster)
            if cluster is not None and elsewhere:
                refused[f"measured on {part.hardware}, not on {cluster.device}"] += len(part.index)
                continue
            rows = table.rows.loc[part.index]
            timed = ((rows.status == "ok") & (rows.step_time_s > 0)).to_numpy(bool)
            if not timed.all():
                refused["no step time"] += int((~timed).sum())
            if timed.any():
                where = cluster or cluster_of(part.hardware, part.devices_per_node)
                work = _chosen(part.work, timed)
                found.append(_sample(where, part.precision, part.software, work, rows[timed]))
    return Samples(samples=tuple(found), refused=refused)


def _sample(cluster: Cluster, precision: str, software: Software, work: Workload, rows: pd.DataFrame) -> Sample:
    return Sample(
        cluster=cluster,
        precision=precision,
        software=software,
        work=work,
        step_time_s=rows.step_time_s.to_numpy(float),
        problems=tuple(rows.problem),
    )


def _is_elsewhere(hardware: str, cluster: Cluster) -> bool:
    """Whether the hardware's word is one of a preset that has another device; memory sizes may differ."""
    word = next((word for word in CLUSTERS if word in hardware.lower()), None)
    if word is None or word in cluster.device.lower():
        return False
    return str(cluster_preset(CLUSTERS[word])["device"]) != cluster.device


def _chosen(work: Workload, rows: np.ndarray) -> Workload:
    """The workload's rows of which `rows` is true."""
    from dataclasses import fields

    columns = {field.name: getattr(work, field.name) for field in fields(work)}
    return Workload(**{name: column if column.size == 1 else column[rows] for name, column in columns.items()})


def of_outcomes(told: Sequence[tuple[Recipe, Outcome]], problem: Problem) -> Samples:
    """The measured recipes of a campaign, by the median of their steps."""
    refused: Counter[str] = Counter()
    measured: list[tuple[Recipe, Measurement]] = []
    for recipe, outcome in told:
        unknown = not_modelled(recipe) or ("the deepspeed engine" if recipe.engine != "torch" else None)
        if not isinstance(outcome, Measurement):
            refused[f"failed: {outcome.kind}"] += 1
        elif unknown:
            refused[f"the formulas do not know {unknown}"] += 1
        else:
            measured.append((recipe, outcome))
    if not measured:
        return Samples(samples=(), refused=refused)
    sample = Sample(
        cluster=problem.cluster,
        precision=problem.precision,
        software=FRONTRUNNER,
        work=Workload.of([recipe for recipe, _ in measured], problem),
        step_time_s=np.array([outcome.step_time_s_median for _, outcome in measured]),
        problems=("the campaign's",) * len(measured),
    )
    return Samples(samples=(sample,), refused=refused)
