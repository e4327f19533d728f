"""Small tables of measured configurations, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

GOOD: dict[str, Any] = {
    "model": "gpt-1.3B", "layers": 24, "hidden": 2048, "heads": 16, "ffn_hidden": 8192, "seq": 1024,
    "vocab": 51200,
    "hardware": "A100-80GB", "gpus": 8, "gpus_per_node": 8, "tp": 2, "pp": 1, "dp": 4, "mbs": 1,
    "gbs": 64, "gas": 16,
    "zero": 1, "recompute": "full", "precision": "fp16", "step_time_s": 1.5, "peak_mem_gb": 20,
    "status": "ok",
}  # fmt: skip


def row(**changes: Any) -> dict[str, Any]:
    """A row with these values in place of `GOOD`'s."""
    return GOOD | changes


def write_table(path: Path, *rows: dict[str, Any]) -> Path:
    """The rows as a CSV file; what a row leaves out is an empty cell."""
    columns = sorted({name for one in rows for name in one})
    lines = [
        ",".join(columns),
        *(",".join(str(one.get(name, "")) for name in columns) for one in rows),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
