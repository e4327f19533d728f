"""Small tables of measured configurations, made by hand."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

HEADER = {
    "model": "llama-1b",
    "layers": 16,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 5504,
    "vocab": 32000,
    "seq": 2048,
    "hardware": "A100",
    "gpus": 8,
    "gpus_per_node": 8,
    "pp": 1,
    "gbs": 64,
    "zero": 1,
    "precision": "bf16",
    "attention_kernel": "flash",
}
"""What all rows have in common: steps of 131,072 tokens on 8 A100, which take 0.3 s at the devices'
peak.
"""


def row(tp: int, mbs: int, step_time_s: float | str | None, **changes: Any) -> dict[str, Any]:
    """One configuration; without a step time it ran out of memory."""
    status = "oom" if step_time_s is None else "ok"
    return HEADER | {"tp": tp, "mbs": mbs, "step_time_s": step_time_s, "status": status} | changes


ROWS = (
    row(1, 1, 0.9),
    row(1, 2, 0.8, peak_mem_gb=31.5),
    row(1, 8, None),
    row(2, 1, 1.2),
    row(2, 2, 1.1),
)
"""Four measured and one that ran out of memory."""


def write_table(path: Path, rows: Any = ROWS, rename: dict[str, str] | None = None) -> Path:
    """The rows as a CSV file, with the union of their columns, some under other names."""
    rename = rename or {}
    columns = list(dict.fromkeys(name for one in rows for name in one))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([rename.get(name, name) for name in columns])
        for one in rows:
            writer.writerow(["" if one.get(name) is None else one[name] for name in columns])
    return path
