"""Node agents as children of a test: several nodes on one machine, each told its place as MPICH's
mpiexec does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from frontrunner.evaluators.nodes.agent import NodeReport, Step, StepFolder
from frontrunner.evaluators.programs.corpus import corpus
from frontrunner.evaluators.programs.jobs import probe_job
from frontrunner.evaluators.programs.ranks import rank_environment, write_job
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup


def step_of(
    one: ProbeOrder, setup: ProbeSetup, *, nodes: int, lifeline: Path, **changes: object
) -> Step:
    """A step for an order, written with its job; the ranks are spread evenly over the nodes."""
    setup.work_folder.mkdir(parents=True, exist_ok=True)
    tokens = corpus(setup.data, setup.work_folder, setup.problem)
    write_job(one, probe_job(setup, one.recipe, one.run_folder, tokens), setup)
    values: dict[str, object] = {
        "token": one.token,
        "run_folder": str(one.run_folder),
        "world_size": one.recipe.devices,
        "nodes": nodes,
        "ranks_per_node": -(-one.recipe.devices // nodes),
        "engines": ("torch",),
        "environment": rank_environment(setup),
        "deadline_s": 120.0,
        "lifeline": str(lifeline),
        "silence_s": 60.0,
    }
    step = Step(**(values | changes))  # type: ignore[arg-type]
    StepFolder(one.run_folder).prepare(nodes)
    step.write()
    return step


def command_of(step: Step) -> list[str]:
    """What a launcher starts on each node."""
    return [
        sys.executable,
        "-P",
        "-m",
        "frontrunner.evaluators.nodes.agent",
        f"{step.run_folder}/step.json",
    ]


def start_agents(step: Step) -> list[subprocess.Popen[bytes]]:
    """An agent for each node of the step."""
    started = []
    for node in range(step.nodes):
        place = {
            "PMI_RANK": str(node),
            "PMI_SIZE": str(step.nodes),
            "PMI_LOCAL_RANK": "0",
            "MPI_LOCALNRANKS": "1",
        }
        started.append(
            subprocess.Popen(command_of(step), env={**os.environ, "OMP_NUM_THREADS": "1", **place})
        )
    return started


def reports(step: Step) -> list[NodeReport]:
    """What the agents have told, of those that have told anything."""
    folder = StepFolder(Path(step.run_folder))
    return [report for node in range(step.nodes) if (report := folder.report(node)) is not None]
