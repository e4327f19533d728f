"""Train mode under the DeepSpeed engine: the same run as the torch engine's, and going on from a
checkpoint.
"""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from frontrunner.evaluators.trainer.job import Job
from support.trainer_runs import in_train_mode, logged_losses, run_job, small_job, small_recipe

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra"
)

PIPELINE = {"pipeline_parallel": 2, "schedule": "1f1b", "micro_batch_seqs": 1}
BY_DAY = "tp2-pp2"
FORMS: dict[str, dict[str, Any]] = {
    "dp2": {"data_parallel": 2},
    "dp2-zero2": {"data_parallel": 2, "sharding": (1, 2, 2)},
    "dp2-zero3-offload-all": {
        "data_parallel": 2,
        "sharding": (2, 2, 2),
        "offload": "optimizer+parameters",
    },
    "tp2-zero3": {"tensor_parallel": 2, "data_parallel": 2, "sharding": (2, 2, 2)},
    "tp2-pp2": {"tensor_parallel": 2, **PIPELINE},
    "pp2-zero1": {**PIPELINE, "data_parallel": 2, "sharding": (1, 1, 2)},
}


def _training_job(folder: Path, recipe: dict[str, Any], *, engine: str = "deepspeed") -> Job:
    job = small_job(folder, recipe=small_recipe(**(recipe | {"engine": engine})))
    return in_train_mode(job, checkpoint_every_steps=4)


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=[] if form == BY_DAY else [pytest.mark.nightly]) for form in FORMS],
)
def test_training_is_that_of_one_torch_process_also_after_a_restart(
    form: str, tmp_path: Path
) -> None:
    alone = _training_job(tmp_path / "alone", {}, engine="torch")
    spread = _training_job(tmp_path / "spread", FORMS[form])
    expected, actual = run_job(alone), run_job(spread)

    assert logged_losses(spread) == pytest.approx(logged_losses(alone), abs=1e-5)
    assert dict(actual["evaluation_losses"]) == pytest.approx(
        dict(expected["evaluation_losses"]), abs=1e-5
    )

    uninterrupted = logged_losses(spread)
    shutil.rmtree(Path(spread.run_folder) / "checkpoints" / "step-00000008")
    resumed = run_job(spread)

    assert (resumed["resumed_step"], resumed["final_step"]) == (4, 8)
    assert logged_losses(spread) == uninterrupted
