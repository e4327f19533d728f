"""A run's private folder for what its recipe offloads to a disk: where it is, what it takes, its removal.

The ranks make the folder. It is removed by whoever started them, when they have ended, and by the fork server if it
outlives its driver.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.recipe import Recipe

STATES = {"adamw": 2, "sgd": 1}
"""The tensors that an optimizer keeps for each parameter: two moments, or the momentum."""


def disk_folder(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> Path | None:
    """The folder of the run whose files are in `run_folder`; None where its recipe offloads nothing to a disk."""
    root = setup.problem.cluster.nvme_path
    if recipe.offload != "nvme" or root is None:
        return None
    return Path(root) / f"frontrunner-{hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()[:16]}"


def disk_table(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> dict[str, Any] | None:
    """The job's `disk`: the folder, and the most that its ranks write there together.

    That is parameters x (4 (2 + states of the optimizer) + bytes a parameter as computed): weights, gradients and
    states of the optimizer in fp32. Embedding and head are whole on each tensor-parallel rank, as AutoTP has them.
    """
    folder = disk_folder(setup, recipe, run_folder)
    if folder is None:
        return None
    model = setup.problem.model
    tables = model.parameters - model.layers * model.matmul_parameters_per_layer
    held = model.parameters + (recipe.tensor_parallel - 1) * tables
    computed_bytes = 4 if setup.problem.precision == "fp32" else 2
    bytes_per_parameter = 4 * (2 + STATES[setup.probe.optimizer]) + computed_bytes
    return {"folder": str(folder), "needed_bytes": held * bytes_per_parameter}


def remove_disk_folder(job: Mapping[str, Any]) -> None:
    """Remove the folder that a job names, if it names one and it is there."""
    if job.get("disk"):
        shutil.rmtree(job["disk"]["folder"], ignore_errors=True)
