"""The formulas' memory against dry runs, which trace the trainer's own step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner import dryrun
from frontrunner.config.campaign import read_campaign_file
from frontrunner.evaluators.analytic.codes import FRONTRUNNER
from frontrunner.evaluators.analytic.estimates import estimate_many
from frontrunner.evaluators.analytic.machine import Machine
from frontrunner.evaluators.analytic.memory import peak_memory
from frontrunner.evaluators.analytic.workload import Workload
from support.campaigns import tiny, write_toml
from support.small_space import small_problem
from support.trainer_runs import look, small_job, small_model, small_recipe

LEAST, MOST = -0.06, 0.09
"""Of the dry run's peak."""

CHOICES = {
    "zero-3, full": {"sharding": "zero-3", "recompute": "full"},
    "one micro-batch, whose gradients come when activations go": {
        "sharding": "zero-1",
        "tensor_parallel": 1,
    },
}
MORE_CHOICES = {
    "context and sequence parallel, selective": {
        "sharding": "zero-2",
        "context_parallel": 2,
        "sequence_parallel": True,
        "recompute": "selective",
    },
    "a pipeline that is full before its first gradients": {
        "sharding": "zero-1",
        "tensor_parallel": 1,
        "pipeline_parallel": 4,
    },
    "plain replicas": {"sharding": "none"},
    "zero-1, sequence parallel": {"sharding": "zero-1", "sequence_parallel": True},
    "zero-2, selective": {"sharding": "zero-2", "recompute": "selective"},
    "context parallel": {"sharding": "zero-1", "context_parallel": 4},
}
WHOLE = {"tensor_parallel": 4, "pipeline_parallel": 1}


