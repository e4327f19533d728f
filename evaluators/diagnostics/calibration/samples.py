"""Measured step times with what the formulas need to estimate them: rows of tables, or a campaign's outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frontrunner.evaluators.analytic.accuracy_bounds import unvalidated
from frontrunner.evaluators.analytic.estimates import not_modelled
from frontrunner.evaluators.analytic.hardware import preset_of
from frontrunner.evaluators.analytic.software import FRONTRUNNER, Software
from frontrunner.evaluators.analytic.tables import Table, read
from frontrunner.evaluators.analytic.workload import Rows, Workload
from frontrunner.results.outcome import Measurement, Outcome
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe


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


def read_tables(paths: Sequence[Path], cluster: Cluster | None) -> list[Table]:
    """The tables; rows that name no hardware are of `cluster`, where one is given.

    Raises `NotFound` for a path without a file and `InvalidInput` for one that is not a table.
    """
    return [read(path, cluster) for path in paths]


def of_tables(tables: Sequence[Table], cluster: Cluster | None) -> Samples:
    """The timed rows of tables; on `cluster`, or else on the preset of their hardware and their own figures.

    Rows that name the hardware of another preset than the cluster's are refused.
    """
    refused: Counter[str] = Counter()
    found: list[Sample] = []
    for table in tables:
        refused.update(table.refused)
        for part in table.parts:
            rows = table.rows.loc[part.index]
            hardware = str(rows.hardware.iloc[0])
            if cluster is not None and _is_elsewhere(hardware, cluster):
                refused[f"measured on {hardware}, not on {cluster.device}"] += len(part.index)
                continue
            timed = ((rows.status == "ok") & (rows.step_time_s > 0)).to_numpy(bool)
            if not timed.all():
                refused["no step time"] += int((~timed).sum())
            if timed.any():
                sample = Sample(
                    cluster=cluster or part.cluster,
                    precision=part.precision,
                    software=part.software,
                    work=_chosen(part.work, timed),
                    step_time_s=rows.step_time_s[timed].to_numpy(float),
                    problems=tuple(rows.problem[timed]),
                )
                found.append(sample)
    return Samples(samples=tuple(found), refused=refused)


def _is_elsewhere(hardware: str, cluster: Cluster) -> bool:
    """Whether the hardware is that of a preset with another device; memory sizes of one chip may differ."""
    preset = preset_of(hardware)
    return preset is not None and preset != preset_of(cluster.device)


def _chosen(work: Workload, rows: np.ndarray) -> Workload:
    """The workload's rows of which `rows` is true."""
    return work.rows(rows)


def of_outcomes(told: Sequence[tuple[Recipe, Outcome]], problem: Problem) -> Samples:
    """The measured recipes of a campaign, by the median of their steps."""
    refused: Counter[str] = Counter()
    measured: list[tuple[Recipe, Measurement]] = []
    for recipe, outcome in told:
        unknown = not_modelled(recipe) or next(iter(unvalidated(recipe)), None)
        if not isinstance(outcome, Measurement):
            refused[f"failed: {outcome.kind}"] += 1
        elif unknown:
            refused[f"no fit covers {unknown}"] += 1
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
