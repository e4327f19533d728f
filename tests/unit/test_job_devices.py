"""The job with its devices: what launchers, batch systems and torch say, put together."""

from __future__ import annotations

import pytest

from frontrunner.evaluators.cluster.environment import job_environment

GCDS = {"backend": "rocm", "device": "mi250x-gcd", "devices_per_node": 8}
ONE_GCD = GCDS | {"devices_per_node": 1}
TILES = {"backend": "xpu", "device": "pvc-tile", "devices_per_node": 12}
A100S = {"backend": "cuda", "device": "a100-40gb", "devices_per_node": 4}
CORES = {"backend": "cpu", "device": "a processor", "devices_per_node": 16}
SRUN = {
    "SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "frontier[00009-00010]", "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "11", "SLURM_LOCALID": "3",
}  # fmt: skip


def test_nothing_is_a_machine_alone():
    job = job_environment({}, CORES)
    assert (job.rank, job.world_size, job.local_rank, job.local_world_size) == (0, 1, 0, 1)
    assert (job.nodes, job.master_address, job.devices_per_node) == ((), "127.0.0.1", 16)
    assert (job.torch_device, job.collective_backend, job.collective_library) == ("cpu", "gloo", "gloo")
    assert (job.stated_devices_per_node, job.masked_by, job.launched, job.allocation) == (None, None, None, None)


@pytest.mark.parametrize(
    ("machine", "device", "backend", "library"),
    [(A100S, "cuda", "nccl", "NCCL"), (GCDS, "cuda", "nccl", "RCCL"), (TILES, "xpu", "xccl", "oneCCL")],
)
def test_each_platform_has_its_own_collectives(machine, device, backend, library):
    job = job_environment({}, machine)
    assert (job.torch_device, job.collective_backend, job.collective_library) == (device, backend, library)


def test_a_step_that_sees_all_devices_takes_the_one_of_its_place():
    job = job_environment(SRUN | {"SLURM_GPUS_ON_NODE": "8"}, GCDS)
    assert (job.rank, job.world_size, job.local_world_size) == (11, 16, 8)
    assert job.nodes == ("frontier00009", "frontier00010")
    assert job.master_address == "frontier00009"
    assert (job.devices_per_node, job.device_index, job.stated_devices_per_node) == (8, 3, 8)


def test_a_step_with_a_device_a_task_sees_one_and_its_node_has_eight():
    """`srun --gpus-per-task=1 --gpu-bind=closest`, as Frontier's guide has it: each task's only device is number 0."""
    job = job_environment(SRUN | {"ROCR_VISIBLE_DEVICES": "3"}, ONE_GCD)
    assert (job.visible_devices, job.devices_per_node, job.device_index) == (1, 8, 0)
    assert job.masked_by == "ROCR_VISIBLE_DEVICES"


def test_devices_that_are_few_because_there_are_few_are_not_multiplied():
    job = job_environment(SRUN, ONE_GCD)
    assert (job.devices_per_node, job.masked_by) == (1, None)


def test_pals_on_aurora_names_tiles_and_a_mask():
    told = {
        "PALS_RANKID": "13", "PMI_SIZE": "24", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "12", "MASTER_ADDR": "x4",
        "ZE_AFFINITY_MASK": "0.1",
    }  # fmt: skip
    job = job_environment(told, TILES | {"devices_per_node": 1})
    assert (job.rank, job.local_rank, job.master_address) == (13, 1, "x4")
    assert (job.devices_per_node, job.device_index) == (12, 0)


@pytest.mark.parametrize(
    ("text", "count"), [("4", 4), ("a100:4", 4), ("", None), ("a100:2,v100:2", None), ("four", None), ("٤", None)]
)
def test_devices_of_a_node_in_slurm_s_words(text, count):
    assert job_environment({"SLURM_GPUS_PER_NODE": text}, A100S).stated_devices_per_node == count


def test_a_cpu_job_has_a_device_a_process():
    told = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "h",
            "MASTER_PORT": "5"}  # fmt: skip
    job = job_environment(told, CORES)
    assert (job.devices_per_node, job.master_port) == (4, 5)
