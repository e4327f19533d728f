"""What one device reaches with the trainer, against a plain hand-written training loop over the same model.

    python benchmarks/accelerator.py                           # an accelerator, about 7 minutes
    python benchmarks/accelerator.py --device cpu --minutes 1  # a tiny model, to see that it runs

Each cell is a model, micro-batch, recompute, compile and precision. The trainer's steps and the plain loop's are
timed in turns in one process; where both do not fit into the memory together, one after the other. The plain loop,
in this file, has the same shapes, attention, precision (low-precision weights, fp32 masters), clipping and AdamW,
and compiles what the trainer compiles: blocks and loss. The rival "nanogpt" is stricter: query, key and value in one
product, and the whole model compiled.

Model FLOPs a token, as `Model.model_flops_per_token` counts them: 3 * (layers * (2 * matrix parameters of a layer
+ 4 * sequence * hidden) + 2 * hidden * vocabulary), the same as 6 N + 12 L H S; recompute is never counted. MFU is
over the device's public dense peak, or, of a device not in the table, over the best matrix product measured here.

It needs torch >= 2.11, numpy and this repository; the project need not be installed.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import gc
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the modules beside this one, also under `python -P`

import numpy as np
import torch
from accelerator_cells import ACCELERATOR_CELLS, CPU_CELLS, SHAPES, Cell, Shape
from one_device import Device, describe
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from trainer_side import BACKENDS, BETAS, CLIP_NORM, LEARNING_RATE, ROOT, WEIGHT_DECAY, Trainer, one_rank, write_tokens

ROUNDS, WARM_UP_STEPS = 5, 3
TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


# ---- The plain loop.

KEPT = [
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
]


def keep_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape, recompute: str, *, joined: bool) -> None:
        super().__init__()
        width, self.heads, self.recompute = shape.hidden, shape.heads, recompute
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        outputs = [3 * width] if joined else [width] * 3
        self.qkv = nn.ModuleList(nn.Linear(width, size, bias=False) for size in outputs)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute == "none":
            return self.body(x)
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        if self.recompute == "selective":
            options["context_fn"] = partial(create_selective_checkpoint_contexts, keep_products)
        return checkpoint(self.body, x, **options)  # type: ignore[no-any-return]

    def body(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        normed = self.ln_1(x)
        outputs = [linear(normed) for linear in self.qkv]
        parts = outputs if len(outputs) == 3 else outputs[0].split(width, dim=2)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.ln_2(x))))  # type: ignore[no-any-return]


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(logits.view(-1, logits.size(-1)).float(), targets.view(-1))


class PlainGpt(nn.Module):
    def __init__(self, shape: Shape, cell: Cell) -> None:
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.hidden)
        self.wpe = nn.Embedding(shape.sequence_length, shape.hidden)
        joined = cell.rival == "nanogpt"
        self.blocks = nn.ModuleList(PlainBlock(shape, cell.recompute, joined=joined) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.hidden, bias=False)
        self.loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        if cell.compile and not joined:
            self.loss = torch.compile(cross_entropy, fullgraph=True)
            for block in self.blocks:
                block.compile(fullgraph=True)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.loss(functional.linear(self.ln_f(x), self.wte.weight), targets)


class PlainLoop:
    """Train as nanoGPT's `train.py` does. Losses are read when a round is over, not at every step."""

    def __init__(self, cell: Cell, device: torch.device, tokens: Path) -> None:
        self.cell, self.device, self.shape = cell, device, SHAPES[cell.model]
        self.data = np.memmap(tokens, dtype=np.uint16, mode="r")
        with device:
            model = PlainGpt(self.shape, cell)
        self.masters = self.weights = list(model.parameters())
        if TYPES[cell.precision] != torch.float32:
            self.masters = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            model.to(TYPES[cell.precision])
        self.model = torch.compile(model) if cell.compile and cell.rival == "nanogpt" else model
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=device.type != "cpu"
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=cell.precision == "fp16")
        self.batch = self.next_batch()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        length = self.shape.sequence_length
        starts = torch.randint(len(self.data) - length - 1, (self.cell.micro_batch_seqs,))
        rows = torch.stack([torch.from_numpy(self.data[i : i + length + 1].astype(np.int64)) for i in starts])
        x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if self.device.type == "cpu":
            return x, y
        return tuple(t.pin_memory().to(self.device, non_blocking=True) for t in (x, y))  # type: ignore[return-value]

    def run(self, steps: int) -> float:
        """Train and return the last loss."""
        for _ in range(steps):
            for _ in range(self.cell.accumulation):
                loss = self.model(*self.batch) / self.cell.accumulation
                self.batch = self.next_batch()  # while an accelerator is busy
                self.scaler.scale(loss).backward()
                self.collect_gradients()
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.masters, CLIP_NORM)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
            if self.masters is not self.weights:
                with torch.no_grad():
                    torch._foreach_copy_(self.weights, self.masters)
        return loss.item() * self.cell.accumulation

    @torch.no_grad()
    def collect_gradients(self) -> None:
        """Add the low-precision weights' gradients to the masters', in fp32."""
        if self.masters is self.weights:
            return
        if self.masters[0].grad is None:
            wide = [torch.empty_like(master) for master in self.masters]
            torch._foreach_copy_(wide, [weight.grad for weight in self.weights])
            for master, gradient in zip(self.masters, wide, strict=True):
                master.grad = gradient
        else:
            for master, weight in zip(self.masters, self.weights, strict=True):
                master.grad.add_(weight.grad)
        for weight in self.weights:
            weight.grad = None


