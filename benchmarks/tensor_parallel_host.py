"""What the host needs for a tensor-parallel layer: its collectives do nothing, its kernels next to
nothing.

    python benchmarks/tensor_parallel_host.py [--ranks 2] [--layers 8]

Told is the processor time of one thread, the least of 15 turns: what a device that is faster than
this waits for.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.evaluators.trainer.tensor_parallel import apply_tensor_parallel
from frontrunner.spaces.model import Model

TOKENS = 16
WARM_UP, TURNS = 5, 15


def small_shape(layers: int) -> Model:
    """Layers whose kernels take next to nothing."""
    return Model(
        name="small", layers=layers, hidden=32, heads=8, kv_heads=8, ffn_hidden=64, vocabulary=64,
        activation="swiglu", norm="rmsnorm",
    )  # fmt: skip


def least_s(run: Callable[[], None]) -> float:
    """The least processor time of a turn, in seconds."""
    found = []
    for _ in range(WARM_UP + TURNS):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found[WARM_UP:])


def layer_s(ranks: int, layers: int, *, sequence_parallel: bool) -> float:
    """Seconds of a layer's forward and backward pass."""
    model = Gpt(small_shape(layers), sequence_length=TOKENS, layers=range(layers))
    apply_tensor_parallel(
        model,
        small_shape(layers),
        init_device_mesh("cpu", (ranks,)),
        sequence_parallel=sequence_parallel,
    )
    x = torch.randn(1, TOKENS // ranks if sequence_parallel else TOKENS, 32, requires_grad=True)

    def run() -> None:
        y = x
        for block in model.blocks.values():
            y = block(y)
        y.sum().backward()

    return least_s(run) / layers


def main() -> None:
    """Time both kinds of tensor parallelism."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, choices=(2, 4, 8), default=2)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=options.ranks)
    for sequence_parallel in (False, True):
        milliseconds = 1e3 * layer_s(
            options.ranks, options.layers, sequence_parallel=sequence_parallel
        )
        name = "with" if sequence_parallel else "without"
        print(
            f"{name} sequence parallelism: {milliseconds:.2f} ms of processor time a layer, forward"
            " and backward"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
