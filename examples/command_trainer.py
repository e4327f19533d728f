"""A training script with the transformers Trainer: what frontrunner probes with
examples/command-trainer.toml.

It knows nothing of frontrunner: all of its arguments are those of `transformers.TrainingArguments`.
"""

import torch
from torch.utils.data import Dataset
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CONTEXT, VOCABULARY = 64, 384
MODEL = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=64,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=CONTEXT,
)


class RandomTokens(Dataset):
    """Sequences of random tokens, the same for each number."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(
            VOCABULARY, (CONTEXT,), generator=torch.Generator().manual_seed(number)
        )
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train as the arguments say."""
    (given,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.manual_seed(given.seed)
    Trainer(model=LlamaForCausalLM(MODEL), args=given, train_dataset=RandomTokens()).train()


if __name__ == "__main__":
    main()
