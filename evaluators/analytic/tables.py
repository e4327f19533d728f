"""Tables of measured training configurations, read into the analytic model's arrays.

The form is one row a configuration, with the columns listed in `NEEDED` and `step_time_s`, `peak_mem_gb`, `status`
(ok, oom, fail, unmeasured) where known. A row that lacks what the model needs, or names hardware without a preset, is
refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from frontrunner.evaluators.analytic.machine import FITTED, Efficiencies, Machine
from frontrunner.evaluators.analytic.software import (
    FRONTRUNNER,
    MEGATRON_GPT,
    MEGATRON_LLAMA,
    WIDE_LOGITS_LLAMA,
    Software,
)
from frontrunner.evaluators.analytic.workload import Workload
from frontrunner.spaces.cluster import Cluster, Links, PeakTflops
from frontrunner.spaces.errors import InvalidInput, NotFound, bad_value
from frontrunner.spaces.presets import cluster_preset

NEEDED = ("layers", "hidden", "heads", "seq", "gpus", "tp", "pp", "dp", "mbs", "gas")
NUMBERS = (
    *NEEDED, "gpus_per_node", "step_time_s", "peak_mem_gb", "vocab", "kv_heads", "ffn_hidden", "gbs", "zero", "vpp",
    "seq_parallel",
)  # fmt: skip
"""The columns that hold numbers, those that may be empty or left out among them."""
GPT2_VOCABULARY = 51200
"""GPT-2's 50,257 tokens padded to a multiple of 1,024, for rows of GPT models that leave the vocabulary out."""
LONG_SEQUENCE = 8192
"""From here on attention that is not named is taken to be fused: its scores would not fit."""
CLUSTERS = {
    "a100": "dgx-a100-80gb",
    "h100": "dgx-h100",
    "mi250x": "frontier",
    "v100": "dgx-1-v100",
    "pvc": "aurora",
}
"""A word of the hardware column, in lower case -> the cluster preset that stands for it; the first that fits."""
MEMORY = re.compile(r"(\d+) ?gb", re.IGNORECASE)
"""The memory that a device's name states."""
PRECISIONS = ("bf16", "fp16", "fp32")
BATCH_TOLERANCE = 0.01


@dataclass(frozen=True)
class Table:
    """The rows of one file that the model can judge, and the reason for each of the others."""

    name: str
    rows: pd.DataFrame
    refused: dict[str, int]


def read(path: Path, *, any_hardware: bool = False) -> Table:
    """A table with a `problem` column: model, sequence length, global batch, hardware and devices.

    Rows of hardware without a preset are refused, unless `any_hardware`. Raises `NotFound` where there is no such
    file, and `InvalidInput` for one that is no CSV or has text in a column of numbers.
    """
    found = _csv(path)
    for column in NUMBERS:
        if column not in found:
            found[column] = np.nan
        found[column] = _numbers(path, found[column])
    for column in ("status", "attention_kernel", "recompute", "source", "hardware", "model", "precision", "note"):
        if column not in found:
            found[column] = ""
        found[column] = found[column].astype(object).fillna("").astype(str)
    gpt = found.model.str.lower().str.startswith("gpt") & found.vocab.isna()
    found.loc[gpt, "vocab"] = GPT2_VOCABULARY
    found["precision"] = found.precision.str.removeprefix("amp_")
    found["gas"] = found.gas.fillna(found.gbs / (found.mbs * found.dp))
    found["kv_heads"] = found.kv_heads.fillna(found.heads)
    found["seq_parallel"] = found.seq_parallel.fillna(0)
    reasons = pd.Series([_reason(row, any_hardware=any_hardware) for _, row in found.iterrows()], dtype=object)
    rows = found[reasons == ""].reset_index(drop=True)
    rows["problem"] = [
        f"{row.model} {row.seq:.0f} {row.gbs:.0f} {row.hardware} {row.gpus:.0f}" for row in rows.itertuples()
    ]
    counts = reasons[reasons != ""].value_counts()
    return Table(path.stem, rows, {str(reason): int(count) for reason, count in counts.items()})


def _csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except FileNotFoundError:
        raise NotFound(f"no table at {path}: there is no such file") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a CSV table: {str(error).strip()}") from None


def _numbers(path: Path, column: pd.Series) -> pd.Series:
    """The column as numbers, nothing where it is empty."""
    numbers = pd.to_numeric(column, errors="coerce")
    wrong = column[numbers.isna() & column.notna()]
    if len(wrong):
        line, value = wrong.index[0] + 2, wrong.iloc[0]  # the first line holds the names
        raise bad_value(f"{path}, line {line}: {column.name}", str(value), "a number, or nothing")
    return numbers.astype(float)


def _reason(row: pd.Series, *, any_hardware: bool) -> str:
    """Why the model cannot judge a row, or an empty text."""
    missing = [name for name in (*NEEDED, "vocab") if pd.isna(row[name])]
    wrong = {
        f"no {', '.join(missing)}": bool(missing),
        f"no preset for {row.hardware or 'unnamed hardware'}": not any_hardware
        and not any(word in row.hardware.lower() for word in CLUSTERS),
        f"precision {row.precision} is not modelled": row.precision not in ("", *PRECISIONS),
        "tp x pp x dp is not the number of devices": row.tp * row.pp * row.dp != row.gpus,
        "micro-batch x accumulation x dp is not the global batch": row.gas < 1
        or abs(row.gas * row.mbs * row.dp / row.gbs - 1) > BATCH_TOLERANCE,
        f"status {row.status or 'unknown'}": row.status not in ("ok", "oom"),
    }
    return next((reason for reason, holds in wrong.items() if holds), "")


