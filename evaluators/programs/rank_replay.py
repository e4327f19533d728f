"""Replay: the full training run of a measured recipe, by the built-in trainer."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from frontrunner.evaluators.nodes.base import Processes, Start
from frontrunner.evaluators.nodes.fork_server import ProcessKind, ServerSettings
from frontrunner.evaluators.programs.corpus import corpus, holds_bytes, training_data
from frontrunner.evaluators.programs.jobs import COLLECTIVE_TIMEOUT_S, disk_folder, training_job
from frontrunner.evaluators.programs.preflight import Doing, prepare_recipe, source_for
from frontrunner.evaluators.programs.ranks import RankWatch, rank_environment, rank_server
from frontrunner.evaluators.protocol import ProbeOrder, ProbeSetup
from frontrunner.evaluators.runs.files import LineReader, read_json, write_json, write_text
from frontrunner.evaluators.runs.measure import tokens_per_step
from frontrunner.evaluators.runs.run_folder import RunFolder, StepCounter
from frontrunner.evaluators.runs.settings import Schedule
from frontrunner.evaluators.runs.starts import LONGEST_RUN_S, Cause, Ending, Starts
from frontrunner.evaluators.runs.training import (
    OnEvent,
    PlannedReplay,
    ReplayResult,
    ReplaySettings,
    ReplayStopped,
    RunFollower,
    ThroughputWatch,
    alone,
    nodes_of,
    with_walltime,
)
from frontrunner.evaluators.trainer.job import Data, Job, complete_steps
from frontrunner.results.outcome import FailureKind
from frontrunner.results.provenance import collect
from frontrunner.spaces.errors import FrontrunnerError, InvalidInput, bad_value, require_extra
from frontrunner.spaces.recipe import Recipe

STOP_MARGIN_S = 20.0
"""Assumed: what ranks take to notice a stop and to end, beside the checkpoint."""
CHECKPOINTS_S = 3.0
"""Assumed: a checkpoint takes at most this many times the longest before it."""
SETTLED = {"trained": Ending.DONE, "not-finite": Ending.DONE, "stopped": Ending.STOPPED}
"""How a start has ended, by the status that its ranks have written."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan(PlannedReplay):
    """A replay by our own trainer; `differences` are those of this machine from the one
    measured.
    """

    job: Job
    environment: Mapping[str, str]
    argv: tuple[str, ...]
    tokens_per_step: int
    differences: tuple[str, ...]
    stop_margin_s: float | None

    @property
    def command(self) -> str:
        """Return the command as one line for a shell."""
        variables = " ".join(
            f"{key}={shlex.quote(value)}" for key, value in self.environment.items()
        )
        return f"env {variables} {shlex.join(self.argv)}"

    @property
    def server(self) -> ServerSettings:
        """Return what the servers have that fork the ranks."""
        return replace(rank_server(self.setup), engines=(self.recipe.engine,))


def plan(  # noqa: PLR0913 - of what, and how it trains
    *,
    recipe_id: str,
    recipe: Recipe,
    setup: ProbeSetup,
    measured_tokens_per_s: float | None,
    settings: ReplaySettings,
    anyway: bool,
    named: str | None = None,
) -> ReplayPlan:
    """Plan a replay on the data of `setup`, and write their token file; raises as `prepare_recipe`
    does.

    `named` is the path of the recipe's file, where it is of one.
    """
    schedule, cluster = settings.schedule(Schedule()), setup.problem.cluster
    if settings.metrics != "csv" and not settings.launched:
        require_extra(settings.metrics, settings.metrics, f'metrics = "{settings.metrics}"')
    doing: Doing = "launch" if settings.launched else "replay"
    source = None
    if not settings.launched:
        setup = with_walltime(setup, settings.walltime)
        source = source_for(recipe_id, recipe, setup, doing=doing, named=named)
        if not setup.dispatch.shares_files:
            expected = "true for replays, whose checkpoints all nodes write to one folder"
            hint = (
                "keep run folders on a volume that the nodes share, or export the recipe to another"
                " launcher"
            )
            raise bad_value(
                "dispatch.shared_files", setup.dispatch.shared_files, expected, hint=hint
            )
    differences = prepare_recipe(recipe_id, recipe, cluster, source, doing=doing, anyway=anyway)
    setup.work_folder.mkdir(parents=True, exist_ok=True)
    folder = (settings.folder or setup.work_folder.parent / "replays" / recipe_id).resolve()
    tokens = corpus(setup.data, setup.work_folder, setup.problem)
    job = training_job(
        setup,
        recipe,
        folder,
        tokens,
        train=settings.train(schedule),
        learning_rate=schedule.learning_rate,
    )
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
        setup=setup,
        source=source,
        restarts=settings.restarts,
        stop_margin_s=settings.stop_margin_s,
    )


