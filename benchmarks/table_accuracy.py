"""How well the formulas predict a table of measurements: step time, order, memory and failures; and
fits to tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from frontrunner.evaluators.analytic.accuracy_bounds import (
    FASTER_THAN_NEEDED,
    ROW_ERROR,
    at_best,
    log_bounds,
)
from frontrunner.evaluators.analytic.arrays import Rows
from frontrunner.evaluators.analytic.codes import KNOWN, UNKNOWN, coded, with_traits
from frontrunner.evaluators.analytic.fit import Bounds, Sample, most_probable, shipped
from frontrunner.evaluators.analytic.machine import BOUNDS, Machine, assumptions
from frontrunner.evaluators.analytic.memory import MemoryKind, log_deviation, peak_memory
from frontrunner.evaluators.analytic.priors import DEVIATIONS, NORMAL_95
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.training_code import TrainingCode
from frontrunner.evaluators.analytic.workload import RecomputeRows
from frontrunner.evaluators.tables.rows import software_of
from frontrunner.evaluators.tables.schema import Row
from frontrunner.evaluators.tables.workloads import Table
from frontrunner.spaces.problem import SoftwareSettings

Figures = dict[str, Any]
Times = npt.NDArray[np.float64]

NEAR = 1.2
"""Rows that take at most this many times as long as their problem's best are near it."""
CLOSE = 1.05
"""A probe within 5 % of a problem's best ends its search."""
BARS = {"multi_node": 0.1, "single_node": 0.075}
"""The mean errors that are aimed at, of rows on several nodes and on one; a row above its own is
listed.
"""
BEST = 5
"""The number of a problem's fastest rows that must never be refused for memory."""
WORTH = 20
SHOWN = (
    "model",
    "hardware",
    "gpus",
    "tp",
    "pp",
    "dp",
    "vpp",
    "mbs",
    "gas",
    "zero",
    "recompute",
    "step_time_s",
)

MEMORY_KINDS: Mapping[MemoryKind, re.Pattern[str]] = {
    "allocated": re.compile(r"\balloc|\banalytic", re.IGNORECASE),
    "reserved": re.compile(r"\breserv", re.IGNORECASE),
    "device": re.compile(r"device use|nvidia-smi", re.IGNORECASE),
}
"""What `mem_kind`, or else a note, says of a row's peak."""
KINDS_OF_SOURCES: Mapping[str, MemoryKind] = {"nanotron": "allocated", "torchtitan": "reserved"}
"""What training codes print as their peak, by a word of the source (nanotron: `helpers.py`,
torchtitan: `metrics.py`); others' rows that do not say are taken to be what `nvidia-smi` prints.
"""
OF_ACCELERATORS: Bounds = {
    **BOUNDS,
    "matmul": (0.85, 1.0),
    "tile_waves": (0.35, 0.75),
    "memory": (0.78, 0.92),
    "elementwise": (0.5, 3.0),
    "scores": (0.5, 3.0),
    "fused_attention_forward": (0.5, 0.75),
    "fused_attention_backward": (0.4, 0.65),
    "kernel_s": (1e-6, 5e-6),
    "node_links": (0.55, 0.85),
    "node_latency_s": (3.4e-6, 5e-5),
    "network_links": (0.6, 0.95),
    "network_latency_s": (14e-6, 2e-4),
    "host_layer_s": (5e-5, 1.5e-3),
    "host_collective_s": (0.0, 3e-4),
}
"""The bounds of the constants that ship, which are to hold for every accelerator.

Causal attention reaches 48 to 60 % of A100's peak forward and 36 to 50 % backward from 2,000 tokens
on (arXiv 2307.08691, figures 5 and 6). Shares here are of the fastest product's rate, 0.86 of that
peak, so that the lower bounds are 43 and 34 % of it, what shorter sequences reach: lower ones would
make up for something else. Half of the last wave of tiles is idle on average. No hop is shorter
than NCCL's own figures (`Efficiencies`). Kernels that wait in a queue start within microseconds
(assumed).
"""
SOURCED: Mapping[str, float] = {
    "matmul": 1.0,
    "tile_waves": 0.5,
    "reduction_depth": 128.0,
    "memory": 0.86,
    "elementwise": 1.5,
    "scores": 1.0,
    "fused_attention_forward": 0.55,
    "fused_attention_backward": 0.45,
    "kernel_s": 2.5e-6,
    "node_links": 0.8,
    "node_latency_s": 10e-6,
    "network_links": 0.85,
    "network_latency_s": 14e-6,
    "host_layer_s": 1.0e-3,
    "host_collective_s": 30e-6,
    "gradient_overlap": 0.5,
}
"""Constants that no table of step times gave, for a fit that knows nothing of a table that it is
judged on.

Attention as in the figures named above, a hop between nodes as in NCCL; the rest is assumed. The
host's time: a pass of a layer of the project's own trainer takes 0.53 ms on an idle core
(measured for 0.1.0; Zen 5, 4.0 GHz), and 1.84 times as long on the Zen 2 of a DGX A100 (3.4
GHz) by AMD's 19, 14 and 17 % per clock and generation.
"""


