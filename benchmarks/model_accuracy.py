"""How well the analytic model tells measured step times, memory and failures: on tables it saw and on ones left out.

    python benchmarks/model_accuracy.py TABLE.csv... [--fit TABLE.csv...] [--cross-validate] [--json OUT]

TABLE.csv has one measured configuration a row (evaluators/analytic/tables.py says which columns). Without --fit the
constants that ship are judged; with it they are fitted to the tables after it first. --cross-validate judges each
table once more with constants fitted to all the others. Per problem (rows of one model, sequence length, batch and
machine) stand the rank correlation, the regret of the model's first choice, and the probes its order needs to come
within 5 % of the best measured.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table as Shown

from frontrunner.evaluators.analytic.estimate import ROWS_AT_ONCE
from frontrunner.evaluators.analytic.fit import fitted, predicted
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import peak_memory
from frontrunner.evaluators.analytic.software import FRONTRUNNER
from frontrunner.evaluators.analytic.step import step_time
from frontrunner.evaluators.analytic.tables import Table, cluster_of, groups, read
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import Cluster, Links, PeakTflops

CLOSE = 1.05
SPEED_ROWS = 500_000


def judged(table: Table, constants: dict[str, float]) -> dict[str, object]:
    """The figures of one table."""
    rows = table.rows.assign(predicted_s=predicted(table, constants), memory_gib=memory_gib(table))
    timed = rows[(rows.status == "ok") & rows.step_time_s.notna()]
    error = (timed.predicted_s / timed.step_time_s - 1).abs()
    known = rows[(rows.status == "ok") & rows.peak_mem_gb.notna()]
    limit = pd.Series(np.nan, index=rows.index)
    for index, _, _ in groups(table):
        limit[index] = memory_limit_gib(table, index)
    refused = rows.memory_gib > limit
    failed = rows.status == "oom"
    return {
        "rows": len(timed),
        "refused": table.refused,
        "mape": _mean(error),
        "median_ape": float(error.median()) if len(error) else None,
        "bias": float(np.exp(np.log(timed.predicted_s / timed.step_time_s).mean())) if len(timed) else None,
        "memory_rows": len(known),
        "memory_mape": _mean((known.memory_gib / known.peak_mem_gb - 1).abs()),
        "oom": {
            "tp": int((failed & refused).sum()),
            "fp": int((~failed & refused).sum()),
            "fn": int((failed & ~refused).sum()),
            "tn": int((~failed & ~refused).sum()),
        },
        "problems": {str(name): ranked(part) for name, part in timed.groupby("problem") if len(part) > 2},
    }


def memory_gib(table: Table) -> np.ndarray:
    """Predicted peak memory of the fullest rank."""
    found = np.full(len(table.rows), np.nan)
    for index, machine, work in groups(table):
        found[index] = peak_memory(machine, work).total / 2**30
    return found


def memory_limit_gib(table: Table, index: pd.Index) -> float:
    """What a device of these rows has."""
    row = table.rows.loc[index[0]]
    return cluster_of(row.hardware, int(row.gpus_per_node)).memory_gib_per_device


def ranked(rows: pd.DataFrame) -> dict[str, float | int]:
    """How the model orders one problem's rows."""
    order = rows.sort_values("predicted_s").step_time_s.to_numpy()
    best = order.min()
    return {
        "rows": len(rows),
        "spearman": float(rows.predicted_s.corr(rows.step_time_s, method="spearman")),
        "regret": float(order[0] / best - 1),
        "probes_to_5pct": int(np.argmax(order <= best * CLOSE)) + 1,
    }


def summary(tables: dict[str, dict[str, object]]) -> dict[str, float | None]:
    """Over all rows, and over all problems."""
    rows = sum(table["rows"] for table in tables.values())
    problems = [problem for table in tables.values() for problem in table["problems"].values()]
    probes = np.array([problem["probes_to_5pct"] for problem in problems], dtype=float)
    weighed = sum(table["mape"] * table["rows"] for table in tables.values() if table["rows"])
    return {
        "mape": weighed / rows if rows else None,
        "probes_to_5pct_mean": _mean(probes),
        "probes_to_5pct_geomean": float(np.exp(np.log(probes).mean())) if len(probes) else None,
    }


