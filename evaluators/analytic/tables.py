"""Tables of measured training configurations, read into the analytic model's arrays.

The form is one row a configuration, with the columns listed in `NEEDED` and `step_time_s`, `peak_mem_gb`, `status`
(ok, oom, fail, unmeasured) where known; what other columns may say stands in `NUMBERS` and `WORDS`. A row that lacks
what the model needs, or cannot be true, or names hardware without a preset and states no peak, is refused with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from frontrunner.evaluators.analytic.hardware import cluster_of_row, preset_of, why_unknown
from frontrunner.evaluators.analytic.machine import FITTED, Efficiencies, Machine
from frontrunner.evaluators.analytic.software import (
    FRONTRUNNER,
    LLM_FOUNDRY,
    MEGATRON_GPT,
    MEGATRON_LLAMA,
    NANOTRON,
    WIDE_LOGITS_LLAMA,
    Software,
)
from frontrunner.evaluators.analytic.table_workload import workload
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.evaluators.tables.csv_file import csv_bytes, csv_table
from frontrunner.spaces.cluster import PRECISIONS, Cluster

NEEDED = ("layers", "hidden", "heads", "seq", "gpus", "tp", "pp", "dp", "mbs", "gas", "vocab")
COUNTS = (*NEEDED, "cp", "vpp", "kv_heads", "gbs")
"""What is a number above 0 where it is stated; the others follow from these, or are 1."""
HARDWARE_NUMBERS = (
    "gpus_per_node", "peak_tflops", "matmul_share", "memory_gb_per_s", "memory_gib_per_device", "compute_units",
    "node_gb_per_s", "nic_gb_per_s", "nics_per_node",
)  # fmt: skip
"""A row's own figures of its machine, which go before those of a preset."""
NUMBERS = (
    *COUNTS, "n_params_b", "ffn_hidden", "zero", "seq_parallel", "step_time_s", "peak_mem_gb", *HARDWARE_NUMBERS,
)  # fmt: skip
WORDS = ("status", "attention_kernel", "recompute", "source", "table", "hardware", "model", "precision", "note")
PRECISION_NAMES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "mixed": "fp16"}
GPT2_VOCABULARY = 51200
"""GPT-2's 50,257 tokens padded to a multiple of 1,024, for rows of GPT models that leave the vocabulary out."""
GPT_NAMES = "gpt|megatron|turing|mpt|opt-|bloom"
"""Models with GELU and a feed-forward part of two matrices, by the start of their names. So are others that are four
times as wide there and have no grouped heads."""
SWIGLU_WIDTH = 8 / 3
"""Of a feed-forward part of three matrices whose width is not stated, in hidden sizes (arXiv 2002.05202)."""
LIKELY_VOCABULARY = (16_000, 300_000)
BATCH_TOLERANCE = 0.01


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one machine, precision and software: what one call of the model takes. `index` are their labels."""

    index: pd.Index
    cluster: Cluster
    precision: str
    software: Software
    work: Workload


@dataclass(frozen=True)
class Table:
    """The rows of one file that the model can judge, and how many others there are by reason.

    Rows whose hardware has no preset are of `default_cluster`, where there is one.
    """

    name: str
    rows: pd.DataFrame
    refused: dict[str, int]
    default_cluster: Cluster | None = None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The rows by what one call of the model takes."""
        rows, found = self.rows, []
        software = pd.Series([software_of(row) for _, row in rows.iterrows()], index=rows.index, dtype=object)
        names = software.map(lambda of_row: of_row.name)
        machine = ["hardware", *HARDWARE_NUMBERS, "precision", names]
        for index in rows.groupby(machine, dropna=False).groups.values():
            first = rows.loc[index[0]]
            precision = first.precision or "bf16"
            own = self.default_cluster if preset_of(first.hardware) is None else None
            found.append(
                Part(
                    index=index,
                    cluster=own or cluster_of_row(first),
                    precision=precision,
                    software=software[index[0]],
                    work=workload(rows.loc[index], precision, balances_head=software[index[0]].balances_head),
                )
            )
        return tuple(found)

    def of_problems(self, names: set[str]) -> Table:
        """The rows of these problems."""
        kept = self.rows[self.rows.problem.isin(names)].reset_index(drop=True)
        return Table(self.name, kept, {}, self.default_cluster)


def read(path: Path, default_cluster: Cluster | None = None) -> Table:
    """A table with a `problem` column: model, sequence length, global batch, hardware and devices.

    Rows whose hardware has no preset are of `default_cluster`, or refused. Raises as `csv_table` and `csv_bytes` do
    where the file cannot be read or is not a table.
    """
    found = completed(csv_table(path, csv_bytes(path)))
    reasons = pd.Series([_reason(row, default_cluster) for _, row in found.iterrows()], index=found.index, dtype=object)
    rows = found[reasons == ""].reset_index(drop=True)
    rows["problem"] = [
        f"{row.model} {row.seq:.0f} {row.gbs:.0f} {row.hardware} {row.gpus:.0f}" for row in rows.itertuples()
    ]
    counts = reasons[reasons != ""].value_counts()
    return Table(path.stem, rows, {str(reason): int(count) for reason, count in counts.items()}, default_cluster)


