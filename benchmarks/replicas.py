"""Plain replicas of a model on the ranks of this machine: the trainer's own,
DistributedDataParallel, a bare loop.

    python benchmarks/replicas.py

All three train the same module with SGD on batches of the same size. The bare loop reduces all
gradients in one flat all-reduce after the backward pass, and neither clips nor logs. Steps are
taken in turns, so that what else the machine does falls on all alike: compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the module beside this one, also under `python -P`

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn import functional
from trainer_side import LEARNING_RATE, ROOT, Trainer, write_tokens

RANKS = 4
WARM_UP_STEPS = 3
SEQUENCE_LENGTH, MICRO_BATCH_SEQS = 128, 1
SIZES = {"8 layers of 64": (8, 64), "8 layers of 256": (8, 256), "4 layers of 512": (4, 512)}
SIDES = ("replicate", "ddp", "bare")


def shape(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "name": "replicated",
        "layers": layers,
        "hidden": hidden,
        "heads": hidden // 16,
        "kv_heads": hidden // 16,
        "ffn_hidden": 3 * hidden,
        "vocabulary": 257,
        "positions": "rotary",
        "activation": "swiglu",
        "norm": "rmsnorm",
        "tied_embeddings": False,
        "attention": "flash",
    }


class BareLoop:
    """`forward`, `backward`, one all-reduce, step."""

    def __init__(self, model: dict[str, Any], accumulation: int) -> None:
        from frontrunner.evaluators.trainer.model import Gpt, initialize
        from frontrunner.spaces.model import Model

        self.model = Gpt(
            Model(**model), sequence_length=SEQUENCE_LENGTH, layers=range(model["layers"])
        )
        initialize(self.model.named_parameters(), seed=1, layers=model["layers"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        self.accumulation = accumulation

    def run(self, _: int) -> None:
        for _ in range(self.accumulation):
            rows = torch.randint(257, (MICRO_BATCH_SEQS, SEQUENCE_LENGTH + 1))
            logits = self.model(rows[:, :-1])
            (
                functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
                / self.accumulation
            ).backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        parts = flat.split([gradient.numel() for gradient in gradients])
        torch._foreach_copy_(
            gradients, [part.view_as(to) for part, to in zip(parts, gradients, strict=True)]
        )
        self.optimizer.step()
        self.optimizer.zero_grad()


def compared(ours: list[float], others: list[float]) -> dict[str, float]:
    """The median and the quartiles of the ratios of neighboring steps."""
    pairs = list(zip(ours, others, strict=True))[WARM_UP_STEPS:]
    low, median, high = statistics.quantiles([one / other for one, other in pairs], n=4)
    return {"low": low, "median": median, "high": high}


def rank_main(rank: int, folder: Path, steps: int, accumulation: int) -> None:
    sys.path.insert(0, str(ROOT / "src"))
    from frontrunner.evaluators.trainer.rendezvous import rank_device

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = rank_device("cpu", 0)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS
    )
    rows = []
    for size, (layers, hidden) in SIZES.items():
        model = shape(layers, hidden)
        recipe = {
            "devices": RANKS,
            "micro_batch_seqs": MICRO_BATCH_SEQS,
            "accumulation": accumulation,
        }
        optimizer = {
            "name": "sgd",
            "learning_rate": LEARNING_RATE,
            "weight_decay": 0.0,
            "momentum": 0.9,
        }
        optimizer |= {"beta1": 0.9, "beta2": 0.95, "gradient_clip_norm": None}
        settings = {"sequence_length": SEQUENCE_LENGTH, "precision": "fp32", "optimizer": optimizer}
        sides: dict[str, Any] = {"bare": BareLoop(model, accumulation).run}
        for name in ("replicate", "ddp"):
            options = recipe | {"replication": name}
            sides[name] = Trainer(
                device, folder, model=model, recipe=options, **settings
            ).stepper.step
        wall: dict[str, list[float]] = {name: [] for name in SIDES}
        processor: dict[str, list[float]] = {name: [] for name in SIDES}
        for step in range(1, steps + WARM_UP_STEPS + 1):
            for place in range(len(SIDES)):
                name = SIDES[(step + place) % len(SIDES)]
                dist.barrier()
                start, used = time.perf_counter(), time.process_time()
                sides[name](step)
                wall[name].append(time.perf_counter() - start)
                processor[name].append(time.process_time() - used)
        tokens = RANKS * accumulation * MICRO_BATCH_SEQS * SEQUENCE_LENGTH
        row: dict[str, Any] = {"size": size, "accumulation": accumulation, "steps": steps}
        for name in SIDES:
            row[name] = {
                "tokens_per_s": tokens / statistics.median(wall[name][WARM_UP_STEPS:]),
                "speed_over_ddp": compared(wall["ddp"], wall[name]),
                "processor_time_over_ddp": compared(processor[name], processor["ddp"]),
            }
        rows.append(row)
        if rank == 0:
            print(f"{size}, {accumulation} micro-batches:")
            for name in SIDES:
                speed, used = row[name]["speed_over_ddp"], row[name]["processor_time_over_ddp"]
                print(
                    f"  {name:10} {row[name]['tokens_per_s']:8,.0f} tokens/s, {speed['median']:.2f}"
                    f" of ddp's ({speed['low']:.2f} to {speed['high']:.2f}), processor time"
                    f" {used['median']:.2f} of ddp's",
                    flush=True,
                )
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows, indent=2))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40, help="of each side")
    parser.add_argument("--accumulation", type=int, default=2, help="micro-batches per step")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder, 257)
        torch.multiprocessing.spawn(
            rank_main, (folder, arguments.steps, arguments.accumulation), nprocs=RANKS
        )
        if arguments.json:
            arguments.json.write_text((folder / "rows.json").read_text())


if __name__ == "__main__":
    main()
