"""All measurements of one calibration, in the order in which a budget that is too small loses least."""

from typing import Any

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.calibration.arithmetic import PRECISIONS, layer_cells, matmul_cells, memory_cells
from frontrunner.evaluators.trainer.calibration.clock import Clock, Sweep
from frontrunner.evaluators.trainer.calibration.collectives import COLLECTIVES, ROUND_TRIPS, collective_cells, levels
from frontrunner.evaluators.trainer.calibration.transfers import transfer_cells

UNTIL = {"memory": 0.10, "layer": 0.15, "matmul": 0.50, "collectives": 0.95, "transfers": 1.0}
"""Share of the budget at which each section is to be done."""


def measure(device: torch.device, seconds: float, ranks_per_node: int) -> dict[str, Any]:
    """What this rank and all others measured together: the same on every rank."""
    clock = Clock(device)
    until_s = {name: share * seconds for name, share in UNTIL.items()}
    found = {
        "memory": clock.sweep(memory_cells(device), until_s["memory"]),
        "layer": clock.sweep(layer_cells(device), until_s["layer"]),
        "matmul": _matmuls(clock, device, until_s["layer"], until_s["matmul"]),
        "collectives": _collectives(clock, device, ranks_per_node, (until_s["matmul"], until_s["collectives"])),
        "transfers": clock.sweep(transfer_cells(device), until_s["transfers"]),
    }
    return {
        **{name: part.rows for name, part in found.items()},
        "left_out": [{"of": name} | cell for name, part in found.items() for cell in part.left_out],
        "measured_for_s": clock.now_s,
    }


def _matmuls(clock: Clock, device: torch.device, from_s: float, until_s: float) -> Sweep:
    found = Sweep()
    for number, precision in enumerate(PRECISIONS, start=1):
        share = number / len(PRECISIONS)
        found.add(clock.sweep(matmul_cells(device, precision), from_s + share * (until_s - from_s)))
    return found


def _collectives(clock: Clock, device: torch.device, ranks_per_node: int, between_s: tuple[float, float]) -> Sweep:
    found, (from_s, until_s) = Sweep(), between_s
    if dist.get_world_size() == 1:
        return found
    sweeps = [(level, collective) for level in levels(ranks_per_node) for collective in COLLECTIVES]
    for number, (level, collective) in enumerate(sweeps, start=1):
        share = number / len(sweeps)
        part = clock.sweep(collective_cells(level, collective, device), from_s + share * (until_s - from_s))
        messages = 2 if collective in ROUND_TRIPS else 1
        for row in part.rows:
            row["time_s"] /= messages
        found.add(part)
    return found
