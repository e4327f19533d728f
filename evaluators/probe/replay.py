"""The replay: the full training run of a measured recipe, by the trainer that measured it, under torchrun."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe.corpus import corpus
from frontrunner.evaluators.probe.here import Doing, prepare_recipe_here
from frontrunner.evaluators.probe.jobs import common_job
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.training_probe import rank_environment
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.spaces.errors import InvalidInput, require_at_least, require_one_of
from frontrunner.spaces.recipe import Recipe

METRICS = ("csv", "tensorboard")
COLLECTIVE_TIMEOUT_S = 1800.0
"""A full run waits longer than a probe: writing a checkpoint may take minutes."""


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How a replay trains.

    The learning rate rises over `warm_up_steps`, then falls along a cosine to `final_learning_rate_fraction`
    of it. `checkpoint_every_steps` None is a tenth of the run, at least 10 steps. A replay that is `launched` is only
    made ready here: somebody else's launcher starts it, on each of its nodes.
    """

    steps: int
    learning_rate: float = 3e-4
    warm_up_steps: int = 10
    final_learning_rate_fraction: float = 0.1
    evaluation_every_steps: int = 50
    evaluation_batches: int = 4
    checkpoint_every_steps: int | None = None
    keep_checkpoints: int = 2
    metrics: str = "csv"
    folder: Path | None = None
    launched: bool = False

    def __post_init__(self) -> None:
        require_at_least("replay", 1, steps=self.steps, evaluation_batches=self.evaluation_batches)
        require_at_least("replay", 1, evaluation_every_steps=self.evaluation_every_steps)
        require_at_least("replay", 1, keep_checkpoints=self.keep_checkpoints)
        require_at_least("replay", 0, warm_up_steps=self.warm_up_steps)
        if self.checkpoint_every_steps is not None:
            require_at_least("replay", 1, checkpoint_every_steps=self.checkpoint_every_steps)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InvalidInput(f"replay.learning_rate = {self.learning_rate}: expected a number above 0")
        require_one_of("replay", "metrics", self.metrics, METRICS)


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """A replay ready to run. `differences` says how this machine is not what the recipe was measured on.

    `measured_tokens_per_s` is None where no probe measured the recipe.
    """

    recipe_id: str
    recipe: Recipe
    folder: Path
    job: Mapping[str, Any]
    environment: Mapping[str, str]
    argv: tuple[str, ...]
    tokens_per_step: int
    measured_tokens_per_s: float | None
    differences: tuple[str, ...]

    @property
    def command(self) -> str:
        """What is run, as one line for a shell."""
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"env {variables} {shlex.join(self.argv)}"


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_tokens_per_s: float | None,
    settings: ReplaySettings,
    anyway: bool,
) -> ReplayPlan:
    """Prepare a replay in its folder's name; nothing is written but the token file, if it is not there.

    Raises `InvalidInput` if this machine differs from the one measured, unless `anyway`, if the recipe needs
    more than one node, unless they are `settings.launched`, and if its engine is not installed.
    """
    cluster = setup.problem.cluster
    doing: Doing = "launch" if settings.launched else "replay"
    differences = prepare_recipe_here(recipe_id, recipe, cluster, doing=doing, anyway=anyway)
    setup.work_folder.mkdir(parents=True, exist_ok=True)
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    tokens = corpus(setup.data, setup.work_folder, setup.problem)
    job = common_job(setup, recipe, folder, tokens) | {"mode": "train", "probe": None, "train": _train(settings)}
    job["collective_timeout_s"] = COLLECTIVE_TIMEOUT_S
    job["optimizer"] = job["optimizer"] | {"learning_rate": settings.learning_rate}
    return ReplayPlan(
        recipe_id=recipe_id,
        recipe=recipe,
        folder=folder,
        job=job,
        environment={"PYTHONSAFEPATH": "1", **rank_environment(setup)},
        argv=torchrun(recipe.devices, cluster.devices_per_node, folder / "job.json"),
        tokens_per_step=tokens_per_step(recipe, setup.problem),
        measured_tokens_per_s=measured_tokens_per_s,
        differences=differences,
    )


def _train(settings: ReplaySettings) -> dict[str, Any]:
    table = asdict(settings)
    for key in ("folder", "learning_rate", "launched"):
        del table[key]
    every = settings.checkpoint_every_steps or max(10, settings.steps // 10)
    return table | {"checkpoint_every_steps": every}


def torchrun(devices: int, devices_per_node: int, job: Path) -> tuple[str, ...]:
    """The command that starts the ranks: of one node, or given on each of several, which meet at the host of rank 0."""
    if devices <= devices_per_node:
        where: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(devices))
    else:
        counts = ("--nnodes", str(devices // devices_per_node), "--nproc-per-node", str(devices_per_node))
        where = (*counts, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST_OF_RANK_0:29500")
    return (sys.executable, "-m", "torch.distributed.run", *where, "-m", "frontrunner.evaluators.trainer", str(job))
