"""Parsl's side of an allocation: the executor that runs steps in it, and the provider that asks for its nodes.

The executor is Parsl's MPIExecutor, used as what it is, an executor: Parsl's data-flow kernel would ask the batch
system for news but once a minute.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrunner.evaluators.cluster.sources import NodeSource
from frontrunner.spaces.errors import FrontrunnerError

if TYPE_CHECKING:
    from parsl.executors import MPIExecutor

WORKER_POOL = "process_worker_pool.py"
HEARTBEAT_S = 5
SILENCE_S = 30
"""After so long without a word from its nodes an allocation is given up, and its workers end likewise."""
COMMAND_TIMEOUT_S = 60
LOOPBACK = "127.0.0.1"
"""Where workers reach the driver in a job that is held already: they start on its own node."""

UNIQUE_PBS_NODES = """\
FRONTRUNNER_NODES="$(mktemp)"; trap 'rm -f "$FRONTRUNNER_NODES"' EXIT
awk '!seen[$0]++' "$PBS_NODEFILE" > "$FRONTRUNNER_NODES"; export PBS_NODEFILE="$FRONTRUNNER_NODES\""""
"""PBS names a node once for each of its slots; Parsl takes each line for a node."""

LSF_NODES = """\
FRONTRUNNER_NODES="$(mktemp)"; trap 'rm -f "$FRONTRUNNER_NODES"' EXIT
echo "$LSB_MCPU_HOSTS" | tr ' ' '\\n' | paste - - | awk '$2 > 1 {print $1}' > "$FRONTRUNNER_NODES"
export PBS_NODEFILE="$FRONTRUNNER_NODES\""""
"""Parsl reads nodes as PBS names them, or Slurm. The host of LSF's batch script, of one slot, computes nothing."""


def make_executor(source: NodeSource, name: str, folder: Path) -> MPIExecutor:
    """An executor for one allocation, not yet started; its files go into `folder`.

    Raises `FrontrunnerError` where Parsl's programs are not found.
    """
    from parsl.executors import MPIExecutor

    executor = MPIExecutor(
        label=name,
        provider=make_provider(source, folder),
        launch_cmd=_worker_pool(),
        address=source.settings.driver_address if source.held is None else LOOPBACK,
        max_workers_per_block=source.nodes,
        mpi_launcher="srun" if source.launcher == "srun" else "mpiexec",  # of the prefix that we do not use
        heartbeat_period=HEARTBEAT_S,
        heartbeat_threshold=SILENCE_S,
        block_error_handler=False,
        encrypted=True,
    )
    program = "frontrunner.evaluators.cluster.interchange"
    executor.interchange_launch_cmd = [sys.executable, "-P", "-m", program, str(os.getpid())]
    executor.run_dir = str(folder)
    executor.run_id = name
    return executor


def make_provider(source: NodeSource, folder: Path) -> Any:
    """What gets the nodes of one allocation; its submit scripts go into a folder of `folder`."""
    if source.held is not None:
        provider = _held(source, folder)
    else:
        provider = {"slurm": _slurm, "pbs": _pbs, "lsf": _lsf}[source.scheduler](source)
    provider.script_dir = str(folder / "submit")
    Path(provider.script_dir).mkdir(parents=True, exist_ok=True)
    return provider


def _providers() -> Any:
    """Parsl's providers, which have no types."""
    return import_module("parsl.providers")


def _on_the_first_node() -> Any:
    """What starts Parsl's workers: once, on the allocation's first node; the steps spread from there."""
    return import_module("parsl.launchers").SimpleLauncher()


def _held(source: NodeSource, folder: Path) -> Any:
    """Workers beside the driver, on nodes that the job has already."""
    if source.held is None:
        raise ValueError("no job is held")
    nodes = folder / "nodes"
    nodes.write_text("".join(f"{node}\n" for node in source.held.nodes), encoding="utf-8")
    naming = ("unset SLURM_NODELIST", f"export PBS_NODEFILE={shlex.quote(str(nodes))}")
    return _providers().LocalProvider(**_shared(source, before=naming))


def _slurm(source: NodeSource) -> Any:
    settings = source.settings
    return _providers().SlurmProvider(
        partition=settings.queue,
        account=settings.account,
        qos=settings.qos,
        constraint=settings.constraint,
        cores_per_node=settings.processors_per_node,
        exclusive=True,
        **_asked(source),
        **_shared(source),
    )


def _pbs(source: NodeSource) -> Any:
    settings = source.settings
    return _providers().PBSProProvider(
        account=settings.account,
        queue=settings.queue,
        cpus_per_node=settings.processors_per_node or 1,
        select_options=settings.select_options or "",
        **_asked(source),
        **_shared(source, after=(UNIQUE_PBS_NODES,)),
    )


def _lsf(source: NodeSource) -> Any:
    settings = source.settings
    return _providers().LSFProvider(
        project=settings.account,
        queue=settings.queue,
        **_asked(source),
        **_shared(source, after=(LSF_NODES,)),
    )


def _asked(source: NodeSource) -> dict[str, Any]:
    """What every batch system is asked for alike."""
    return {
        "walltime": source.settings.walltime,
        "scheduler_options": "\n".join(source.settings.scheduler_options),
    }


def _shared(source: NodeSource, *, before: Sequence[str] = (), after: Sequence[str] = ()) -> dict[str, Any]:
    """What every provider is told alike; `before` and `after` are shell lines around the site's own."""
    return {
        "nodes_per_block": source.nodes,
        "launcher": _on_the_first_node(),
        "worker_init": "\n".join((*before, *source.settings.worker_init, *after)),
        "cmd_timeout": COMMAND_TIMEOUT_S,
    }


def _worker_pool() -> str:
    """Parsl's own command line for its workers, with the program's whole path: nodes need not have it on theirs."""
    from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD

    beside = Path(sys.executable).parent / WORKER_POOL
    found = str(beside) if beside.exists() else shutil.which(WORKER_POOL)
    if found is None:
        raise FrontrunnerError(f"Parsl's {WORKER_POOL} is neither beside {sys.executable} nor on the PATH")
    program = shlex.join([sys.executable, found]).replace("{", "{{{{").replace("}", "}}}}")
    return DEFAULT_LAUNCH_CMD.replace(WORKER_POOL, program, 1)