# ---- Measuring a cell.


def trainer_of(cell: Cell, device: torch.device, folder: Path) -> Trainer:
    shape = dataclasses.asdict(SHAPES[cell.model])
    length = shape.pop("sequence_length")
    recipe = {key: getattr(cell, key) for key in ("micro_batch_seqs", "accumulation", "recompute", "compile")}
    return Trainer(
        device,
        folder,
        model=shape | {"kv_heads": shape["heads"], "ffn_hidden": 4 * shape["hidden"]},
        recipe=recipe,
        sequence_length=length,
        precision="fp32" if cell.precision == "tf32" else cell.precision,
    )


def warmed_up(device: Device, side: Any) -> tuple[float, float]:
    """Warm a side up; the seconds of its first step, compiling included, and of a warm one."""
    first = device.seconds(lambda: side.run(1))
    side.run(WARM_UP_STEPS - 1)
    return first, device.seconds(lambda: side.run(1))


def measure(cell: Cell, device: Device, folder: Path, round_s: float) -> dict[str, Any]:
    """Time the cell's two sides in rounds of about `round_s`; raises where the device's memory does not do."""
    torch.set_float32_matmul_precision("high" if cell.precision == "tf32" else "highest")
    device.forget_peak(empty_cache=True)
    before = device.allocated_bytes()
    sides: dict[str, Any] = {"trainer": trainer_of(cell, device.device, folder)}
    first, step_s = warmed_up(device, sides["trainer"])
    device.forget_peak()
    sides["trainer"].run(1)
    peak, resident = device.peak(), device.allocated_bytes() - before
    steps = max(2, min(50, round(round_s / step_s)))
    needed, total = peak["allocated_bytes"], device.total_bytes()
    in_turns = needed is None or total is None or needed + resident < 0.85 * total
    times: dict[str, list[float]] = {"trainer": [], "plain": []}
    losses = {}
    if not in_turns:
        times["trainer"] = [device.seconds(lambda: sides["trainer"].run(steps)) / steps for _ in range(ROUNDS)]
        losses["trainer"] = sides.pop("trainer").run(1)
        release(device)
        resident = 0
    device.forget_peak()
    retries = device.retries()
    sides["plain"] = PlainLoop(cell, device.device, folder / "tokens.bin")
    plain_first, _ = warmed_up(device, sides["plain"])
    plain_peak = device.peak()["allocated_bytes"]
    for number in range(ROUNDS):
        for name in sorted(sides, reverse=number % 2 == 0):
            times[name].append(device.seconds(partial(sides[name].run, steps)) / steps)
    losses |= {name: side.run(1) for name, side in sides.items()}
    return {
        "in_turns": in_turns,
        "steps_a_round": steps,
        "first_step_s": {"trainer": first, "plain": plain_first},
        "trainer_peak": peak,
        "plain_peak_allocated_bytes": None if plain_peak is None else plain_peak - resident - before,
        "allocator_retries": device.retries() - retries,
        "last_loss": losses,
        **summary(cell, times),
    }


