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
    small_job,
    small_model,
    small_recipe,
    train,
    training_job,
)

LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "GPT-2 in stages of two ranks each, ZeRO-1": (
        GPT2,
        {"pipeline_parallel": 2, "schedule": "1f1b", "tensor_parallel": 2, "data_parallel": 2, "sharding": (1, 1, 2)}
        | {"micro_batch_seqs": 2},
    ),
    "Llama in two parts, ZeRO-3": ({}, {"tensor_parallel": 2, "data_parallel": 2, "sharding": (2, 2, 2)}),
    "Llama in levels": ({}, {"data_parallel": 4, "sharding": (2, 2, 4), "micro_batch_seqs": 1}),
    "Mixtral with shared experts' ranks, ZeRO-1": (
        EXPERTS,
        {"expert_parallel": 2, "data_parallel": 2, "sharding": (1, 1, 2)},
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_has_the_trained_weights_whatever_the_layout(layout: str, tmp_path: Path) -> None:
    shape, choices = LAYOUTS[layout]
    job = training_job(small_job(tmp_path / "replay", model=small_model(**shape), recipe=small_recipe(**choices)))
    prepare(job)
    train(job)
    export(open_checkpoint(tmp_path / "replay"), tmp_path / "model")

    right = reference(job)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    mine = Gpt(job.model, sequence_length=SEQUENCE_LENGTH, layers=range(job.model.layers))
    mine.load_state_dict(right.weights)
    tokens = torch.randint(0, 300, (2, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        assert float((mine(tokens) - theirs(tokens).logits).abs().max()) < 1e-4
