"""What `accelerator.py` measures: models of the presets under recipes of one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LLAMA_1B, LLAMA_8B, GPT2, GPT2_XL = "llama-3.2-1b", "llama-3-8b", "gpt2-small", "gpt2-xl"
RECIPE = (
    "micro_batch_seqs",
    "accumulation",
    "recompute",
    "compile",
    "loss_chunks",
    "optimizer_state",
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One thing to measure. `changes` replace fields of the preset; `fits` takes as many layers as
    the memory holds.
    """

    model: str
    sequence_length: int = 8192
    changes: Mapping[str, Any] = field(default_factory=dict)
    fits: bool = False
    micro_batch_seqs: int = 1
    accumulation: int = 1
    recompute: str = "none"
    compile: bool = False
    loss_chunks: int = 1
    optimizer_state: str = "fp32"
    precision: str = "bf16"

    @property
    def name(self) -> str:
        batch = f"{self.micro_batch_seqs}" + (
            f"x{self.accumulation}" if self.accumulation > 1 else ""
        )
        words = [self.model, f"{batch} x {self.sequence_length}", self.recompute]
        words += ["compile"] if self.compile else []
        words += [f"chunks {self.loss_chunks}"] if self.loss_chunks > 1 else []
        words += [f"states {self.optimizer_state}"] if self.optimizer_state != "fp32" else []
        return ", ".join(words + ([self.precision] if self.precision != "bf16" else []))

    @property
    def recipe(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in RECIPE}

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch_seqs * self.accumulation * self.sequence_length


# The most important first: what the time does not allow is left out from the end.
ACCELERATOR_CELLS = (
    Cell(model=LLAMA_1B, micro_batch_seqs=2, compile=True),
    Cell(model=LLAMA_1B, micro_batch_seqs=2, compile=True, loss_chunks=8),
    Cell(model=LLAMA_1B, micro_batch_seqs=2, recompute="selective", loss_chunks=8),
    Cell(model=LLAMA_8B, fits=True, recompute="selective", compile=True, loss_chunks=8),
    Cell(model=GPT2, sequence_length=1024, micro_batch_seqs=16, compile=True),
    Cell(model=LLAMA_1B),
    Cell(model=LLAMA_8B, fits=True, recompute="full", loss_chunks=8),
    Cell(model=GPT2, sequence_length=1024, micro_batch_seqs=16),
    Cell(model=LLAMA_1B, micro_batch_seqs=4, recompute="selective", compile=True, loss_chunks=8),
    Cell(model=LLAMA_1B, micro_batch_seqs=4, recompute="full", loss_chunks=8),
    Cell(model=LLAMA_8B, fits=True, compile=True, loss_chunks=8),
    Cell(model=GPT2, sequence_length=1024, micro_batch_seqs=4),
    Cell(model=LLAMA_8B, fits=True, recompute="selective", loss_chunks=8),
    Cell(model=GPT2_XL, sequence_length=1024, micro_batch_seqs=4, compile=True),
    Cell(model=LLAMA_1B, accumulation=4, recompute="selective", loss_chunks=8),
    Cell(
        model=LLAMA_8B,
        fits=True,
        recompute="full",
        compile=True,
        loss_chunks=8,
        optimizer_state="bf16",
    ),
    Cell(model=GPT2_XL, sequence_length=1024, micro_batch_seqs=8, recompute="full"),
    Cell(model=GPT2, sequence_length=1024, micro_batch_seqs=8, precision="fp32"),
)
SMALL = {"layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocabulary": 500}
CPU_CELLS = (
    Cell(
        model=LLAMA_1B,
        sequence_length=64,
        changes=SMALL | {"kv_heads": 2},
        micro_batch_seqs=4,
        precision="fp32",
    ),
    Cell(
        model=GPT2,
        sequence_length=64,
        changes=SMALL,
        accumulation=2,
        recompute="full",
        loss_chunks=4,
    ),
    Cell(
        model=LLAMA_8B,
        sequence_length=64,
        changes=SMALL | {"kv_heads": 1},
        micro_batch_seqs=4,
        recompute="selective",
        optimizer_state="bf16",
    ),
)

CAMPAIGNS = {
    "accelerator": """
[model]
preset = "llama-3.2-1b"
[cluster]
preset = "this-machine"
devices_per_node = 1
[problem]
sequence_length = 8192
global_batch = 4
[space]
micro_batch_seqs = [1, 2, 4]
recompute = ["none", "selective", "full"]
compile = [false, true]
loss_chunks = [1, 8]
optimizer_state = ["fp32", "bf16"]
offload = ["none", "optimizer"]
[search]
strategy = "guided"
stop_below_improvement = 0.0
seed = 1
[budget]
probes = 12
minutes = {minutes:.2f}
[probe]
max_steps = 8
deadline_s = 90
step_deadline_s = 60
""",
    "cpu": """
[model]
preset = "llama-3.2-1b"
layers = 2
hidden = 64
heads = 4
kv_heads = 2
ffn_hidden = 128
vocabulary = 500
[cluster]
preset = "this-machine"
devices_per_node = 1
[problem]
sequence_length = 64
global_batch = 4
precision = "fp32"
[space]
micro_batch_seqs = [1, 2, 4]
recompute = ["none", "selective", "full"]
loss_chunks = [1, 4]
[search]
strategy = "guided"
stop_below_improvement = 0.0
seed = 1
[budget]
probes = 3
minutes = {minutes:.2f}
[probe]
max_steps = 6
""",
}
"""Campaign files over one device, with the minutes left open."""
