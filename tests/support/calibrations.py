"""Machines that are known exactly, as the measuring ranks would see them."""

from __future__ import annotations

from typing import Any

MATMUL_FLOPS = {"fp32": 50e12, "bf16": 200e12}
TILE_WAVES, REDUCTION_DEPTH = 0.6, 250.0
COMPUTE_UNITS, TILE = 100, 128
LATENCY_S = {"node": 8e-6, "network": 30e-6}
BYTES_PER_S = {"node": 200e9, "network": 6e9}
RANKS = {"node": 8, "network": 4}
SIZES = [2**power for power in range(10, 29, 3)]


def seen(**changes: Any) -> dict[str, Any]:
    """4 nodes of 8 devices whose timings follow the formulas exactly; host transfers at 20 and 25
    GB/s.
    """
    found = {
        "device": "cuda",
        "device_name": "test device",
        "versions": {"torch": "2.11"},
        "ranks": 32,
        "ranks_per_node": 8,
        "matmul": [product(precision, *shape) for precision in MATMUL_FLOPS for shape in shapes()],
        "memory": [
            stream("copy", 2, 2**30, 1.5e12),
            stream("triad", 3, 2**30, 1.4e12),
            stream("copy", 2, 2**20, 9e12),
        ],
        "layer": [{"passes": 8, "time_s": 8 * 3e-4}],
        "collectives": [
            ring_row(name, level, size) for level in RANKS for name in PASSES for size in SIZES
        ],
        "transfers": [transfer("to-device", 2**28, 25e9), transfer("to-host", 2**28, 20e9)],
        "left_out": [],
        "measured_for_s": 60.0,
    }
    return found | changes


def shapes() -> list[tuple[int, int, int]]:
    sides = (1024, 4096, 8192)
    return [(m, n, k) for m in sides for n in sides for k in sides]


def product(precision: str, m: int, n: int, k: int) -> dict[str, Any]:
    """A matrix product that loses by its last wave, as by a whole one where it has less, and by
    short sums.
    """
    waves = max(m * n / (TILE * TILE * COMPUTE_UNITS), 1)
    slowed = (1 + TILE_WAVES / waves) * (1 + REDUCTION_DEPTH / k)
    return {
        "precision": precision,
        "m": m,
        "n": n,
        "k": k,
        "time_s": 2 * m * n * k / MATMUL_FLOPS[precision] * slowed,
    }


def stream(kernel: str, arrays: int, size: int, bytes_per_s: float) -> dict[str, Any]:
    moved = arrays * size
    return {"kernel": kernel, "bytes": moved, "time_s": moved / bytes_per_s}


def transfer(direction: str, size: int, bytes_per_s: float) -> dict[str, Any]:
    return {"direction": direction, "pinned": True, "bytes": size, "time_s": size / bytes_per_s}


PASSES = {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}


def ring_row(collective: str, level: str, size: int) -> dict[str, Any]:
    """A ring over the level's ranks: each hop has its latency, each link its share of the
    message.
    """
    ranks = RANKS[level]
    hops = min(ranks - 1, 2 * (ranks.bit_length() - 1))
    moved = PASSES[collective] * size * (ranks - 1) / ranks
    time_s = PASSES[collective] * hops * LATENCY_S[level] + moved / BYTES_PER_S[level]
    return {
        "collective": collective,
        "level": level,
        "ranks": ranks,
        "bytes": size,
        "time_s": time_s,
    }
