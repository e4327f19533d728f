"""The jobs that the driver hands to the ranks of the built-in trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.runs.settings import TORCH_DEVICES, DataSettings, ProbeSettings
from frontrunner.evaluators.trainer.job import (
    Adaptive,
    Data,
    Disk,
    Job,
    Optimizer,
    Precision,
    Probe,
    Profile,
    Train,
)
from frontrunner.spaces.errors import InvalidInput
from frontrunner.spaces.legality import Reason, why_illegal
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

DEADLINE_SHARE = 0.8
"""Assumed: the share of a probe's deadline after which an adaptive probe takes no further optional
step.
"""
COLLECTIVE_TIMEOUT_S = 1800.0
"""A full run waits longer than a probe: writing a checkpoint may take minutes."""
OPTIMIZER_STATES = {"adamw": 2, "sgd": 1}
"""Tensors that an optimizer keeps for each parameter: two moments, or the momentum."""

MakeJob = Callable[[ProbeSetup, Recipe, Path, Sequence[Data]], Job]


def why_not_trained(recipe: Recipe, problem: Problem) -> Reason | None:
    """Return why the built-in trainer cannot run a recipe, or None.

    A recipe may come from another trainer's campaign, or from an earlier version that knew fewer
    rules.
    """
    return why_illegal(recipe, replace(problem, trainer=None))


def _job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, data: Sequence[Data]) -> Job:
    """Return a job that has neither a probe nor a training yet; raise `InvalidInput` for a model
    or a recipe that the built-in trainer does not train.
    """
    problem, settings = setup.problem, setup.probe
    problem.model.require_trained()
    reason = why_not_trained(recipe, problem)
    if reason is not None:
        raise InvalidInput(f"the built-in trainer cannot run {recipe.describe()}: {reason}")
    constants, is_adamw = settings.optimizer_constants, settings.optimizer == "adamw"
    return Job(
        mode="probe",
        model=problem.model,
        sequence_length=problem.sequence_length,
        precision=cast("Precision", problem.precision),  # which the problem has checked
        recipe=recipe,
        optimizer=Optimizer(
            name="adamw" if is_adamw else "sgd",
            learning_rate=settings.learning_rate,
            weight_decay=constants.weight_decay if is_adamw else 0.0,
            beta1=constants.beta1,
            beta2=constants.beta2,
            epsilon=constants.epsilon,
            momentum=constants.momentum,
            gradient_clip_norm=constants.gradient_clip_norm or None,
        ),
        data=data[0],
        more_data=tuple(data[1:]),
        seed=setup.seed,
        device=TORCH_DEVICES[problem.cluster.backend],
        memory_limit_bytes_per_rank=(
            problem.cluster.memory_bytes_per_device if problem.cluster.backend == "cpu" else None
        ),
        collective_timeout_s=settings.deadline_s,
        run_folder=str(run_folder),
        probe=None,
        train=None,
        disk=offload_disk(setup, recipe, run_folder),
    )


def probe_job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, data: Sequence[Data]) -> Job:
    """Return the job of a short measuring run; raises as `_job` does."""
    settings = setup.probe
    adaptive = Adaptive(
        min_measured_steps=settings.min_measured_steps,
        precision=settings.precision,
        stop_after_s=DEADLINE_SHARE * settings.deadline_s,
        best_step_time_s=None,
    )
    probe = Probe(
        warm_up_steps=settings.warm_up_steps,
        measured_steps=settings.most_steps - settings.warm_up_steps,
        adaptive=adaptive if settings.is_adaptive else None,
    )
    return replace(_job(setup, recipe, run_folder, data), probe=probe)


def with_best(job: Job, best_step_time_s: float) -> Job:
    """Return the job of a probe that, if it is adaptive, may end once it is clearly slower."""
    if job.probe is None or job.probe.adaptive is None:
        return job
    adaptive = replace(job.probe.adaptive, best_step_time_s=best_step_time_s)
    return replace(job, probe=replace(job.probe, adaptive=adaptive))


def profile_job(
    setup: ProbeSetup,
    recipe: Recipe,
    run_folder: Path,
    data: Sequence[Data],
    *,
    steps: int,
    samples_host: bool,
) -> Job:
    """Return the job of a probe that goes on to trace `steps` steps; without a memory limit, as
    profilers need some. Raises as `_job` does.
    """
    return replace(
        probe_job(setup, recipe, run_folder, data),
        profile=Profile(traced_steps=steps, sampled_steps=steps if samples_host else 0),
        memory_limit_bytes_per_rank=None,
    )


def dry_run_job(problem: Problem, probe: ProbeSettings, recipe: Recipe) -> Job:
    """Return the job of a dry run, which reads no data, writes no file and has no memory limit.

    Raises as `_job` does.
    """
    setup = ProbeSetup(
        problem=problem, probe=probe, data=DataSettings(), work_folder=Path(), seed=0
    )
    job = probe_job(setup, recipe, Path(), (Data(path="", dtype="uint32"),))
    return replace(job, memory_limit_bytes_per_rank=None)


def training_job(
    setup: ProbeSetup,
    recipe: Recipe,
    run_folder: Path,
    data: Sequence[Data],
    *,
    train: Train,
    learning_rate: float,
) -> Job:
    """Return the job of a full training run, which learns its routing however probes deal tokens.

    Raises as `_job` does.
    """
    job = _job(setup, recipe, run_folder, data)
    return replace(
        job,
        mode="train",
        train=train,
        model=job.model.with_keys(routing="learned") if job.model.mixture else job.model,
        optimizer=replace(job.optimizer, learning_rate=learning_rate),
        collective_timeout_s=COLLECTIVE_TIMEOUT_S,
    )


def disk_folder(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> Path | None:
    """Return the private folder for what a run offloads to a disk, or None; whoever starts the
    ranks removes it.
    """
    root = setup.problem.cluster.nvme_path
    if recipe.offload != "nvme" or root is None:
        return None
    digest = hashlib.sha256(str(run_folder.resolve()).encode()).hexdigest()
    return Path(root) / f"frontrunner-{digest[:16]}"


def offload_disk(setup: ProbeSetup, recipe: Recipe, run_folder: Path) -> Disk | None:
    """Return the folder and the most that all ranks together write there; None without offload to a
    disk.

    Parameters x (4 (2 + states of the optimizer) + bytes per parameter as computed), with embedding
    and head whole on each tensor-parallel rank, as AutoTP has them.
    """
    folder = disk_folder(setup, recipe, run_folder)
    if folder is None:
        return None
    model = setup.problem.model
    embeddings = model.parameters - model.matmul_parameters
    parameters = model.parameters + (recipe.tensor_parallel - 1) * embeddings
    computed_bytes = 4 if setup.problem.precision == "fp32" else 2
    bytes_per_parameter = 4 * (2 + OPTIMIZER_STATES[setup.probe.optimizer]) + computed_bytes
    return Disk(folder=str(folder), needed_bytes=parameters * bytes_per_parameter)
