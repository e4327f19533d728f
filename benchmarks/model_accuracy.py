"""How well the analytic model tells measured step times, memory and failures: on tables it saw and
on ones left out.

    python benchmarks/model_accuracy.py TABLE.csv... [--fit TABLE.csv...] [--cross-validate]
    [--unknown-code]
        [--worst N] [--json OUT]

TABLE.csv has one measured configuration a row (evaluators/tables/schema.py lists the columns).
Without --fit the constants that ship are judged; with it they are fitted to the tables after it
first. --cross-validate judges each table once more with constants fitted to all the others, from
constants on that no table gave, each training code and each kind of machine likewise.
--unknown-code judges them once more with each row's training code taken for an unknown one, where
the others are all that are known. `95 %` are the medians of the intervals' ends, `inside` the share
of rows in them, of all and of those within 20 % of their problem's best. Per problem (rows of one
model, sequence length, batch and machine) stand the rank correlation, the regret of the model's
first choice, and the probes its order needs to come within 5 % of the best measured. --worst lists
as many rows of each table that miss the bar by most. `in doubt` are the wrong and the right
verdicts on memory that the interval of the peak leaves open, `surely` the best that are refused
though it does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table as Shown
from table_accuracy import (
    BARS,
    by_table,
    by_trait,
    fitted,
    judged,
    of_unknown_code,
    predicted,
    summary,
)

from frontrunner.config.campaign import preset_model
from frontrunner.evaluators.analytic.accuracy_bounds import FASTER_THAN_NEEDED
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import ROWS_AT_ONCE
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import peak_memory
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.workload import (
    LayerChoices,
    ParallelDegrees,
    PipelineLayers,
    RecomputeRows,
    ScheduleRows,
    ShardingRows,
    StateRows,
    Workload,
)
from frontrunner.evaluators.tables.rows import software_of
from frontrunner.evaluators.tables.workloads import Table, read
from frontrunner.spaces.cluster import ByPrecision, Cluster, Links

SPEED_ROWS = 500_000
WIDTH = 215
COLUMNS = ("table", "rows", "refused", "MAPE", "median", "bias", "over bar", "95 %", "inside",
    "near best", "memory",
           "oom right", "missed", "wrong", "in doubt", "best refused", "surely", "problems",
           "spearman", "regret",
           "probes")  # fmt: skip


def recipes_per_second() -> float:
    """Time and memory of half a million random recipes, the best of five times, on one core."""
    generator = np.random.default_rng(1)

    def power(most: int) -> np.ndarray:
        return 2.0 ** generator.integers(0, most + 1, SPEED_ROWS)

    ways, ranks, replicas = power(3), power(4), power(6)
    yes = generator.random(SPEED_ROWS) < 0.5
    layers = (96 / ranks,)
    work = Workload(
        model=preset_model("frontier-175b"),
        sequence_length=np.array([2048.0]),
        bytes_per_value=2.0,
        fused_attention=True,
        degrees=ParallelDegrees(tensor=ways, pipeline=ranks, data=replicas),
        sharding=ShardingRows(
            parameters=np.where(yes, replicas, 1),
            gradients=np.where(yes, replicas, 1),
            optimizer=replicas,
        ),
        schedule=ScheduleRows(
            micro_batch_seqs=power(3),
            accumulation=power(7),
            virtual_stages=np.where(ranks > 1, power(1), 1),
            head_on_first=ranks == 1,
        ),
        recompute=RecomputeRows(full=generator.random(SPEED_ROWS) < 0.5),
        choices=LayerChoices(sequence_parallel=yes),
        states=StateRows(),
        layers=PipelineLayers(first=layers, middle=layers, last=layers),
    )
    cluster = Cluster(
        name="speed", device="a100-80gb", backend="cuda", nodes=128, devices_per_node=8,
        memory_gib_per_device=80,
        memory_gb_per_s=2039, peak_tflops=ByPrecision(bf16=312), matmul_share=0.86,
        compute_units=108,
        links=Links(node_gb_per_s=300, nic_gb_per_s=25, nics_per_node=8),
    )  # fmt: skip
    machine = Machine.of(cluster, "bf16", FRONTRUNNER)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for first in range(0, SPEED_ROWS, ROWS_AT_ONCE):
            block = work.rows(slice(first, first + ROWS_AT_ONCE))
            total = step_time(machine, block).total + peak_memory(machine, block).total
        best = min(best, time.perf_counter() - start)
    if not np.isfinite(total).all():
        raise ValueError("an estimate is not finite")
    return SPEED_ROWS / best


def show(out: Console, title: str, tables: dict[str, dict[str, Any]]) -> None:
    """The figures as a table on standard output, and what they come to."""
    shown = Shown(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name == "table" else "right")
    for name, table in tables.items():
        shown.add_row(name, *_cells(table))
    out.print(shown)
    whole = summary(tables)
    for kind, bar in BARS.items():
        told = whole[kind]
        if told["rows"]:
            probes = (
                ""
                if told["problems"] == 0
                else f", {told['probes_to_5pct_mean']:.2f} probes ({told['problems']})"
            )
            out.print(
                f"{kind.replace('_', ' ')}: {told['rows']} rows, {told['mape']:.1%} off (bar"
                f" {bar:.1%}){probes}"
            )


def _cells(table: dict[str, Any]) -> list[str]:
    oom, problems = table["oom"], list(table["problems"].values())
    right = f"{(oom['tp'] + oom['tn']) / sum(oom.values()):.1%}" if oom["tp"] + oom["fn"] else "-"
    over = [_mean([p[key] for p in problems]) for key in ("spearman", "regret", "probes_to_5pct")]
    times = [f"{table[key]:.1%}" if table["rows"] else "-" for key in ("mape", "median_ape")]
    return [
        str(table["rows"]),
        str(sum(table["refused"].values())),
        *times,
        f"{table['bias']:.2f}" if table["rows"] else "-",
        str(table["over_bar"]),
        " ".join(f"{end:+.0%}" for end in table["interval"] or ()) or "-",
        *(
            f"{table[key]:.0%}" if table[key] is not None else "-"
            for key in ("inside", "inside_near_best")
        ),
        (
            "{memory_mape:.1%} ±{memory_interval:.0%} {memory_inside:.0%}".format_map(table)
            if table["memory_rows"]
            else "-"
        ),
        right,
        str(oom["fn"]),
        str(oom["fp"]),
        f"{table['wrong_in_doubt']}+{table['right_in_doubt']}",
        f"{table['best_refused']}/{table['best_rows']}",
        str(table["best_surely_refused"]),
        str(len(problems)),
        *over,
    ]


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.2f}" if known else "-"


def show_rows(out: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """Single rows, a line each."""
    shown = Shown(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    columns = (
        "model",
        "hardware",
        "gpus",
        "tp x pp x dp",
        "vpp",
        "batch",
        "zero",
        "recompute",
        "measured",
        "told",
        "off",
    )
    for name in columns:
        shown.add_column(
            name, justify="left" if name in ("model", "hardware", "recompute") else "right"
        )
    for row in rows:
        layout = " x ".join(f"{row[name]:.0f}" for name in ("tp", "pp", "dp"))
        few = ["-" if row[name] is None else f"{row[name]:.0f}" for name in ("vpp", "zero")]
        batch = f"{row['mbs']:.0f} x {row['gas']:.0f}"
        times = (
            f"{row['step_time_s']:.4g} s",
            f"{row['predicted_s']:.4g} s",
            f"{row['error']:.0%}",
        )
        shown.add_row(row["model"], row["hardware"], f"{row['gpus']:.0f}", layout, few[0], batch,
            few[1],
                      row["recompute"] or "-", *times)  # fmt: skip
    out.print(shown)


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--fit", nargs="+", type=Path, default=[])
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--unknown-code", action="store_true")
    parser.add_argument("--worst", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def read_all(paths: list[Path]) -> dict[str, Table]:
    """The tables by name; ends the program with a message where one cannot be read."""
    try:
        return {path.stem: read(path) for path in paths}
    except (OSError, ValueError) as error:
        sys.exit(f"model_accuracy: {error}")


def main() -> None:
    """Judge the tables named on the command line."""
    chosen, out = options(), Console(width=WIDTH)
    tables = read_all(chosen.tables)
    constants = fitted(list(read_all(chosen.fit).values())) if chosen.fit else {}
    found = {
        name: judged(table, predicted(table, constants), worst=chosen.worst)
        for name, table in tables.items()
    }
    show(out, "fitted constants" if chosen.fit else "shipped constants", found)
    told: dict[str, Any] = {"tables": found, "summary": summary(found), "constants": constants}
    if chosen.unknown_code:
        unknown = {name: of_unknown_code(table) for name, table in tables.items()}
        left_out = {
            name: judged(table, predicted(table, constants)) for name, table in unknown.items()
        }
        show(out, "each training code as an unknown one", left_out)
        told["unknown_code"] = {"tables": left_out, "summary": summary(left_out)}
    if chosen.cross_validate:
        ways = {
            "cross_validated": ("each table judged with constants fitted to the others", by_table),
            "cross_validated_by_code": (
                "each training code judged with constants fitted to the others",
                partial(by_trait, trait=lambda row: software_of(row).code),
            ),
            "cross_validated_by_cluster": (
                "each kind of machine judged with constants fitted to the others",
                partial(by_trait, trait=lambda row: row.hardware),
            ),
        }
        for key, (title, folds) in ways.items():
            left_out = {
                name: judged(tables[name], times, worst=chosen.worst)
                for name, times in folds(tables).items()
            }
            show(out, title, left_out)
            told[key] = {"tables": left_out, "summary": summary(left_out)}
    told["recipes_per_second"] = recipes_per_second()
    for name, table in found.items():
        if table["worst"]:
            show_rows(
                out, f"{name}: the worst of {table['over_bar']} rows over the bar", table["worst"]
            )
        if table["implausible"]:
            title = (
                f"{name}: implausible, more than {FASTER_THAN_NEEDED:.1f} times as fast as the"
                " formulas find possible"
            )
            show_rows(out, title, table["implausible"])
        for reason, count in table["refused"].items():
            print(f"{name}: {count} rows refused: {reason}")
    print(
        f"{told['recipes_per_second']:,.0f} recipes a second, time and memory, over {SPEED_ROWS:,}"
        " on one core"
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
