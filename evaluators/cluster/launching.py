"""How a step's agents are started on its nodes. The function here runs within an allocation, on its first node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from frontrunner.evaluators.probe.descent import die_with_parent

AGENT = "frontrunner.evaluators.cluster.agent"
NODE_LIST = "PARSL_MPI_NODELIST"
"""Where Parsl names the nodes that it has set aside for a task, with commas between them."""


def launch_command(launcher: str, options: Sequence[str], nodes: Sequence[str], command: Sequence[str]) -> list[str]:
    """The arguments that start `command` once on each of these nodes.

    Each launcher is told not to bind the process to a part of its node, which is all the ranks'. Raises ValueError for
    several nodes without a launcher, and for one that is not known.
    """
    count, hosts = str(len(nodes)), ",".join(nodes)
    if launcher == "none":
        if len(nodes) > 1:
            raise ValueError(f"{count} nodes need a launcher")
        return list(command)
    if launcher == "srun":
        places = ["--nodes", count, "--ntasks", count, "--ntasks-per-node", "1", "--nodelist", hosts]
        # Overlap: the driver may itself run in a step of the job. The agents of a failed step end by themselves.
        starting = ["srun", *places, "--overlap", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=1"]
    elif launcher == "mpiexec":
        starting = ["mpiexec", "-n", count, "-ppn", "1", "-hosts", hosts]
    elif launcher == "mpirun":
        starting = ["mpirun", "-np", count, "--map-by", "ppr:1:node", "--bind-to", "none", "--host", hosts]
    elif launcher == "flux":
        starting = ["flux", "run", "-N", count, "-n", count, f"--requires=hosts:{hosts}", "-o", "cpu-affinity=off"]
    else:
        raise ValueError(f"unknown launcher {launcher!r}")
    return [*starting, *options, *command]


def run_step(step: str, launcher: str, options: Sequence[str]) -> int:
    """Run a step's agents to their end and return their launcher's exit status.

    Parsl calls it in one of its workers, which has the step's nodes in its environment. The launcher goes with the
    worker, and the agents with the launcher.
    """
    nodes = os.environ[NODE_LIST].split(",")
    path = Path(step)
    command = launch_command(launcher, options, nodes, [sys.executable, "-P", "-m", AGENT, step])
    with (path.parent / "launcher.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - a worker has one thread
        )
        return process.wait()