def completed(found: pd.DataFrame) -> pd.DataFrame:
    """Every column, in its type, and what follows from others."""
    for column in NUMBERS:
        found[column] = numbers(found[column]) if column in found else np.nan
    for column in WORDS:
        found[column] = found[column].astype(object).fillna("").astype(str).str.strip() if column in found else ""
    named_gpt = found.model.str.lower().str.startswith("gpt") & found.vocab.isna()
    found.loc[named_gpt, "vocab"] = GPT2_VOCABULARY
    found["precision"] = found.precision.str.lower().str.removeprefix("amp_").replace(PRECISION_NAMES)
    found["recompute"] = found.recompute.str.lower()
    stated = pd.to_numeric(found.note.str.extract(r"\bCP=(\d+)", expand=False), errors="coerce")
    found["cp"] = found.cp.fillna(stated).fillna(1)
    replicas = found.gpus / (found.tp * found.pp * found.cp)
    found["dp"] = found.dp.fillna(replicas.where(replicas % 1 == 0))
    found["gas"] = found.gas.fillna(found.gbs / (found.mbs * found.dp))
    found["gbs"] = found.gbs.fillna(found.mbs * found.gas * found.dp)
    found["kv_heads"] = found.kv_heads.fillna(found.heads)
    named = found.model.str.lower().str.match(GPT_NAMES)
    found["two_matrices"] = named | ((found.ffn_hidden == 4 * found.hidden) & (found.kv_heads == found.heads))
    widths = (found.hidden * found.two_matrices.map({True: 4.0, False: SWIGLU_WIDTH})).round()
    found["ffn_hidden"] = found.ffn_hidden.fillna(widths)
    found["vocab"] = found.vocab.fillna(_counted_vocabulary(found))
    found["seq_parallel"] = found.seq_parallel.fillna(0)
    found["compiled"] = found.note.str.contains(r"\bcompile\b", case=False)
    measured = found.step_time_s > 0
    found["status"] = found.status.str.lower().mask((found.status == "") & measured, "ok")
    return found


def numbers(cells: pd.Series) -> pd.Series:
    """A column as numbers; a cell that is none is NaN."""
    try:
        return pd.to_numeric(cells, errors="coerce")
    except OverflowError:  # of whole numbers too large for a float, which as text become infinite
        return pd.to_numeric(cells.astype(str), errors="coerce")


def _counted_vocabulary(found: pd.DataFrame) -> pd.Series:
    """The vocabulary that parameters stated to the million leave for embedding and head, where it is a likely one."""
    kv_hidden = found.hidden * found.kv_heads / found.heads
    matrices = 2 * found.hidden + 2 * kv_hidden + found.two_matrices.map({True: 2, False: 3}) * found.ffn_hidden
    tables = found.n_params_b * 1e9 - found.layers * found.hidden * (matrices + 2)
    counted = (tables / found.hidden / found.two_matrices.map({True: 1, False: 2})).round()
    exact = (found.n_params_b * 100) % 1 > 0
    return counted.where(exact & counted.between(*LIKELY_VOCABULARY))


def _reason(row: pd.Series, default_cluster: Cluster | None) -> str:
    """Why the model cannot judge a row, or an empty text."""
    missing = [name for name in NEEDED if pd.isna(row[name])]
    if missing:
        return f"no {', '.join(missing)}"
    low = [name for name in COUNTS if not pd.isna(row[name]) and row[name] < (1 - BATCH_TOLERANCE)]
    replicas = row.tp * row.pp * row.dp * row.cp
    unknown = "" if default_cluster is not None and preset_of(row.hardware) is None else why_unknown(row)
    wrong = {
        f"{', '.join(low)} below 1": bool(low),
        unknown: bool(unknown),
        f"precision {row.precision} is not modelled": row.precision not in ("", *PRECISIONS),
        f"recompute {row.recompute} is not modelled": row.recompute not in ("", "none", "selective", "full"),
        f"ZeRO stage {row.zero:g} does not exist": not pd.isna(row.zero) and row.zero not in (0, 1, 2, 3),
        "more pipeline stages than layers": row.pp * (1 if pd.isna(row.vpp) else row.vpp) > row.layers,
        "tp x pp x cp x dp is not the number of devices": replicas != row.gpus,
        "micro-batch x accumulation x dp is not the global batch": abs(float(row.gas) * row.mbs * row.dp - row.gbs)
        > BATCH_TOLERANCE * row.gbs,
        f"step time {row.step_time_s:g} s": row.step_time_s <= 0 or bool(np.isinf(row.step_time_s)),
        f"status {row.status or 'unknown'}": row.status not in ("ok", "oom"),
    }
    return next((reason for reason, holds in wrong.items() if holds), "")


def software_of(row: pd.Series) -> Software:
    """The training code a row was measured with, as far as its source and model tell."""
    name = row.model.lower()
    if "efficient-parallelization-layouts" in row.source:
        return WIDE_LOGITS_LLAMA
    if "nanotron" in row.source:
        return NANOTRON
    if name.startswith("mpt"):
        return LLM_FOUNDRY
    if "torchtitan" in row.source:  # FSDP2 and the same selective recompute as the project's own trainer
        return FRONTRUNNER
    return MEGATRON_GPT if name.startswith(("gpt", "megatron", "turing")) else MEGATRON_LLAMA


def groups(table: Table, efficiencies: Efficiencies = FITTED) -> Iterator[tuple[pd.Index, Machine, Workload]]:
    """The rows by hardware, devices a node, precision and software: what one call of the model takes."""
    for part in table.parts:
        yield part.index, Machine.of(part.cluster, part.precision, part.software, efficiencies), part.work