def software_of(row: pd.Series) -> Software:
    """The training code a row was measured with, as far as its source and model tell."""
    name = row.model.lower()
    if "efficient-parallelization-layouts" in row.source:
        return WIDE_LOGITS_LLAMA
    if name.startswith("mpt"):
        return FRONTRUNNER
    return MEGATRON_GPT if name.startswith(("gpt", "megatron", "turing")) else MEGATRON_LLAMA


@dataclass(frozen=True)
class Part:
    """Rows of one hardware, devices a node, precision and software; `devices_per_node` is 0 where they do not tell."""

    index: pd.Index
    hardware: str
    devices_per_node: int
    precision: str
    software: Software
    work: Workload


def parts(table: Table) -> Iterator[Part]:
    """The rows by what one call of the model takes."""
    rows = table.rows
    software = pd.Series([software_of(row) for _, row in rows.iterrows()], index=rows.index, dtype=object)
    names = software.map(lambda found: found.name)
    width = rows.gpus_per_node.fillna(0)
    for key, index in rows.groupby(["hardware", width, "precision", names]).groups.items():
        hardware, devices_per_node, stated, _ = cast("tuple[str, float, str, str]", key)
        precision = stated or "bf16"
        work = workload(rows.loc[index], precision)
        yield Part(index, hardware, int(devices_per_node), precision, software[index[0]], work)


def groups(table: Table, efficiencies: Efficiencies = FITTED) -> Iterator[tuple[pd.Index, Machine, Workload]]:
    """The rows by hardware, devices a node, precision and software: what one call of the model takes."""
    for part in parts(table):
        cluster = cluster_of(part.hardware, part.devices_per_node)
        yield part.index, Machine.of(cluster, part.precision, part.software, efficiencies), part.work


def cluster_of(hardware: str, devices_per_node: int) -> Cluster:
    """The preset's cluster with so many devices a node (0: the preset's own), of the memory that their name states."""
    preset = cluster_preset(next(CLUSTERS[word] for word in CLUSTERS if word in hardware.lower()))
    stated = MEMORY.search(hardware)
    changed = {"memory_gib_per_device": float(stated[1])} if stated else {}
    return Cluster(
        **preset
        | changed
        | {
            "devices_per_node": devices_per_node or preset["devices_per_node"],
            "links": Links(**preset["links"]),
            "peak_tflops": PeakTflops(**preset["peak_tflops"]),
        }
    )


def workload(rows: pd.DataFrame, precision: str) -> Workload:
    """The rows as the model's arrays; layers are split as evenly as possible."""

    def column(name: str, default: float = 1.0) -> np.ndarray:
        return rows[name].fillna(default).to_numpy(float)

    layers, ways, replicas, zero = column("layers"), column("pp"), column("dp"), column("zero", 0)
    each, left = np.floor(layers / ways), layers % ways
    gpt = rows.model.str.lower().str.match("gpt|megatron|turing|mpt").to_numpy(bool)
    fused = rows.attention_kernel.str.contains("flash") | (rows.seq >= LONG_SEQUENCE) | ~gpt
    recompute = rows.recompute
    none = np.zeros(len(rows), dtype=bool)
    return Workload(
        layers=layers,
        hidden=column("hidden"),
        heads=column("heads"),
        kv_hidden=column("hidden") * column("kv_heads") / column("heads"),
        ffn_hidden=rows.ffn_hidden.fillna(4 * rows.hidden).to_numpy(float),
        ffn_matrices=np.where(gpt, 2.0, 3.0),
        vocabulary=column("vocab"),
        sequence_length=column("seq"),
        tied_embeddings=gpt,
        rotary=~gpt,
        fused_attention=np.asarray(fused, dtype=bool),
        bytes_per_value=np.full(len(rows), 4.0 if precision == "fp32" else 2.0),
        tensor_parallel=column("tp"),
        pipeline_parallel=ways,
        data_parallel=replicas,
        virtual_stages=column("vpp"),
        micro_batch_seqs=column("mbs"),
        accumulation=column("gas"),
        sharding_parameters=np.where(zero >= 3, replicas, 1),
        sharding_gradients=np.where(zero >= 2, replicas, 1),
        sharding_optimizer=np.where(zero >= 1, replicas, 1),
        recompute_full=(recompute == "full").to_numpy(bool),
        recompute_selective=(recompute == "selective").to_numpy(bool),
        sequence_parallel=((rows.seq_parallel == 1) & (rows.tp > 1)).to_numpy(bool),
        synchronise_each=none,
        loss_chunks=np.ones(len(rows)),
        feed_forward_tiled=none,
        bytes_per_optimizer_state=np.full(len(rows), 4.0),
        layers_first=each + (left > 0),
        layers_middle=np.where(ways > 2, each + (left > 1), 0),
        layers_last=each,
        head_on_first=ways == 1,
        split_backward=none,
        keeps_all=none,
    )
