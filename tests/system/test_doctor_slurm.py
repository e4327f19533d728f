"""Roll calls under Slurm itself: a step of two nodes on a real cluster of this machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.campaigns import command, environment, is_alive, wait_for
from support.collective_tests import ranks_of_cluster
from support.slurm import SlurmCluster, missing_programs, slurm_cluster

pytestmark = [
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"Slurm is not installed: {', '.join(missing_programs())}"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def started(cluster: SlurmCluster, folder: Path) -> subprocess.Popen[str]:
    """A step with a rank on each node. Both nodes are this machine, so the ranks are told where
    they meet.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = (
        environment() | cluster.environment | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    )
    called = ["srun", "-N2", "-n2", "--mpi=none", *command("doctor", "--run", "--json")]
    return subprocess.Popen(
        called, cwd=folder, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


@pytest.mark.nightly
def test_a_step_of_two_nodes_adds_up(cluster: SlurmCluster, tmp_path: Path) -> None:
    output, errors = started(cluster, tmp_path).communicate(timeout=600)
    checks = {check["name"]: check for check in json.loads(output)["checks"]}
    assert checks["launcher"]["found"].startswith("srun: rank 0 of 2, 1 per node"), errors
    assert checks["allocation"]["found"].endswith(f"2 nodes, {', '.join(cluster.nodes)}")
    assert checks["scheduler"]["found"].startswith("slurm: slurm")
    assert checks["all-reduce"]["found"] == "2 ranks, cpu: all arrived, all sums are right"


@pytest.mark.nightly
def test_a_rank_of_a_step_that_is_killed_is_named_by_the_other_node(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    process = started(cluster, tmp_path)
    conf = cluster.environment["SLURM_CONF"]
    ranks = wait_for(lambda: found if len(found := ranks_of_cluster(conf)) == 2 else None)
    victim = next(rank for rank in ranks if rank.environ()["SLURM_PROCID"] == "1")
    os.kill(victim.pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=600)

    assert process.returncode == 1, errors
    (check,) = (check for check in json.loads(output)["checks"] if check["section"] == "ranks")
    assert check["found"].startswith("rank 1")
    assert check["found"].endswith("was killed by SIGKILL")
    assert not any(map(is_alive, ranks))