def campaign(folder: Path, **model: object) -> Path:
    """A GPT of 16 layers on 32 devices, every choice of one value."""
    table = tiny(
        model={"layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 8192, **model},
        cluster={"device": "a100-80gb", "backend": "cuda", "devices_per_node": 8, "nodes": 4},
        problem={"sequence_length": 1024, "global_batch": 64, "precision": "bf16"},
        space={
            "tensor_parallel": [1, 4],
            "pipeline_parallel": [1, 4],
            "micro_batch_seqs": [2],
            "schedule": ["1f1b"],
        },
    )
    return write_toml(folder / "campaign.toml", table)


@pytest.mark.parametrize(
    "choices",
    [
        *(pytest.param(choices, id=name) for name, choices in CHOICES.items()),
        *(
            pytest.param(choices, id=name, marks=pytest.mark.nightly)
            for name, choices in MORE_CHOICES.items()
        ),
    ],
)
def test_peak_memory_is_the_dry_runs(choices: dict[str, object], tmp_path: Path) -> None:
    file = campaign(tmp_path)
    traced = dryrun(WHOLE | choices, campaign=file)

    told = estimate_many([traced.recipe], read_campaign_file(file).spec.problem)[0]

    own_runtime, runtime = traced.worst.memory_bytes["runtime"], told.memory_parts_bytes["runtime"]
    assert own_runtime == pytest.approx(runtime, rel=0.05)
    without_runtime = told.peak_memory_bytes - runtime
    assert LEAST < without_runtime / (traced.peak_bytes - own_runtime) - 1 < MOST, (
        told.memory_parts_bytes
    )


@pytest.mark.nightly
def test_what_shapes_add_to_activations_is_what_dry_runs_find(tmp_path: Path) -> None:
    """Norms after parts and of heads, one input of two norms, capped logits, a clamped gate."""
    plain = {"norm": "rmsnorm", "activation": "swiglu", "positions": "rotary"}
    form = {"post_norms": True, "qk_norm": True, "parallel_residual": True, "logits_softcap": 30.0}
    traced, told = [], []
    for name, more in (("plain", {}), ("form", form | {"activation": "swiglu_clamped"})):
        (tmp_path / name).mkdir()
        file = campaign(tmp_path / name, **plain | more)
        traced.append(
            dryrun(
                {"sharding": "zero-1", "tensor_parallel": 1, "pipeline_parallel": 1}, campaign=file
            )
        )
        told.append(
            estimate_many([traced[-1].recipe], read_campaign_file(file).spec.problem)[
                0
            ].memory_parts_bytes
        )
    apart = [sum(one[part] for part in ("activations", "logits")) for one in told]
    found = [one.worst.memory_bytes["activations"] for one in traced]
    assert apart[1] - apart[0] == pytest.approx(found[1] - found[0], rel=0.1)


@pytest.mark.nightly
def test_an_rms_norm_is_traced_as_one_kernel_which_keeps_as_much_as_a_layer_norm(
    tmp_path: Path,
) -> None:
    """torch's CPU takes it apart, which keeps three fp32 copies more."""
    rms, layer = (
        dryrun(
            WHOLE | {"sharding": "zero-1"}, campaign=campaign(tmp_path, norm=norm)
        ).worst.memory_bytes["activations"]
        for norm in ("rmsnorm", "layernorm")
    )
    assert rms == pytest.approx(layer, rel=0.01)


def test_a_wide_head_takes_memory_while_its_gradient_is_reduced(tmp_path: Path) -> None:
    """A table of several layers' parameters is gathered whole, and its gradient is there in 16 bits
    and in fp32.
    """
    wide = {"layers": 4, "vocabulary": 131072, "tied_embeddings": False}
    file = campaign(tmp_path, norm="rmsnorm", activation="swiglu", positions="rotary", **wide)
    traced = dryrun(
        {"sharding": "zero-3", "tensor_parallel": 1, "pipeline_parallel": 1}, campaign=file
    )
    estimate = estimate_many([traced.recipe], read_campaign_file(file).spec.problem)[0]
    assert estimate.peak_memory_bytes == pytest.approx(traced.peak_bytes, rel=0.1)


EXPERTS: dict[str, Any] = {
    "hidden": 256,
    "ffn_hidden": 512,
    "heads": 8,
    "kv_heads": 8,
    "experts": 8,
}
DEEPSEEK: dict[str, Any] = {
    "model": {
        "key_value_rank": 64,
        "query_rank": 96,
        "head_width": 32,
        "rotary_width": 16,
        "value_width": 24,
    }
    | {"shared_experts": 2, "dense_layers": 2, "dense_ffn_hidden": 1024}
}
SHARED = {"data_parallel": 4, "micro_batch_seqs": 2, "expert_parallel": 2}


@pytest.mark.parametrize(
    "choices",
    [
        pytest.param({"micro_batch_seqs": 4}, id="one rank", marks=pytest.mark.nightly),
        pytest.param(
            {"micro_batch_seqs": 4, "recompute": "selective"},
            id="selective",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"micro_batch_seqs": 4, "recompute": "full"}, id="full", marks=pytest.mark.nightly
        ),
        pytest.param(SHARED, id="shared experts", marks=pytest.mark.nightly),
        pytest.param(
            SHARED | {"expert_parallel": 1, "expert_tensor_parallel": 4},
            id="split experts",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            SHARED | {"sharding": (1, 1, 4)}, id="shared experts, zero-1", marks=pytest.mark.nightly
        ),
        pytest.param(
            SHARED | {"sharding": (4, 4, 4)}, id="shared experts, zero-3", marks=pytest.mark.nightly
        ),
        pytest.param(DEEPSEEK | {"micro_batch_seqs": 4}, id="deepseek", marks=pytest.mark.nightly),
        pytest.param(
            DEEPSEEK | {"micro_batch_seqs": 4, "recompute": "selective"},
            id="deepseek, selective",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            DEEPSEEK | SHARED | {"sharding": (4, 4, 4)},
            id="deepseek, zero-3",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            DEEPSEEK
            | {
                "tensor_parallel": 2,
                "sequence_parallel": True,
                "micro_batch_seqs": 4,
                "expert_parallel": 2,
            },
            id="deepseek, tensor parallel",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_peak_memory_of_experts_is_that_of_real_steps(
    choices: dict[str, Any], tmp_path: Path
) -> None:
    choices = dict(choices)
    model = small_model(**EXPERTS | choices.pop("model", {}), experts_per_token=2, layers=6)
    job = small_job(tmp_path, model=model, recipe=small_recipe(**choices), sequence_length=256)
    job = replace(job, optimizer=replace(job.optimizer, name="adamw"))
    problem = replace(small_problem(), model=model, sequence_length=256)
    machine = Machine.of(problem.cluster, "fp32", FRONTRUNNER)
    told = peak_memory(machine, Workload.of([job.recipe], problem)).allocated[0]
    assert told == pytest.approx(max(look(job, "peak")), rel=0.1)
    traced = [sum(seen["memory_bytes"].values()) for seen in look(job, "dry-run")]
    assert told == pytest.approx(max(traced), rel=0.1)
