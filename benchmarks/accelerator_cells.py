"""What `accelerator.py` measures: models and cells."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model like GPT-2: learned positions, GELU, LayerNorm without bias, tied embeddings."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence_length: int

    @property
    def flops_per_token(self) -> float:
        """3 * (layers * (24 * hidden^2 + 4 * sequence * hidden) + 2 * hidden * vocabulary): see `accelerator.py`."""
        layer = 2 * 12 * self.hidden**2 + 4 * self.sequence_length * self.hidden
        return 3.0 * (self.layers * layer + 2 * self.hidden * self.vocabulary)


SHAPES = {
    "gpt2-124m": Shape(layers=12, hidden=768, heads=12, vocabulary=50304, sequence_length=1024),
    "gpt-1.1b": Shape(layers=20, hidden=2048, heads=16, vocabulary=50304, sequence_length=2048),
    "tiny": Shape(layers=2, hidden=64, heads=2, vocabulary=512, sequence_length=64),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One thing to measure. `precision` "tf32" is fp32 with TF32 products allowed, on both sides."""

    model: str
    micro_batch_seqs: int
    accumulation: int = 1
    recompute: str = "none"
    compile: bool = False
    precision: str = "bf16"
    rival: str = "same"

    @property
    def name(self) -> str:
        batch = f"{self.micro_batch_seqs}" + (f"x{self.accumulation}" if self.accumulation > 1 else "")
        words = [self.model, f"batch {batch}", self.precision, f"recompute {self.recompute}"]
        words += ["compiled"] if self.compile else []
        return ", ".join(words + ([f"rival {self.rival}"] if self.rival != "same" else []))

    @property
    def tokens_per_step(self) -> int:
        return self.micro_batch_seqs * self.accumulation * SHAPES[self.model].sequence_length


# The most interesting first: what the time does not allow is left out from the end.
ACCELERATOR_CELLS = (
    Cell(model="gpt-1.1b", micro_batch_seqs=4, compile=True),
    Cell(model="gpt-1.1b", micro_batch_seqs=4),
    Cell(model="gpt2-124m", micro_batch_seqs=16, compile=True),
    Cell(model="gpt2-124m", micro_batch_seqs=16),
    Cell(model="gpt-1.1b", micro_batch_seqs=8, compile=True),
    Cell(model="gpt-1.1b", micro_batch_seqs=8, recompute="full"),
    Cell(model="gpt2-124m", micro_batch_seqs=4),
    Cell(model="gpt2-124m", micro_batch_seqs=32),
    Cell(model="gpt-1.1b", micro_batch_seqs=4, recompute="selective"),
    Cell(model="gpt2-124m", micro_batch_seqs=16, compile=True, rival="nanogpt"),
    Cell(model="gpt2-124m", micro_batch_seqs=16, precision="fp16"),
    Cell(model="gpt2-124m", micro_batch_seqs=8, precision="fp32"),
    Cell(model="gpt2-124m", micro_batch_seqs=8, precision="tf32"),
    Cell(model="gpt-1.1b", micro_batch_seqs=16, recompute="full"),
    Cell(model="gpt-1.1b", micro_batch_seqs=8, recompute="full", compile=True),
    Cell(model="gpt2-124m", micro_batch_seqs=16, recompute="full"),
    Cell(model="gpt2-124m", micro_batch_seqs=8, accumulation=4),
    Cell(model="gpt-1.1b", micro_batch_seqs=2),
    Cell(model="gpt2-124m", micro_batch_seqs=32, compile=True),
    Cell(model="gpt-1.1b", micro_batch_seqs=32, recompute="full"),
    Cell(model="gpt-1.1b", micro_batch_seqs=4, compile=True, rival="nanogpt"),
)
CPU_CELLS = (
    Cell(model="tiny", micro_batch_seqs=4, precision="fp32"),
    Cell(model="tiny", micro_batch_seqs=2, accumulation=2, recompute="full", precision="fp32"),
    Cell(model="tiny", micro_batch_seqs=4, recompute="selective"),
)
