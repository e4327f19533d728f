"""Transfers between the host's memory and an accelerator's, all devices of a node at once."""

from collections.abc import Iterator
from functools import partial

import torch

from frontrunner.evaluators.trainer.calibration.clock import Cell, Operation

MIB = 2**20
TRANSFER_BYTES = (1 * MIB, 16 * MIB, 256 * MIB)


def transfer_cells(device: torch.device) -> Iterator[Cell]:
    """To the device and back, from pinned memory and from pageable; none where the device is the host."""
    if device.type == "cpu":
        return
    for size in TRANSFER_BYTES:
        for direction in ("to-device", "to-host"):
            for pinned in (True, False):
                key = {"direction": direction, "pinned": pinned, "bytes": size}
                prepare = partial(_transfer, device, size, direction, pinned=pinned)
                yield Cell(key=key, work=float(size), prepare=prepare)


def _transfer(device: torch.device, size: int, direction: str, *, pinned: bool) -> Operation:
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    source, target = (host, there) if direction == "to-device" else (there, host)
    return partial(target.copy_, source, non_blocking=pinned)
