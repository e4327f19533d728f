"""Checkpoints that several ranks wrote: exported, they are the model that was trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from frontrunner.evaluators.checkpoint.export import export
from frontrunner.evaluators.checkpoint.reading import open_checkpoint
from frontrunner.evaluators.trainer.model import Gpt
from support.trainer_runs import (
    EXPERTS,
    GPT2,
    SEQUENCE_LENGTH,
    prepare,
    reference,
    run_job,
    small_job,
    small_model,
    small_recipe,
    training_job,
)

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT-2 in stages of two ranks each, ZeRO-1": (
        GPT2,
        {
            "pipeline_parallel": 2,
            "schedule": "1f1b",
            "tensor_parallel": 2,
            "data_parallel": 2,
            "sharding": (1, 1, 2),
        }
        | {"micro_batch_seqs": 2},
    ),
    "Llama in two parts, ZeRO-3": (
        {},
        {"tensor_parallel": 2, "data_parallel": 2, "sharding": (2, 2, 2)},
    ),
    "Llama in levels": ({}, {"data_parallel": 4, "sharding": (2, 2, 4), "micro_batch_seqs": 1}),
    "Mixtral with shared experts' ranks, ZeRO-1": (
        EXPERTS,
        {"expert_parallel": 2, "data_parallel": 2, "sharding": (1, 1, 2)},
    ),
}


ODD: dict[str, Any] = {"hidden": 42, "heads": 3, "kv_heads": 3, "ffn_hidden": 50}
"""Widths that four ranks do not divide: what they hold is filled up."""
OF_DEEPSPEED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT-2 in stages of two ranks each": (
        GPT2,
        {"pipeline_parallel": 2, "schedule": "1f1b", "tensor_parallel": 2, "micro_batch_seqs": 2},
    ),
    "Llama in stages, ZeRO-1": (
        {},
        {"pipeline_parallel": 2, "schedule": "1f1b", "data_parallel": 2, "sharding": (1, 1, 2)}
        | {"micro_batch_seqs": 2},
    ),
    "Llama of odd widths, ZeRO-2": (
        ODD,
        {"data_parallel": 4, "sharding": (1, 4, 4), "micro_batch_seqs": 1},
    ),
    "Llama of odd widths, ZeRO-3": (
        ODD,
        {"data_parallel": 4, "sharding": (4, 4, 4), "micro_batch_seqs": 1, "offload": "optimizer"},
    ),
    "Llama in two parts, ZeRO-3": (
        {},
        {"tensor_parallel": 2, "data_parallel": 2, "sharding": (2, 2, 2)},
    ),
}
LAYOUTS |= {
    f"DeepSpeed: {name}": (shape, choices | {"engine": "deepspeed"})
    for name, (shape, choices) in OF_DEEPSPEED.items()
}


BY_DAY = (
    "GPT-2 in stages of two ranks each, ZeRO-1",
    "Llama in levels",
    "DeepSpeed: GPT-2 in stages of two ranks each",
    "DeepSpeed: Llama of odd widths, ZeRO-3",
)


@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.nightly) for name in LAYOUTS],
)
def test_an_export_has_the_trained_weights_whatever_the_layout(layout: str, tmp_path: Path) -> None:
    shape, choices = LAYOUTS[layout]
    if choices.get("engine") == "deepspeed":
        pytest.importorskip("deepspeed", reason="deepspeed is an extra")
    job = training_job(
        small_job(tmp_path / "replay", model=small_model(**shape), recipe=small_recipe(**choices))
    )
    prepare(job)
    run_job(job)
    checkpoint = open_checkpoint(tmp_path / "replay")
    export(checkpoint, tmp_path / "model")

    right = reference(job)
    found = checkpoint.read(
        f"model.{name}" for name in right.weights
    )  # logits are the same with other orders of heads
    for name, weight in right.weights.items():
        assert float((found[f"model.{name}"] - weight).abs().max()) < 1e-5, name
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    mine = Gpt(job.model, sequence_length=SEQUENCE_LENGTH, layers=range(len(job.model.layers)))
    mine.load_state_dict(right.weights)
    tokens = torch.randint(0, 300, (2, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert float((mine(tokens) - theirs(tokens).logits).abs().max()) < 1e-4
