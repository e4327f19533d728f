"""The measurements of one calibration, in the order in which a short budget loses least.

Each rank times matrix products, streams through memory, the host's part of a layer, collectives and transfers.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from frontrunner.evaluators.trainer.calibration.clock import Cell, Clock, Operation, Sweep
from frontrunner.evaluators.trainer.calibration.collectives import COLLECTIVES, ROUND_TRIPS, collective_cells, levels
from frontrunner.evaluators.trainer.model import NEUTRAL, Gpt
from frontrunner.spaces.model import Model

UNTIL = {"memory": 0.10, "layer": 0.15, "matmul": 0.50, "collectives": 0.95, "transfers": 1.0}
"""Share of the budget at which each section is to be done."""
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
WIDTHS = {"cpu": (128, 512, 2048), "other": (512, 2048, 8192)}
"""Rows, columns and sums of the products: the tokens and widths of models that such a device trains."""
MIB = 2**20
Shape = tuple[int, int, int]
"""m, n, k of [m, k] x [k, n]."""
STREAM_BYTES = {"cpu": (32 * MIB, 4 * MIB, MIB // 2), "other": (512 * MIB, 128 * MIB, 16 * MIB)}
"""Size of each array: the first is larger than any cache, the last may lie in one."""
TINY = Model(
    name="tiny", layers=4, hidden=64, heads=1, kv_heads=1, ffn_hidden=64, vocabulary=64, activation="swiglu",
    norm="rmsnorm",
)  # fmt: skip
"""Blocks with next to nothing to compute, so that their time is what it takes to issue them."""
TINY_TOKENS = 8
TRANSFER_BYTES = (1 * MIB, 16 * MIB, 256 * MIB)


def _of(table: Mapping[str, tuple[int, ...]], device: torch.device) -> tuple[int, ...]:
    return table.get(device.type, table["other"])


def matmul_cells(device: torch.device, precision: str) -> Iterator[Cell]:
    """Yield [m, k] x [k, n] of one precision: all products of widths in which two of the three are equal."""
    widths = _of(WIDTHS, device)
    shapes = [(m, n, k) for m, n, k in product(widths, repeat=3) if len({m, n, k}) < 3]
    shapes.sort(key=lambda shape: (shape[0] * shape[1] * shape[2], shape))
    for m, n, k in _spread(shapes):
        key = {"precision": precision, "m": m, "n": n, "k": k}
        prepare = partial(_matmul, device, PRECISIONS[precision], (m, n, k))
        yield Cell(key=key, work=2.0 * m * n * k, prepare=prepare)


def _spread(shapes: list[Shape]) -> list[Shape]:
    """Return the first, the middle, the last, then from both ends inwards: a short budget leaves some of every size."""
    first = [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
    inwards = [shapes[place // 2 if place % 2 == 0 else -1 - place // 2] for place in range(len(shapes))]
    return list(dict.fromkeys(first + inwards))


def _matmul(device: torch.device, dtype: torch.dtype, shape: Shape) -> Operation:
    m, n, k = shape
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    return partial(torch.mm, left, right, out=torch.empty(m, n, dtype=dtype, device=device))


def memory_cells(device: torch.device) -> Iterator[Cell]:
    """Yield copy, a = b, and triad, a = b + s c, as in STREAM (McCalpin 1995); `bytes` are those read and written."""
    for size in _of(STREAM_BYTES, device):
        for kernel, arrays in (("copy", 2), ("triad", 3)):
            moved = arrays * size
            prepare = partial(_stream, device, kernel, size // 4)
            yield Cell(key={"kernel": kernel, "bytes": moved}, work=float(moved), prepare=prepare)


def _stream(device: torch.device, kernel: str, values: int) -> Operation:
    result, first, second = (torch.ones(values, device=device) for _ in range(3))
    if kernel == "copy":
        return partial(result.copy_, first)
    return partial(torch.add, first, second, alpha=0.5, out=result)


def layer_cells(device: torch.device) -> Iterator[Cell]:
    """Yield forward and backward passes of the trainer's own blocks over a few tokens; `work` counts layer passes."""
    yield Cell(key={"passes": 2 * TINY.layers}, work=2.0 * TINY.layers, prepare=partial(_layers, device))


def _layers(device: torch.device) -> Operation:
    blocks = Gpt(TINY, sequence_length=TINY_TOKENS, layers=range(TINY.layers), levers=NEUTRAL).to(device).blocks
    tokens = torch.randn(1, TINY_TOKENS, TINY.hidden, device=device, requires_grad=True)

    def run() -> None:
        x = tokens
        for block in blocks.children():
            x = block(x)
        x.sum().backward()  # type: ignore[no-untyped-call]

    return run


def transfer_cells(device: torch.device) -> Iterator[Cell]:
    """Yield transfers to the device and back, from pinned memory and pageable; none where the device is the host."""
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


def measure(device: torch.device, seconds: float, ranks_per_node: int) -> dict[str, Any]:
    """Return what this rank and all others measured together: the same on every rank."""
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
