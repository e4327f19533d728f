"""The machine of a table's row: the preset that its hardware's name matches, with the figures that the row states."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from frontrunner.evaluators.tables.schema import MACHINE_NUMBERS, Row
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
"""A word of the hardware column, in lower case -> its cluster preset; the first that matches."""
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
"""Of machines without a preset whose rows do not state it; assumed."""
ASSUMED_MEMORY_GIB = 80.0
"""Of a device that is neither known nor described: assumed, and wrong for many; failures show what fits."""


def preset_of(hardware: str) -> str | None:
    """Return the preset for a device's name, or None."""
    name = hardware.lower()
    if OTHER_BOARDS.search(name):
        return None
    return next((preset for word, preset in PRESETS.items() if re.search(rf"(?<![a-z0-9]){word}(?![0-9])", name)), None)


def is_elsewhere(hardware: str, cluster: Cluster) -> bool:
    """Return whether the hardware is that of a preset with another device; memory sizes of one chip may differ."""
    return preset_of(hardware) not in (None, preset_of(cluster.device))


def why_unknown(row: Row) -> str:
    """Return why nothing is known of a row's machine, or an empty text."""
    preset = preset_of(row.hardware)
    if preset is None and math.isnan(row.peak_tflops):
        return f"no preset for {row.hardware or 'unnamed hardware'}"
    if preset is None and math.isnan(row.memory_gib_per_device) and not MEMORY.search(row.hardware):
        return f"no memory size for {row.hardware or 'unnamed hardware'}"
    precision = row.precision or "bf16"
    if math.isnan(row.peak_tflops) and precision in PRECISIONS and machine_of(row).peak_flops(precision) is None:
        return f"no peak in {precision} for {row.hardware}"
    figures = {name: getattr(row, name) for name in (*OWN_FIGURES, *OWN_LINKS, "peak_tflops", "gpus_per_node")}
    impossible = [name for name, value in figures.items() if not math.isnan(value) and not _given(value)]
    return f"{', '.join(impossible)} not above 0" if impossible else ""


def machine_of(row: Row) -> Cluster:
    """Return the cluster that a row was measured on: its own figures, its device's name, then the preset's."""
    preset = preset_of(row.hardware)
    figures: dict[str, Any] = cluster_preset(preset) if preset else _unknown(row.hardware)
    stated = MEMORY.search(row.hardware)
    if stated and abs(float(stated[1]) / figures["memory_gib_per_device"] - 1) > SAME_MEMORY:
        figures |= _OTHER_SIZES.get((str(figures["device"]), stated[1]), {})
        figures["memory_gib_per_device"] = float(stated[1])
    own = {name: value for name in MACHINE_NUMBERS if _given(value := getattr(row, name))}
    figures |= {name: own[name] for name in OWN_FIGURES if name in own}
    links = figures["links"] | {name: own[name] for name in OWN_LINKS if name in own}
    peaks = {row.precision or "bf16": own["peak_tflops"]} if "peak_tflops" in own else figures["peak_tflops"]
    if "gpus_per_node" in own:
        figures["devices_per_node"] = int(own["gpus_per_node"])
    if "compute_units" in figures:
        figures["compute_units"] = int(figures["compute_units"])
    return Cluster(**figures | {"links": Links(**links), "peak_tflops": PeakTflops(**peaks)})


def cluster_of(row: Row) -> Cluster:
    """Return as many whole nodes of the row's machine as its devices need; raises ValueError without devices."""
    if not 1 <= row.gpus < math.inf:
        raise ValueError("no gpus")
    found = machine_of(row)
    if preset_of(row.hardware) is None and math.isnan(row.memory_gib_per_device):
        found = replace(found, memory_gib_per_device=ASSUMED_MEMORY_GIB)
    return replace(found, nodes=math.ceil(row.gpus / found.devices_per_node))


def _given(value: float) -> bool:
    return 0 < value < math.inf


def _unknown(hardware: str) -> dict[str, Any]:
    """Return a machine of which only the row's own figures are known."""
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
