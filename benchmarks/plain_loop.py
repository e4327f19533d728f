"""A plain training loop over the same model on one device, written by hand: the rival of the
trainer's steps.

It is what one would write for one model: weights in the computing type with fp32 masters, torch's
fused AdamW, blocks and loss compiled where the trainer compiles them, no read of the loss before
the steps are over. Its module may be torchtitan's, where that is installed.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerator_cells import Cell
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from trainer_side import BETAS, CLIP_NORM, LEARNING_RATE, WEIGHT_DECAY

from frontrunner.spaces.model.model import Model

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KEPT = [
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "addmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
]


def keep_products(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def recomputing(recompute: str, function: Any, *inputs: Any) -> Any:
    if recompute == "none":
        return function(*inputs)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    if recompute == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, keep_products)
    return checkpoint(function, *inputs, **options)


def norm_of(model: Model, width: int) -> nn.Module:
    if model.norm.kind == "rmsnorm":
        return nn.RMSNorm(width, eps=model.norm.epsilon)
    return nn.LayerNorm(width, eps=model.norm.epsilon, bias=model.norm.has_biases)


def rotary_table(model: Model, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [S, head width / 2]."""
    frequencies = model.rotary.theta ** (
        -torch.arange(0, model.attention.head_dim, 2).float() / model.attention.head_dim
    )
    if (scaling := model.rotary.scaling) is not None:
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        turns = scaling.original_positions * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    cosines, sines = table
    return torch.cat(
        (first * cosines - second * sines, second * cosines + first * sines), dim=-1
    ).to(x.dtype)


class PlainBlock(nn.Module):
    def __init__(self, model: Model, recompute: str) -> None:
        super().__init__()
        self.model, self.recompute = model, recompute
        attention, width = model.attention, model.attention.head_dim
        heads, kv = attention.q_hidden, attention.kv_hidden
        every, of_qkv = model.feed_forward.has_biases, attention.biases != "none"
        self.norm_1, self.norm_2 = norm_of(model, model.hidden), norm_of(model, model.hidden)
        self.q_norm = norm_of(model, width) if attention.qk_norm else nn.Identity()
        self.k_norm = norm_of(model, width) if attention.qk_norm else nn.Identity()
        self.q = nn.Linear(model.hidden, heads, bias=of_qkv)
        self.k, self.v = (nn.Linear(model.hidden, kv, bias=of_qkv) for _ in range(2))
        self.o = nn.Linear(heads, model.hidden, bias=every)
        self.up = nn.Linear(model.hidden, model.feed_forward.ffn_hidden, bias=every)
        self.gate = (
            nn.Linear(model.hidden, model.feed_forward.ffn_hidden, bias=every)
            if model.feed_forward.activation == "swiglu"
            else None
        )
        self.down = nn.Linear(model.feed_forward.ffn_hidden, model.hidden, bias=every)

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor] | None) -> Tensor:
        return recomputing(self.recompute, self.body, x, table)  # type: ignore[no-any-return]

    def body(self, x: Tensor, table: tuple[Tensor, Tensor] | None) -> Tensor:
        heads = (*x.shape[:2], -1, self.model.attention.head_dim)
        normed = self.norm_1(x)
        q, k = self.q_norm(self.q(normed).view(heads)), self.k_norm(self.k(normed).view(heads))
        q, k, v = (part.transpose(1, 2) for part in (q, k, self.v(normed).view(heads)))
        if table is not None:
            q, k = rotated(q, table), rotated(k, table)
        grouped = self.model.attention.kv_heads < self.model.attention.heads
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        normed = self.norm_2(x)
        if self.gate is not None:
            return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))  # type: ignore[no-any-return]
        approximate = "tanh" if self.model.feed_forward.activation == "gelu_tanh" else "none"
        return x + self.down(functional.gelu(self.up(normed), approximate=approximate))  # type: ignore[no-any-return]


class PlainModel(nn.Module):
    """A decoder as its authors' papers describe it: GPT-2's and Llama's by the fields of
    `Model`.
    """

    def __init__(self, model: Model, cell: Cell) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.embedding.padded_vocabulary, model.hidden)
        learned = model.embedding.positions == "learned"
        self.positions = nn.Embedding(cell.sequence_length, model.hidden) if learned else None
        self.table = None if learned else rotary_table(model, cell.sequence_length)
        self.blocks = nn.ModuleList(
            PlainBlock(model, cell.recompute) for _ in range(len(model.layers))
        )
        self.norm = norm_of(model, model.hidden)
        self.head = nn.Linear(model.hidden, model.embedding.padded_vocabulary, bias=False)
        if model.head.tied:
            self.head.weight = self.embedding.weight
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight
        for block in self.blocks:
            x = block(x, self.table)
        return x  # type: ignore[no-any-return]


