"""A DeepSpeed training script as people write them: what frontrunner probes with
examples/command-deepspeed.toml.

It knows nothing of frontrunner: sharding and batch come from the DeepSpeed configuration that it is
given.
"""

import argparse

import deepspeed
import torch
from deepspeed.utils.logging import set_log_level_from_string
from torch import nn

CONTEXT, WIDTH, LAYERS, HEADS, VOCABULARY = 64, 64, 2, 4, 384


class Transformer(nn.Module):
    """A small decoder-only transformer that returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The mean loss of each token's prediction by those before it; tokens are (sequences,
        length + 1).
        """
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1)
        hidden = self.layers(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Train on random tokens for so many optimizer steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--local_rank", type=int, default=-1)
    arguments = deepspeed.add_config_arguments(parser).parse_args()
    set_log_level_from_string("info")  # else DeepSpeed 0.19 says nothing of its steps
    # On CPUs DeepSpeed would compile collectives of its own on first use, for a minute and more.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(1)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    engine, *_ = deepspeed.initialize(args=arguments, model=model, optimizer=optimizer)
    while engine.global_steps < arguments.steps:
        tokens = torch.randint(VOCABULARY, (engine.train_micro_batch_size_per_gpu(), CONTEXT + 1))
        engine.backward(engine(tokens))
        engine.step()


if __name__ == "__main__":
    main()
