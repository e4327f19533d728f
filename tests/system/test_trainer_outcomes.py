"""What a run leaves in its folder: results, progress, errors, and real memory limits."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from frontrunner.evaluators.trainer.data import TokenFile
from frontrunner.evaluators.trainer.job import Job
from frontrunner.evaluators.trainer.model import Gpt, initialize
from support.trainer_runs import (
    EXPERTS,
    SEQUENCE_LENGTH,
    prepare,
    read_progress,
    read_result,
    run_job,
    small_job,
    small_model,
    small_recipe,
    warm_parent,
)

MIB = 2**20


def _errors(job: Job) -> list[dict[str, str]]:
    return [
        json.loads(path.read_text())
        for path in sorted(Path(job.run_folder).glob("rank-*.error.json"))
    ]


def test_a_probe_tells_each_step_and_each_ranks_memory(tmp_path: Path) -> None:
    job = small_job(
        tmp_path / "run",
        recipe=small_recipe(pipeline_parallel=2, schedule="1f1b", micro_batch_seqs=2),
    )

    result = run_job(job)

    assert result["status"] == "measured"
    assert (len(result["warm_up_times_s"]), len(result["step_times_s"]), len(result["losses"])) == (
        1,
        4,
        5,
    )
    assert result["first_step_time_s"] == result["warm_up_times_s"][0]
    assert len(result["peak_memory_bytes"]) == 2
    assert all(100 * MIB < peak < 1000 * MIB for peak in result["peak_memory_bytes"])
    assert result["peak_reserved_bytes"] is None
    needs = [
        peak - idle
        for peak, idle in zip(
            result["peak_memory_bytes"], result["telemetry"]["idle_memory_bytes"], strict=True
        )
    ]
    assert all(0 < need < 60 * MIB for need in needs), "a small model's own memory, without torch's"
    built, *steps = read_progress(job)
    assert built["event"] == "built"
    assert built["time_s"] == result["build_time_s"]
    assert [event["step"] for event in steps] == [1, 2, 3, 4, 5]
    assert [event["loss"] for event in steps] == result["losses"]
    assert {event["tokens"] for event in steps} == {8 * 32}


def test_a_probe_tells_how_evenly_experts_and_ranks_were_loaded(tmp_path: Path) -> None:
    model = small_model(**EXPERTS)
    job = small_job(
        tmp_path / "run", model=model, recipe=small_recipe(data_parallel=4, expert_parallel=2)
    )
    told = run_job(job)["telemetry"]

    # What the first step's routers chose, by a plain model of the same first weights over each
    # replica's sequences.
    whole = Gpt(model, sequence_length=SEQUENCE_LENGTH, layers=range(len(model.layers)))
    initialize(whole.named_parameters(), seed=job.seed, layers=len(model.layers))
    routed: list[Tensor] = []
    for block in whole.blocks.values():
        block.feed_forward.router.register_forward_hook(
            lambda _, __, logits: routed.append(logits.topk(2).indices)
        )
    data = TokenFile(job.data_path, dtype="uint16", sequence_length=SEQUENCE_LENGTH, seed=job.seed)
    whole(data.training_batch(1, sequences=slice(0, 8), global_batch_seqs=8).inputs)
    of_replicas = [
        torch.bincount(part.flatten(), minlength=4) for layer in routed for part in layer.chunk(4)
    ]
    counts = torch.stack(of_replicas).view(4, 4, 4)  # by layer, replica and expert
    of_experts = counts.sum(dim=1).amax(dim=1) / (8 * 32 * 2 / 4)
    # Ranks 0 and 1 share experts, and so do 2 and 3; each holds two of the four.
    of_ranks = counts.view(4, 2, 2, 2, 2).sum(dim=(2, 4)).flatten(1).amax(dim=1) / (8 * 32 * 2 / 4)
    assert told["routing"] == "learned"
    assert len(told["expert_imbalance"]) == len(told["rank_imbalance"]) == 5
    assert told["expert_imbalance"][0] == pytest.approx(of_experts.mean().item())
    assert told["rank_imbalance"][0] == pytest.approx(of_ranks.mean().item())


def test_dealt_tokens_load_all_experts_alike(tmp_path: Path) -> None:
    model = small_model(**EXPERTS, routing="uniform")
    told = run_job(small_job(tmp_path / "run", model=model, recipe=small_recipe(recompute="full")))[
        "telemetry"
    ]
    assert told["routing"] == "uniform"
    assert told["expert_imbalance"] == told["rank_imbalance"] == [1.0] * 5


def test_a_loss_that_is_not_finite_ends_the_probe_at_its_step(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run", recipe=small_recipe(data_parallel=2))
    job = replace(
        job, optimizer=replace(job.optimizer, learning_rate=1e30, gradient_clip_norm=None)
    )

    result = run_job(job)

    assert result["status"] == "not-finite"
    assert result["losses"][-1] is None
    assert all(math.isfinite(loss) for loss in result["losses"][:-1])
    assert len(result["losses"]) < 5
    assert read_progress(job)[-1]["loss"] is None


def test_a_limit_below_what_is_used_fails_at_once_with_the_numbers(tmp_path: Path) -> None:
    job = replace(small_job(tmp_path / "run"), memory_limit_bytes_per_rank=64 * MIB)

    assert warm_parent().run(job) == [1]

    (error,) = _errors(job)
    assert (error["type"], error["phase"]) == ("MemoryError", "starting")
    assert "the limit is 0.0625 GiB a rank" in error["message"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_kernel_holds_a_rank_to_its_memory_limit(ranks: int, tmp_path: Path) -> None:
    """A model that needs more than 1 GiB of activations, held to a limit it passes only while
    stepping.
    """
    model = small_model(hidden=512, heads=8, kv_heads=8, ffn_hidden=2048)
    job = small_job(
        tmp_path / "run", model=model, sequence_length=256, recipe=small_recipe(data_parallel=ranks)
    )
    job = replace(job, memory_limit_bytes_per_rank=600 * MIB)

    assert 1 in warm_parent().run(job)

    error = _errors(job)[0]
    assert error["phase"] == "stepping"
    assert "can't allocate memory" in error["message"]


def test_a_limit_that_suffices_is_never_passed(tmp_path: Path) -> None:
    limit = 700 * MIB
    job = replace(small_job(tmp_path / "run"), memory_limit_bytes_per_rank=limit)

    result = run_job(job)

    assert max(result["peak_memory_bytes"]) <= limit


def test_an_old_outcome_in_the_folder_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run")
    warm_parent().run(replace(job, memory_limit_bytes_per_rank=64 * MIB))

    assert run_job(job)["status"] == "measured"


def test_the_module_runs_alone(tmp_path: Path) -> None:
    job = small_job(tmp_path / "run")
    path = prepare(job)

    command = [sys.executable, "-P", "-m", "frontrunner.evaluators.trainer", str(path)]
    subprocess.run(command, check=True, timeout=600, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"})

    assert read_result(job)["status"] == "measured"


def test_the_module_names_a_wrong_key(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text('{"version": 2, "versoin": 1}')

    command = [sys.executable, "-P", "-m", "frontrunner.evaluators.trainer", str(path)]
    done = subprocess.run(command, check=False, timeout=600, capture_output=True, text=True)

    assert done.returncode == 1
    assert "job.versoin is not a key" in done.stderr


def test_rank_imports_torch_trainer_and_spaces_alone() -> None:
    """A rank needs torch and numpy, and none of the libraries of the rest of the project."""
    program = (
        "import sys, frontrunner.evaluators.trainer.entry as entry; entry.preload();"
        " print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )

    loaded = set(done.stdout.split())
    ours = {name for name in loaded if name.startswith("frontrunner.")}
    foreign = {
        name
        for name in ours
        if not name.startswith(("frontrunner.evaluators.trainer", "frontrunner.spaces"))
    }
    assert foreign == {"frontrunner.evaluators", "frontrunner.version"}
    assert not loaded & {"pydantic", "pandas", "sqlalchemy"}