def torchtitan_model(cell: Cell, model: Model, device: torch.device) -> nn.Module:
    """Return torchtitan's own Llama 3 (0.3), with its SDPA attention; raises ImportError without
    it.
    """
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import llama3_configs

    if cell.changes.keys() - {"layers"}:
        raise ValueError("torchtitan has no model of this shape")
    config = llama3_configs[{"llama-3.2-1b": "1B", "llama-3-8b": "8B"}[cell.model]](
        attn_backend="varlen"
    )
    config.layers = config.layers[: len(model.layers)]
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    with torch.device("meta"):
        built = config.build()
    built.to_empty(device=device)
    built.init_states(buffer_device=device)
    for name, block in built.layers.items():
        built.layers[name] = Recomputing(block, cell.recompute)
    return TorchTitan(built)


class Recomputing(nn.Module):
    def __init__(self, block: nn.Module, recompute: str) -> None:
        super().__init__()
        self.block, self.recompute = block, recompute

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return recomputing(self.recompute, self.block, x, *rest)  # type: ignore[no-any-return]


class TorchTitan(nn.Module):
    """Its model as the loop uses `PlainModel`: hidden states first, norm and head apart."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.blocks, self.norm, self.head = model.layers.values(), model.norm, model.lm_head
        model.norm = model.lm_head = None

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens)  # type: ignore[no-any-return]


class PlainLoop:
    """Train as nanoGPT's `train.py` does. Losses are read when a round is over, not at every
    step.
    """

    def __init__(
        self, cell: Cell, model: Model, device: torch.device, tokens: Path, module: nn.Module | None
    ) -> None:
        self.cell, self.device = cell, device
        self.data = np.memmap(tokens, dtype=np.uint16, mode="r")
        if module is None:
            with device:
                module = PlainModel(model, cell)
        self.masters = self.weights = list(module.parameters())
        if TYPES[cell.precision] != torch.float32:
            self.masters = [nn.Parameter(weight.detach().clone()) for weight in self.weights]
            for weight in self.weights:  # not buffers: torchtitan's rotary table is complex
                weight.data = weight.data.to(TYPES[cell.precision])
        self.module, self.loss = module, self.loss_of_chunk
        if cell.compile:
            for block in module.blocks:
                block.compile(fullgraph=True)
            self.loss = torch.compile(self.loss_of_chunk, fullgraph=True)
        # One pass over each weight, also on a CPU.
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        self.batch = self.next_batch()

    def loss_of_chunk(self, x: Tensor, targets: Tensor) -> Tensor:
        def summed(x: Tensor) -> Tensor:
            logits = self.module.head(self.module.norm(x))
            return functional.cross_entropy(
                logits.flatten(0, 1).float(), targets.flatten(), reduction="sum"
            )

        return recomputing("none" if self.cell.loss_chunks == 1 else "full", summed, x)  # type: ignore[no-any-return]

    def mean_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        chunks = self.cell.loss_chunks
        pairs = zip(
            self.module(tokens).chunk(chunks, dim=1), targets.chunk(chunks, dim=1), strict=True
        )
        return torch.stack([self.loss(*pair) for pair in pairs]).sum() / targets.numel()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        length = self.cell.sequence_length
        starts = torch.randint(len(self.data) - length - 1, (self.cell.micro_batch_seqs,))
        rows = torch.stack(
            [torch.from_numpy(self.data[i : i + length + 1].astype(np.int64)) for i in starts]
        )
        x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if self.device.type == "cpu":
            return x, y
        return tuple(t.pin_memory().to(self.device, non_blocking=True) for t in (x, y))  # type: ignore[return-value]

    def run(self, steps: int) -> float:
        """Train and return the last loss."""
        for _ in range(steps):
            for _ in range(self.cell.accumulation):
                loss = self.mean_loss(*self.batch) / self.cell.accumulation
                self.batch = self.next_batch()  # while an accelerator is busy
                loss.backward()
                self.collect_gradients()
            nn.utils.clip_grad_norm_(self.masters, CLIP_NORM)
            self.optimizer.step()
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
        gradients = [weight.grad for weight in self.weights]
        if self.masters[0].grad is None:
            wide = [torch.empty_like(master) for master in self.masters]
            torch._foreach_copy_(wide, gradients)
            for master, gradient in zip(self.masters, wide, strict=True):
                master.grad = gradient
        else:
            torch._foreach_add_([master.grad for master in self.masters], gradients)
        for weight in self.weights:
            weight.grad = None
