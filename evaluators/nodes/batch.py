"""Batch systems: Parsl's executor for one allocation, and how steps start on its nodes.

The executor is Parsl's, without Parsl's data-flow kernel, which would query the batch system only
once a minute. Its workers are on the allocation's first node. Which nodes a step gets is the pool's
choice: Parsl's MPI mode takes the next ones and passes over none. `python -P -m
frontrunner.evaluators.nodes.batch DRIVER_PID` runs Parsl's interchange, which passes tasks to the
nodes: on its own it would outlive a driver that is killed, and end with one that is interrupted at
a terminal.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.nodes.agent import Step
from frontrunner.evaluators.nodes.child_processes import die_with_parent, start_child
from frontrunner.evaluators.nodes.settings import LAUNCHERS, SCHEDULERS, NodeSource
from frontrunner.spaces.errors import FrontrunnerError

if TYPE_CHECKING:
    from parsl.executors import HighThroughputExecutor

WORKER_POOL = "process_worker_pool.py"
HEARTBEAT_S = 5
SILENCE_S = 30
"""After this long without a heartbeat from its nodes an allocation is given up, and its workers end
as well.
"""
COMMAND_TIMEOUT_S = 60
LOOPBACK = "127.0.0.1"
"""Where workers reach the driver in a job that is held already: they start on its own node."""

UNIQUE_PBS_NODES = """\
FRONTRUNNER_NODES="$(mktemp)"; trap 'rm -f "$FRONTRUNNER_NODES"' EXIT
awk '!seen[$0]++' "$PBS_NODEFILE" > "$FRONTRUNNER_NODES"; export PBS_NODEFILE="$FRONTRUNNER_NODES\""""  # noqa: E501
"""PBS names a node once for each of its slots; Parsl takes each line for a node."""


def launch_command(
    launcher: str, options: Sequence[str], nodes: Sequence[str], command: Sequence[str]
) -> list[str]:
    """Return the arguments that start `command` once on each of these nodes; "none" starts it on a
    single one.
    """
    if launcher == "none" and len(nodes) > 1:
        raise ValueError(f"{len(nodes)} nodes need a launcher")
    start = LAUNCHERS[launcher].format(count=len(nodes), hosts=",".join(nodes))
    return [*start.split(), *options, *command] if start else list(command)


def run_step(step: str, launcher: str, options: Sequence[str]) -> int:
    """Run a step's agents, from a Parsl worker on its allocation's first node; return their
    launcher's exit status.
    """
    order = Step.read(Path(step))
    command = launch_command(
        launcher, options, order.hosts, [sys.executable, "-P", "-m", order.agent, step]
    )
    with (Path(step).parent / "launcher.log").open("ab") as log:
        return start_child(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log).wait()


def node_names() -> tuple[str, ...]:
    """Return the names of the allocation's nodes, from a Parsl worker on the first of them."""
    from parsl.executors.high_throughput.mpi_resource_management import (
        get_nodes_in_batchjob,
        identify_scheduler,
    )

    return tuple(dict.fromkeys(get_nodes_in_batchjob(identify_scheduler())))


def make_executor(source: NodeSource, name: str, folder: Path) -> HighThroughputExecutor:
    """Return an executor for one allocation, not yet started; its files go into `folder`."""
    from parsl.executors import HighThroughputExecutor

    executor = HighThroughputExecutor(
        label=name,
        provider=make_provider(source, folder),
        launch_cmd=_worker_pool(),
        address=source.settings.driver_address if source.held is None else LOOPBACK,
        cores_per_worker=1e-9,  # a worker only waits for its launcher
        max_workers_per_node=source.nodes,
        heartbeat_period=HEARTBEAT_S,
        heartbeat_threshold=SILENCE_S,
        block_error_handler=False,
        encrypted=True,
    )
    executor.interchange_launch_cmd = [
        sys.executable,
        "-P",
        "-m",
        "frontrunner.evaluators.nodes.batch",
    ]
    executor.interchange_launch_cmd.append(str(os.getpid()))
    executor.run_dir = str(folder)
    executor.run_id = name
    return executor


def make_provider(source: NodeSource, folder: Path) -> Any:
    """Return the Parsl provider of one allocation; its submit scripts go into a folder of
    `folder`.
    """
    settings, before, after = source.settings, "", ""
    name, request = "LocalProvider", dict[str, Any]()
    if source.held is not None:
        nodes = folder / "nodes"
        nodes.write_text("".join(f"{node}\n" for node in source.held.nodes), encoding="utf-8")
        before = f"unset SLURM_NODELIST\nexport PBS_NODEFILE={shlex.quote(str(nodes))}"
    else:
        name, _, keys = SCHEDULERS[source.scheduler]
        after = UNIQUE_PBS_NODES if source.scheduler == "pbs" else ""
        request = {theirs: getattr(settings, ours) for ours, theirs in keys.items()}
        request = {key: value for key, value in request.items() if value is not None}
        options = list(settings.scheduler_options)
        if source.excluded and source.scheduler == "slurm":
            options.append(f"#SBATCH --exclude={','.join(source.excluded)}")
        request |= {"walltime": settings.walltime, "scheduler_options": "\n".join(options)}
    provider = getattr(import_module("parsl.providers"), name)(  # which has no types
        nodes_per_block=source.nodes,
        # Start Parsl's workers once, on the allocation's first node; the steps spread from there.
        launcher=import_module("parsl.launchers").SimpleLauncher(),
        worker_init="\n".join(filter(None, (before, *settings.worker_init, after))),
        cmd_timeout=COMMAND_TIMEOUT_S,
        **request,
    )
    provider.script_dir = str(folder / "submit")
    Path(provider.script_dir).mkdir(parents=True, exist_ok=True)
    return provider


def _worker_pool() -> str:
    """Return Parsl's command line for its workers with the program's full path, which need not be
    on a node's PATH.
    """
    from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD

    sibling = Path(sys.executable).parent / WORKER_POOL
    found = str(sibling) if sibling.exists() else shutil.which(WORKER_POOL)
    if found is None:
        raise FrontrunnerError(
            f"Parsl's {WORKER_POOL} is neither next to {sys.executable} nor on the PATH"
        )
    program = shlex.join([sys.executable, found]).replace("{", "{{{{").replace("}", "}}}}")
    return DEFAULT_LAUNCH_CMD.replace(WORKER_POOL, program, 1)


if __name__ == "__main__":  # Parsl sends the interchange's settings on stdin
    die_with_parent(int(sys.argv.pop(1)))
    os.setsid()
    runpy.run_module(
        "parsl.executors.high_throughput.interchange", run_name="__main__", alter_sys=True
    )
