"""The job with its devices: what launchers, batch systems and torch say, put together."""

from __future__ import annotations

import pytest

from frontrunner.evaluators.nodes.environment import job_environment

GCDS = {"backend": "rocm", "device": "mi250x-gcd", "devices_per_node": 8}
ONE_GCD = GCDS | {"devices_per_node": 1}
TILES = {"backend": "xpu", "device": "pvc-tile", "devices_per_node": 12}
A100S = {"backend": "cuda", "device": "a100-40gb", "devices_per_node": 4}
CORES = {"backend": "cpu", "device": "a processor", "devices_per_node": 16}
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "frontier[00009-00010]", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
}  # fmt: skip


def test_job_environment_without_a_launcher():
    job = job_environment({}, CORES)
    assert (job.nodes, job.devices_per_node) == ((), 16)
    assert (job.stated_devices_per_node, job.masked_by, job.launched, job.allocation) == (
        None,
        None,
        None,
        None,
    )


def test_job_environment_of_a_slurm_step_that_sees_all_devices():
    job = job_environment(SRUN | {"SLURM_GPUS_ON_NODE": "8"}, GCDS)
    assert job.launched is not None
    assert (job.launched.rank, job.launched.world_size, job.launched.local_world_size) == (
        11,
        16,
        8,
    )
    assert job.nodes == ("frontier00009", "frontier00010")
    assert job.launched.master_address == "frontier00009"
    assert (job.devices_per_node, job.stated_devices_per_node) == (8, 8)


def test_devices_per_node_with_one_device_per_task():
    """`srun --gpus-per-task=1 --gpu-bind=closest`, as Frontier's guide has it: each task's only
    device is number 0.
    """
    job = job_environment(SRUN | {"ROCR_VISIBLE_DEVICES": "3"}, ONE_GCD)
    assert (job.visible_devices, job.devices_per_node, job.masked_by) == (
        1,
        8,
        "ROCR_VISIBLE_DEVICES",
    )


def test_devices_per_node_is_not_multiplied_without_a_mask():
    job = job_environment(SRUN, ONE_GCD)
    assert (job.devices_per_node, job.masked_by) == (1, None)


def test_job_environment_of_pals_on_aurora():
    told = {
        "PALS_RANKID": "13", "PMI_SIZE": "24", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "12",
        "MASTER_ADDR": "x4",
        "ZE_AFFINITY_MASK": "0.1",
    }  # fmt: skip
    job = job_environment(told, TILES | {"devices_per_node": 1})
    assert job.launched is not None
    assert (job.launched.rank, job.launched.local_rank, job.launched.master_address) == (
        13,
        1,
        "x4",
    )
    assert job.devices_per_node == 12


@pytest.mark.parametrize(
    ("text", "count"),
    [("4", 4), ("a100:4", 4), ("", None), ("a100:2,v100:2", None), ("four", None), ("٤", None)],
)
def test_stated_devices_per_node(text, count):
    assert job_environment({"SLURM_GPUS_PER_NODE": text}, A100S).stated_devices_per_node == count


def test_cpu_job_has_one_device_per_process():
    told = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "h",
            "MASTER_PORT": "5"}  # fmt: skip
    job = job_environment(told, CORES)
    assert job.launched is not None
    assert (job.devices_per_node, job.launched.master_port) == (4, 5)
