"""Text of a checkpoint's model, to look at: one process, in fp32, the whole sequence computed again
for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from frontrunner.evaluators.checkpoint.reading import Checkpoint
from frontrunner.evaluators.checkpoint.weights import shapes_of
from frontrunner.evaluators.programs.corpus import holds_bytes
from frontrunner.evaluators.text.prepare import load_tokenizer
from frontrunner.evaluators.trainer.data import BYTE_VOCABULARY, END_OF_DOCUMENT
from frontrunner.evaluators.trainer.model import Gpt
from frontrunner.spaces.errors import InvalidInput, bad_value, require_at_least, require_extra


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """How text is sampled; a `temperature` of 0 takes the most probable token, `top_k` draws from
    so many of them.
    """

    prompt: str = ""
    samples: int = 3
    tokens: int = 100
    temperature: float = 0.8
    top_k: int = 50
    seed: int = 0
    device: str = "cpu"
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        require_at_least("generate", 1, samples=self.samples, tokens=self.tokens, top_k=self.top_k)
        require_at_least("generate", 0, temperature=self.temperature)


@dataclass(frozen=True)
class _Codec:
    """Text to tokens and back; `end` is the token that ends a document, `size` how many tokens
    there are.
    """

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    end: int | None
    size: int


def generate(checkpoint: Checkpoint, settings: GenerateSettings) -> list[str]:
    """Return samples, each the prompt and what follows it, up to the end of a document."""
    codec = _codec(checkpoint, settings)
    start = codec.encode(settings.prompt) or ([] if codec.end is None else [codec.end])
    if not start:
        raise bad_value(
            "--prompt", settings.prompt, "some text: the tokenizer's end of a document is not known"
        )
    model, device = _loaded(checkpoint, settings.device), torch.device(settings.device)
    generator = torch.Generator("cpu").manual_seed(settings.seed)
    rows = torch.tensor([start] * settings.samples, device=device)
    with torch.inference_mode():
        for _ in range(settings.tokens):
            window = rows[:, -checkpoint.job.sequence_length :]
            logits = model(window)[
                :, -1, : min(codec.size, checkpoint.job.model.embedding.vocabulary)
            ]
            rows = torch.cat(
                [rows, _drawn(logits.float().cpu(), settings, generator).to(device)], dim=1
            )
    return [
        settings.prompt + codec.decode(_until(codec.end, row[len(start) :]))
        for row in rows.tolist()
    ]


def _until(end: int | None, tokens: list[int]) -> list[int]:
    return tokens[: tokens.index(end)] if end in tokens else tokens


def _drawn(logits: Tensor, settings: GenerateSettings, generator: torch.Generator) -> Tensor:
    if settings.temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    best = logits.topk(min(settings.top_k, logits.shape[-1]), dim=-1)
    place = torch.multinomial(
        (best.values / settings.temperature).softmax(dim=-1), 1, generator=generator
    )
    return best.indices.gather(1, place)


def _loaded(checkpoint: Checkpoint, device: str) -> Gpt:
    job = checkpoint.job
    shapes = shapes_of(job.model, sequence_length=job.sequence_length)
    checkpoint.require(shapes)
    with torch.device("meta"):
        model = Gpt(
            job.model, sequence_length=job.sequence_length, layers=range(len(job.model.layers))
        )
    try:
        model.to_empty(device=device)
    except (RuntimeError, AssertionError) as error:
        raise bad_value(
            "--device", device, f"a device of this machine: {str(error).splitlines()[0]}"
        ) from None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(checkpoint.read([f"model.{name}"])[f"model.{name}"])
    for name, mixture in model.mixtures.items():
        if mixture.balance is not None:
            mixture.balance.bias = checkpoint.read([f"balance.{name}"])[f"balance.{name}"]
    return model.eval()


def _codec(checkpoint: Checkpoint, settings: GenerateSettings) -> _Codec:
    path = settings.tokenizer or checkpoint.tokenizer
    if path is None and holds_bytes(checkpoint.job.data_path):
        return _Codec(
            lambda text: list(text.encode()),
            lambda tokens: bytes(tokens).decode(errors="replace"),
            END_OF_DOCUMENT,
            BYTE_VOCABULARY,
        )
    if path is None:
        raise InvalidInput(
            f"the tokenizer of {checkpoint.job.data_path} is not known",
            hint="--tokenizer FILE names its tokenizer.json",
        )
    require_extra("tokenizers", "data", "a tokenizer")
    tokenizer = load_tokenizer(path)
    return _Codec(
        lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
        partial(tokenizer.decode, skip_special_tokens=False),
        checkpoint.end_of_document,
        1 + max(tokenizer.get_vocab(with_added_tokens=True).values()),
    )
