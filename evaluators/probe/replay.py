"""Replay: the full training run of a measured recipe, by the trainer that measured it, under torchrun."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.probe import BUILT_IN_DATA, DataSettings, Schedule
from frontrunner.evaluators.probe.files import LineReader, read_json, tail, write_json
from frontrunner.evaluators.probe.job import common_job, corpus, training_data
from frontrunner.evaluators.probe.measure import tokens_per_step
from frontrunner.evaluators.probe.preflight import Doing, prepare_recipe_here
from frontrunner.evaluators.probe.processes import end_child, kill_tagged, start_child
from frontrunner.evaluators.probe.watch import rank_environment
from frontrunner.evaluators.protocol import ProbeSetup
from frontrunner.results.provenance import collect
from frontrunner.spaces.errors import (
    FrontrunnerError,
    InvalidInput,
    bad_value,
    require_above_zero,
    require_at_least,
    require_extra,
    require_one_of,
)
from frontrunner.spaces.recipe import Recipe

METRICS = ("csv", "tensorboard", "wandb")
COLLECTIVE_TIMEOUT_S = 1800.0
"""A full run waits longer than a probe: writing a checkpoint may take minutes."""
POLL_S = 0.2
STOP_GRACE_S = 20.0
REPLAY_TAG = "FRONTRUNNER_REPLAY"
"""Finds the ranks of a torchrun that was killed: it gives each rank a session of its own."""

OnStep = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How a replay trains; one that is `launched` is only prepared here, for the user's own launcher.

    By default the learning rate and the data are those of the recipe's campaign; `data` is a path, or `built-in`.
    """

    steps: int
    learning_rate: float | None = None
    warm_up_steps: int | None = None
    final_learning_rate_fraction: float | None = None
    data: str | None = None
    evaluation_every_steps: int = 50
    evaluation_batches: int = 4
    checkpoint_every_steps: int | None = None
    keep_checkpoints: int = 2
    metrics: str = "csv"
    folder: Path | None = None
    launched: bool = False

    def __post_init__(self) -> None:
        for key in ("steps", "evaluation_batches", "evaluation_every_steps", "keep_checkpoints"):
            require_at_least("replay", 1, **{key: getattr(self, key)})
        if self.warm_up_steps is not None:
            require_at_least("replay", 0, warm_up_steps=self.warm_up_steps)
        if self.checkpoint_every_steps is not None:
            require_at_least("replay", 1, checkpoint_every_steps=self.checkpoint_every_steps)
        if self.learning_rate is not None:
            require_above_zero("replay.learning_rate", self.learning_rate, "a number above 0")
        if self.data is not None and not self.data.strip():
            raise bad_value("--data", self.data, f"the path of a file, or {BUILT_IN_DATA}")
        require_one_of("replay", "metrics", self.metrics, METRICS)

    @property
    def named_data(self) -> DataSettings | None:
        """Return the data that override the campaign's, or None."""
        if self.data is None:
            return None
        return DataSettings(path=None if self.data == BUILT_IN_DATA else str(Path(self.data).absolute()))

    def following(self, schedule: Schedule) -> ReplaySettings:
        """Return the settings with the schedule's values where they state none."""
        return replace(self, **{key: value for key, value in asdict(schedule).items() if getattr(self, key) is None})

    def train_table(self) -> dict[str, Any]:
        """Return the job's `train`."""
        own = ("folder", "learning_rate", "launched", "data")
        table = asdict(self) | {"checkpoint_every_steps": self.checkpoint_every_steps or max(10, self.steps // 10)}
        return {key: value for key, value in table.items() if key not in own}


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """A replay ready to run; `differences` are those of this machine from the one measured."""

    recipe_id: str
    recipe: Recipe
    folder: Path
    job: Mapping[str, Any]
    environment: Mapping[str, str]
    argv: tuple[str, ...]
    tokens_per_step: int
    measured_tokens_per_s: float | None
    differences: tuple[str, ...]
    data: DataSettings

    @property
    def command(self) -> str:
        """Return the command as one line for a shell."""
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in self.environment.items())
        return f"env {variables} {shlex.join(self.argv)}"

    @property
    def log(self) -> Path:
        """Return the path of the output."""
        return self.folder / "replay.log"


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """A finished replay; its `tokens_per_s` is that of the median step, None if no step was left to run.

    `sustained_tokens_per_s` is that of the whole training since its last start, evaluations and checkpoints included.
    """

    recipe_id: str
    folder: Path
    final_step: int
    tokens_per_s: float | None
    sustained_tokens_per_s: float | None
    measured_tokens_per_s: float | None
    final_loss: float | None
    evaluation_losses: Mapping[int, float | None]

    @property
    def ratio_to_probe(self) -> float | None:
        """tokens_per_s / measured_tokens_per_s; None if either is unknown."""
        if self.tokens_per_s is None or self.measured_tokens_per_s is None:
            return None
        return self.tokens_per_s / self.measured_tokens_per_s


def plan(
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_tokens_per_s: float | None,
    settings: ReplaySettings,
    anyway: bool,
) -> ReplayPlan:
    """Plan a replay on the data of `setup`, and write their token file; raises as `prepare_recipe_here` does."""
    settings, cluster = settings.following(Schedule()), setup.problem.cluster
    if settings.metrics != "csv" and not settings.launched:
        require_extra(settings.metrics, settings.metrics, f'metrics = "{settings.metrics}"')
    doing: Doing = "launch" if settings.launched else "replay"
    differences = prepare_recipe_here(recipe_id, recipe, cluster, doing=doing, anyway=anyway)
    setup.work_folder.mkdir(parents=True, exist_ok=True)
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    tokens = corpus(setup.data, setup.work_folder, setup.problem)
    job = common_job(setup, recipe, folder, tokens)
    job |= {"mode": "train", "probe": None, "train": settings.train_table()}
    job["model"] = job["model"] | {"routing": "learned"}  # whatever probes measured
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
        data=setup.data,
    )


