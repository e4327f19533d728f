"""What one device computes and moves: matrix products, streams through memory, and the host's part of a layer."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import torch

from frontrunner.evaluators.trainer.calibration.clock import Cell, Operation
from frontrunner.evaluators.trainer.model import NEUTRAL, Gpt
from frontrunner.spaces.model import Model

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


def _of(table: Mapping[str, tuple[int, ...]], device: torch.device) -> tuple[int, ...]:
    return table.get(device.type, table["other"])


def matmul_cells(device: torch.device, precision: str) -> Iterator[Cell]:
    """[m, k] x [k, n] of one precision: all products of two widths and a sum in which two of the three are equal."""
    widths = _of(WIDTHS, device)
    shapes = [(m, n, k) for m, n, k in product(widths, repeat=3) if len({m, n, k}) < 3]
    shapes.sort(key=lambda shape: (shape[0] * shape[1] * shape[2], shape))
    for m, n, k in _spread(shapes):
        key = {"precision": precision, "m": m, "n": n, "k": k}
        prepare = partial(_matmul, device, PRECISIONS[precision], (m, n, k))
        yield Cell(key=key, work=2.0 * m * n * k, prepare=prepare)


def _spread(shapes: list[Shape]) -> list[Shape]:
    """The first, the middle, the last, then from both ends inwards: time that runs out leaves some of every size."""
    first = [shapes[0], shapes[len(shapes) // 2], shapes[-1]]
    inwards = [shapes[place // 2 if place % 2 == 0 else -1 - place // 2] for place in range(len(shapes))]
    return list(dict.fromkeys(first + inwards))


def _matmul(device: torch.device, dtype: torch.dtype, shape: Shape) -> Operation:
    m, n, k = shape
    left = torch.randn(m, k, device=device).to(dtype)
    right = torch.randn(k, n, device=device).to(dtype)
    return partial(torch.mm, left, right, out=torch.empty(m, n, dtype=dtype, device=device))


def memory_cells(device: torch.device) -> Iterator[Cell]:
    """Copy, a = b, and triad, a = b + s c, as in STREAM (McCalpin 1995); `bytes` are those read and written."""
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
    """Forward and backward passes of the trainer's own blocks over a few tokens; `work` counts passes of layers."""
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
