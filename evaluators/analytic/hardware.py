"""The machine of a row of a table: the preset that its hardware's name stands for, and figures that the row states."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from frontrunner.spaces.cluster import PRECISIONS, Cluster, Links, PeakTflops
from frontrunner.spaces.presets import cluster_preset, device_preset

PRESETS = {
    "a100": "dgx-a100-80gb",
    "h100": "dgx-h100",
    "h200": "dgx-h200",
    "mi250x": "frontier",
    "mi300x": "mi300x-platform",
    "v100": "dgx-1-v100",
    "pvc": "aurora",
}
"""A word of the hardware column, in lower case -> the cluster preset that stands for it; the first that fits."""
OTHER_BOARDS = re.compile(r"pcie|\bnvl\b")
"""Boards of the same chips with other rates, for which there is no preset."""
MEMORY = re.compile(r"(?<!\d)(\d{1,9}) ?gi?b", re.IGNORECASE)
"""The memory that a device's name states; the look behind keeps a search through thousands of digits short."""
SAME_MEMORY = 0.02
"""A name states a little more than the driver reports, which is what a preset states."""
_OTHER_SIZES = {("a100-80gb", "40"): {"memory_gb_per_s": device_preset("a100-40gb")["memory_gb_per_s"]}}
"""What else differs where a name states another memory than its preset's device has."""
OWN_LINKS = ("node_gb_per_s", "nic_gb_per_s", "nics_per_node")
OWN_FIGURES = ("memory_gb_per_s", "matmul_share", "compute_units", "memory_gib_per_device")
DEVICES_PER_NODE = 8
"""Of machines without a preset whose rows do not say it."""


def preset_of(hardware: str) -> str | None:
    """The preset for a device's name, or None."""
    name = hardware.lower()
    if OTHER_BOARDS.search(name):
        return None
    return next((preset for word, preset in PRESETS.items() if re.search(rf"(?<![a-z0-9]){word}(?![0-9])", name)), None)


def why_unknown(row: pd.Series) -> str:
    """Why nothing is known of a row's machine, or an empty text."""
    preset = preset_of(row.hardware)
    if preset is None and pd.isna(row.peak_tflops):
        return f"no preset for {row.hardware or 'unnamed hardware'}"
    if preset is None and pd.isna(row.memory_gib_per_device) and not MEMORY.search(row.hardware):
        return f"no memory size for {row.hardware or 'unnamed hardware'}"
    precision = row.precision or "bf16"
    if pd.isna(row.peak_tflops) and precision in PRECISIONS and cluster_of_row(row).peak_flops(precision) is None:
        return f"no peak in {precision} for {row.hardware}"
    figures = {name: row[name] for name in (*OWN_FIGURES, *OWN_LINKS, "peak_tflops", "gpus_per_node")}
    impossible = [name for name, value in figures.items() if not pd.isna(value) and not 0 < value < float("inf")]
    return f"{', '.join(impossible)} not above 0" if impossible else ""


def cluster_of_row(row: pd.Series) -> Cluster:
    """The cluster that a row was measured on: its own figures, its device's name, then the preset's."""
    preset = preset_of(row.hardware)
    figures: dict[str, Any] = cluster_preset(preset) if preset else _unknown(row.hardware)
    stated = MEMORY.search(row.hardware)
    if stated and abs(float(stated[1]) / figures["memory_gib_per_device"] - 1) > SAME_MEMORY:
        figures |= _OTHER_SIZES.get((str(figures["device"]), stated[1]), {})
        figures["memory_gib_per_device"] = float(stated[1])
    figures |= {name: row[name] for name in OWN_FIGURES if _given(row[name])}
    links = figures["links"] | {name: row[name] for name in OWN_LINKS if _given(row[name])}
    peaks = figures["peak_tflops"]
    if _given(row.peak_tflops):
        peaks = {row.precision or "bf16": float(row.peak_tflops)}
    if _given(row.gpus_per_node):
        figures["devices_per_node"] = int(row.gpus_per_node)
    if "compute_units" in figures:
        figures["compute_units"] = int(figures["compute_units"])
    return Cluster(**figures | {"links": Links(**links), "peak_tflops": PeakTflops(**peaks)})


def _given(value: float) -> bool:
    return bool(0 < value < float("inf"))


def _unknown(hardware: str) -> dict[str, Any]:
    """A machine of which only the row's own figures are known."""
    return {
        "name": hardware,
        "device": hardware,
        "backend": "cuda",
        "nodes": 1,
        "devices_per_node": DEVICES_PER_NODE,
        "memory_gib_per_device": 1.0,
        "links": {},
        "peak_tflops": {},
        "source": "the table's row",
    }