def torchrun(devices: int, devices_per_node: int, job: Path) -> tuple[str, ...]:
    """Return the command that starts the ranks of one node, or of each of several, which meet at
    the host of rank 0.
    """
    if devices <= devices_per_node:
        where: tuple[str, ...] = ("--standalone", "--nproc-per-node", str(devices))
    else:
        counts = (
            "--nnodes",
            str(devices // devices_per_node),
            "--nproc-per-node",
            str(devices_per_node),
        )
        where = (*counts, "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST_OF_RANK_0:29500")
    return (
        sys.executable,
        "-m",
        "torch.distributed.run",
        *where,
        "-m",
        "frontrunner.evaluators.trainer",
        str(job),
    )


def prepare(chosen: ReplayPlan) -> None:
    """Write the job file that the plan's command reads; raise `InvalidInput` if its folder holds
    another run.
    """
    chosen.folder.mkdir(parents=True, exist_ok=True)
    job_path = chosen.folder / "job.json"
    if job_path.exists():
        _refuse_another_run(job_path, chosen.job)
    write_text(job_path, chosen.job.to_json())


def _refuse_another_run(job_path: Path, job: Job) -> None:
    """Raise `InvalidInput` where a folder's job is another run's than `job`, which may train on."""
    hint = "choose another folder with --folder"
    try:
        earlier = Job.from_json(job_path.read_text(encoding="utf-8"))
    except ValueError as error:
        found = f"{job_path.parent} holds a run that this version cannot continue: {error}"
        raise InvalidInput(found, hint=hint) from None
    before, now = _comparable(earlier), _comparable(job)
    changed = [name for name, value in now.items() if value != before[name]]
    if changed:
        found = f"{job_path.parent} holds a run that differs in {', '.join(sorted(changed))}"
        raise InvalidInput(found, hint=hint)


def _comparable(job: Job) -> dict[str, Any]:
    """Return what stays the same while one run goes on: all but how long it trains.

    Each campaign makes token files of text in its own folder, under names that state the content.
    """
    data = [_by_content(file) for file in (job.data, *job.more_data)]
    others = {one.name: getattr(job, one.name) for one in fields(job)}
    del others["train"], others["more_data"]
    return others | {"data": data}


def _by_content(file: Data) -> Data:
    path = Path(file.path)
    return replace(file, path=path.name) if holds_bytes(path) else file


def run(
    chosen: ReplayPlan, on_step: OnEvent | None = None, signals: Sequence[str] = ()
) -> ReplayResult:
    """Run a replay to its end, from its folder's newest checkpoint; raise `FrontrunnerError` with
    the log's end.

    Once `signals` has a name, it is stopped with a checkpoint.
    """
    prepare(chosen)
    with alone(chosen.folder):
        (chosen.folder / "result.json").unlink(missing_ok=True)
        provenance = asdict(collect(chosen.job.device, training_data(chosen.setup.data)))
        provenance |= {"differences": list(chosen.differences), "recipe_id": chosen.recipe_id}
        write_json(chosen.folder / "provenance.json", provenance)
        follower = Follower(chosen, on_step, signals)
        starts = RankStarts(chosen, follower)
        starts.run()
    result = read_json(chosen.folder / "result.json") or {}
    if result.get("status") == "stopped":
        raise ReplayStopped(
            f"stopped after step {result['final_step']}, with a checkpoint, {follower.why_stopped}",
            hint="the same command continues",
        )
    if result.get("status") == "not-finite":
        raise FrontrunnerError(
            f"the loss was not finite at step {result['final_step']}",
            hint=f"logs: {starts.folder}; {starts.goes_on}",
        )
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


class Follower(RunFollower):
    """Reads what rank 0 writes, and reports throughput far below the probe's."""

    def __init__(
        self, chosen: ReplayPlan, on_step: OnEvent | None, signals: Sequence[str] = ()
    ) -> None:
        super().__init__(chosen.folder, on_step, signals)
        progress = chosen.folder / "progress.jsonl"
        self._events = LineReader(
            progress, offset=progress.stat().st_size if progress.exists() else 0
        )
        self._stop_margin_s = chosen.stop_margin_s
        self._speed = ThroughputWatch(chosen.tokens_per_step, chosen.measured_tokens_per_s)
        self._checkpoint_s = self._longest_s = 0.0

    @property
    def needed_s(self) -> float:
        """Return what is stated, else what a checkpoint and two steps may take."""
        return (
            self._stop_margin_s
            or STOP_MARGIN_S + CHECKPOINTS_S * self._checkpoint_s + 2 * self._longest_s
        )

    def read(self) -> None:
        """Read what is new."""
        for line in self._events.new_lines():
            with suppress(ValueError):  # a line that a kill has cut short is no event
                event = json.loads(line)
                self.pass_on(event)
                if event["event"] == "built":
                    self._speed.begin()
                elif event["event"] == "checkpoint":
                    self._checkpoint_s = max(self._checkpoint_s, event["time_s"])
                elif event["event"] == "step":
                    self._longest_s = max(self._longest_s, event["time_s"])
                    if (alert := self._speed.add(event["step"], event["time_s"])) is not None:
                        self.note(**alert)


class ReplayWatch(RankWatch):
    """Follows the ranks of one start; they write to the replay's folder, but their logs to the
    start's.
    """

    def __init__(self, order: ProbeOrder, chosen: ReplayPlan, processes: Processes) -> None:
        super().__init__(order, chosen.setup, processes)
        self.written_to = RunFolder(chosen.folder)
        self._steps = StepCounter(chosen.folder)
        self._steps.advance()  # over those of earlier starts

    def find_overdue(
        self, steps_done: int, missing: str = "progress"
    ) -> tuple[FailureKind, str] | None:
        """Return that the ranks do not go on, or None."""
        if time.monotonic() - self.progressed_s < COLLECTIVE_TIMEOUT_S:
            return None
        return (
            FailureKind.HUNG,
            f"no {missing} within {COLLECTIVE_TIMEOUT_S:g} s, after {steps_done} steps",
        )


class RankStarts(Starts[ReplayWatch]):
    """Starts of our own trainer's ranks, until `result.json` is final."""

    no_progress = "without a new checkpoint"
    goes_on = "the same command continues from the newest checkpoint, if any"

    def __init__(self, chosen: ReplayPlan, follower: Follower) -> None:
        self._chosen = chosen
        self._setup = replace(
            chosen.setup,
            work_folder=chosen.folder,
            probe=replace(chosen.setup.probe, deadline_s=LONGEST_RUN_S),
        )
        super().__init__(chosen, nodes_of(chosen, self._setup), follower)

    def begin(self, order: ProbeOrder, number: int) -> ReplayWatch:
        """Start the ranks."""
        chosen = self._chosen
        write_text(order.run_folder / "job.json", chosen.job.to_json())
        self._follower.note("start", number=number, from_checkpoint=self.reached())
        start = Start(
            kind=ProcessKind.RANKS,
            scratch=disk_folder(self._setup, chosen.recipe, chosen.folder),
        )
        return ReplayWatch(order, chosen, self._nodes.start(order, start))

    def ending(self, watch: ReplayWatch) -> Ending:
        """Return the status that the ranks have written, if all of them ended well."""
        if not watch.processes.have_succeeded:
            return Ending.FAILED
        result = read_json(self._chosen.folder / "result.json") or {}
        return SETTLED.get(str(result.get("status")), Ending.FAILED)

    def cause(self, watch: ReplayWatch) -> Cause:
        """Return why the ranks ended."""
        found, log = watch.verdict()
        return Cause(found.kind, found.message, log)

    def reached(self) -> int:
        """Return the newest complete checkpoint's step."""
        return max(complete_steps(self._chosen.folder / "checkpoints"), default=0)