def memory_kind(row: Row) -> MemoryKind:
    """Return what a row's peak counts: as the row says, else as its training code prints it."""
    for text in (row.mem_kind, row.note):
        if said := next((kind for kind, words in MEMORY_KINDS.items() if words.search(text)), None):
            return said
    return next((kind for word, kind in KINDS_OF_SOURCES.items() if word in row.source), "device")


def predicted(table: Table, constants: Mapping[str, float]) -> Times:
    """Return step times in seconds, with these constants in place of those that ship."""
    times = np.full(len(table.rows), np.nan)
    for places, sample in table.parts:
        times[places] = sample.predicted_s(constants)
    return times


def fitted(tables: Sequence[Table], start: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the constants that predict these tables best; every table weighs the same.

    Their priors are about `start`, which is what ships unless it is given; a table counts as
    `WORTH` rows do.
    """

    def log_errors(constants: Mapping[str, float]) -> Rows:
        found = []
        for table in tables:
            error = np.log(
                predicted(table, constants) / np.array([row.step_time_s for row in table.rows])
            )
            error = error[np.isfinite(error)]
            found.append(error / ROW_ERROR * np.sqrt(WORTH / max(len(error), 1)))
        return np.concatenate(found)

    begin = start or {name: shipped(name) for name in BOUNDS}
    return dict(most_probable(log_errors, begin, OF_ACCELERATORS, DEVIATIONS).constants)


def frame(table: Table) -> pd.DataFrame:
    """Return the rows as a data frame, with their problems."""
    columns = [*vars(Row(0)), "problem"]
    return pd.DataFrame(
        [vars(row) | {"problem": row.problem} for row in table.rows], columns=columns
    )


def judged(table: Table, predicted_s: Times, *, worst: int = 5) -> Figures:
    """Return the figures of one table under step times of some constants, and its `worst` rows."""
    rows = frame(table).assign(
        predicted_s=predicted_s,
        stated_gib=np.nan,
        memory_deviation=np.nan,
        needed_deviation=np.nan,
        below=np.nan,
        above=np.nan,
        memory_gib=np.nan,
        limit_gib=np.nan,
        least_s=0.0,
    )
    for places, part in table.parts:
        machine = Machine.of(part.cluster, part.precision, part.code)
        kinds = [memory_kind(table.rows[place]) for place in places]
        is_kind = [np.equal(kinds, kind) for kind in MEMORY_KINDS]
        rows.loc[places, "memory_gib"], rows.loc[places, "needed_deviation"] = _peaks(
            machine, table, places, part, None
        )
        by_kind = [_peaks(machine, table, places, part, kind) for kind in MEMORY_KINDS]
        rows.loc[places, "stated_gib"] = np.select(is_kind, [peak for peak, _ in by_kind])
        rows.loc[places, "memory_deviation"] = np.select(is_kind, [off for _, off in by_kind])
        rows.loc[places, "limit_gib"] = part.cluster.memory_gib_per_device
        unjudged = part.work.degrees.context > 1
        bounds = log_bounds(part.cluster, part.precision, part.code, part.work, unjudged)
        rows.loc[places, "below"], rows.loc[places, "above"] = bounds
        rows.loc[places, "several_nodes"] = rows.gpus[places] > part.cluster.devices_per_node
        if not assumptions(part.cluster, part.precision) and part.precision != "fp32":
            rows.loc[places, "least_s"] = step_time(at_best(machine), part.work).total
    timed = rows[(rows.status == "ok") & rows.step_time_s.notna()]
    timed = timed.assign(
        error=(timed.predicted_s / timed.step_time_s - 1).abs(),
        inside=np.log(timed.step_time_s / timed.predicted_s).between(-timed.below, timed.above),
        near_best=timed.step_time_s <= NEAR * timed.groupby("problem").step_time_s.transform("min"),
    )
    return (
        {"rows": len(timed), "refused": table.refused} | _times(timed, worst) | _memory(rows, timed)
    )


def _peaks(
    machine: Machine,
    table: Table,
    places: npt.NDArray[np.intp],
    part: Sample,
    kind: MemoryKind | None,
) -> tuple[Rows, Rows]:
    """Return peaks in GiB and the deviations of their logarithms.

    A row that does not state what it recomputed may have done so with nothing or with everything,
    and its interval holds both. A stated peak is compared with that of nothing. What a device must
    hold (`kind` None) is the geometric mean of both, so that no such row is refused for certain.
    """
    peak = peak_memory(machine, part.work)
    gib, deviation = peak.of_kind(kind) / 2**30, log_deviation(machine, part.work, peak, kind)
    is_unstated = np.array([not table.rows[place].states_recompute for place in places])
    if not is_unstated.any():
        return gib, deviation
    work = replace(part.work, recompute=RecomputeRows(full=np.array([True])))
    least = peak_memory(machine, work).of_kind(kind) / 2**30
    apart = np.log(gib / least)
    if kind is not None:
        return gib, np.where(is_unstated, deviation + apart / NORMAL_95, deviation)
    return (
        np.where(is_unstated, np.sqrt(gib * least), gib),
        np.where(is_unstated, deviation + apart / 2 / NORMAL_95, deviation),
    )


def _times(timed: pd.DataFrame, worst: int) -> Figures:
    several = timed.several_nodes.astype(bool) if len(timed) else pd.Series(dtype=bool)
    over = timed.error > np.where(several, BARS["multi_node"], BARS["single_node"])
    too_fast = timed.step_time_s * FASTER_THAN_NEEDED < timed.least_s
    return {
        "mape": mean(timed.error),
        "median_ape": float(timed.error.median()) if len(timed) else None,
        "bias": (
            float(np.exp(np.log(timed.predicted_s / timed.step_time_s).mean()))
            if len(timed)
            else None
        ),
        "multi_node": {"rows": int(several.sum()), "mape": mean(timed.error[several])},
        "single_node": {"rows": int((~several).sum()), "mape": mean(timed.error[~several])},
        "over_bar": int(over.sum()),
        "inside": mean(timed.inside),
        "inside_near_best": mean(timed.inside[timed.near_best]),
        "interval": (
            [float(np.exp(end).median() - 1) for end in (-timed.below, timed.above)]
            if len(timed)
            else None
        ),
        "worst": _told(timed[over].sort_values("error", ascending=False)[:worst]),
        "implausible": _told(timed[too_fast]),
        "problems": {
            str(name): _ranked(part) for name, part in timed.groupby("problem") if len(part) > 2
        },
    }


def _told(rows: pd.DataFrame) -> list[Figures]:
    """Return rows as people name them; unknown values are None."""
    columns = [*SHOWN, "predicted_s", "error"]
    return [
        {
            name: None if pd.isna(value) else value
            for name, value in zip(columns, values, strict=True)
        }
        for values in rows[columns].astype(object).itertuples(index=False)
    ]


def _memory(rows: pd.DataFrame, timed: pd.DataFrame) -> Figures:
    known = rows[(rows.status == "ok") & rows.peak_mem_gb.notna()]
    refused, failed = rows.memory_gib > rows.limit_gib, rows.status == "oom"
    in_doubt = np.log(rows.memory_gib / rows.limit_gib).abs() <= NORMAL_95 * rows.needed_deviation
    best = timed.sort_values("step_time_s").groupby("problem").head(BEST).index
    return {
        "memory_rows": len(known),
        "memory_mape": mean((known.stated_gib / known.peak_mem_gb - 1).abs()),
        "memory_inside": mean(
            np.log(known.stated_gib / known.peak_mem_gb).abs() <= NORMAL_95 * known.memory_deviation
        ),
        "memory_interval": (
            float(np.exp(NORMAL_95 * known.memory_deviation).median() - 1) if len(known) else None
        ),
        "oom": {
            "tp": int((failed & refused).sum()),
            "fp": int((~failed & refused).sum()),
            "fn": int((failed & ~refused).sum()),
            "tn": int((~failed & ~refused).sum()),
        },
        "wrong_in_doubt": int((in_doubt & (failed != refused)).sum()),
        "right_in_doubt": int((in_doubt & (failed == refused)).sum()),
        "best_refused": int(refused[best].sum()),
        "best_surely_refused": int((refused & ~in_doubt)[best].sum()),
        "best_rows": len(best),
    }


def _ranked(rows: pd.DataFrame) -> Figures:
    """Return how well the model orders one problem's rows."""
    order = rows.sort_values("predicted_s").step_time_s.to_numpy()
    best = order.min()
    alike = rows.predicted_s.nunique() == 1 or rows.step_time_s.nunique() == 1
    return {
        "rows": len(rows),
        "several_nodes": bool(rows.several_nodes.iloc[0]),
        "spearman": (
            None if alike else float(rows.predicted_s.corr(rows.step_time_s, method="spearman"))
        ),
        "regret": float(order[0] / best - 1),
        "probes_to_5pct": int(np.argmax(order <= best * CLOSE)) + 1,
    }


def summary(tables: Mapping[str, Figures]) -> Figures:
    """Return the figures over all rows, and over all problems; once more for those on several nodes
    and on one.
    """
    found = _over(tables, list(BARS))
    return found | {kind: _over(tables, [kind]) for kind in BARS}


def _over(tables: Mapping[str, Figures], kinds: Sequence[str]) -> Figures:
    parts = [table[kind] for table in tables.values() for kind in kinds if table[kind]["rows"]]
    rows = sum(part["rows"] for part in parts)
    of_several = {kind == "multi_node" for kind in kinds}
    problems = [
        p
        for table in tables.values()
        for p in table["problems"].values()
        if p["several_nodes"] in of_several
    ]
    probes = np.array([problem["probes_to_5pct"] for problem in problems], dtype=float)
    return {
        "rows": rows,
        "mape": sum(part["mape"] * part["rows"] for part in parts) / rows if rows else None,
        "problems": len(problems),
        "probes_to_5pct_mean": mean(probes),
        "probes_to_5pct_geomean": float(np.exp(np.log(probes).mean())) if len(probes) else None,
    }


def of_unknown_code(table: Table) -> Table:
    """Return a table of a code that is none of the known ones, but for the kernels that its rows
    name.
    """

    def unknown(place: int) -> TrainingCode:
        found = software_of(table.rows[place])
        stated, own = (
            SoftwareSettings(attention=found.attention, norm=found.norm),
            SoftwareSettings(code=found.code),
        )
        others = tuple(
            code for code in KNOWN if replace(code, name="") != replace(coded(own), name="")
        )
        return with_traits(replace(UNKNOWN, stands_for=others), stated)

    found = replace(table)
    vars(found)["parts"] = tuple(
        (places, replace(sample, code=unknown(places[0]))) for places, sample in table.parts
    )
    return found


def by_table(tables: Mapping[str, Table]) -> dict[str, Times]:
    """Return step times of each table with constants fitted to all the others, from `SOURCED` on.

    What ships was fitted to some of them. A constant that the others do not feel stays where it
    starts, so that nothing is known of a table that is judged.
    """
    return {
        name: predicted(
            table, fitted([other for key, other in tables.items() if key != name], SOURCED)
        )
        for name, table in tables.items()
    }


def by_trait(tables: Mapping[str, Table], trait: Callable[[Row], str]) -> dict[str, Times]:
    """Return step times of the rows of one training code, or of one cluster, with constants fitted
    to all others.
    """
    found = {name: np.full(len(table.rows), np.nan) for name, table in tables.items()}
    for value in sorted({trait(row) for table in tables.values() for row in table.rows}):
        rest = [
            replace(one, rows=tuple(row for row in one.rows if trait(row) != value))
            for one in tables.values()
        ]
        others = [table for table in rest if table.rows]
        constants = fitted(others, SOURCED) if others else SOURCED
        for name, table in tables.items():
            here = np.array([trait(row) == value for row in table.rows], dtype=bool)
            if here.any():
                found[name][here] = predicted(table, constants)[here]
    return found


def mean(values: pd.Series | npt.NDArray[np.float64]) -> float | None:
    """Return their mean, or None for no values."""
    return float(np.mean(values)) if len(values) else None