def summary(cell: Cell, times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians over the rounds, what they come to, and how much longer the trainer's step is than the plain loop's."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    per_s = {name: cell.tokens_per_step / value for name, value in medians.items()}
    return {
        "step_times_s": times,
        "step_time_s_median": medians,
        "trainer_over_plain": medians["trainer"] / medians["plain"],
        "tokens_per_s": per_s,
        "model_tflops": {name: rate * SHAPES[cell.model].flops_per_token / 1e12 for name, rate in per_s.items()},
    }


def release(device: Device) -> None:
    """Give back what the last cell held, compiled code included."""
    torch._dynamo.reset()
    gc.collect()
    device.forget_peak(empty_cache=True)


def is_out_of_memory(error: BaseException) -> bool:
    from frontrunner.evaluators.probe.classify import OUT_OF_MEMORY_SIGNS

    return OUT_OF_MEMORY_SIGNS.search(f"{type(error).__name__}: {error}") is not None


def attempt(cell: Cell, device: Device, folder: Path, round_s: float) -> dict[str, Any]:
    """The cell's row; a cell that fails is a row that says so."""
    start = time.perf_counter()
    try:
        row = {"status": "measured", **measure(cell, device, folder, round_s)}
    except Exception as error:
        row = {"status": "out-of-memory" if is_out_of_memory(error) else "failed", "error": str(error)[:500]}
    release(device)  # after the handler: until then the error's traceback holds the tensors
    return row | {"cell_s": time.perf_counter() - start}


def show(row: dict[str, Any]) -> None:
    if row["status"] != "measured":
        print(f"{row['cell']:<62} {row['status']}", flush=True)
        return
    median, peak = row["step_time_s_median"], row["trainer_peak"]["allocated_bytes"]
    mfu = "" if row["mfu"] is None else f", MFU {100 * row['mfu']:.1f} %"
    memory = "" if peak is None else f", {peak / 2**30:.1f} GiB"
    apart = "" if row["in_turns"] else ", not in turns"
    print(
        f"{row['cell']:<62} {1000 * median['trainer']:8.2f} ms, plain {1000 * median['plain']:8.2f} ms, "
        f"ratio {row['trainer_over_plain']:.3f}, {row['model_tflops']['trainer']:.1f} TFLOPS{mfu}{memory}{apart}",
        flush=True,
    )


def run_cells(device: Device, folder: Path, arguments: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """The rows of the cells asked for, in order; cells that the time does not allow are rows that say so."""
    cells = CPU_CELLS if device.device.type == "cpu" else ACCELERATOR_CELLS
    write_tokens(folder, min(SHAPES[cell.model].vocabulary for cell in cells))
    longest_s = {False: 0.0, True: 0.0}  # of a cell so far, compiled or not
    for cell in cells:
        if arguments.only not in cell.name:
            continue
        row: dict[str, Any] = {"status": "left out: no time"}
        if time.perf_counter() + longest_s[cell.compile] < deadline:
            row = attempt(cell, device, folder, arguments.round_seconds)
            longest_s[cell.compile] = max(longest_s[cell.compile], row["cell_s"])
        yield {"cell": cell.name, **dataclasses.asdict(cell), **row}


def add_mfu(row: dict[str, Any], peak_tflops: float) -> None:
    """The share of the peak; None where the peak of the row's precision is not known here."""
    if row["status"] == "measured":
        known = row["precision"] in ("bf16", "fp16")
        row["mfu"] = row["model_tflops"]["trainer"] / peak_tflops if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=BACKENDS, help="default: the accelerator, or the CPU where there is none")
    parser.add_argument("--minutes", type=float, default=7.0, help="cells that this does not allow are left out")
    parser.add_argument("--round-seconds", type=float, default=0.6, help="of each side, five rounds a cell")
    parser.add_argument("--only", default="", help="only the cells whose names contain this")
    parser.add_argument("--out", type=Path, help="default: docs/measured/DATE-DEVICE.json")
    arguments = parser.parse_args()
    deadline = time.perf_counter() + 60 * arguments.minutes
    accelerator = torch.accelerator.current_accelerator()
    device = Device(arguments.device or ("cpu" if accelerator is None else accelerator.type))
    date = dt.datetime.now(dt.UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    out = arguments.out or ROOT / "docs" / "measured" / f"{date:%Y-%m-%d}-{slug}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    with one_rank(device.device) as folder:
        found: dict[str, Any] = {"version": 1, "date": date.isoformat(timespec="seconds"), "device": describe(device)}
        found["cells"] = []
        for row in run_cells(device, folder, arguments, deadline):
            add_mfu(row, found["device"]["bf16_peak_tflops"])
            found["cells"].append(row)
            show(row)
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
