"""Offload to a disk trains the model that one process does, and leaves the disk as it was.

The first test of a machine compiles DeepSpeed's operator, for minutes.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from frontrunner.evaluators.programs.preflight import prepare_disk
from frontrunner.evaluators.protocol import ProbeOrder
from frontrunner.evaluators.registry import training_probe
from frontrunner.evaluators.trainer.deepspeed_disk import check_written
from frontrunner.evaluators.trainer.job import Disk, Job
from frontrunner.results.outcome import Failure, FailureKind
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import why_illegal
from frontrunner.spaces.recipe import Sharding
from support.campaigns import order, ranks_of, setup_of, steps_written, tiny_recipe, wait_for
from support.trainer_runs import (
    in_train_mode,
    logged_losses,
    reference_losses,
    run_job,
    small_job,
    small_model,
    small_recipe,
)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(
        1800
    ),  # the first one compiles the operator: 2 minutes alone, many more beside other tests
    pytest.mark.skipif(
        importlib.util.find_spec("deepspeed") is None, reason="deepspeed is an extra"
    ),
]

ZERO_3 = {"data_parallel": 2, "sharding": (2, 2, 2), "micro_batch_seqs": 1}
MODEL = small_model(layers=2, hidden=256, ffn_hidden=2048, vocabulary=2048)
"""Large enough for its parts on two ranks to be above 1 MiB, below which DeepSpeed keeps them in
memory.
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A folder on the disk of the tests' temporary files, where the operator is at hand or can be
    compiled.
    """
    cluster = Cluster(
        name="c",
        device="d",
        backend="cpu",
        nodes=1,
        devices_per_node=2,
        memory_gib_per_device=1.0,
        nvme_path=str(tmp_path),
    )
    try:
        prepare_disk(cluster, ("nvme",))
    except InvalidInput as error:
        pytest.skip(f"{error.message}; {error.hint}")
    folder = tmp_path / "disk"
    yield Disk(folder=str(folder), needed_bytes=2**28)
    shutil.rmtree(folder, ignore_errors=True)


def _job(
    folder: Path,
    disk: Disk | None,
    *,
    offload: str = "nvme",
    clip: float | None = None,
    **recipe: Any,
) -> Job:
    chosen = small_recipe(engine="deepspeed", offload=offload, **recipe)
    job = small_job(folder, recipe=chosen, model=MODEL, disk=disk)
    return replace(
        job, optimizer=replace(job.optimizer, gradient_clip_norm=clip, learning_rate=0.02)
    )


def _files(disk: Disk) -> dict[str, int]:
    """Bytes on the disk of what belongs to the optimizer, and of parameters."""
    sizes = {"optimizer": 0, "param": 0}
    for path in Path(disk.folder).rglob("*.swp"):
        sizes["param" if "_param." in path.name else "optimizer"] += path.stat().st_size
    return sizes


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(ZERO_3, id="dp2"),
        pytest.param(ZERO_3 | {"tensor_parallel": 2, "recompute": "full"}, id="tp2-dp2-recompute"),
        pytest.param({"micro_batch_seqs": 4}, id="one-rank"),
    ],
)
def test_losses_equal_one_process(recipe: dict[str, Any], tmp_path: Path, disk: Disk) -> None:
    job = _job(tmp_path / "run", disk, **recipe)

    losses = run_job(job)["losses"]

    assert losses == pytest.approx(reference_losses(job), abs=1e-5)
    matrices = (
        4 * 2 * 3 * MODEL.hidden * MODEL.feed_forward.ffn_hidden
    )  # of the feed-forward parts, in bytes
    found = _files(disk)
    assert found["optimizer"] >= 3 * matrices  # weights, momentum, gradients
    if (
        job.recipe.tensor_parallel == 1
    ):  # of small tensor-parallel parts DeepSpeed keeps all in memory on some machines
        assert found["param"] >= matrices
    assert sum(found.values()) <= disk.needed_bytes


def test_clipped_steps_are_those_of_the_same_recipe_in_memory(tmp_path: Path, disk: Disk) -> None:
    in_memory = replace(
        _job(tmp_path / "memory", None, offload="none", clip=0.2, **ZERO_3), precision="bf16"
    )
    on_disk = replace(_job(tmp_path / "run", disk, clip=0.2, **ZERO_3), precision="bf16")

    assert run_job(on_disk)["losses"] == pytest.approx(run_job(in_memory)["losses"], abs=1e-6)


def _training(job: Job) -> Job:
    return in_train_mode(
        job, steps=4, warm_up_steps=1, evaluation_every_steps=2, evaluation_batches=1
    )


def test_training_goes_on_from_a_checkpoint_on_an_empty_disk(tmp_path: Path, disk: Disk) -> None:
    alone = _training(
        replace(_job(tmp_path / "alone", None, offload="none"), recipe=small_recipe())
    )
    spread = _training(_job(tmp_path / "spread", disk, **ZERO_3))
    expected, actual = run_job(alone), run_job(spread)
    assert logged_losses(spread) == pytest.approx(logged_losses(alone), abs=1e-5)
    assert dict(actual["evaluation_losses"]) == pytest.approx(
        dict(expected["evaluation_losses"]), abs=1e-5
    )

    uninterrupted = logged_losses(spread)
    shutil.rmtree(Path(spread.run_folder) / "checkpoints" / "step-00000004")
    shutil.rmtree(disk.folder)
    resumed = run_job(spread)

    assert (resumed["resumed_step"], resumed["final_step"]) == (2, 4)
    assert logged_losses(spread) == uninterrupted


def test_a_disk_that_took_less_than_was_written_is_found_full(tmp_path: Path) -> None:
    job = _job(tmp_path / "run", Disk(folder=str(tmp_path), needed_bytes=1), **ZERO_3)
    with (tmp_path / "0.tensor.swp").open("wb") as file:
        file.write(b"0" * 8192)
    check_written(job)
    with (tmp_path / "1.tensor.swp").open("wb") as file:
        file.truncate(2**43)  # a hole that no free space explains
    with pytest.raises(RuntimeError, match="the disk is full: offload wrote files"):
        check_written(job)


def test_a_probe_leaves_nothing_on_the_disk_whoever_is_killed(
    tmp_path: Path, disk: Disk, request: pytest.FixtureRequest
) -> None:
    folder = Path(disk.folder)
    folder.mkdir()
    shape = {"layers": 2, "hidden": 256, "heads": 4, "ffn_hidden": 2048, "vocabulary": 2048}
    endless = {"measured_steps": 1_000_000, "deadline_s": 600.0, "step_deadline_s": 300.0}
    setup = setup_of(
        tmp_path / "work", model=shape, cluster={"nvme_path": str(folder)}, probe=endless
    )
    recipe = tiny_recipe(engine="deepspeed", offload="nvme", sharding=Sharding.named("zero-3", 2))
    assert why_illegal(recipe, setup.problem) is None
    evaluator = training_probe(replace(setup, engines=("deepspeed",)))
    request.addfinalizer(evaluator.close)

    def is_stepping(one: ProbeOrder) -> bool:
        assert evaluator.finished(0.1) == []
        return steps_written(one.run_folder) >= 2

    for token, kills_server in (("00001.1", False), ("00001.2", True)):
        one = order(setup, recipe, token)
        evaluator.start(one)
        wait_for(lambda one=one: is_stepping(one))
        assert len(list(folder.rglob("*.swp"))) > 10
        rank = ranks_of(os.getpid())[0]
        psutil.Process(rank.ppid() if kills_server else rank.pid).kill()
        (ended,) = wait_for(lambda: evaluator.finished(0.2))
        assert isinstance(ended.outcome, Failure)
        assert ended.outcome.kind is FailureKind.LOST
        assert list(folder.iterdir()) == []


def test_a_disk_without_room_is_refused_before_anything_is_built(
    tmp_path: Path, disk: Disk
) -> None:
    job = _job(tmp_path / "run", replace(disk, needed_bytes=2**60), **ZERO_3)

    with pytest.raises(
        AssertionError, match=r"offload nvme needs 1073741824\.00 GiB on .*, which has .* GiB free"
    ):
        run_job(job)
