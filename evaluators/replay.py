"""The replay: the full training run of a measured recipe, by the trainer that measured it, under torchrun."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from frontrunner.evaluators.corpus import corpus
from frontrunner.evaluators.files import read_json, tail, write_json
from frontrunner.evaluators.here import refuse_missing_engines
from frontrunner.evaluators.jobs import common_job
from frontrunner.evaluators.measure import tokens_per_step
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.evaluators.this_machine import detect
from frontrunner.evaluators.training_probe import rank_environment
from frontrunner.results.provenance import collect
from frontrunner.spaces.cluster import Cluster
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, require_at_least, require_one_of
from frontrunner.spaces.recipe import Recipe

METRICS = ("csv", "tensorboard")
POLL_S = 0.2
STOP_GRACE_S = 20.0
PR_SET_PDEATHSIG = 1
COLLECTIVE_TIMEOUT_S = 1800.0
"""A full run waits longer than a probe: writing a checkpoint may take minutes."""

OnStep = Callable[[Mapping[str, Any]], None]
"""Called with each line of progress.jsonl: an event, its step, loss and time."""


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How a replay trains.

    The learning rate rises over `warm_up_steps`, then falls along a cosine to `final_learning_rate_fraction`
    of it. `checkpoint_every_steps` None is a tenth of the run, at least 10 steps.
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
    """A replay ready to run. `differences` says how this machine is not what the recipe was measured on."""

    recipe_id: str
    recipe: Recipe
    folder: Path
    job: Mapping[str, Any]
    environment: Mapping[str, str]
    argv: tuple[str, ...]
    tokens_per_step: int
    measured_tokens_per_s: float
    differences: tuple[str, ...]

    @property
    def command(self) -> str:
        """What is run, as one line for a shell."""
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"env {variables} {shlex.join(self.argv)}"


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """A finished replay, its throughput beside the probe's; `tokens_per_s` is that of the median step."""

    recipe_id: str
    folder: Path
    final_step: int
    tokens_per_s: float
    measured_tokens_per_s: float
    final_loss: float | None
    evaluation_losses: Mapping[str, float | None]

    @property
    def ratio_to_probe(self) -> float:
        """tokens_per_s / measured_tokens_per_s."""
        return self.tokens_per_s / self.measured_tokens_per_s


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_tokens_per_s: float,
    settings: ReplaySettings,
    anyway: bool,
) -> ReplayPlan:
    """Prepare a replay in its folder's name; nothing is written but the token file, if it is not there.

    Raises `InvalidInput` if this machine differs from the one measured, unless `anyway`, if the recipe needs
    more than one node, and if its engine is not installed.
    """
    cluster = setup.problem.cluster
    differences = machine_differences(cluster, recipe, detect())
    if differences and not anyway:
        raise InvalidInput(
            f"recipe {recipe_id} was measured on other hardware: {'; '.join(differences)}",
            hint="--anyway runs it here all the same; its throughput will not be the one measured",
        )
    if recipe.devices > cluster.devices_per_node:
        raise InvalidInput(
            f"recipe {recipe_id} needs {recipe.devices} devices on nodes of {cluster.devices_per_node}: "
            "replaying over several nodes is not supported yet",
            hint="replay a recipe of one node",
        )
    refuse_missing_engines((recipe.engine,))
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
        argv=torchrun(recipe.devices, folder / "job.json"),
        tokens_per_step=tokens_per_step(recipe, setup.problem),
        measured_tokens_per_s=measured_tokens_per_s,
        differences=differences,
    )


def _train(settings: ReplaySettings) -> dict[str, Any]:
    table = asdict(settings)
    for key in ("folder", "learning_rate"):
        del table[key]
    every = settings.checkpoint_every_steps or max(10, settings.steps // 10)
    return table | {"checkpoint_every_steps": every}


def torchrun(devices: int, job: Path) -> tuple[str, ...]:
    """The command that starts the ranks of a one-node run."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices))
    return (*launcher, "-m", "frontrunner.evaluators.trainer", str(job))


def machine_differences(measured: Cluster, recipe: Recipe, here: Mapping[str, Any]) -> tuple[str, ...]:
    """How the machine at hand differs from the measured one, in words; empty where it does not."""
    found = []
    if here["backend"] != measured.backend:
        found.append(f"backend {measured.backend} there, {here['backend']} here")
    elif here["device"] != measured.device:
        found.append(f"device {measured.device} there, {here['device']} here")
    if here["backend"] != "cpu" and here["devices_per_node"] < recipe.devices:
        found.append(f"world size {recipe.devices} there, {here['devices_per_node']} devices here")
    return tuple(found)


def run(chosen: ReplayPlan, on_step: OnStep | None = None) -> ReplayResult:
    """Run a replay to its end, going on from the newest checkpoint in its folder.

    Raises `InvalidInput` if the folder holds another run, and `FrontrunnerError` with the log's end if the
    run fails; its checkpoints stay, and the same call goes on from them.
    """
    _claim(chosen)
    log = chosen.folder / "replay.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            chosen.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **chosen.environment},
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one thread here
        )
    try:
        _follow(process, chosen.folder / "progress.jsonl", on_step)
    finally:
        _end(process)
    if process.returncode != 0:
        raise FrontrunnerError(
            f"the replay ended with status {process.returncode}:\n{tail(log)}",
            hint=f"the whole log: {log}; the same command goes on from the newest checkpoint",
        )
    return _result(chosen)


def _claim(chosen: ReplayPlan) -> None:
    """Make the folder the plan's own; a folder of another job is not touched."""
    chosen.folder.mkdir(parents=True, exist_ok=True)
    job_path = chosen.folder / "job.json"
    earlier = read_json(job_path)
    if earlier is not None:
        changed = sorted(key for key in earlier if earlier[key] != chosen.job.get(key) and key != "train")
        if changed:
            raise InvalidInput(
                f"{chosen.folder} holds a run that differs in {', '.join(changed)}",
                hint="choose another folder with --folder",
            )
    (chosen.folder / "result.json").unlink(missing_ok=True)
    write_json(job_path, dict(chosen.job))
    device = str(chosen.job["device"])
    provenance = asdict(collect(device)) | {"differences": list(chosen.differences), "recipe_id": chosen.recipe_id}
    write_json(chosen.folder / "provenance.json", provenance)


def _follow(process: subprocess.Popen[bytes], progress: Path, on_step: OnStep | None) -> None:
    offset = progress.stat().st_size if progress.exists() else 0
    while True:
        ended = process.poll() is not None
        if progress.exists() and on_step is not None:
            with progress.open("rb") as file:
                file.seek(offset)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            offset += len(whole)
            for line in whole.splitlines():
                on_step(json.loads(line))
        if ended:
            return
        time.sleep(POLL_S)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have torchrun end its ranks, if it still runs."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _result(chosen: ReplayPlan) -> ReplayResult:
    result = read_json(chosen.folder / "result.json")
    if not isinstance(result, dict) or result.get("status") != "trained":
        raise FrontrunnerError(
            f"the replay's result is not that of a finished run: {result!r}"[:500],
            hint=f"see {chosen.folder / 'replay.log'}",
        )
    times = result["step_times_s"]
    speed = chosen.tokens_per_step / statistics.median(times) if times else chosen.measured_tokens_per_s
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=chosen.folder,
        final_step=result["final_step"],
        tokens_per_s=speed,
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=result.get("final_loss"),
        evaluation_losses=result.get("evaluation_losses", {}),
    )


def _die_with_parent() -> None:
    """In the forked child, before torchrun: be killed when this process is."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
