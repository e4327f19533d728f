"""Launchers and batch systems, by the variables that each of them sets."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from frontrunner.evaluators.nodes.environment import (
    FIRST_SPECIAL_STEP,
    allocation,
    expand_hosts,
    launched_rank,
)
from frontrunner.spaces.errors import InvalidInput

SLURM_JOB = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "frontier[00009-00011]",
    "SLURM_NTASKS": "24",
}
SRUN = SLURM_JOB | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "24", "SLURM_STEP_NUM_NODES": "3"}


def test_no_launcher_and_no_job_is_none():
    assert launched_rank({"HOME": "/root"}) is None
    assert allocation({"HOME": "/root"}) is None


@pytest.mark.parametrize(
    ("environment", "launcher", "place", "address"),
    [
        (
            SRUN | {"SLURM_PROCID": "17", "SLURM_LOCALID": "1",
                "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.9"},
            "srun", (17, 24, 1, 8), "frontier00009",
        ),
        (
            SRUN | {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "16",
                    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "frontier[00010-00011]"},
            "srun", (9, 16, 1, 8), "frontier00010",
        ),
        (
            SRUN | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "PMI_RANK": "1", "PMI_SIZE": "24"},
            # srun --mpi=pmi2
            "srun", (1, 24, 1, 8), "frontier00009",
        ),
        (
            SRUN | {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "6",
                    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            "open-mpi", (5, 6, 1, 2), "frontier00009",
        ),
        (
            {"PALS_RANKID": "3", "PMI_SIZE": "8", "PALS_LOCAL_RANKID": "3", "PALS_LOCAL_SIZE": "4",
             "MASTER_ADDR": "x3"},
            "mpich", (3, 8, 3, 4), "x3",
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
            "mpich", (1, 2, 1, 2),
         "127.0.0.1"),
        (
            {"FLUX_JOB_ID": "f1", "FLUX_TASK_RANK": "4", "FLUX_JOB_SIZE": "8",
                "FLUX_TASK_LOCAL_ID": "0",
             "FLUX_JOB_NNODES": "2", "FLUX_JOB_NODELIST": "tuolumne[7-8]"},
            "flux", (4, 8, 0, 4), "tuolumne7",
        ),
    ],
)  # fmt: skip
def test_each_launcher_is_read_in_its_own_words(environment, launcher, place, address):
    found = launched_rank(environment)
    assert found is not None
    assert found.launcher == launcher
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == place
    assert (found.master_address, found.master_port) == (address, 29500)
    assert found.torch_environment["RANK"] == str(place[0])
    again = launched_rank(found.torch_environment)  # what is handed on is read as the same place
    assert again is not None
    assert again.torch_environment == found.torch_environment


@pytest.mark.parametrize("step", ["", str(FIRST_SPECIAL_STEP), str(FIRST_SPECIAL_STEP + 1)])
def test_a_batch_script_and_an_interactive_shell_were_started_by_no_launcher(step):
    assert (
        launched_rank(SRUN | {"SLURM_STEP_ID": step, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"})
        is None
    )


def test_ranks_on_several_nodes_need_to_know_where_rank_0_is():
    environment = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
    with pytest.raises(InvalidInput, match="does not state where rank 0 is") as raised:
        launched_rank(environment)
    assert "MASTER_ADDR" in (raised.value.hint or "")


def test_uneven_nodes_are_refused():
    environment = SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "25"}
    with pytest.raises(
        InvalidInput,
        match="srun reports rank 0 of 25, 8 per node, local rank 0: expected equal nodes",
    ):
        launched_rank(environment)


def test_allocations_name_their_nodes(tmp_path: Path):
    nodes = tmp_path / "nodes"
    nodes.write_text("x1.polaris\nx1.polaris\nx2.polaris\n\n")
    slurm = allocation(SLURM_JOB)
    pbs = allocation({"PBS_JOBID": "9.polaris", "PBS_NODEFILE": str(nodes)})
    assert slurm is not None
    assert (slurm.scheduler, slurm.job_id) == ("slurm", "77")
    assert slurm.nodes == ("frontier00009", "frontier00010", "frontier00011")
    assert pbs is not None
    assert pbs.nodes == ("x1.polaris", "x2.polaris")


def test_a_job_that_names_no_nodes_is_no_allocation_to_use():
    assert allocation({"PBS_JOBID": "9", "PBS_NODEFILE": "/nonexistent"}) is None
    assert allocation({"SLURM_JOB_ID": "9"}) is None


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("login1", ["login1"]),
        ("a[1-3,7],b", ["a1", "a2", "a3", "a7", "b"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
    ],
)
def test_host_lists_are_expanded(text, hosts):
    assert expand_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["a[1-", "a[3-1]", "a[x]", "a,,b", "a[1-2", "a]", "a[]", "a,", "a[0-999999999]"]
)
def test_host_lists_that_cannot_be_read_are_refused(text):
    with pytest.raises(InvalidInput, match="host list"):
        expand_hosts(text)


@pytest.mark.skipif(
    shutil.which("scontrol") is None, reason="Slurm's own expansion is not installed"
)
def test_host_lists_are_expanded_as_slurm_does():
    choose = random.Random(1)
    for _ in range(20):
        first, more = choose.randint(0, 120), choose.randint(0, 12)
        text = f"n[{first:03d}-{first + more:03d},{first + more + 5}]x[1-2],login"
        done = subprocess.run(
            ["scontrol", "show", "hostnames", text], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"Slurm is installed, but not set up: {done.stderr.strip()}")
        assert expand_hosts(text) == done.stdout.split()