def torchrun(devices: int, devices_per_node: int, job: Path) -> tuple[str, ...]:
    """Return the command that starts the ranks of one node, or of each of several, which meet at the host of rank 0."""
    if devices <= devices_per_node:
        where: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(devices))
    else:
        counts = ("--nnodes", str(devices // devices_per_node), "--nproc-per-node", str(devices_per_node))
        where = (*counts, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST_OF_RANK_0:29500")
    return (sys.executable, "-m", "torch.distributed.run", *where, "-m", "frontrunner.evaluators.trainer", str(job))


def prepare(chosen: ReplayPlan) -> None:
    """Write the job file that the plan's command reads; raise `InvalidInput` if its folder holds another run."""
    chosen.folder.mkdir(parents=True, exist_ok=True)
    job_path = chosen.folder / "job.json"
    earlier = read_json(job_path) or {}
    changed = sorted(key for key in earlier if earlier[key] != chosen.job.get(key) and key != "train")
    if changed:
        found = f"{chosen.folder} holds a run that differs in {', '.join(changed)}"
        raise InvalidInput(found, hint="choose another folder with --folder")
    write_json(job_path, dict(chosen.job))


def run(chosen: ReplayPlan, on_step: OnStep | None = None) -> ReplayResult:
    """Run a replay to its end, from its folder's newest checkpoint; raise `FrontrunnerError` with the log's end."""
    prepare(chosen)
    with (chosen.folder / ".lock").open("w") as lock:  # held until this process ends, however it does
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or choose another folder with --folder"
            raise InvalidInput(f"a replay is running in {chosen.folder}", hint=hint) from None
        _remove_leftovers(chosen)
        (chosen.folder / "result.json").unlink(missing_ok=True)
        provenance = asdict(collect(str(chosen.job["device"]), training_data(chosen.data)))
        provenance |= {"differences": list(chosen.differences), "recipe_id": chosen.recipe_id}
        write_json(chosen.folder / "provenance.json", provenance)
        status = _train(chosen, on_step)
    result = read_json(chosen.folder / "result.json") or {}
    if status != 0 or result.get("status") != "trained":
        hint = f"the whole log: {chosen.log}; the same command continues from the newest checkpoint, if any"
        raise FrontrunnerError(f"the replay ended with status {status}:\n{tail(chosen.log)}", hint=hint)
    times, trained_s = result["step_times_s"], result["trained_time_s"]
    trained = chosen.tokens_per_step * (result["final_step"] - result["resumed_step"])
    return ReplayResult(
        recipe_id=chosen.recipe_id,
        folder=chosen.folder,
        final_step=result["final_step"],
        tokens_per_s=chosen.tokens_per_step / statistics.median(times) if times else None,
        sustained_tokens_per_s=trained / trained_s if times else None,
        measured_tokens_per_s=chosen.measured_tokens_per_s,
        final_loss=result.get("final_loss"),
        evaluation_losses=dict(result.get("evaluation_losses", [])),
    )


def _remove_leftovers(chosen: ReplayPlan) -> None:
    kill_tagged(REPLAY_TAG, str(chosen.folder), wait_s=STOP_GRACE_S)
    if chosen.job["disk"] is not None:
        shutil.rmtree(chosen.job["disk"]["folder"], ignore_errors=True)


def _train(chosen: ReplayPlan, on_step: OnStep | None) -> int:
    progress = chosen.folder / "progress.jsonl"
    events = LineReader(progress, offset=progress.stat().st_size if progress.exists() else 0)
    with chosen.log.open("ab") as output:
        environment = {**os.environ, **chosen.environment, REPLAY_TAG: str(chosen.folder)}
        process = start_child(chosen.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    has_ended = False
    try:
        while not has_ended:
            time.sleep(POLL_S)
            has_ended = process.poll() is not None
            for line in events.new_lines():
                with suppress(ValueError):  # a line that a kill has cut short is no event
                    event = json.loads(line)
                    if on_step is not None:
                        on_step(event)
    finally:
        end_child(process, grace_s=STOP_GRACE_S)
        _remove_leftovers(chosen)
    return int(process.returncode)
