"""A training script that uses Hugging Face Accelerate: what frontrunner probes with
examples/command-accelerate.toml.

It knows nothing of frontrunner: it takes the arguments of a transformers Trainer script, and prints
a line a step.
"""

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.checkpoint import checkpoint

CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 64, 64, 2, 4, 384


class Transformer(nn.Module):
    """A small decoder-only transformer that returns its loss; `recomputes` runs layers again in the
    backward pass.
    """

    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss of each token's prediction by those before it; tokens are (sequences,
        length + 1).
        """
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1)
        hidden = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            hidden = (
                checkpoint(layer, hidden, mask, use_reentrant=False)
                if self.recomputes
                else layer(hidden, mask)
            )
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def options() -> argparse.Namespace:
    """The arguments of the transformers Trainer that this script knows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_train_batch_size", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--gradient_checkpointing", default="false")
    parser.add_argument("--max_steps", type=int, required=True)
    parser.add_argument("--logging_steps", type=int, default=10)
    parser.add_argument("--save_strategy", choices=["no"], default="no")
    return parser.parse_args()


def main() -> None:
    """Train on random tokens for so many optimizer steps."""
    given = options()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=given.gradient_accumulation_steps
    )
    torch.manual_seed(1)
    model = Transformer(recomputes=given.gradient_checkpointing == "true")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-4))
    for step in range(1, given.max_steps + 1):
        began_s = time.perf_counter()
        for _ in range(given.gradient_accumulation_steps):
            with accelerator.accumulate(model):
                loss = model(
                    torch.randint(VOCABULARY, (given.per_device_train_batch_size, CONTEXT + 1))
                )
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        step_time_s = time.perf_counter() - began_s
        if step % given.logging_steps == 0:
            accelerator.print(
                f"step {step} of {given.max_steps}: {step_time_s:.6f} s, loss {loss.item():.4f}"
            )
    accelerator.end_training()


if __name__ == "__main__":
    main()
