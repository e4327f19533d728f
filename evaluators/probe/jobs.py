"""The job that the trainer's ranks read: problem, recipe and settings in plain JSON.

`trainer/job.py` documents and checks the format.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.corpus import Corpus
from frontrunner.evaluators.probe.disk import disk_table
from frontrunner.evaluators.probe.settings import DataSettings, ProbeSettings
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.problem import Problem
from frontrunner.spaces.recipe import Recipe

JOB_VERSION = 2
DEADLINE_SHARE = 0.8
"""Assumed: the share of a probe's deadline after which an adaptive one takes no step that it can do without."""
TORCH_DEVICES = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "xpu": "xpu"}
"""The name under which torch knows a cluster's backend; ROCm devices answer to `cuda`."""

WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.95)
MOMENTUM = 0.9
"""Optimizer settings of GPT-3 (arXiv 2005.14165, appendix B); momentum is for SGD."""


def common_job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus) -> dict[str, Any]:
    """What a probe's job and a replay's have in common."""
    cluster = setup.problem.cluster
    limited = cluster.backend == "cpu"
    return {
        "version": JOB_VERSION,
        "model": asdict(setup.problem.model),
        "sequence_length": setup.problem.sequence_length,
        "precision": setup.problem.precision,
        "recipe": _plain(recipe),
        "optimizer": {
            "name": setup.probe.optimizer,
            "learning_rate": setup.probe.learning_rate,
            "weight_decay": WEIGHT_DECAY if setup.probe.optimizer == "adamw" else 0.0,
            "beta1": BETAS[0],
            "beta2": BETAS[1],
            "momentum": MOMENTUM,
            "gradient_clip_norm": 1.0,
        },
        "data": {"path": str(tokens.path), "dtype": tokens.dtype},
        "seed": setup.seed,
        "device": TORCH_DEVICES[cluster.backend],
        "memory_limit_bytes_per_rank": cluster.memory_bytes_per_device if limited else None,
        "collective_timeout_s": setup.probe.deadline_s,
        "run_folder": str(run_folder),
        "disk": disk_table(setup, recipe, run_folder),
    }


def _plain(recipe: Recipe) -> dict[str, Any]:
    # A list, as JSON gives it back: a replay that goes on compares its job with the one in its folder.
    return asdict(recipe) | {"layers_per_stage": list(recipe.layers_per_stage)}


def probe_job(setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus) -> dict[str, Any]:
    """The job of a short measuring run."""
    settings = setup.probe
    probe: dict[str, Any] = {
        "warm_up_steps": settings.warm_up_steps,
        "measured_steps": settings.most_steps - settings.warm_up_steps,
    }
    if settings.is_adaptive:
        probe["adaptive"] = {
            "min_measured_steps": settings.min_measured_steps,
            "precision": settings.precision,
            "stop_after_s": DEADLINE_SHARE * settings.deadline_s,
            "best_step_time_s": None,
        }
    return common_job(setup, recipe, run_folder, tokens) | {"mode": "probe", "probe": probe, "train": None}


def aim_at(job: dict[str, Any], *, best_step_time_s: float) -> None:
    """Let an adaptive probe end once its steps are clearly slower than this; other jobs stay as they are."""
    adaptive = (job["probe"] or {}).get("adaptive")
    if adaptive is not None:
        adaptive["best_step_time_s"] = best_step_time_s


def profile_job(
    setup: ProbeSetup, recipe: Recipe, run_folder: Path, tokens: Corpus, *, steps: int, samples_host: bool
) -> dict[str, Any]:
    """A probe's job that goes on to trace `steps` steps, and to sample as many on the host.

    It has no memory limit: the profiler's own records would count against the recipe's.
    """
    profile = {"traced_steps": steps, "sampled_steps": steps if samples_host else 0}
    job = probe_job(setup, recipe, run_folder, tokens)
    return job | {"profile": profile, "memory_limit_bytes_per_rank": None}


def dry_run_job(problem: Problem, probe: ProbeSettings, recipe: Recipe) -> dict[str, Any]:
    """The job of a dry run, which reads no data, writes no file and stays within no limit."""
    setup = ProbeSetup(problem=problem, probe=probe, data=DataSettings(), work_folder=Path(), seed=0)
    job = probe_job(setup, recipe, Path(), Corpus(Path(), "uint32"))
    return job | {"memory_limit_bytes_per_rank": None}
