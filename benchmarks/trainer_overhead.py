"""What the trainer adds to a step: its own step against a bare torch loop over the same model, one
process.

    python benchmarks/trainer_overhead.py

Both train the module of examples/laptop.toml with AdamW and clipping, on batches of the same file.
Steps alternate, and what is compared is processor time, of all the process's threads: what else the
machine does falls on neither. The bare loop reads its loss once, and logs nothing. Then the rates
of AdamW by itself: the trainer's, with states in fp32 and in bf16, and torch's default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent)
)  # for the module beside this one, also under `python -P`

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from trainer_side import (
    BETAS,
    CLIP_NORM,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Trainer,
    one_rank,
    write_tokens,
)

SHAPE: dict[str, Any] = {
    "name": "small",
    "layers": 4,
    "hidden": 128,
    "heads": 8,
    "kv_heads": 4,
    "ffn_hidden": 384,
    "vocabulary": 257,
    "vocabulary_multiple": 1,
    "positions": "rotary",
    "activation": "swiglu",
    "norm": "rmsnorm",
    "tied_embeddings": False,
    "attention": "flash",
}
SEQUENCE_LENGTH, MICRO_BATCH_SEQS, ACCUMULATION = 128, 4, 4


class BareLoop:
    """`forward`, `backward`, clip, step; in bf16 with fp32 masters. The module is the trainer's
    own.
    """

    def __init__(self, tokens: Path, precision: str) -> None:
        from frontrunner.evaluators.trainer.model import Gpt, initialize
        from frontrunner.spaces.model import Model

        self.model = Gpt(
            Model(**SHAPE), sequence_length=SEQUENCE_LENGTH, layers=range(SHAPE["layers"])
        )
        initialize(self.model.named_parameters(), seed=1, layers=SHAPE["layers"])
        self.masters = self.weights = list(self.model.parameters())
        if precision == "bf16":
            self.masters = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            self.model.to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.data = np.memmap(tokens, dtype=np.uint16, mode="r")

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.data) - SEQUENCE_LENGTH - 1, (MICRO_BATCH_SEQS,))
        rows = torch.stack(
            [
                torch.from_numpy(self.data[i : i + SEQUENCE_LENGTH + 1].astype(np.int64))
                for i in starts
            ]
        )
        return rows[:, :-1], rows[:, 1:]

    def run(self, steps: int) -> float:
        """Train and return the last loss."""
        for _ in range(steps):
            for _ in range(ACCUMULATION):
                inputs, targets = self.batch()
                logits = self.model(inputs)
                loss = (
                    functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
                    / ACCUMULATION
                )
                loss.backward()
                if self.masters is not self.weights:
                    self.collect_gradients()
            nn.utils.clip_grad_norm_(self.masters, CLIP_NORM)
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.masters is not self.weights:
                with torch.no_grad():
                    torch._foreach_copy_(self.weights, self.masters)
        return loss.item() * ACCUMULATION

    @torch.no_grad()
    def collect_gradients(self) -> None:
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad = (
                weight.grad.float() if master.grad is None else master.grad.add_(weight.grad)
            )
            weight.grad = None


def processor_seconds(run: Callable[[int], float]) -> float:
    start = time.process_time()
    run(1)
    return time.process_time() - start


def measure(precision: str, folder: Path, steps: int) -> dict[str, Any]:
    """Processor seconds a step of both sides, and their ratio: the median of those of neighbouring
    steps.
    """
    recipe = {"micro_batch_seqs": MICRO_BATCH_SEQS, "accumulation": ACCUMULATION}
    tokens = write_tokens(folder, SHAPE["vocabulary"])
    settings = {"sequence_length": SEQUENCE_LENGTH, "precision": precision}
    sides = {
        "bare": BareLoop(tokens, precision).run,
        "trainer": Trainer(torch.device("cpu"), folder, model=SHAPE, recipe=recipe, **settings).run,
    }
    for run in sides.values():
        run(3)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(steps):
        for name in sorted(sides, reverse=number % 2 == 0):
            times[name].append(processor_seconds(sides[name]))
    ratios = [ours / bare for ours, bare in zip(times["trainer"], times["bare"], strict=True)]
    return {
        "precision": precision,
        "steps": steps,
        "bare_s": statistics.median(times["bare"]),
        "trainer_s": statistics.median(times["trainer"]),
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": statistics.quantiles(ratios, n=4)[::2],
    }


def adamw_rates(elements: int = 2**20, tensors: int = 48) -> dict[str, float]:
    """Parameters per second of processor time, the best of eight steps."""
    from frontrunner.evaluators.trainer.job import Optimizer
    from frontrunner.evaluators.trainer.optimizer import build_optimizer

    weights = [nn.Parameter(torch.randn(elements)) for _ in range(tensors)]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    options = Optimizer(
        name="adamw", learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, beta1=BETAS[0],
        beta2=BETAS[1],
        momentum=0.0, gradient_clip_norm=None,
    )  # fmt: skip
    optimizers = {
        f"states in {state}": build_optimizer(options, weights, state=state)
        for state in ("fp32", "bf16")
    }
    optimizers["torch's default"] = torch.optim.AdamW(weights, weight_decay=WEIGHT_DECAY)
    return {
        name: (
            elements
            * tensors
            / min(processor_seconds(lambda _, one=one: one.step()) for _ in range(9))
        )
        for name, one in optimizers.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="of each side")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with one_rank(torch.device("cpu")) as folder:
        for precision in ("fp32", "bf16"):
            row = measure(precision, folder, arguments.steps)
            rows.append(row)
            low, high = row["ratio_quartiles"]
            bare, trainer = (1000 * row[f"{side}_s"] for side in ("bare", "trainer"))
            print(
                f"{precision}: processor time a step {bare:.1f} ms bare, {trainer:.1f} ms by the"
                f" trainer: {row['ratio_median']:.3f} times (quartiles {low:.3f}, {high:.3f})",
                flush=True,
            )
        rates = adamw_rates()
        print(
            "AdamW, 1e6 parameters/s: "
            + ", ".join(f"{rate / 1e6:.0f} {name}" for name, rate in rates.items())
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