def recipes_per_second() -> float:
    """Time and memory of half a million random recipes, the best of five times, on one core."""
    generator = np.random.default_rng(1)

    def power(most: int) -> np.ndarray:
        return 2.0 ** generator.integers(0, most + 1, SPEED_ROWS)

    ways, ranks, replicas = power(3), power(4), power(6)
    yes = generator.random(SPEED_ROWS) < 0.5
    one, no = np.ones(1), np.zeros(1, dtype=bool)
    work = Workload(
        layers=one * 96, hidden=one * 12288, heads=one * 96, kv_hidden=one * 12288, ffn_hidden=one * 49152,
        ffn_matrices=one * 2, vocabulary=one * 51200, sequence_length=one * 2048, tied_embeddings=no, rotary=~no,
        fused_attention=~no, bytes_per_value=one * 2, tensor_parallel=ways, pipeline_parallel=ranks,
        data_parallel=replicas, virtual_stages=np.where(ranks > 1, power(1), 1), micro_batch_seqs=power(3),
        accumulation=power(7), sharding_parameters=np.where(yes, replicas, 1),
        sharding_gradients=np.where(yes, replicas, 1), sharding_optimizer=replicas,
        recompute_full=generator.random(SPEED_ROWS) < 0.5, recompute_selective=no,
        sequence_parallel=yes, synchronise_each=no, loss_chunks=one, feed_forward_tiled=no,
        bytes_per_optimizer_state=one * 4, layers_first=96 / ranks, layers_middle=96 / ranks, layers_last=96 / ranks,
        head_on_first=ranks == 1, split_backward=no, keeps_all=no,
    )  # fmt: skip
    cluster = Cluster(
        name="speed", device="a100-80gb", backend="cuda", nodes=128, devices_per_node=8, memory_gib_per_device=80,
        memory_gb_per_s=2039, peak_tflops=PeakTflops(bf16=312), matmul_share=0.86, compute_units=108,
        links=Links(node_gb_per_s=300, nic_gb_per_s=25, nics_per_node=8),
    )  # fmt: skip
    machine = Machine.of(cluster, "bf16", FRONTRUNNER)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for first in range(0, SPEED_ROWS, ROWS_AT_ONCE):
            block = work.rows(first, first + ROWS_AT_ONCE)
            total = step_time(machine, block).total + peak_memory(machine, block).total
        best = min(best, time.perf_counter() - start)
    if not np.isfinite(total).all():
        raise ValueError("an estimate is not finite")
    return SPEED_ROWS / best


def _mean(values: pd.Series | np.ndarray) -> float | None:
    return float(np.mean(values)) if len(values) else None


def show(title: str, tables: dict[str, dict[str, object]]) -> None:
    """The figures as a table on standard output."""
    shown = Shown(title=title, title_justify="left")
    for name in ("table", "rows", "refused", "MAPE", "median", "bias", "memory", "oom right", "missed", "wrong",
                 "problems", "spearman", "regret", "probes"):  # fmt: skip
        shown.add_column(name, justify="left" if name == "table" else "right")
    for name, table in tables.items():
        oom, problems = table["oom"], list(table["problems"].values())
        all_rows = sum(oom.values())
        right = f"{(oom['tp'] + oom['tn']) / all_rows:.1%}" if oom["tp"] + oom["fn"] else "-"
        memory = f"{table['memory_mape']:.1%}" if table["memory_mape"] is not None else "-"
        over = [
            f"{np.nanmean([p[key] for p in problems]):.2f}" if problems else "-"
            for key in ("spearman", "regret", "probes_to_5pct")
        ]
        times = [f"{table[key]:.1%}" if table["rows"] else "-" for key in ("mape", "median_ape")]
        bias = f"{table['bias']:.2f}" if table["rows"] else "-"
        shown.add_row(name, str(table["rows"]), str(sum(table["refused"].values())), *times, bias, memory, right,
                      str(oom["fn"]), str(oom["fp"]), str(len(problems)), *over)  # fmt: skip
    Console(width=150).print(shown)


def main() -> None:
    """Judge the tables named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--fit", nargs="+", type=Path, default=[])
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tables = {path.stem: read(path) for path in options.tables}
    constants = fitted([read(path) for path in options.fit]) if options.fit else {}
    found = {name: judged(table, constants) for name, table in tables.items()}
    show("fitted constants" if options.fit else "shipped constants", found)
    told: dict[str, object] = {"tables": found, "summary": summary(found), "constants": constants}
    if options.cross_validate:
        others = {name: [table for other, table in tables.items() if other != name] for name in tables}
        left_out = {name: judged(table, fitted(others[name])) for name, table in tables.items()}
        show("each table judged with constants fitted to the others", left_out)
        told["cross_validated"] = {"tables": left_out, "summary": summary(left_out)}
    told["recipes_per_second"] = recipes_per_second()
    print(f"{told['recipes_per_second']:,.0f} recipes a second, time and memory, over {SPEED_ROWS:,} on one core")
    for name, table in found.items():
        for reason, count in table["refused"].items():
            print(f"{name}: {count} rows refused: {reason}")
    if options.json:
        options.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
