"""A few recipes that together hold most pairs of choices train as one process does: see test_numerics."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Probe
from frontrunner.spaces.recipe import LOOPED_SCHEDULES
from frontrunner.spaces.space import Space
from support.small_space import most_covering
from support.trainer_runs import reference_losses, run_job, small_job, small_recipe

pytestmark = pytest.mark.smoke

TOLERANCE = 1e-5
THREE_STEPS = Probe(warm_up_steps=1, measured_steps=2)
SPACE = Space(
    devices=(2, 4),
    tensor_parallel=(1, 2),
    pipeline_parallel=(1, 2),
    context_parallel=(1, 2),
    virtual_stages=(1, 2),
    schedule=("gpipe", "1f1b", *LOOPED_SCHEDULES),
    sharding=("none", "zero-1", "zero-2", "zero-3", "hybrid-2", "3-level-1/2"),
    recompute=("none", "full", "selective"),
    sequence_parallel=(False, True),
    replication=("replicate", "ddp"),
    gradient_sync=("last", "each"),
)
CHOSEN = most_covering(SPACE, 16)
ZERO_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
DEEPSPEED = {
    "zero-3": ZERO_3,
    "tensor-zero-1": {"tensor_parallel": 2, "data_parallel": 2, "sharding": (1, 1, 2), "micro_batch_seqs": 1},
    "pipeline": {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1},
}


def assert_losses_equal_one_process(folder: Path, recipe: dict[str, Any]) -> None:
    job = small_job(folder / "run", recipe=small_recipe(**recipe), probe=THREE_STEPS)
    job = replace(job, optimizer=replace(job.optimizer, gradient_clip_norm=0.2))

    assert run_job(job)["losses"] == pytest.approx(reference_losses(job), abs=TOLERANCE)


@pytest.mark.parametrize("recipe", CHOSEN.values(), ids=CHOSEN)
def test_torch_engine_trains_the_right_model(recipe: dict[str, Any], tmp_path: Path) -> None:
    assert_losses_equal_one_process(tmp_path, recipe)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra")
@pytest.mark.parametrize("recipe", DEEPSPEED.values(), ids=DEEPSPEED)
def test_deepspeed_engine_trains_the_right_model(recipe: dict[str, Any], tmp_path: Path) -> None:
    assert_losses_equal_one_process(tmp_path, {"engine": "deepspeed"} | recipe)
