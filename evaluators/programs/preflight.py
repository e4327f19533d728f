"""Preflight checks: whether this machine can run a campaign's probes, or one stored recipe, before
anything is written.

DeepSpeed's async_io operator, which offload to a disk needs, is compiled here, once per machine.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from frontrunner.evaluators.nodes.backends import node_source
from frontrunner.evaluators.nodes.child_processes import end_child
from frontrunner.evaluators.nodes.environment import allocation
from frontrunner.evaluators.nodes.settings import DispatchSettings, NodeSource
from frontrunner.evaluators.nodes.this_machine import detect
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.runs.files import tail
from frontrunner.evaluators.runs.measure import nodes_used
from frontrunner.evaluators.runs.settings import TORCH_DEVICES
from frontrunner.evaluators.trainer.deepspeed_disk import built_folder, is_built, is_installed
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, bad_value, installing
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

LOGGER = logging.getLogger(__name__)
Doing = Literal["replay", "profile", "launch"]
"""Running a recipe here, or only preparing it for the user's own launcher, which may start several
nodes.
"""

BUILD_TIMEOUT_S = 1800.0
BUILD_PROGRAM = "frontrunner.evaluators.trainer.deepspeed_disk"
LIBAIO_PROGRAM = "#include <libaio.h>\nint main() { return io_submit(nullptr, 0, nullptr); }\n"
ON_ROCM = (
    "build it with DeepSpeed: DS_BUILD_AIO=1 pip install --no-build-isolation --no-cache-dir"
    " deepspeed"
)
BUILD_TOOLS = (
    "install what DeepSpeed compiles it with; on Debian: apt-get install libaio-dev ninja-build g++"
)


def prepare_here(
    problem: Problem,
    dispatch: DispatchSettings,
    *,
    engines: Sequence[str],
    offloads: Sequence[str],
    fp8: Sequence[str],
) -> None:
    """Raise `InvalidInput` if probes of these engines, offloads and `fp8` cannot run here; may
    compile async_io.
    """
    cluster, is_here = problem.cluster, node_source(dispatch, problem.cluster) is None
    problem.model.require_trained()
    if cluster.backend not in TORCH_DEVICES:
        hint = 'estimates (`frontrunner plan`) and evaluator = "command" take it'
        raise bad_value(
            "cluster.backend",
            cluster.backend,
            f"one of {', '.join(TORCH_DEVICES)} for probes",
            hint=hint,
        )
    if is_here and cluster.backend != "cpu":  # a CPU cluster's devices are processes
        here = detect()
        if here["backend"] != cluster.backend:
            expected = f"{here['backend']}, which is what this machine has ({here['device']})"
            raise bad_value("cluster.backend", cluster.backend, expected)
        if here["devices_per_node"] < cluster.devices_per_node:
            expected = f"at most the {here['devices_per_node']} found here"
            raise bad_value("cluster.devices_per_node", cluster.devices_per_node, expected)
    _refuse_missing(engines, fp8)
    if is_here:
        prepare_disk(cluster, offloads)


def source_for(
    recipe_id: str, recipe: Recipe, setup: ProbeSetup, *, doing: Doing, named: str | None = None
) -> NodeSource | None:
    """Return where the nodes of one recipe come from, by the campaign's [dispatch]; None for this
    machine.

    `named` is the path of a recipe file that it is of.
    """
    cluster, dispatch = (
        setup.problem.cluster,
        replace(setup.dispatch, nodes_per_allocation=None, allocations=None),
    )
    nodes = nodes_used(recipe, setup.problem)
    held = allocation(os.environ)
    if dispatch.backend is None and nodes > 1 and (held is None or len(held.nodes) < nodes):
        here = (
            "this process is in no job"
            if held is None
            else f"{held.scheduler} job {held.job_id} has {len(held.nodes)}"
        )
        by_script = f", or by a batch script: frontrunner export {named or recipe_id} --to slurm"
        raise InvalidInput(
            f"recipe {recipe_id} needs {recipe.devices} devices on nodes of"
            f" {cluster.devices_per_node}: {here}, and its campaign requested none",
            hint=f"{doing} it in a job of {nodes} nodes (salloc, qsub -I)"
            + ("" if doing == "profile" else by_script),
        )
    return node_source(dispatch, replace(cluster, nodes=nodes))


def prepare_recipe(
    recipe_id: str,
    recipe: Recipe,
    measured: Cluster,
    source: NodeSource | None,
    *,
    doing: Doing,
    anyway: bool,
) -> tuple[str, ...]:
    """Return how this machine differs from the one measured, and prepare it; raises `InvalidInput`
    unless `anyway`.

    Nodes that a batch system has yet to provide are taken to be those of the campaign.
    """
    is_here = source is None and doing != "launch"
    differences: tuple[str, ...] = ()
    if source is None or source.held is not None:
        differences = _differences(measured, recipe, detect(measured.backend), one_node=is_here)
    if differences and not anyway:
        hint = (
            f"--anyway will {doing} it here all the same; throughput will not be that of its"
            " campaign"
        )
        raise InvalidInput(
            f"recipe {recipe_id} was measured on other hardware: {'; '.join(differences)}",
            hint=hint,
        )
    if recipe.custom_arguments():
        given = f"recipe {recipe_id} was measured with {' '.join(recipe.custom_arguments())}"
        raise InvalidInput(
            f"{given}: the built-in trainer takes no arguments",
            hint=f"{doing} it by its own trainer",
        )
    _refuse_missing((recipe.engine,), (recipe.fp8,))
    if source is None:
        prepare_disk(measured, (recipe.offload,))
    return differences


def _differences(
    measured: Cluster, recipe: Recipe, here: Mapping[str, Any], *, one_node: bool
) -> tuple[str, ...]:
    found = []
    if here["backend"] != measured.backend:
        found.append(f"backend {measured.backend} there, {here['backend']} here")
    elif here["device"] != measured.device:
        found.append(f"device {measured.device} there, {here['device']} here")
    needed = recipe.devices if one_node else min(recipe.devices, measured.devices_per_node)
    if here["backend"] != "cpu" and here["devices_per_node"] < needed:
        found.append(f"world size {needed} there, {here['devices_per_node']} devices here")
    return tuple(found)


def _refuse_missing(engines: Sequence[str], fp8: Sequence[str]) -> None:
    if "deepspeed" in engines and find_spec("deepspeed") is None:
        hint = f"run: {installing('deepspeed')}"
        raise bad_value("space.engine", "deepspeed", "an engine that is installed", hint=hint)
    chosen = next((scaling for scaling in fp8 if scaling != "none"), None)
    if chosen is not None and find_spec("torchao") is None:
        hint = f"run: {installing('frontrunner[fp8]')}"
        raise bad_value("space.fp8", chosen, "torchao, which is not installed", hint=hint)


def prepare_disk(cluster: Cluster, offloads: Sequence[str]) -> None:
    """Raise `InvalidInput` if offload `nvme`, where it is possible and among `offloads`, cannot run
    here.
    """
    if "nvme" not in offloads or cluster.nvme_path is None:
        return
    try:  # what the operator does: write past the system's cache
        with tempfile.TemporaryDirectory(prefix="frontrunner-", dir=cluster.nvme_path) as tried:
            os.close(os.open(Path(tried, "direct"), os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as error:
        expected = f"a folder on a disk that takes direct writes; here: {error.strerror}"
        raise bad_value("cluster.nvme_path", cluster.nvme_path, expected) from None
    device = TORCH_DEVICES[cluster.backend]
    if is_installed() or is_built(device):
        return
    missing = (
        _missing_tool() if cluster.backend != "rocm" else "DeepSpeed does not compile it on ROCm"
    )
    if missing is not None:
        remedy = BUILD_TOOLS if cluster.backend != "rocm" else ON_ROCM
        raise InvalidInput(
            f'space.offload = "nvme" needs DeepSpeed\'s async_io operator: {missing}', hint=remedy
        )
    _build(device)


def _missing_tool() -> str | None:
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler ({compiler})"
    if shutil.which("ninja", path=_search_path()) is None:
        return "there is no ninja"
    command = [compiler, "-x", "c++", "-", "-laio", "-o", os.devnull]
    compiled = subprocess.run(
        command, input=LIBAIO_PROGRAM, text=True, capture_output=True, check=False
    )
    return None if compiled.returncode == 0 else "there is no libaio to compile against"


def _search_path() -> str:
    """Return PATH with Python's own folder, where pip puts ninja."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def _build(device: str) -> None:
    """Compile the operator into a temporary folder, which is then renamed, once at a time per
    user.
    """
    folder = built_folder(device)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_name(f"{folder.name}.log")
    with (
        folder.with_name(f"{folder.name}.lock").open("w") as lock,
        tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as temporary,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_built(device):  # by another process, while this one waited
            return
        LOGGER.warning(
            "compiling DeepSpeed's async_io operator, once on this machine: minutes; %s", log
        )
        environment = {
            "TORCH_EXTENSIONS_DIR": temporary,
            "DS_ACCELERATOR": device,
            "PATH": _search_path(),
        }
        with log.open("wb") as output:
            command = [sys.executable, "-P", "-m", BUILD_PROGRAM]
            process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        status: int | None
        try:
            status = process.wait(timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_child(process, grace_s=0, group=True)
        if status != 0:
            wrong = f"it took more than {BUILD_TIMEOUT_S:.0f} s" if status is None else tail(log, 1)
            raise FrontrunnerError(
                f"DeepSpeed's async_io operator was not compiled: {wrong}", hint=f"see {log}"
            )
        shutil.rmtree(folder, ignore_errors=True)  # half a one, since it is not built
        Path(temporary).rename(folder)
